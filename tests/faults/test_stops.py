"""Trainings that are asked to stop, again and again, end well each time and in the end as if nothing had happened."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, List

import pytest

from tests.faults.processes import PATIENCE, TOP
from tests.faults.training import checkpoint, differences
from tests.models.training import RECIPE, SMALL, USER_DIR

STOPS = 5
STOPS_LONG = 200
# Many small batches, so that stops fall within an epoch.
FLAGS = (
    "--arch powernorm_tiny --encoder-norm pn --encoder-layers 1 --decoder-layers 1 --dropout 0.1 --max-tokens 30 "
    "--max-update 100 --no-epoch-checkpoints --log-format simple --log-interval 5"
).split()


class Trainings:
    """Starts one training after the other; see ``stopping.py``."""

    def __init__(self, data: Path) -> None:
        self.arguments = [str(data), "--user-dir", USER_DIR, *SMALL, *RECIPE, *FLAGS]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.faults.stopping"],
            cwd=str(TOP), env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
        )  # fmt: skip

    def start(self, folder: Path) -> None:
        self.log, self.stop_file = folder.with_suffix(".log"), folder.with_suffix(".stop")
        self.log.write_text("")
        arguments = [*self.arguments, "--save-dir", str(folder)]
        request = {"arguments": arguments, "log": str(self.log), "stop": str(self.stop_file)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def stop(self, seconds: float) -> bool:
        """Asks for a stop so long after the first updates; whether the training ended because of it."""
        deadline = time.monotonic() + PATIENCE
        while "train_inner" not in self.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(seconds)
        self.stop_file.touch()
        self.end()
        self.stop_file.unlink()
        heeded = self.stop_file.with_name(self.stop_file.name + ".heeded")
        if heeded.exists():
            heeded.unlink()
            return True
        return False

    def end(self) -> None:
        status = self.process.stdout.readline().strip()
        assert status == "0", f"ended with {status}:\n{self.log.read_text()[-3000:]}"


@pytest.fixture
def trainings(toy_data: Path) -> Iterator[Trainings]:
    made = Trainings(toy_data)
    yield made
    made.process.stdin.close()
    made.process.wait()


def test_stopped_trainings_end_well_and_as_if_nothing_had_happened(
    trainings: Trainings, tmp_path: Path, long: bool, figures: Callable[..., None]
) -> None:
    trainings.start(tmp_path / "whole")
    trainings.end()
    whole = checkpoint(tmp_path / "whole/checkpoint_last.pt")
    generator, stops = random.Random(1), 0
    ended: List[Path] = []
    while stops < (STOPS_LONG if long else STOPS):
        folder, stopped = tmp_path / f"stopped{len(ended)}", True
        while stopped:
            trainings.start(folder)
            stopped = trainings.stop(generator.uniform(0, 0.3))
            stops += stopped
        assert not differences(checkpoint(folder / "checkpoint_last.pt"), whole)
        ended.append(folder)
    figures(stops_of_trainings_that_ended_well=stops, stopped_trainings_identical_to_the_last_bit=len(ended))
