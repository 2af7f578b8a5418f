"""What the fault tests share: the warm process, the uninterrupted runs to compare with, and their figures."""

import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple

import pytest

from tests.faults.processes import Warm
from tests.faults.training import UPDATES, Training, data_order

# Flags of the trainings that are killed.
TRAININGS = {
    "pn": ["--encoder-norm", "pn"],
    "mabn": ["--encoder-norm", "mabn", "--decoder-norm", "mabn"],
    "un, prepbn": ["--encoder-norm", "un", "--decoder-norm", "prepbn", "--un-window", 3],
    "bn, 2 batches for each update": ["--encoder-norm", "bn", "--update-freq", 2, "--patience", 100],
}


class Uninterrupted(NamedTuple):
    """A training that nothing happened to."""

    training: Training
    folder: Path
    journal: List[str]
    seconds: float


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--long", default=False)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    processes = Warm()
    yield processes
    processes.end()


@pytest.fixture(scope="session")
def uninterrupted(
    toy_data: Path, warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Uninterrupted]:
    """Gives the run of one of the ``TRAININGS``, made when it is first asked for."""
    made: Dict[str, Uninterrupted] = {}

    def get(name: str) -> Uninterrupted:
        if name not in made:
            training = Training(toy_data, *TRAININGS[name])
            folder = tmp_path_factory.mktemp("uninterrupted") / "save"
            if not made:
                warm.complete(Training(toy_data, "--max-update", 1).run(folder.with_name("first")))  # not to be timed
            start = time.monotonic()
            child = warm.complete(training.run(folder))
            made[name] = Uninterrupted(training, folder, child.journal(), time.monotonic() - start)
            assert list(data_order(made[name].journal)) == [str(number) for number in range(UPDATES)]
        return made[name]

    return get


@pytest.fixture
def figures(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Takes numbers by name; the end of the session prints their sums."""

    def count(**numbers: int) -> None:
        for name, number in numbers.items():
            record_property(f"faults: {name.replace('_', ' ')}", number)

    return count
