"""Pairs of lines through the steps of a split: tokenised, cleaned, divided between train and valid."""

import functools
from pathlib import Path
from typing import BinaryIO, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from data_prep.clean import clean_pair
from data_prep.moses import get_tokenizer
from data_prep.normalize import lowercase
from data_prep.parallel import CHUNK_BYTES, CHUNK_LINES, WorkerPool
from data_prep.progress import progress_bar
from data_prep.readers import Text
from data_prep.recipes import Split, Steps
from data_prep.tokenizer import prepare_text

_Lines = Tuple[List[bytes], List[bytes]]


class PairChunk(NamedTuple):
    """Tokenised pairs.

    Attributes:
        source: lines of the source language, each ended by a line feed.
        target: lines of the target language.
        kept: how many there are.
        read: how many there were before cleaning.
    """

    source: bytes
    target: bytes
    kept: int
    read: int


def tokenize_pairs(lines: _Lines, steps: Steps, langs: Tuple[str, str]) -> PairChunk:
    """Does the steps of a split on a chunk of raw lines.

    Args:
        lines: of the source and of the target language, equally many.
        steps: what to do.
        langs: the two languages.
    """
    sides = [
        prepare_text(
            b"".join(side).decode("utf-8"),
            lang,
            aggressive=steps.aggressive,
            normalize=steps.normalize,
            printing=steps.printing,
            lower_first=steps.lower_first,
            tokenize=steps.tokenize,
        )
        for side, lang in zip(lines, langs)
    ]
    if steps.clean is not None:
        sides = clean_sides(sides, steps.clean, plain=not steps.tokenize)
    texts = ["\n".join(side) + "\n" if side else "" for side in sides]
    if steps.lower_last:
        texts = [lowercase(text) for text in texts]
    return PairChunk(texts[0].encode("utf-8"), texts[1].encode("utf-8"), len(sides[0]), len(lines[0]))


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


def segment_pairs(
    lines: _Lines, segment: Sequence[Callable[[List[bytes]], bytes]], limits: Tuple[int, int, float]
) -> PairChunk:
    """Applies subwords to a chunk of tokenised lines, then cleans it.

    Args:
        lines: of the source and of the target language, equally many.
        segment: what to apply, for each language.
        limits: fewest and most subwords, greatest ratio.
    """
    sides = [apply(side).decode("utf-8").split("\n")[:-1] for apply, side in zip(segment, lines)]
    kept = clean_sides(sides, limits)
    texts = ["\n".join(side) + "\n" if side else "" for side in kept]
    return PairChunk(texts[0].encode("utf-8"), texts[1].encode("utf-8"), len(kept[0]), len(lines[0]))


def pair_chunks(texts: Iterable[Text], folder: Path, langs: Tuple[str, str]) -> Iterator[_Lines]:
    """Yields the raw lines of texts in chunks of equally many lines of both languages."""
    for text in texts:
        source: List[bytes] = []
        target: List[bytes] = []
        size = 0
        for first, second in zip(text.lines(folder, langs[0]), text.lines(folder, langs[1])):
            source.append(first)
            target.append(second)
            size += len(first) + len(second)
            if len(source) >= CHUNK_LINES or size >= 2 * CHUNK_BYTES:
                yield source, target
                source, target, size = [], [], 0
        if source:
            yield source, target


class PairWriter:
    """Writes chunks to the files of a split; every so many-th line goes to other files.

    Args:
        files: of the source and the target language.
        held_files: of the lines held out.
        hold_out: lines whose number is divisible by it are held out; ``None`` holds out nothing.

    Attributes:
        written: pairs in ``files``.
        held: pairs in ``held_files``.
    """

    def __init__(self, files: Sequence[BinaryIO], held_files: Sequence[BinaryIO], hold_out: Optional[int]):
        self._files = files
        self._held_files = held_files
        self._hold_out = hold_out
        self.written = 0
        self.held = 0

    def write(self, chunk: PairChunk) -> None:
        """Writes a chunk."""
        held = 0
        if self._hold_out is None:
            for text, stream in zip(chunk[:2], self._files):
                stream.write(text)
        else:
            first = self._hold_out - 1 - (self.written + self.held) % self._hold_out
            for text, stream, held_stream in zip(chunk[:2], self._files, self._held_files):
                lines = text.split(b"\n")[:-1]
                taken = lines[first :: self._hold_out]
                del lines[first :: self._hold_out]
                stream.write(b"".join([line + b"\n" for line in lines]))
                held_stream.write(b"".join([line + b"\n" for line in taken]))
                held = len(taken)
        self.written += chunk.kept - held
        self.held += held


def tokenize_split(
    name: str, split: Split, folder: Path, langs: Tuple[str, str], raw: int, writer: PairWriter, pool: WorkerPool
) -> None:
    """Reads, tokenises, cleans and writes a split.

    Args:
        name: of the split, for the progress bar.
        split: its texts and steps.
        folder: with the raw files.
        langs: source and target language.
        raw: how many pairs the texts have.
        writer: takes the results.
        pool: does the work.
    """
    for lang in langs if split.steps.tokenize else ():  # loaded once here, before the workers split off
        get_tokenizer(lang, split.steps.aggressive)
    work = functools.partial(tokenize_pairs, steps=split.steps, langs=langs)
    with progress_bar("tokenising " + name, " pairs", raw) as bar:
        for chunk in pool.map(work, pair_chunks(split.texts, folder, langs)):
            writer.write(chunk)
            bar.update(chunk.read)
