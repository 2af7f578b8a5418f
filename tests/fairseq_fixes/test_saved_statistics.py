"""What a checkpoint holds of statistics does not depend on what else it holds, nor on the process that writes it."""

import pytest
import torch

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import train_together


@pytest.mark.parametrize("norm", [pytest.param("bn", marks=pytest.mark.slow), "pn"])
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


@pytest.mark.slow
def test_each_process_goes_on_with_its_own(toy_data, tmp_path):
    """Stopped within an epoch and gone on, two processes end as if nothing had been; on three they have the mean."""
    flags = ["--encoder-norm", "pn", "--disable-validation", "--max-tokens", 100]
    train_together(toy_data, tmp_path / "whole", 2, *flags, "--max-update", 12)
    train_together(toy_data, tmp_path / "parts", 2, *flags, "--max-update", 5)
    stopped = load_checkpoint(tmp_path / "parts" / "checkpoint_last.pt")
    each = stopped["extra_state"]["statistics_of_processes"]
    assert len(each) == 2 and not torch.equal(*each)
    train_together(toy_data, tmp_path / "parts", 2, *flags, "--max-update", 12)
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    for name, value in whole["model"].items():
        if not name.endswith("_float_tensor"):
            assert torch.equal(parts["model"][name], value), name
    train_together(toy_data, tmp_path / "parts", 3, *flags, "--max-update", 14)
    more = load_checkpoint(tmp_path / "parts" / "checkpoint_last.pt")["extra_state"]
    assert len(more["statistics_of_processes"]) == 3
