"""Unpacking archives without trusting them.

Nothing is written outside the destination, whatever the archive says; and the destination appears only when the archive
has been read to its end, checksum of the compression included, so a truncated archive is never half-used.
"""

import gzip
import os
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterable, Iterator, List, Set

from data_prep.errors import DataPrepError, explain_full_disk

_BLOCK = 1 << 20
#: What reading a damaged archive may raise.
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, OSError)


def _safe_path(path: str, archive: Path) -> str:
    """Returns the normalised path of a member; one that leads outside is an error."""
    name = posixpath.normpath(path.replace("\\", "/"))
    if name == ".." or name.startswith(("../", "/")) or posixpath.isabs(path) or ":" in name.split("/")[0]:
        raise DataPrepError(f"{archive}: refusing to unpack {path!r}, which lies outside the folder")
    return name


def _safe_name(member: tarfile.TarInfo, archive: Path, destination: Path) -> str:
    """Returns the normalised path of a member.

    Raises: DataPrepError for a path or link that leads outside, and for devices: what tarfile's own filter refuses,
        where Python has it (3.8.17, 3.9.17, 3.10.12, 3.11.4 and later).
    """
    name = _safe_path(member.name, archive)
    if hasattr(tarfile, "data_filter"):
        try:
            tarfile.data_filter(member, str(destination))
        except tarfile.FilterError as error:
            raise DataPrepError(f"{archive}: refusing to unpack {member.name!r} ({error})") from None
    elif not (member.isfile() or member.isdir()):
        raise DataPrepError(f"{archive}: refusing to unpack {member.name!r}, which is neither file nor folder")
    return name


def extract(archive: Path, destination: Path, wanted: Iterable[str]) -> List[Path]:
    """Unpacks the wanted files of a ``.tgz`` into a new or existing folder; links are never followed or made.

    Every member is checked, also those that are not wanted.

    Args:
        archive: the file.
        destination: folder; give a temporary one, since files written before an error stay in it.
        wanted: paths inside the archive; those that it does not have are passed over.
    Returns: the files written.
    Raises: DataPrepError if the archive is damaged or hostile.
    """
    open_wishes: Set[str] = set(wanted)
    written = []
    with _explained(archive):
        with gzip.open(str(archive), "rb") as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    name = _safe_name(member, archive, destination)
                    if name in open_wishes and member.isfile():
                        open_wishes.discard(name)
                        written.append(_write(tar.extractfile(member), destination / name, member.size))
            while stream.read(_BLOCK):  # what follows the last member: the checksum is at the very end
                pass
    return written


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Says in a sentence what is wrong with an archive that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise DataPrepError(f"{archive}: no such file") from None
    except _DAMAGE as error:
        raise DataPrepError(
            f"{archive} is damaged or incomplete ({error or 'end of file'}); delete it and fetch it again"
        ) from None


def extract_zip(archive: Path, destination: Path, wanted: Iterable[str]) -> List[Path]:
    """Unpacks the wanted files of a ``.zip``, as :func:`extract` does; the checksums of the others are not read."""
    names: Set[str] = set(wanted)
    written = []
    with _explained(archive), zipfile.ZipFile(str(archive)) as bundle:
        for member in bundle.infolist():
            name = _safe_path(member.filename, archive)
            if name in names and not member.is_dir():
                names.discard(name)
                with bundle.open(member) as source:
                    written.append(_write(source, destination / name, member.file_size))
    return written


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
        elif name.endswith((".gz", ".tgz")):
            with gzip.open(str(path), "rb") as stream:
                if name.endswith(".tgz"):
                    with tarfile.open(fileobj=stream, mode="r|") as tar:
                        for _ in tar:
                            pass
                while stream.read(_BLOCK):
                    pass
    except _DAMAGE as error:
        raise DataPrepError(f"it is no whole {name.rsplit('.', 1)[-1]} file ({error or 'end of file'})") from None
