"""A rank that dies: the others stop with a message instead of waiting for ever."""

import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any, Callable, List

import pytest

from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import readable
from tests.faults.processes import Child, Warm
from tests.faults.training import Training

GLOO = "--distributed-backend gloo --distributed-world-size 2 --distributed-no-spawn --device-id 0".split()
GLOO += ["--ddp-backend", "legacy_ddp"]  # fairseq's pytorch_ddp wants a GPU
TIMEOUT = 60  # seconds; on an idle machine it takes one


def start_two_ranks(warm: Warm, data: Path, folder: Path, *flags: Any) -> List[Child]:
    """Two processes in the middle of a training that does not end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    training = Training(data, *GLOO, "--distributed-init-method", address, "--max-update", 1_000_000, *flags)
    ranks = [warm.start(training.run(folder, rank=rank)) for rank in range(2)]
    for rank in ranks:
        rank.wait_for_update(5)
    return ranks


def assert_stops_because_of_the_other(rank: Child) -> None:
    status = rank.wait(TIMEOUT)
    assert status == 1, (status, rank.tail())
    assert re.search("Connection (closed|reset) by peer", rank.log()), rank.tail()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_stops_when_another_dies(
    toy_data: Path, warm: Warm, tmp_path: Path, victim: int, figures: Callable[..., None]
) -> None:
    ranks = start_two_ranks(warm, toy_data, tmp_path / "save")
    ranks[victim].kill()
    assert_stops_because_of_the_other(ranks[1 - victim])
    assert all(readable(path) for path in (tmp_path / "save").glob("*.pt"))
    figures(ranks_that_stopped_when_another_died=1)


def test_a_rank_tells_when_another_hangs(
    toy_data: Path, warm: Warm, tmp_path: Path, figures: Callable[..., None]
) -> None:
    """Told by ``--heartbeat-timeout``; but its signal does not reach a process that waits inside of gloo.

    So it is the end of the hanging rank, or of gloo's own patience after 30 minutes, that ends the others.
    """
    ranks = start_two_ranks(warm, toy_data, tmp_path / "save", "--heartbeat-timeout", 2)
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + TIMEOUT
    while "Killing job for not making progress in 2 seconds" not in ranks[0].log():
        assert time.monotonic() < deadline, ranks[0].tail()
        time.sleep(0.1)
    ranks[1].kill()
    assert_stops_because_of_the_other(ranks[0])
    figures(ranks_that_told_of_one_that_hung=1)
