"""Fixtures for the tests of data preparation: the Moses scripts where they are, a corpus, an HTTP server."""

import os
import subprocess
from typing import Callable, List, Sequence

import pytest


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
