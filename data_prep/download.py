"""Fetching archives: resumed after interruptions, from mirrors in turn, verified before they count as present.

A file under way is called ``NAME.part``. What arrived is opened and read to its end, checksums of the compression
included, before it gets its name: a login page, half an archive or halves of two versions are not taken. The SHA-256 of
every finished archive is kept in ``SHA256SUMS`` beside it (the format of ``sha256sum``): published archives of these
corpora come without checksums, so the first download is trusted and later uses are compared with it, also after the
folder has been copied to a machine without network.
"""

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from data_prep.errors import DataPrepError, explain_full_disk
from data_prep.extract import check_archive
from data_prep.parallel import progress_bar

logger = logging.getLogger(__name__)

SUMS = "SHA256SUMS"
_BLOCK = 1 << 18
_TIMEOUT = 30.0
#: Tries at one address without any progress before the next address is used.
TRIES = 4
#: Seconds to wait before the second try; doubled for each further one.
PAUSE = 1.0


class Archive(NamedTuple):
    """A published file: its name, and where it is, in order of preference."""

    name: str
    urls: Tuple[str, ...]


class _TryAgain(Exception):
    """The connection failed; what arrived is kept."""


class _GiveUp(Exception):
    """This address cannot serve the file."""


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(str(path), "rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def read_sums(folder: Path) -> Dict[str, str]:
    """Returns file name -> SHA-256 of the folder's ``SHA256SUMS``; nothing if there is none."""
    path = folder / SUMS
    sums = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            digest, _, name = line.partition(" ")
            sums[name.lstrip(" *")] = digest.lower()
    return sums


def _write_sum(folder: Path, name: str, digest: str) -> None:
    """Adds a file's checksum to ``SHA256SUMS``."""
    sums = read_sums(folder)
    sums[name] = digest
    part = folder / (SUMS + ".part")
    part.write_text("".join(f"{sums[key]}  {key}\n" for key in sorted(sums)), encoding="utf-8")
    os.replace(str(part), str(folder / SUMS))


def verify(path: Path) -> str:
    """Returns the SHA-256 of an archive.

    Raises: DataPrepError if it is missing, or not what a ``SHA256SUMS`` beside it says.
    """
    if not path.is_file():
        raise DataPrepError(f"{path}: no such file")
    digest = file_sha256(path)
    expected = read_sums(path.parent).get(path.name, digest)
    if digest != expected:
        raise DataPrepError(
            f"{path} is not the archive it should be: its SHA-256 is {digest} and {SUMS} says {expected}; "
            "delete it and fetch it again, or delete its line there if it is the right one"
        )
    return digest


def download(archive: Archive, folder: Path, mirrors: Sequence[str] = ()) -> Path:
    """Fetches an archive unless it is there already.

    Args:
        archive: what to fetch.
        folder: where to put it; created if necessary.
        mirrors: addresses of folders that are tried before the published ones.
    Returns: the path of the verified file.
    Raises: DataPrepError if no address delivers it whole.
    """
    path = folder / archive.name
    if path.exists():
        verify(path)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    failures: List[str] = []
    for url in [mirror.rstrip("/") + "/" + archive.name for mirror in mirrors] + list(archive.urls):
        try:
            _fetch(url, path)
        except _GiveUp as error:
            logger.warning("%s: %s", url, error)
            failures.append(f"{url}: {error}")
        else:
            return path
    raise DataPrepError(f"{archive.name} could not be fetched ({'; '.join(failures)})")


def _fetch(url: str, path: Path) -> None:
    """Fetches from one address, going on where a connection broke off, then tests and renames."""
    part = path.with_name(path.name + ".part")
    tries = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _request(url, part, before)
            _test(part, path.name, resumed=before > 0)
            break
        except _TryAgain as error:
            after = part.stat().st_size if part.exists() else 0
            tries = 1 if after > before else tries + 1
            if tries >= TRIES:
                raise _GiveUp(str(error)) from None
            logger.warning("%s: %s; trying again", url, error)
            time.sleep(PAUSE * 2 ** (tries - 1))
    _write_sum(path.parent, path.name, file_sha256(part))
    os.replace(str(part), str(path))


def _test(part: Path, name: str, resumed: bool) -> None:
    """Opens what arrived; if it is no such archive, it goes, and what was resumed is fetched from the beginning."""
    try:
        check_archive(part, name)
    except DataPrepError as error:
        part.unlink()
        raise (_TryAgain if resumed else _GiveUp)(str(error)) from None


def _request(url: str, part: Path, start: int) -> None:
    """Makes one request and appends what it brings to the unfinished file.

    Raises:
        _TryAgain: the connection broke off or the server was busy.
        _GiveUp: the server does not have the file, or has another one.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "data_prep", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            _receive(response, part, start)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the remembered start is beyond the end: begin again
            part.unlink()
            raise _TryAgain("the part that was there does not fit") from None
        busy = error.code in (408, 429) or error.code >= 500
        raise (_TryAgain if busy else _GiveUp)(f"HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise _TryAgain(f"no connection: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgain(f"the connection broke off: {str(error) or type(error).__name__}") from None
    except ValueError as error:
        raise _GiveUp(str(error)) from None


def _receive(response: http.client.HTTPResponse, part: Path, start: int) -> None:
    """Writes the body of an answer, and checks that it is whole."""
    if response.status != 206:
        start = 0  # the server ignores ranges: the whole file comes
    elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        part.unlink()
        raise _TryAgain("the server sent another range than asked for")
    length = response.headers.get("Content-Length")
    total = start + int(length) if length is not None else None
    with open(str(part), "ab" if start else "wb") as stream, progress_bar(part.stem, "B", total, start) as bar:
        for block in iter(lambda: response.read(_BLOCK), b""):
            try:
                stream.write(block)
                stream.flush()
            except OSError as error:
                explain_full_disk(error, part, total)
                raise
            bar.update(len(block))
    size = part.stat().st_size
    if total is not None and size < total:
        raise _TryAgain(f"the connection broke off after {size} of {total} bytes")
