"""--patience goes on where it was, however fairseq's training is started; one training knows nothing of another's."""

import sys

import pytest

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import ROOT, call, program, train

MODULE = [sys.executable, "-m", "fairseq_cli.train"]


def waited(folder):
    return load_checkpoint(folder / "checkpoint_last.pt")["extra_state"]["early_stopping"]["num_runs"]


@pytest.mark.parametrize("start", [None, MODULE], ids=["fairseq-train", "python -m"])
def test_patience_is_remembered(start, toy_data, tmp_path):
    """Without a learning rate the loss stays as it is."""
    flags = ["--patience", 4, "--lr", 1e-30, "--encoder-norm", "ln"]
    train(toy_data, tmp_path, *flags, "--max-epoch", 3, start=start)
    assert waited(tmp_path) == 2
    output = train(toy_data, tmp_path, *flags, "--max-epoch", 20, start=start)
    assert "early stop since valid performance hasn't improved for last 4 runs" in output
    assert waited(tmp_path) == 4 and "begin training epoch 6" not in output


@pytest.mark.slow
def test_trainings_of_one_process_do_not_share_their_best(toy_data, tmp_path):
    """hydra's multirun, whose second training has the higher loss: it is the best of its own."""
    command = [*program("fairseq-hydra-train"), "-m", "--config-dir", ROOT / "configs", "--config-name", "demo"]
    command += ["norm=ln", f"task.data={toy_data}", "common.cpu=true", "optimization.max_update=2"]
    command += ["lr_scheduler.warmup_updates=1", "optimization.lr=[0.01],[1e-9]", "hydra.sweep.dir=sweep"]
    code, output = call(command, tmp_path)
    assert code == 0, output[-3000:]
    found = [tmp_path / "sweep" / number / "checkpoints" / "checkpoint_best.pt" for number in "01"]
    best = [load_checkpoint(file)["extra_state"] for file in found]
    assert best[0]["val_loss"] < best[1]["val_loss"] == best[1]["best"]
