"""Starting, watching and killing the processes under test; each belongs to the test that started it."""

import multiprocessing
import os
import time
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Iterator, List

from tests.faults.programs import Run, execute

TOP = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds after which a process that should have ended is a failure


class Child:
    """A process that makes a run."""

    def __init__(self, context: multiprocessing.context.BaseContext, run: Run) -> None:
        self.run = run
        self.process = context.Process(target=execute, args=(run,), daemon=True)
        self.process.start()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits for the end; the exit status, negative for a signal."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"still running after {seconds} seconds:\n{self.tail()}")
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait_for_update(self, number: int) -> None:
        """Returns when the process has begun this update."""
        deadline = time.monotonic() + PATIENCE
        while not any(line.startswith(f"update {number} ") for line in self.journal()):
            assert self.process.is_alive() and time.monotonic() < deadline, self.tail()
            time.sleep(0.005)

    def journal(self) -> List[str]:
        return self.run.journal.read_text().splitlines() if self.run.journal.exists() else []

    def log(self) -> str:
        return self.run.log.read_text() if self.run.log.exists() else ""

    def tail(self) -> str:
        return self.log()[-3000:]


class Warm:
    """Starts processes from one that has fairseq loaded and forks for each."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.faults.warm"])
        with _environment(PYTHONPATH=str(TOP), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"):
            forkserver.ensure_running()  # ends with this process
        self.children: List[Child] = []

    def start(self, run: Run) -> Child:
        child = Child(self.context, run)
        self.children.append(child)
        return child

    def complete(self, run: Run) -> Child:
        """Makes a run that has to succeed."""
        child = self.start(run)
        assert child.wait() == 0, child.tail()
        return child

    def end(self) -> None:
        """Kills what is still running."""
        for child in self.children:
            child.kill()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
