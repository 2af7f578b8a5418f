"""Joint byte-pair encoding as subword-nmt does it: counting words, learning codes, applying them.

Codes and segmented text are those of ``subword-nmt learn-bpe`` and ``apply-bpe``, byte for byte. Words are counted and
segmented chunk by chunk in all workers; what stays in memory is the vocabulary, not the text. A vocabulary threshold,
glossaries and dropout are subword-nmt's own code, asked once for each word (dropout: for each time it occurs).
"""

import functools
import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from data_prep.errors import DataPrepError
from data_prep.learn_bpe import VERSION_LINE, learn_merges
from data_prep.parallel import WordCache, progress_bar

#: Rank of a pair that is not merged.
_NEVER = 1 << 60


def count_words(lines: List[bytes]) -> Dict[str, int]:
    """Counts the words of a chunk of tokenised lines."""
    text = b"".join(lines).decode("utf-8")
    # Counter over one long list is a loop in C; blanks and line feeds are the only separators
    counts = Counter(text.replace("\r", " ").replace("\n", " ").split(" "))
    counts.pop("", None)
    return counts


def learn_codes(counts: Dict[str, int], num_merges: int) -> str:
    """Returns the contents of a codes file with so many merges, learned from words and how often they occur."""
    lines = [VERSION_LINE]
    with progress_bar("learning BPE", " merges", num_merges) as bar:
        for first, second in learn_merges(counts, num_merges):
            lines.append(f"{first} {second}")
            bar.update()
    return "\n".join(lines) + "\n"


class BPE(WordCache):
    """Segments words by the merges of a codes file; as a dictionary, it maps a word to its pieces, blank-separated.

    Args:
        codes: contents of a codes file of version 0.2.
    Example: ``BPE(codes).segment("lower newest")`` may give ``"low@@ er new@@ est"``
    """

    def __init__(self, codes: str):
        super().__init__(lambda word: "@@ ".join(self._split(word)))
        lines = codes.rstrip("\n").split("\n")
        if lines[0] != VERSION_LINE:
            raise DataPrepError(f"the BPE codes begin with {lines[0][:40]!r} and not with {VERSION_LINE!r}")
        self._ranks: Dict[Tuple[str, str], int] = {}
        for rank, line in enumerate(lines[1:]):
            pair = tuple(line.strip("\r\n ").split(" "))
            if len(pair) != 2:
                raise DataPrepError(f"line {rank + 2} of the BPE codes is not a pair: {line[:40]!r}")
            self._ranks.setdefault(pair, rank)

    def segment(self, line: str) -> str:
        """Segments a line of tokens; blanks at its ends stay, as in subword-nmt."""
        core = line.strip("\r\n ")
        words = core.split(" ")
        if "" in words:
            words = [word for word in words if word]
        text = " ".join(map(self.__getitem__, words))
        if len(core) == len(line):
            return text
        start = len(line) - len(line.lstrip("\r\n "))
        return line[:start] + text + line[start + len(core) :]

    def _split(self, word: str) -> List[str]:
        """Merges the characters of a word, always the pair learned first, until no merge applies."""
        if len(word) == 1:
            return [word]
        get = self._ranks.get
        symbols = [*word[:-1], word[-1] + "</w>"]
        order = [get(pair, _NEVER) for pair in zip(symbols, symbols[1:])]
        while order:
            best = min(order)
            if best == _NEVER:
                break
            while best in order:  # every place of this pair, from the left; of two that overlap, the first
                at = order.index(best)
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
                del order[at]
                if at:
                    order[at - 1] = get((symbols[at - 1], symbols[at]), _NEVER)
                if at < len(order):
                    order[at] = get((symbols[at], symbols[at + 1]), _NEVER)
        if symbols[-1].endswith("</w>"):
            symbols[-1] = symbols[-1][:-4]
        return symbols


class Settings(NamedTuple):
    """How codes are applied, beyond the codes.

    Attributes:
        vocabulary: file of pieces and their counts, as subword-nmt writes it; rarer pieces are split further.
        threshold: least count of a piece.
        glossaries: regular expressions of words that are not split.
        dropout: probability that a merge is left out.
    """

    vocabulary: str = ""
    threshold: int = 0
    glossaries: Tuple[str, ...] = ()
    dropout: float = 0.0


DEFAULT = Settings()


class SubwordNMT(BPE):
    """The same by subword-nmt, with its further settings."""

    def __init__(self, path: str, settings: Settings):
        from subword_nmt import apply_bpe

        super().__init__(Path(path).read_text(encoding="utf-8"))
        vocabulary = None
        if settings.vocabulary:
            with open(settings.vocabulary, encoding="utf-8", newline="\n") as stream:
                vocabulary = apply_bpe.read_vocabulary(stream, settings.threshold)
        with open(path, encoding="utf-8") as stream:
            theirs = apply_bpe.BPE(stream, vocab=vocabulary, glossaries=list(settings.glossaries))
        self._make = lambda word: " ".join(theirs.segment_tokens([word], settings.dropout))
        self._dropout = settings.dropout

    def __missing__(self, word: str) -> str:
        return self._make(word) if self._dropout else super().__missing__(word)


def count_pieces(counts: Dict[str, int], codes: str) -> str:
    """Returns the contents of a vocabulary file: the pieces of words and how often they occur, most frequent first."""
    bpe = BPE(codes)
    pieces: "Counter[str]" = Counter()
    for word, count in counts.items():
        for piece in bpe[word].split(" "):
            pieces[piece] += count
    return "".join([f"{piece} {count}\n" for piece, count in pieces.most_common()])


@functools.lru_cache(maxsize=4)
def _load(path: str, digest: str, settings: Settings) -> BPE:
    """Returns the segmenter of this process for a codes file; the digest tells its contents from earlier ones."""
    if settings == DEFAULT:
        return BPE(Path(path).read_text(encoding="utf-8"))
    return SubwordNMT(path, settings)


def apply_codes(lines: Sequence[bytes], path: str, digest: str, settings: Settings = DEFAULT) -> bytes:
    """Segments a chunk of tokenised lines by a codes file, whose digest stands for its contents."""
    segment = _load(path, digest, settings).segment
    data = b"".join(lines)
    if settings.dropout:
        random.seed(zlib.crc32(data))  # the same text is segmented the same way, whichever worker does it
    return "\n".join([segment(line) for line in data.decode("utf-8").split("\n")]).encode("utf-8")
