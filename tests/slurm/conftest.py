"""A private Slurm cluster for the tests of this folder that ask for one."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster():
    """Two processors, nothing in the queue; ended and removed afterwards."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # pytest's own is too long for a socket
    started = Cluster(folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        shutil.rmtree(str(folder))
