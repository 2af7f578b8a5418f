"""Lines of text as Perl reads them, and joining their subwords.

Perl reads bytes: it splits words at ASCII blanks only, and lower-cases ASCII letters only. So text is ``bytes`` here
wherever ``multi-bleu.perl`` must be met, and whatever the bytes are, valid UTF-8 or not.
"""

import gzip
import re
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, List, Optional, Tuple, Union

from powernorm_fairseq.console import UserError

BPE_KINDS = ("subword-nmt", "sentencepiece")
SENTENCEPIECE_SPACE = "\u2581"
_GZIP = b"\x1f\x8b"
_BYTE = re.compile("<0x[0-9A-F]{2}>").fullmatch  # sentencepiece's piece for one byte


class ScoringError(UserError):
    """Text that cannot be scored; the message says which and why."""


@dataclass(frozen=True)
class Text:
    """The lines of a file, without line ends.

    Args:
        name: what error messages call it, usually the path.
        lines: one sentence each. Only a line feed ends a line: other separators (U+2028, carriage return, ...) are
            part of it, or hypotheses and references would fall out of step. The last line may do without.
    """

    name: str
    lines: Tuple[bytes, ...]

    @classmethod
    def read(cls, path: Union[str, Path]) -> "Text":
        """Reads a file, compressed by gzip or not; ``-`` is standard input."""
        name = "standard input" if str(path) == "-" else str(path)
        try:
            data = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
        except OSError as error:
            raise ScoringError(f"{name} cannot be read: {error.strerror}") from None
        if data.startswith(_GZIP):
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError, zlib.error) as error:
                raise ScoringError(f"{name} is a damaged gzip file: {error}") from None
        elif name.endswith(".gz"):
            raise ScoringError(f"{name} is not in gzip format, as its name says")
        lines = data.split(b"\n")
        return cls(name, tuple(lines if lines[-1] else lines[:-1]))

    @classmethod
    def of(cls, name: str, lines: Iterable[str]) -> "Text":
        """Text from strings."""
        return cls(name, tuple(line.encode("utf-8", "surrogateescape") for line in lines))

    def strings(self) -> List[str]:
        """The lines as strings; invalid UTF-8 is an error that names the line."""
        strings = []
        for number, line in enumerate(self.lines, 1):
            try:
                strings.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                where = f"{self.name}, line {number}"
                raise ScoringError(f"{where}: not valid UTF-8 ({error.reason})") from None
        return strings

    def without_bpe(self, kind: str) -> "Text":
        """The text with its subwords joined; text that has no such subwords stays as it is."""
        if kind == "sentencepiece" and not any(SENTENCEPIECE_SPACE.encode() in line for line in self.lines):
            return self  # whole words already: joining would run them together
        lines = (remove_bpe(line.decode("utf-8", "surrogateescape"), kind) for line in self.lines)
        return Text.of(self.name, lines)


def remove_bpe(line: str, kind: str) -> str:
    """Joins the subwords of a line, one of :data:`BPE_KINDS`."""
    if kind == "subword-nmt":
        return (line + " ").replace("@@ ", "").rstrip(" ")
    if kind == "sentencepiece":
        if "<0x" not in line:
            return line.replace(" ", "").replace(SENTENCEPIECE_SPACE, " ").strip(" ")
        pieces = [
            bytes([int(piece[3:5], 16)]) if _BYTE(piece) else piece.replace(SENTENCEPIECE_SPACE, " ").encode("utf-8")
            for piece in line.split(" ")
        ]
        return b"".join(pieces).decode("utf-8", "replace").strip(" ")
    raise ValueError("bpe={!r} is not known; choose from {}".format(kind, ", ".join(BPE_KINDS)))


def find_bpe_kind(words: Iterable[str]) -> Optional[str]:
    """Which subwords these are, by majority, or None where they are whole words."""
    counts: "Counter[str]" = Counter()
    for word in words:
        counts["subword-nmt"] += word.endswith("@@")
        counts["sentencepiece"] += word.startswith(SENTENCEPIECE_SPACE)
    kind = max(BPE_KINDS, key=lambda name: counts[name])
    return kind if counts[kind] else None
