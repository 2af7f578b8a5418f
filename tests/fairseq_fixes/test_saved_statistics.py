"""What a checkpoint holds of statistics does not depend on what else it holds, nor on the process that writes it."""

import pytest
import torch

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import train_together


@pytest.mark.parametrize("norm", ["bn", "pn"])
def test_processes_agree_without_the_state_of_the_optimizer(norm, toy_data, tmp_path):
    flags = ["--encoder-norm", norm, "--max-update", 6, "--disable-validation"]
    train_together(toy_data, tmp_path / "with", 2, *flags)
    train_together(toy_data, tmp_path / "without", 2, *flags, "--no-save-optimizer-state")
    whole, slim = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("with", "without"))
    assert "last_optimizer_state" in whole and "last_optimizer_state" not in slim
    names = [name for name in whole["model"] if "running" in name]
    assert names
    for name in names:
        assert torch.equal(whole["model"][name], slim["model"][name]), name
