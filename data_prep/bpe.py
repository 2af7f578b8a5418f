"""Joint byte-pair encoding as subword-nmt does it: counting words, learning codes, applying them.

Codes and segmented text are those of ``subword-nmt learn-bpe`` and ``apply-bpe`` (default options), byte for byte.
Words are counted and segmented chunk by chunk in all workers; what stays in memory is the vocabulary, not the text.
"""

import functools
from collections import Counter
from pathlib import Path
from typing import Dict, List, Tuple

from data_prep.errors import DataPrepError
from data_prep.learn_bpe import VERSION_LINE, learn_merges
from data_prep.progress import progress_bar

#: Words whose segmentation a worker remembers before it starts afresh.
CACHE_WORDS = 200_000

SEPARATOR = "@@"

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
    """Returns the contents of a codes file.

    Args:
        counts: word -> how often it occurs in the training text of both languages.
        num_merges: number of merge operations.
    """
    lines = [VERSION_LINE]
    with progress_bar("learning BPE", " merges", num_merges) as bar:
        for first, second in learn_merges(counts, num_merges):
            lines.append(f"{first} {second}")
            bar.update()
    return "\n".join(lines) + "\n"


class BPE(dict):
    """Segments words by the merges of a codes file; as a dictionary, it maps a word to its pieces, blank-separated.

    Args:
        codes: contents of a codes file of version 0.2.
    Example: ``BPE(codes).segment("lower newest")`` may give ``"low@@ er new@@ est"``
    """

    def __init__(self, codes: str):
        super().__init__()
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

    def __missing__(self, word: str) -> str:
        if len(self) >= CACHE_WORDS:
            self.clear()
        result = self[word] = (SEPARATOR + " ").join(self._split(word))
        return result

    def _split(self, word: str) -> List[str]:
        """Merges the characters of a word, always the pair learned first, until no merge applies."""
        if len(word) == 1:
            return [word]
        get = self._ranks.get
        symbols = list(word[:-1]) + [word[-1] + "</w>"]
        order = [get(pair, _NEVER) for pair in zip(symbols, symbols[1:])]
        while order:
            best = min(order)
            if best == _NEVER:
                break
            if order.count(best) == 1:  # the usual case: only the two neighbours change
                at = order.index(best)
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
                del order[at]
                if at:
                    order[at - 1] = get((symbols[at - 1], symbols[at]), _NEVER)
                if at < len(order):
                    order[at] = get((symbols[at], symbols[at + 1]), _NEVER)
            else:
                symbols = _merge_all(symbols, order, best)
                order = [get(pair, _NEVER) for pair in zip(symbols, symbols[1:])]
        if symbols[-1].endswith("</w>"):
            symbols[-1] = symbols[-1][:-4]
        return symbols


def _merge_all(symbols: List[str], order: List[int], best: int) -> List[str]:
    """Merges each pair whose rank is the best, from the left; of two that overlap, the first."""
    merged = []
    position, last = 0, len(symbols) - 1
    while position <= last:
        if position < last and order[position] == best:
            merged.append(symbols[position] + symbols[position + 1])
            position += 2
        else:
            merged.append(symbols[position])
            position += 1
    return merged


@functools.lru_cache(maxsize=1)
def _load(path: str, digest: str) -> BPE:
    """Returns the segmenter of this process for a codes file; the digest tells its contents from earlier ones."""
    return BPE(Path(path).read_text(encoding="utf-8"))


def apply_codes(lines: List[bytes], path: str, digest: str) -> bytes:
    """Segments a chunk of lines.

    Args:
        lines: tokenised lines.
        path: codes file.
        digest: stands for its contents.
    """
    segment = _load(path, digest).segment
    text = b"".join(lines).decode("utf-8")
    return "\n".join([segment(line) for line in text.split("\n")]).encode("utf-8")
