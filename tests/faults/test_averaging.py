"""An averaging killed at random moments leaves the old result or the new one, and the next one leaves nothing else."""

import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Callable, List

import torch

from powernorm_fairseq.safe_load import load_checkpoint
from tests.faults.conftest import Uninterrupted
from tests.faults.processes import Child, Warm
from tests.faults.programs import NO_FAULT, Fault, Run
from tests.faults.training import differences

KILLS = 6
KILLS_LONG = 100
OUTPUT = "average.pt"


def averaging(folder: Path, inputs: List[Path], fault: Fault = NO_FAULT) -> Run:
    arguments = ["--inputs", *map(str, inputs), "--output", str(folder / OUTPUT), "--overwrite"]
    return Run("average", arguments, folder, folder.with_suffix(".log"), folder.with_suffix(".journal"), fault)


def start_and_kill(warm: Warm, run: Run, size: int, seconds: float, how: str, generator: random.Random) -> Child:
    """Starts an averaging and kills it: by the clock, before it writes or renames, or inside of the file."""
    if how == "clock":
        child = warm.start(run)
        time.sleep(generator.uniform(0, seconds))
        child.kill()
        return child
    faults = {"line": Fault(line=generator.randrange(2)), "byte": Fault(byte=(0, generator.randrange(1, size)))}
    child = warm.start(run._replace(fault=faults[how]))
    child.wait()
    return child


def test_killed_averagings_leave_the_old_result_or_the_new_one(
    warm: Warm,
    uninterrupted: Callable[[str], Uninterrupted],
    tmp_path: Path,
    long: bool,
    figures: Callable[..., None],
) -> None:
    inputs = sorted(uninterrupted("pn").folder.glob("checkpoint_?_*.pt"))
    assert len(inputs) == 2
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), folder.mkdir()
    start = time.monotonic()
    warm.complete(averaging(whole, inputs))
    seconds = time.monotonic() - start
    old, new = load_checkpoint(inputs[0]), load_checkpoint(whole / OUTPUT)
    assert differences(old["model"], new["model"])
    generator, kills, left_behind = random.Random(1), Counter(), 0
    while sum(kills.values()) < (KILLS_LONG if long else KILLS):
        how = ("clock", "line", "byte")[sum(kills.values()) % 3]
        shutil.copyfile(str(inputs[0]), str(folder / OUTPUT))
        child = start_and_kill(
            warm, averaging(folder, inputs), (whole / OUTPUT).stat().st_size, seconds, how, generator
        )
        if child.process.exitcode == 0:
            continue
        assert child.process.exitcode == -9, child.tail()
        kills[how] += 1
        left_behind += len(list(folder.iterdir())) > 1
        found = load_checkpoint(folder / OUTPUT)
        assert not differences(found, old) or not differences(found, new)
        warm.complete(averaging(folder, inputs))
        assert [path.name for path in folder.iterdir()] == [OUTPUT]
        assert not differences(load_checkpoint(folder / OUTPUT), new)
    assert left_behind >= kills["byte"]  # or the kills came too late to prove anything
    figures(kills_of_averagings=sum(kills.values()), kills_of_averagings_that_left_half_a_file_to_clear=left_behind)


def test_a_failed_averaging_says_so_and_keeps_the_old_result(
    warm: Warm, uninterrupted: Callable[[str], Uninterrupted], tmp_path: Path
) -> None:
    inputs = sorted(uninterrupted("pn").folder.glob("checkpoint_?_*.pt"))
    folder = tmp_path / "full"
    folder.mkdir()
    torch.save({"model": {}}, str(folder / OUTPUT))
    before = (folder / OUTPUT).read_bytes()
    child = warm.start(averaging(folder, inputs, Fault(file_size=50_000)))
    assert child.wait() == 1
    assert "File too large" in child.log() and "Traceback" not in child.log()
    assert [path.name for path in folder.iterdir()] == [OUTPUT]
    assert (folder / OUTPUT).read_bytes() == before
