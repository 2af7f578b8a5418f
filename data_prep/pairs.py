"""Pairs of lines through the steps of a split: tokenised, cleaned (clean-corpus-n.perl), divided by train and valid."""

import re
from pathlib import Path
from typing import BinaryIO, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from data_prep.normalize import lowercase
from data_prep.parallel import read_chunks
from data_prep.readers import Text
from data_prep.tokenizer import Steps, prepare_text

#: Pairs with a longer word are dropped (``-max-word-length`` of the script, in characters).
MAX_WORD_LENGTH = 1000

_SPACES = re.compile("[^\\S\x1c-\x1f]+")

_Sides = Sequence[Sequence[bytes]]


class PairChunk(NamedTuple):
    """Prepared pairs: the text of each side, how many pairs they are, and how many there were before cleaning."""

    sides: List[bytes]
    kept: int
    read: int


def tokenize_pairs(lines: _Sides, steps: Steps, langs: Sequence[str]) -> PairChunk:
    """Does the steps of a split on equally many raw lines of both languages."""
    sides = [prepare_text(b"".join(side).decode("utf-8"), lang, steps) for side, lang in zip(lines, langs)]
    if steps.clean is not None:
        sides = clean_sides(sides, steps.clean, plain=not steps.tokenize)
    return _chunk(sides, len(lines[0]), steps.lower_last)


def segment_pairs(
    lines: _Sides, segment: Sequence[Callable[[Sequence[bytes]], bytes]], limits: Tuple[int, int, float]
) -> PairChunk:
    """Applies the subwords of each language to a chunk of tokenised lines, then cleans it."""
    sides = [apply(side).decode("utf-8").split("\n")[:-1] for apply, side in zip(segment, lines)]
    return _chunk(clean_sides(sides, limits), len(lines[0]))


def _chunk(sides: Sequence[List[str]], read: int, lower: bool = False) -> PairChunk:
    texts = ["\n".join(side) + "\n" if side else "" for side in sides]
    return PairChunk([(lowercase(text) if lower else text).encode("utf-8") for text in texts], len(sides[0]), read)


def _squeeze(line: str) -> str:
    """Drops bars and superfluous white space, which is Perl's: without U+001C to U+001F."""
    if "|" in line:
        line = line.replace("|", "")
    if "\x1c" in line or "\x1d" in line or "\x1e" in line or "\x1f" in line:
        return _SPACES.sub(" ", line).strip(" ")
    return " ".join(line.split())


def clean_pair(
    source: str, target: str, minimum: int, maximum: int, ratio: float = 9.0
) -> Optional[Tuple[str, str]]:
    """Returns the pair as clean-corpus-n.perl writes it, or ``None`` if it drops the pair.

    A pair stays if both sides have ``minimum`` to ``maximum`` tokens, neither has more than ``ratio`` times the
    tokens of the other, and no token is longer than ``MAX_WORD_LENGTH``. The sides that stay have single blanks
    between tokens and no ``|``, which to the script separates factors; escaped tokens have none.

    Args:
        source: first side, without line feed.
        target: second side.
        minimum: fewest tokens.
        maximum: most tokens.
        ratio: greatest quotient of the two lengths. Default: 9.0
    """
    source, target = _squeeze(source), _squeeze(target)
    if not source or not target:
        return None
    count_source, count_target = source.count(" ") + 1, target.count(" ") + 1
    if not (minimum <= count_source <= maximum and minimum <= count_target <= maximum):
        return None
    if count_source / count_target > ratio or count_target / count_source > ratio:
        return None
    for side in (source, target):
        if len(side) > MAX_WORD_LENGTH and max(map(len, side.split(" "))) > MAX_WORD_LENGTH:
            return None
    return source, target


def clean_sides(sides: Sequence[List[str]], limits: Tuple[int, int, float], plain: bool = False) -> List[List[str]]:
    """Returns the lines of both sides whose pairs stay.

    Args:
        sides: lines of the source and of the target language.
        limits: fewest and most tokens, greatest ratio.
        plain: keep the lines as they are; clean-corpus-n.perl deletes bars. Default: ``False``
    """
    kept: List[List[str]] = [[], []]
    for source, target in zip(*sides):
        if plain:  # the bar is a character like any other
            stays = clean_pair(source.replace("|", "/"), target.replace("|", "/"), *limits) is not None
            pair = (source, target) if stays else None
        else:
            pair = clean_pair(source, target, *limits)
        if pair is not None:
            kept[0].append(pair[0])
            kept[1].append(pair[1])
    return kept


def pair_chunks(texts: Iterable[Text], folder: Path, langs: Sequence[str]) -> Iterator[_Sides]:
    """Yields the raw lines of texts in chunks of equally many lines of both languages."""
    for text in texts:
        pairs = zip(*(text.lines(folder, lang) for lang in langs))
        for chunk in read_chunks(pairs, lambda pair: (len(pair[0]) + len(pair[1])) / 2):
            yield list(zip(*chunk))


def write_pairs(
    chunks: Iterable[PairChunk], files: Sequence[BinaryIO], held_files: Sequence[BinaryIO], hold_out: Optional[int]
) -> Tuple[int, int]:
    """Writes chunks to the files of a split; every so many-th line goes to other files.

    Args:
        chunks: what to write.
        files: of the source and the target language.
        held_files: of the lines held out.
        hold_out: lines whose number is divisible by it are held out; ``None`` holds out nothing.
    Returns: how many pairs are in ``files``, and in ``held_files``.
    """
    total = held = 0
    for chunk in chunks:
        if hold_out is None:
            for text, stream in zip(chunk.sides, files):
                stream.write(text)
        else:
            every = slice(hold_out - 1 - total % hold_out, None, hold_out)
            for text, stream, held_stream in zip(chunk.sides, files, held_files):
                lines = [line + b"\n" for line in text.split(b"\n")[:-1]]
                held_stream.writelines(lines[every])
                del lines[every]
                stream.writelines(lines)
            held += chunk.kept - len(lines)
        total += chunk.kept
    return total - held, held
