"""Raw corpora as lines, and whether they are fit for use.

A reader turns the lines of a published file into the lines of text that the classic recipes take from it. Files may be
compressed (``.gz``). Lines end at line feeds only.
"""

import codecs
import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Iterator, Optional, Tuple, cast

from data_prep.errors import DataPrepError

_DROPPED_TAGS = (b"<url>", b"<talkid>", b"<keywords>")
_REMOVED_TAGS = re.compile(b"</?(?:title|description)>")
_SEGMENT_START = re.compile(rb'<seg id="[0-9]*">[\t-\r ]*')
_SEGMENT_END = re.compile(rb"[\t-\r ]*</seg>[\t-\r ]*")
_RIGHT_QUOTE = "\u2019".encode()


def _tags(line: bytes) -> Optional[bytes]:
    """IWSLT training files: lines about the talk go; title and description lose their tags."""
    if b"<" not in line:
        return line
    if any(tag in line for tag in _DROPPED_TAGS):
        return None
    return _REMOVED_TAGS.sub(b"", line)


def _published_segments(line: bytes) -> Optional[bytes]:
    """XML and SGM test sets: what is inside ``<seg>``."""
    if b"<seg id" not in line:
        return None
    return _SEGMENT_END.sub(b"", _SEGMENT_START.sub(b"", line)).rstrip(b"\n") + b"\n"


def _segments(line: bytes) -> Optional[bytes]:
    """The same as the classic recipes take it, with an apostrophe for U+2019."""
    segment = _published_segments(line)
    return None if segment is None else segment.replace(_RIGHT_QUOTE, b"'")


@dataclass(frozen=True)
class Text:
    """A text in one or two languages, as published.

    Attributes:
        path: below the folder of raw files, with ``{lang}`` for the language and ``{role}`` for its role.
        kind: ``plain``, ``tags`` (IWSLT training) or ``segments`` (XML, SGM).
        strict: whether an empty line, a carriage return or a byte order mark is an error. Training corpora that the
            recipe cleans afterwards contain such lines and are not strict; a file that begins with one of them has
            been converted by somebody, and is an error all the same.
        roles: language -> what stands for ``{role}``; pairs, so that the class stays hashable.
        lenient: whether even that is accepted, and only what no recipe could use is an error.
        pairs: how many pairs the published text has, where that is known.
    """

    path: str
    kind: str = "plain"
    strict: bool = True
    roles: Tuple[Tuple[str, str], ...] = ()
    lenient: bool = False
    pairs: Optional[int] = None

    def name(self, lang: str) -> str:
        """Returns the path of one language, below the folder of raw files."""
        return self.path.format(lang=lang, role=dict(self.roles).get(lang, ""))

    def lines(self, folder: Path, lang: str) -> Iterator[bytes]:
        """Yields the lines of one language."""
        return (line for _, line in self._numbered(folder / self.name(lang)))

    def published(self, folder: Path, lang: str) -> Iterator[bytes]:
        """Yields the lines of one language as published, for references; each ends with a line feed alone."""
        for _, line in self._numbered(folder / self.name(lang), published=True):
            yield line.rstrip(b"\r\n") + b"\n"

    def _numbered(self, path: Path, published: bool = False) -> Iterator[Tuple[int, bytes]]:
        """Yields the lines with the numbers that they have in the file."""
        segments = _published_segments if published else _segments
        convert = {"plain": lambda line: line, "tags": _tags, "segments": segments}[self.kind]
        with open_lines(path) as stream:
            try:
                for number, raw in enumerate(stream, 1):
                    line = convert(raw)
                    if line is not None:
                        yield number, line
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataPrepError(f"{path} is damaged or incomplete: {error}") from None

    def check(self, folder: Path, *langs: str) -> int:
        """Reads all languages through and returns the number of lines.

        Raises: DataPrepError naming file and line, for text that is not UTF-8, for languages of different length, and
            for what ``strict`` forbids.
        """
        counts = {path: self._check_side(path) for path in (folder / self.name(lang) for lang in langs)}
        longer, shorter = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[longer] != counts[shorter]:
            raise DataPrepError(
                f"{longer} has {counts[longer]} lines of text and {shorter} has {counts[shorter]}: "
                f"line {counts[shorter] + 1} has no counterpart"
            )
        return counts[longer]

    def _check_side(self, path: Path) -> int:
        """Checks one file and returns how many lines of text it has."""
        count = 0
        for number, line in self._numbered(path):
            count += 1
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataPrepError(f"{path}: line {number} is not valid UTF-8 (byte {error.start + 1})") from None
            if self.lenient:
                continue
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                raise DataPrepError(f"{path}: line 1 begins with a byte order mark; remove it")
            if (self.strict or number == 1) and "\r" in text:
                raise DataPrepError(f"{path}: line {number} has a carriage return; convert the line ends")
            if self.strict and not text.strip():
                raise DataPrepError(f"{path}: line {number} is empty")
        if not count:
            raise DataPrepError(f"{path}: line 1 is missing, there is no text in it")
        return count


def open_lines(path: Path) -> BinaryIO:
    """Opens a file, compressed or not, for reading lines as bytes.

    Raises: DataPrepError if there is no such file.
    """
    if not path.is_file():
        raise DataPrepError(f"{path}: no such file")
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(str(path), "rb"))
    return open(str(path), "rb")
