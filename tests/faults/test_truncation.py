"""A damaged ``checkpoint_last.pt``: the training goes on from the checkpoint before it, and says so."""

import random
from pathlib import Path
from typing import Callable, List

import torch

from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import mend_last_checkpoint, readable
from tests.faults.conftest import Uninterrupted
from tests.faults.processes import Warm
from tests.faults.programs import Fault
from tests.faults.training import assert_same_files

LENGTHS = 100
LENGTHS_LONG = 2000


def save(path: Path, updates: int) -> Path:
    torch.save({"model": {"w": torch.arange(2000)}, "optimizer_history": [{"num_updates": updates}]}, str(path))
    return path


def test_every_length_falls_back(tmp_path: Path, long: bool, figures: Callable[..., None]) -> None:
    content = save(tmp_path / "checkpoint_last.pt", 7).read_bytes()
    save(tmp_path / "checkpoint_1_6.pt", 6)
    last, generator = tmp_path / "checkpoint_last.pt", random.Random(1)
    lengths = generator.sample(range(len(content)), LENGTHS_LONG if long else LENGTHS)
    for length in [*range(9), len(content) - 1, *lengths]:
        last.write_bytes(content[:length])
        said: List[str] = []
        assert mend_last_checkpoint(tmp_path, said.append) == tmp_path / "checkpoint_1_6.pt"
        assert said == [f"{last} is damaged; training goes on from checkpoint_1_6.pt"]
        assert last.read_bytes() == (tmp_path / "checkpoint_1_6.pt").read_bytes()
    last.write_bytes(content)
    assert mend_last_checkpoint(tmp_path, said.append) == last and len(said) == 1
    figures(truncated_last_checkpoints_that_fell_back=len(lengths) + 10)


def test_an_altered_byte_falls_back(tmp_path: Path) -> None:
    """torch reads such a file without a word; and where a disk loses power, blocks of zeros are usual."""
    last = save(tmp_path / "checkpoint_last.pt", 7)
    save(tmp_path / "checkpoint1.pt", 5)
    content = bytearray(last.read_bytes())
    position = content.index((999).to_bytes(8, "little"))
    content[position] ^= 1
    last.write_bytes(content)
    assert torch.load(str(last))["model"]["w"][999] == 998
    assert mend_last_checkpoint(tmp_path, lambda message: None) == tmp_path / "checkpoint1.pt"


def test_the_newest_whole_checkpoint_is_chosen(tmp_path: Path) -> None:
    for updates, name in ((3, "_1_3"), (10, "1"), (12, "_2_12"), (15, "_2_15"), (12, "_best")):
        save(tmp_path / f"checkpoint{name}.pt", updates)
    cut = tmp_path / "checkpoint_2_15.pt"
    cut.write_bytes(cut.read_bytes()[:-100])
    for stranger in ("checkpoint_avg.pt", "checkpoint.average5.pt", "checkpoint_2_99.pt.old"):
        save(tmp_path / stranger, 99)  # an average cannot be resumed from
    (tmp_path / "checkpoint_last.pt").write_bytes(b"")
    assert mend_last_checkpoint(tmp_path, lambda message: None) == tmp_path / "checkpoint_2_12.pt"


def test_best_is_better_than_nothing(tmp_path: Path) -> None:
    """With ``--no-epoch-checkpoints`` there is no other."""
    save(tmp_path / "checkpoint_best.pt", 5)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    assert mend_last_checkpoint(tmp_path, lambda message: None) == tmp_path / "checkpoint_best.pt"
    assert readable(tmp_path / "checkpoint_last.pt")


def test_nothing_whole_means_a_new_start(tmp_path: Path) -> None:
    said: List[str] = []
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    assert mend_last_checkpoint(tmp_path, said.append) is None
    assert "training starts anew" in said[0] and not list(tmp_path.iterdir())
    assert mend_last_checkpoint(tmp_path, said.append) is None and len(said) == 1


def test_a_training_killed_in_its_first_save_goes_on(tmp_path: Path) -> None:
    said: List[str] = []
    save(tmp_path / "checkpoint_1_3.pt", 3)
    (tmp_path / "checkpoint_last.pt.tmp").write_bytes(b"PK")
    (tmp_path / "checkpoint_avg.pt.tmp").write_bytes(b"PK")  # somebody else's
    assert mend_last_checkpoint(tmp_path, said.append) == tmp_path / "checkpoint_1_3.pt"
    assert "is missing; training goes on from checkpoint_1_3.pt" in said[0]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint_1_3.pt", "checkpoint_avg.pt.tmp", "checkpoint_last.pt"]


def test_fairseq_train_falls_back_and_ends_as_if_nothing_had_happened(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path
) -> None:
    whole, folder = uninterrupted("pn"), tmp_path / "save"
    warm.start(whole.training.run(folder, Fault(line=len(whole.journal) // 2))).wait()
    last = folder / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:100_000])
    child = warm.complete(whole.training.run(folder))
    assert "checkpoint_last.pt is damaged; training goes on from" in child.log()
    assert_same_files(folder, whole.folder)
