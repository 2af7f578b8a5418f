"""Data of a table: what the user has, or what ``data_prep`` makes of the published archives."""

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.local import say


def command(dataset: str, out: Path, archives: Optional[Path]) -> List[str]:
    """The call of data_prep that makes ``out``."""
    preparation = CORPORA[dataset].preparation
    if preparation is None:
        raise UserError(f"--dataset {dataset} needs --data BIN, the bin folder that `data_prep lm text` makes")
    words = [sys.executable, "-m", "data_prep", *preparation, "--out", str(out)]
    return [*words, "--from", str(archives)] if archives else words


def prepare(dataset: str, out: Path, archives: Optional[Path] = None, options: Optional[List[str]] = None) -> Path:
    """Makes the data of a corpus in ``out``, as far as it is missing; returns the folder for fairseq.

    Two commands that are started at once do not make it twice: one of them waits.

    Args:
        dataset: which.
        out: where.
        archives: folder with what would be downloaded.
        options: further ones of data_prep.
    """
    if archives is not None and not archives.is_dir():
        raise UserError(f"--from {archives} is no folder")
    words = [*command(dataset, out, archives), *(options or [])]
    out.mkdir(parents=True, exist_ok=True)
    with open(str(out.with_name(out.name + ".lock")), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        say("data: " + " ".join(words))
        if subprocess.run(words, stdout=sys.stderr).returncode != 0:
            raise UserError("data_prep failed, as shown above; --data BIN takes data made by other means")
    return out / "bin"
