"""Unpacking archives without trusting them.

Nothing is written outside the destination, whatever the archive says; and the destination appears only when the archive
has been read to its end, checksum of the compression included, so a truncated archive is never half-used.
"""

import functools
import gzip
import os
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Callable, Iterable, Iterator, List, Set, Tuple

from data_prep.errors import DataPrepError, explain_full_disk

_BLOCK = 1 << 20
#: What reading a damaged archive may raise.
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, OSError)


def _safe_path(path: str, archive: Path, member: str = "") -> str:
    """Returns the normalised path of a member, or of what a member links to; one that leads outside is an error."""
    name = posixpath.normpath(path.replace("\\", "/"))
    if name == ".." or name.startswith(("../", "/")) or ":" in name.split("/")[0]:
        raise DataPrepError(f"{archive}: refusing to unpack {member or path!r}, which lies outside the folder")
    return name


def _safe_name(member: tarfile.TarInfo, archive: Path) -> str:
    """Returns the normalised path of a member.

    Raises: DataPrepError for a path or link that leads outside, and for devices.
    """
    name = _safe_path(member.name, archive)
    if member.issym():
        _safe_path(posixpath.join(posixpath.dirname(name), member.linkname), archive, member.name)
    elif member.islnk():
        _safe_path(member.linkname, archive, member.name)
    elif not (member.isfile() or member.isdir()):
        raise DataPrepError(f"{archive}: refusing to unpack {member.name!r}, which is neither file nor folder")
    return name


def extract(archive: Path, destination: Path, wanted: Iterable[str]) -> List[Path]:
    """Unpacks the wanted files of a ``.tgz`` or ``.zip``; links are never followed or made.

    Every member's name is checked, also of those that are not wanted.

    Args:
        archive: the file.
        destination: new or existing folder; give a temporary one, since files written before an error stay in it.
        wanted: paths inside the archive; those that it does not have are passed over.
    Returns: the files written.
    Raises: DataPrepError if the archive is damaged or hostile.
    """
    missing: Set[str] = set(wanted)
    written = []
    try:
        for member, source in _members(archive):
            name = _safe_name(member, archive)
            if name in missing and member.isfile():
                missing.discard(name)
                written.append(_write(source(), destination / name, member.size))
    except FileNotFoundError:
        raise DataPrepError(f"{archive}: no such file") from None
    except _DAMAGE as error:
        raise DataPrepError(
            f"{archive} is damaged or incomplete ({error or 'end of file'}); delete it and fetch it again"
        ) from None
    return written


def _members(archive: Path) -> Iterator[Tuple[tarfile.TarInfo, Callable[[], IO[bytes]]]]:
    """Yields the members of a ``.zip`` or ``.tgz`` and what opens them; reads a ``.tgz`` to the checksum at its end."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(str(archive)) as bundle:
            for entry in bundle.infolist():
                member = tarfile.TarInfo(entry.filename)
                member.size, member.type = entry.file_size, tarfile.DIRTYPE if entry.is_dir() else tarfile.REGTYPE
                yield member, functools.partial(bundle.open, entry)
        return
    with gzip.open(str(archive), "rb") as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                yield member, functools.partial(tar.extractfile, member)
        while stream.read(_BLOCK):
            pass


def _write(source: IO[bytes], path: Path, size: int) -> Path:
    """Writes the contents of a member as an ordinary new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: neither an earlier member of the same name nor a link can redirect the write
        handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
    except OSError as error:
        explain_full_disk(error, path, size)
        raise
    return path


def check_archive(path: Path, name: str) -> None:
    """Reads a published file to its end, checksums of the compression included.

    Args:
        path: where it is.
        name: its published name, whose ending says what it must be.
    Raises: DataPrepError if it is something else, or not whole.
    """
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(str(path)) as bundle:
                bad = bundle.testzip()
                if bad is not None:
                    raise DataPrepError(f"{bad} in it is damaged")
        elif name.endswith(".tgz"):
            for _ in _members(path):
                pass
        elif name.endswith(".gz"):
            with gzip.open(str(path), "rb") as stream:
                while stream.read(_BLOCK):
                    pass
    except _DAMAGE as error:
        raise DataPrepError(f"it is no whole {name.rsplit('.', 1)[-1]} file ({error or 'end of file'})") from None
