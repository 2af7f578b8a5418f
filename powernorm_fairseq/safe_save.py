"""Checkpoints written so that no fault leaves half of one behind, tried again, and with the reason where that fails."""

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Optional, Union

import torch

from powernorm_fairseq.files import written_aside

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # as fairseq
WAIT_SECONDS = 2.5


def save_file(state: Any, path: Union[str, Path]) -> None:
    """``torch.save`` that leaves a whole file or none.

    Raises:
        OSError: it could not be written, for the reason given; what was under ``path`` before is still there.
    """
    path = Path(path)

    def write() -> None:
        with written_aside(path) as file:
            output = _Output(file)
            torch.save(state, output)  # type: ignore[arg-type]
            if output.error is not None:
                raise _Failure(output.size) from output.error

    _insist(write, path)


def copy_file(source: Union[str, Path], target: Union[str, Path]) -> None:
    """Copies a file; raises as :func:`save_file`."""
    source, target = Path(source), Path(os.path.realpath(str(target)))  # a link stays a link

    def write() -> None:
        with open(str(source), "rb") as original, written_aside(target) as file:
            try:
                shutil.copyfileobj(original, file, 1 << 20)
            except OSError as error:
                raise _Failure(source.stat().st_size) from error

    _insist(write, target)


class _Failure(OSError):
    """Writing failed, for the reason that is its cause; ``needed`` is the size of the whole file."""

    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed = needed


class _Output:
    """What ``torch.save`` writes to: takes everything and keeps the first error for later.

    An exception inside of ``torch.save`` ends the whole process without a message in torch 1.12, whose archive tries
    to write its end from a destructor.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self.error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self._try(lambda: self.file.write(data))
        self.size += length
        return length

    def flush(self) -> None:
        self._try(self.file.flush)

    def _try(self, action: Callable[[], Any]) -> None:
        if self.error is None:
            try:
                action()
            except OSError as error:
                self.error = error


def _insist(write: Callable[[], None], path: Path) -> None:
    """Calls ``write``, again after an error; the last error says what to do."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return write()
        except OSError as error:
            reason: Any = error.__cause__ if isinstance(error, _Failure) else error
            message = f"{path} could not be written: {os.strerror(reason.errno) if reason.errno else reason}"
            if isinstance(error, _Failure):
                free = shutil.disk_usage(str(path.parent)).free
                message += f" (it needs {error.needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free)"
            if attempt == ATTEMPTS:
                message += "; the files saved before it are whole, and the same command goes on from them"
                logger.error(message)
                raise OSError(reason.errno, message) from reason
            logger.warning("%s; trying again in %s seconds", message, WAIT_SECONDS)
            time.sleep(WAIT_SECONDS)
