"""Fixtures for the tests of data preparation: the Moses scripts where they are, a corpus, an HTTP server."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Iterator, List, Sequence

import pytest


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB; skips where none may be mounted."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("mounting a file system takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def perl() -> Callable[[str, Sequence[str], Sequence[str]], List[str]]:
    """Runs a Moses script on lines; skips where there are no scripts."""
    folder = os.environ.get("MOSES_SCRIPTS")
    if not folder:
        pytest.skip("set MOSES_SCRIPTS to the scripts folder of a mosesdecoder clone to compare with the Perl scripts")

    def run(script: str, flags: Sequence[str], lines: Sequence[str]) -> List[str]:
        data = "".join(line + "\n" for line in lines).encode("utf-8")
        command = ["perl", os.path.join(folder, script), *flags]
        done = subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        return done.stdout.decode("utf-8").split("\n")[:-1]

    return run
