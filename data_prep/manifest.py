"""What has been done in an output folder, with which options and results: ``manifest.json``.

While work is under way the file is called ``manifest.json.part``. Each finished stage is recorded with a key, which
stands for everything its result depends on (options, checksums of its input), and with its files; a stage whose key and
files are still the same is not repeated. Files are written under a temporary name, then renamed.
"""

import hashlib
import json
import os
import platform
import shutil
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Optional

from data_prep.download import file_sha256
from data_prep.errors import DataPrepError, explain_full_disk

NAME = "manifest.json"
_PART = NAME + ".part"


@contextmanager
def writing(paths: Iterable[Path]) -> Iterator[List[BinaryIO]]:
    """Opens files for writing under temporary names; they get their own names together, when all went well.

    Example: ``with writing([folder / "a", folder / "b"]) as (a, b): ...``
    """
    paths = list(paths)
    parts = [path.with_name(path.name + ".part") for path in paths]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    streams: List[BinaryIO] = []
    try:
        for part in parts:
            streams.append(open(str(part), "wb"))
        yield streams
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())  # a rename must not reach the disk before the contents
            stream.close()
        for part, path in zip(parts, paths):
            os.replace(str(part), str(path))
    except OSError as error:
        explain_full_disk(error, max(parts, key=lambda part: part.stat().st_size if part.exists() else 0))
        raise
    finally:
        for stream in streams:
            with suppress(OSError):  # of a full disk: what it still holds cannot be written
                stream.close()
        for part in parts:
            if part.exists():
                part.unlink()


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that gets its own name when all went well, in place of an earlier one."""
    for stale in path.parent.glob(path.name + ".*.part"):
        shutil.rmtree(str(stale), ignore_errors=True)
    # its own name for each process: a program started by a killed run may still be writing to the old one
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(str(path), ignore_errors=True)
        os.replace(str(part), str(path))
    finally:
        shutil.rmtree(str(part), ignore_errors=True)


def make_key(*parts: Any) -> str:
    """Returns a short text that stands for the parts, which must be JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8")).hexdigest()[:16]


def package_versions(names: Iterable[str]) -> Dict[str, Optional[str]]:
    """Returns the versions of Python and of installed packages; ``None`` for one that is not installed."""
    versions: Dict[str, Optional[str]] = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _contents(path: Path) -> Optional[Dict[str, Any]]:
    """What is written down of a file's contents."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)} if path.is_file() else None


class Manifest:
    """The record of an output folder.

    Args:
        folder: the output folder; need not exist.

    Attributes:
        started: whether the folder had a record at all.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.data: Dict[str, Any] = {"stages": {}}
        found = [path for path in (folder / NAME, folder / _PART) if path.is_file()]
        self.started = bool(found)
        if found:
            try:
                self.data = json.loads(found[0].read_text(encoding="utf-8"))
            except ValueError:
                raise DataPrepError(f"{found[0]} is not valid JSON; delete it to start afresh") from None

    def save(self, complete: bool = False) -> None:
        """Writes the record; only a complete one is called ``manifest.json``."""
        text = json.dumps(self.data, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        with writing([self.folder / _PART]) as (stream,):
            stream.write(text.encode("utf-8"))
        if complete:
            os.replace(str(self.folder / _PART), str(self.folder / NAME))
        elif (self.folder / NAME).exists():
            (self.folder / NAME).unlink()

    def record(self, stage: str, key: str, files: Iterable[Path], **facts: Any) -> None:
        """Notes that a stage is finished, and forgets those that came after an earlier run of it.

        Args:
            stage: its name.
            key: see ``make_key``.
            files: its results, inside the folder.
            facts: counts and the like.
        """
        contents = {path.relative_to(self.folder).as_posix(): _contents(path) for path in files}
        self.data["stages"][stage] = {"key": key, "files": contents, **facts}
        self.save()

    def finished(self, stage: str, key: str) -> bool:
        """Whether a stage was done with this key and its files are still what it wrote."""
        entry = self.data["stages"].get(stage)
        if entry is None or entry["key"] != key:
            return False
        return all(_contents(self.folder / name) == facts for name, facts in entry["files"].items())
