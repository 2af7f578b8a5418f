"""Data of a table: what the user has, or what ``data_prep/`` makes of the published archives."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

from powernorm_fairseq.experiments.tables.catalogue import DATASETS
from powernorm_fairseq.experiments.tables.errors import ReproduceError
from powernorm_fairseq.experiments.tables.progress import say
from powernorm_fairseq.experiments.tables.run import ROOT


def command(dataset: str, out: Path, archives: Optional[Path]) -> List[str]:
    """The call of data_prep that makes ``out``; empty for the demo, whose corpus is written by its own grammar."""
    preparation = DATASETS[dataset].preparation
    if preparation is None:
        raise ReproduceError(f"--dataset {dataset} needs --data BIN, the bin folder that data_prep/lm.sh text makes")
    if not preparation:
        return []
    script, *options = preparation
    words = [str(ROOT / "data_prep" / script), *options, "--out", str(out)]
    return [*words, "--from", str(archives)] if archives else words


def prepare(dataset: str, out: Path, archives: Optional[Path]) -> Path:
    """Makes the data of a corpus in ``out``, as far as it is missing; returns the folder for fairseq.

    Two commands that are started at once do not make it twice: one of them waits.
    """
    if archives is not None and not archives.is_dir():
        raise ReproduceError(f"--from {archives} is no folder")
    words = command(dataset, out, archives)
    out.mkdir(parents=True, exist_ok=True)
    with open(str(out.with_name(out.name + ".lock")), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if words:
            beside = str(Path(sys.executable).parent)  # where fairseq-preprocess is
            env = {**os.environ, "PYTHON": sys.executable, "PATH": f"{beside}:{os.environ['PATH']}"}
            say("data: " + " ".join(words))
            if subprocess.run(words, env=env, stdout=sys.stderr).returncode != 0:
                raise ReproduceError(f"{words[0]} failed, as shown above; --data BIN takes data made by other means")
        else:
            from powernorm_fairseq.experiments.tables import demo

            if not (out / "bin").exists():
                demo.prepare(out, demo.PAIRS, demo.BPE_TOKENS)
    return out / "bin"


def free_space(folder: Path) -> int:
    """Bytes free on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(str(folder)).free
