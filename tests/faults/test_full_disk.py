"""A full disk stops a training with a sentence, takes no checkpoint along, and costs nothing once there is space."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Iterator

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from powernorm_fairseq import fairseq_fixes, files, safe_save
from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import readable
from tests.faults.conftest import Uninterrupted
from tests.faults.processes import Warm
from tests.faults.programs import Fault
from tests.faults.training import assert_same_files


@pytest.fixture
def small_disk(uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path) -> Iterator[Path]:
    """A file system with room for four checkpoints, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = (uninterrupted("pn").folder / "checkpoint_last.pt").stat().st_size * 9 // 2
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "faults", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("a small disk can only be mounted by root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_training_that_cannot_save_stops_and_resumes(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path, figures: Callable[..., None]
) -> None:
    """No file may be longer than half a checkpoint: the file is cut off as by a full disk, without privileges."""
    whole, folder = uninterrupted("pn"), tmp_path / "save"
    warm.start(whole.training.run(folder, Fault(line=len(whole.journal) // 2))).wait()
    before = {path.name: path.read_bytes() for path in folder.glob("*.pt")}
    size = len(before["checkpoint_last.pt"])
    child = warm.start(whole.training.run(folder, Fault(file_size=size // 2)))
    assert child.wait() == 1
    log = child.log()
    assert "could not be written: File too large" in log and "the same command goes on from them" in log
    assert "trying again" in log
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert all(readable(path) for path in folder.iterdir())
    warm.complete(whole.training.run(folder))
    assert_same_files(folder, whole.folder)
    figures(full_disks=1)


def test_a_training_on_a_full_disk_stops_and_resumes(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], small_disk: Path, figures: Callable[..., None]
) -> None:
    """It fills up while ``checkpoint_last.pt`` is copied, or while a new checkpoint is written."""
    whole = uninterrupted("pn")
    folder = small_disk / "save"
    child = warm.start(whole.training.run(folder)._replace(log=small_disk.parent / "log"))
    assert child.wait() == 1, child.tail()
    assert "could not be written: No space left on device (it needs " in child.log()
    saved = list(folder.glob("*.pt"))
    assert saved and all(readable(path) for path in saved)
    assert sorted(saved) == sorted(folder.iterdir())
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    warm.complete(whole.training.run(folder))
    assert_same_files(folder, whole.folder)
    figures(full_disks=1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_error_that_passes_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's own second attempt writes behind the first, and nobody can read that."""
    monkeypatch.setattr(safe_save, "WAIT_SECONDS", 0)
    path = tmp_path / "checkpoint1.pt"
    files.aside(path).symlink_to("/dev/full")  # the first attempt removes it
    safe_save.save_file({"model": {"w": torch.arange(9999)}, "optimizer_history": [{"num_updates": 1}]}, path)
    assert readable(path) and not path.is_symlink() and list(tmp_path.iterdir()) == [path]


def test_fairseq_saves_and_copies_with_this_package(tmp_path: Path) -> None:
    """In a run of fairseq's own that is what loading the plugin does."""
    fairseq_fixes.install()
    before = checkpoint_utils.torch_persistent_save, PathManager.copy
    fairseq_fixes.install()
    assert (checkpoint_utils.torch_persistent_save, PathManager.copy) == before
    checkpoint_utils.torch_persistent_save({"optimizer_history": [{"num_updates": 1}]}, str(tmp_path / "a.pt"))
    (tmp_path / "b.pt").symlink_to("c.pt")
    assert PathManager.copy(str(tmp_path / "a.pt"), str(tmp_path / "b.pt"), overwrite=True)
    assert (tmp_path / "b.pt").is_symlink() and readable(tmp_path / "c.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "b.pt", "c.pt"]
