"""What a process under test runs: fairseq-train, fairseq-generate or the averaging, with a journal and a fault.

The process is a fork of one that has all modules loaded (see ``warm.py``): loading them takes ten times as long as the
training of a tiny model.
"""

import builtins
import functools
import hashlib
import io
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple

import fairseq_cli.generate  # noqa: F401
import fairseq_cli.train
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from powernorm_fairseq.experiments import average

TOP = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """What goes wrong in a run, beside what is done to it from outside.

    Attributes:
        line: the process kills itself before what it has just written to its journal, counted from 0.
        byte: number of a file (counted from 0, those opened for writing) and a position in it; the process kills
            itself there.
        file_size: no file can become longer: writing fails with "File too large".
    """

    line: Optional[int] = None
    byte: Optional[Tuple[int, int]] = None
    file_size: Optional[int] = None


NO_FAULT = Fault()


class Run(NamedTuple):
    """A run to make in a process of its own.

    Attributes:
        program: "train", "generate" or "average".
        arguments: for training a configuration of fairseq's, otherwise the command line.
        folder: the journal tells what becomes of the files in here.
        log: takes all output, after what it has already.
        journal: one line for each update (its number and its data) and for each change of a file.
        fault: what goes wrong.
    """

    program: str
    arguments: Any
    folder: Path
    log: Path
    journal: Path
    fault: Fault = NO_FAULT


class Journal:
    """Writes each line at once, so that it tells where the process was when it died."""

    def __init__(self, run: Run) -> None:
        self.folder = str(run.folder) + os.sep
        self.file = os.open(str(run.journal), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self.die_at = run.fault.line
        self.lines = 0

    def note(self, what: str, of: str) -> None:
        os.write(self.file, f"{what} {of}\n".encode())
        if self.lines == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.lines += 1

    def audit(self, event: str, args: Tuple[Any, ...]) -> None:
        """Python calls this before each of these operations."""
        if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR):
            self._note_file("write", args[0])
        elif event == "os.rename":
            self._note_file("rename", args[1])
        elif event == "os.remove":
            self._note_file("remove", args[0])

    def _note_file(self, what: str, path: Any) -> None:
        path = os.fspath(path)
        if path.startswith(self.folder):
            self.note(what, path[len(self.folder) :])


class DyingFile(io.FileIO):
    """A file that kills the process when it has taken so many bytes."""

    def __init__(self, path: str, left: int) -> None:
        super().__init__(path, "wb")
        self.left = left

    def write(self, data: Any) -> int:
        data = bytes(data)
        if len(data) >= self.left:
            super().write(data[: self.left])
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= len(data)
        return super().write(data)


def execute(run: Run) -> None:
    """The body of the process."""
    log = os.open(str(run.log), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    journal = Journal(run)
    sys.addaudithook(journal.audit)
    _note_updates(journal)
    if run.fault.byte is not None:
        _die_while_writing(journal.folder, *run.fault.byte)
    if run.fault.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (run.fault.file_size, resource.RLIM_INFINITY))
    {"train": _train, "generate": _generate, "average": _average}[run.program](run.arguments)


def _train(cfg: Any) -> None:
    distributed_utils.call_main(cfg, fairseq_cli.train.main)  # fairseq-train, after it has parsed its arguments


def _generate(argv: List[str]) -> None:
    sys.argv = ["fairseq-generate", *argv]
    fairseq_cli.generate.cli_main()


def _average(argv: List[str]) -> None:
    sys.exit(average.main(argv))


def _note_updates(journal: Journal) -> None:
    train_step = Trainer.train_step

    @functools.wraps(train_step)
    def noted(self: Trainer, samples: List[Any], *args: Any, **kwargs: Any) -> Any:
        data = b"".join(sample["id"].numpy().tobytes() for sample in samples if sample)
        journal.note("update", f"{self.get_num_updates()} {hashlib.md5(data).hexdigest()}")
        return train_step(self, samples, *args, **kwargs)

    Trainer.train_step = noted


def _die_while_writing(folder: str, number: int, position: int) -> None:
    plain, seen = builtins.open, [0]

    def opened(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "wb" and str(path).startswith(folder):
            seen[0] += 1
            if seen[0] == number + 1:
                return io.BufferedWriter(DyingFile(str(path), position))
        return plain(path, mode, *args, **kwargs)

    builtins.open = opened
