"""Trainings killed at random moments, again and again, end as if nothing had happened."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Callable, List

import pytest

from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import readable
from tests.faults.conftest import TRAININGS, Uninterrupted
from tests.faults.processes import Child, Warm
from tests.faults.programs import Fault
from tests.faults.training import assert_same_files, data_order

KILLS = 5  # for each training
KILLS_LONG = 100
KILLS_OF_A_RUN = 3  # then it may finish


def start_and_kill(warm: Warm, whole: Uninterrupted, folder: Path, how: str, generator: random.Random) -> Child:
    """Starts or resumes the training and kills it: by the clock, before some operation, or inside of a file."""
    if how == "clock":
        child = warm.start(whole.training.run(folder))
        time.sleep(generator.uniform(0, whole.seconds))
        child.kill()
        return child
    fault = Fault(line=generator.randrange(len(whole.journal) // 2))
    if how == "byte":
        files = sum(line.startswith("write checkpoint") for line in whole.journal)
        size = (whole.folder / "checkpoint_last.pt").stat().st_size
        fault = Fault(byte=(generator.randrange(files // 2), generator.randrange(1, size)))
    child = warm.start(whole.training.run(folder, fault))
    child.wait()
    return child


def moment(journal: List[str]) -> str:
    """What a process was doing, by the last line of its journal."""
    what, name = (journal or ["start -"])[-1].split()[:2]
    if name in ("-", "dummy"):  # fairseq tries whether it can write
        return "starting"
    if what == "write":
        return "copying" if name in ("checkpoint_best.pt.tmp", "checkpoint_last.pt.tmp") else "writing"
    return {"update": "training", "rename": "renaming", "remove": "deleting"}[what]


def test_a_kill_before_the_last_deletion_leaves_nothing_behind(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path
) -> None:
    whole, folder = uninterrupted("pn"), tmp_path / "run"
    assert whole.journal[-1] == "remove checkpoint1.pt"
    assert warm.start(whole.training.run(folder, Fault(line=len(whole.journal) - 1))).wait() == -9
    assert (folder / "checkpoint1.pt").exists()
    assert not data_order(warm.complete(whole.training.run(folder)).journal())
    assert_same_files(folder, whole.folder)


def test_a_kill_before_the_last_deletion_within_an_epoch_leaves_nothing_behind(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path
) -> None:
    whole, folder = uninterrupted("pn"), tmp_path / "run"
    line = whole.journal.index("remove checkpoint_2_12.pt")
    assert "remove checkpoint_2_15.pt" not in whole.journal  # no save after this one would delete it
    assert warm.start(whole.training.run(folder, Fault(line=line))).wait() == -9
    warm.complete(whole.training.run(folder))
    assert_same_files(folder, whole.folder)


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_trainings_end_as_if_nothing_had_happened(
    warm: Warm,
    uninterrupted: Callable[[str], Uninterrupted],
    name: str,
    tmp_path: Path,
    long: bool,
    figures: Callable[..., None],
) -> None:
    whole = uninterrupted(name)
    generator = random.Random(name)
    moments: "Counter[str]" = Counter()
    runs = checked = 0
    while sum(moments.values()) < (KILLS_LONG if long else KILLS):
        folder = tmp_path / f"run{runs}"
        for attempt in range(KILLS_OF_A_RUN):
            how = ("clock", "line", "byte")[(attempt + runs) % 3]
            child = start_and_kill(warm, whole, folder, how, generator)
            if child.process.exitcode == 0:
                break
            assert child.process.exitcode == -9, child.tail()
            moments[moment(child.journal())] += 1
            for path in folder.glob("*.pt"):
                assert readable(path), f"{path.name} after {child.journal()[-3:]}"
                checked += 1
            assert data_order(child.journal()).items() <= data_order(whole.journal).items()
        child = warm.complete(whole.training.run(folder))
        assert data_order(child.journal()).items() <= data_order(whole.journal).items()
        assert_same_files(folder, whole.folder)
        runs += 1
    figures(
        kills_of_trainings=sum(moments.values()),
        **{f"kills_of_trainings_while_{moment}": number for moment, number in sorted(moments.items())},
        resumed_trainings_identical_to_the_last_bit=runs,
        checkpoints_found_after_a_kill_all_whole=checked,
    )
    saving = moments["writing"] + moments["copying"] + moments["renaming"] + moments["deleting"]
    assert saving >= (sum(moments.values()) / 3 if long else 1)  # or it proves little; chance rules over few kills
