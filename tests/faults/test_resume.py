"""What fairseq itself forgets when a training is resumed."""

from pathlib import Path
from typing import Callable

from tests.faults.conftest import Uninterrupted
from tests.faults.processes import Warm
from tests.faults.programs import Fault
from tests.faults.training import Training, assert_same_files, checkpoint, data_order


def test_a_finished_training_is_not_trained_any_further(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path
) -> None:
    """fairseq would make update 21 of 20; a kill between the last save and the end of the process is enough."""
    whole, folder = uninterrupted("pn"), tmp_path / "save"
    warm.complete(whole.training.run(folder))
    child = warm.complete(whole.training.run(folder))
    assert not data_order(child.journal())
    assert "nothing is left to do: the training has ended after 20 updates" in child.log()
    assert_same_files(folder, whole.folder)


def test_patience_goes_on_where_it_was(toy_data: Path, warm: Warm, tmp_path: Path) -> None:
    """Without a learning rate the loss stays as it is, and the fourth validation after the first ends the training."""
    training = Training(toy_data, "--patience", 4, "--lr", 1e-30, "--encoder-norm", "ln")
    whole, folder = tmp_path / "whole", tmp_path / "save"
    child = warm.complete(training.run(whole))
    ended = max(map(int, data_order(child.journal())))
    assert "early stop" in child.log() and ended < 19
    updates = [number for number, line in enumerate(child.journal()) if line.startswith("update ")]
    warm.start(training.run(folder, Fault(line=updates[-1]))).wait()
    assert checkpoint(folder / "checkpoint_last.pt")["extra_state"]["early_stopping"]["num_runs"] > 0
    warm.complete(training.run(folder))
    assert_same_files(folder, whole)
    assert not data_order(warm.complete(training.run(folder)).journal())  # and again: it is over
    assert_same_files(folder, whole)
