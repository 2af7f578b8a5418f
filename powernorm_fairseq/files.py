"""Files and folders written aside and renamed, so that no fault leaves half of one under the name that matters."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator


def aside(path: Path) -> Path:
    """The temporary name of a file; always the same, so that the next attempt replaces what a killed one left."""
    return path.with_name(path.name + ".tmp")


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes ``path`` at the end; after an exception ``path`` is as it was."""
    temporary = aside(path)
    file = open(str(temporary), "wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())  # or a crash of the machine can leave the new name with no content
        file.close()
        os.replace(str(temporary), str(path))
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # fails if it still has something to write
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)


@contextlib.contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """A new folder that becomes ``path`` at the end, in place of one that is there, or vanishes after an exception."""
    temporary = folder_beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        old = temporary.with_name(temporary.name + ".old")
        if path.exists():
            path.replace(old)
        temporary.replace(path)
        shutil.rmtree(str(old), ignore_errors=True)
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def folder_beside(path: Path) -> Path:
    """Where :func:`folder_aside` makes its folder."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def write(path: Path, content: Any) -> None:
    """Writes bytes, text, or data as JSON."""
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content, indent=2) + "\n"
    with written_aside(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def read_json(path: Path) -> Dict[str, Any]:
    """A JSON file's content; nothing if it is not there or not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _flush_folder(folder: Path) -> None:
    """Makes a rename last through a crash of the machine, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(str(folder), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
