"""Work in several processes: order, bounded memory, errors."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

from data_prep import parallel
from data_prep.errors import DataPrepError
from data_prep.parallel import WorkerPool, read_chunks

ROOT = Path(__file__).resolve().parents[2]


def slow_square(number: int) -> int:
    time.sleep(0.02 if number % 3 == 0 else 0)
    return number * number


def fail_at_five(number: int) -> int:
    if number == 5:
        raise DataPrepError("five")
    return number


def die(number: int) -> int:
    os._exit(1)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order(workers: int) -> None:
    with WorkerPool(workers) as pool:
        assert list(pool.map(slow_square, range(40))) == [number * number for number in range(40)]


def test_only_a_few_tasks_are_taken_ahead() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    with WorkerPool(2) as pool:
        results = pool.map(slow_square, tasks())
        for done in range(1, 50):
            next(results)
            assert len(taken) - done <= 8
        results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_is_raised_here(workers: int) -> None:
    with WorkerPool(workers) as pool, pytest.raises(DataPrepError, match="five"):
        list(pool.map(fail_at_five, range(20)))


def test_a_killed_worker_is_an_error_and_not_a_hang() -> None:
    with WorkerPool(2) as pool, pytest.raises(DataPrepError, match="killed"):
        list(pool.map(die, range(20)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_one_sentence(times: int, early: bool) -> None:
    """A terminal sends the signal to the workers, too, also to one that has just begun."""
    program = (
        "import time; from data_prep import parallel; from data_prep.errors import run_main\n"
        "from data_prep.parallel import WorkerPool\n"
        "def work(number): time.sleep(0.5 * (number > 1)); return number\n"
        "begin = parallel._begin_worker\n"
        "def begin_late(*arguments):\n"
        f"    if {early}: print('begun', flush=True); time.sleep(0.3)\n"
        "    begin(*arguments)\n"
        "parallel._begin_worker = begin_late\n"
        "def main(argv):\n"
        "    with WorkerPool(2) as pool:\n"
        "        for number in pool.map(work, range(100)): print(number, flush=True)\n"
        "raise SystemExit(run_main(main))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in the background
    )
    process.stdout.readline()
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
    assert process.communicate(timeout=60)[1] == b"error: interrupted; run the same command again to continue\n"
    assert process.returncode == 130


def test_a_pool_without_workers_makes_no_sense() -> None:
    with pytest.raises(DataPrepError, match="workers=0"):
        WorkerPool(0)


def test_chunks_end_by_lines_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "CHUNK_LINES", 3)
    monkeypatch.setattr(parallel, "CHUNK_BYTES", 10)
    lines = [b"a\n"] * 4 + [b"b" * 9 + b"\n"] * 2
    assert list(read_chunks(lines)) == [[b"a\n"] * 3, [b"a\n", b"bbbbbbbbb\n"], [b"bbbbbbbbb\n"]]
