"""A private Slurm cluster for the tests of this folder that ask for one, and a pretended sbatch for the others."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.experiments.slurm.cluster import Cluster, why_not
from tests.experiments.tables.table_results import write_data

# Notes how it was called, and answers as sbatch --parsable does: with the next number.
SBATCH = """#!/usr/bin/env bash
echo "$*" >>calls
[[ -z "$REFUSE" ]] || { echo "sbatch: error: $REFUSE" >&2 && exit 1; }
wc -l <calls
"""


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


@pytest.fixture
def no_cluster(monkeypatch):
    """Nothing of a cluster that the tests may run on."""
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("RANK", "WORLD_SIZE", "NNODES", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name)


@pytest.fixture
def data(tmp_path):
    """Enough of binarised data for the checks before a training."""
    return write_data(tmp_path / "bin")


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A pretended sbatch; returns its calls."""
    folder = tmp_path / "programs"
    folder.mkdir()
    file = folder / "sbatch"
    file.write_text(SBATCH.replace("calls", str(folder / "calls")))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("REFUSE", "")
    monkeypatch.setenv("PYTHON", sys.executable)
    return lambda: (folder / "calls").read_text().splitlines()
