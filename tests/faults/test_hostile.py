"""A checkpoint that would run code is refused by fairseq's own programs, and nothing runs."""

import os
from pathlib import Path
from typing import Any, Callable, Tuple

import pytest
import torch

from powernorm_fairseq.safe_load import has_native_allow_list, load_checkpoint
from tests.faults.conftest import Uninterrupted
from tests.faults.processes import Warm
from tests.faults.programs import Run
from tests.models.training import USER_DIR


class Hostile:
    """Pickled as a call of ``os.mkdir``."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Tuple[Any, Tuple[str]]:
        return os.mkdir, (str(self.victim),)


def poison(source: Path, target: Path, victim: Path, zipped: bool) -> None:
    """A good checkpoint with something hostile in it."""
    state = load_checkpoint(source)
    state["extra_state"]["best"] = Hostile(victim)
    torch.save(state, str(target), _use_new_zipfile_serialization=zipped)


def generation(data: Path, model: Path, folder: Path) -> Run:
    arguments = [str(data), "--user-dir", USER_DIR, "--path", str(model), "--cpu", "--num-workers", "0"]
    return Run("generate", arguments, folder, folder.with_suffix(".log"), folder.with_suffix(".journal"))


@pytest.mark.parametrize("zipped", [True, False])
def test_training_refuses_it(
    warm: Warm,
    uninterrupted: Callable[[str], Uninterrupted],
    tmp_path: Path,
    zipped: bool,
    figures: Callable[..., None],
) -> None:
    whole, folder, victim = uninterrupted("pn"), tmp_path / "save", tmp_path / "victim"
    folder.mkdir()
    poison(whole.folder / "checkpoint_last.pt", folder / "checkpoint_last.pt", victim, zipped)
    content = (folder / "checkpoint_last.pt").read_bytes()
    child = warm.start(whole.training.run(folder))
    assert child.wait() == 1
    assert "checkpoint_last.pt was refused: posix.mkdir is not allowed in a checkpoint" in child.log()
    assert not victim.exists()
    assert (folder / "checkpoint_last.pt").read_bytes() == content and len(list(folder.iterdir())) == 1
    assert not any(line.startswith("update") for line in child.journal())
    figures(hostile_checkpoints_refused=1)


@pytest.mark.skipif(not has_native_allow_list(), reason="fairseq reads checkpoints unprotected with this torch")
@pytest.mark.parametrize("zipped", [True, False])
def test_generation_and_finetuning_refuse_it(
    warm: Warm,
    uninterrupted: Callable[[str], Uninterrupted],
    toy_data: Path,
    tmp_path: Path,
    zipped: bool,
    figures: Callable[..., None],
) -> None:
    whole, folder, victim = uninterrupted("pn"), tmp_path / "save", tmp_path / "victim"
    folder.mkdir()
    evil = folder / "model.pt"
    poison(whole.folder / "checkpoint_last.pt", evil, victim, zipped)
    generate = generation(toy_data, evil, tmp_path / "generate")
    train = whole.training.run(folder)
    train.arguments.checkpoint.restore_file = str(evil)
    for run in (generate, train):
        child = warm.start(run)
        assert child.wait() == 1
        assert "mkdir" in child.log() and "UnpicklingError" in child.log()
        assert not victim.exists()
    figures(hostile_checkpoints_refused=2)


def test_the_same_checkpoint_without_the_hostile_part_is_taken(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], toy_data: Path, tmp_path: Path
) -> None:
    """So that the tests above fail for no other reason."""
    path = uninterrupted("pn").folder / "checkpoint_last.pt"
    child = warm.complete(generation(toy_data, path, tmp_path / "generate"))
    assert "Generate test with beam=5: BLEU4" in child.log()
