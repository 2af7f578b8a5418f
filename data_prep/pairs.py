"""Pairs of lines through the steps of a split: tokenised, cleaned, divided between train and valid."""

from pathlib import Path
from typing import BinaryIO, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from data_prep.clean import clean_pair
from data_prep.normalize import lowercase
from data_prep.parallel import read_chunks
from data_prep.readers import Text
from data_prep.tokenizer import Steps, prepare_text

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
