"""Learning byte-pair merges from word counts: the codes that subword-nmt writes, in a fraction of its time.

The algorithm is that of subword-nmt's ``learn_bpe`` (version 0.2 of the codes), step for step, because its way of
pruning rare pairs can decide which pair is merged next; what differs is how each step is computed. The tests compare
the codes with subword-nmt's byte for byte.
"""

from bisect import insort
from collections import defaultdict
from typing import DefaultDict, Dict, Iterator, List, Mapping, Tuple

from data_prep.errors import DataPrepError

#: First line of a codes file.
VERSION_LINE = "#version: 0.2"

_Pair = Tuple[str, str]
_Word = Tuple[str, ...]


def learn_merges(counts: Mapping[str, int], num_merges: int) -> Iterator[_Pair]:
    """Yields the merge operations, most important first; stops early where no pair is frequent enough.

    Args:
        counts: word -> how often it occurs.
        num_merges: how many merges to learn.
    Raises: DataPrepError if there is no pair at all.
    """
    pairs = _Pairs(counts)
    if not pairs.stats:
        raise DataPrepError("the training text has no word of two characters or more, so there is nothing to merge")
    full = dict(pairs.stats)
    threshold = max(full.values()) / 10
    for step in range(num_merges):
        best = pairs.most_frequent() if pairs.stats else None
        if best is None or (step and pairs.stats[best] < threshold):
            # pruning has hidden the best pair: go back to all of them
            pairs.prune(full, threshold)
            pairs.restore(full)
            best = pairs.most_frequent()
            threshold = pairs.stats[best] * step / (step + 10000.0)
            pairs.prune(full, threshold)
        if pairs.stats[best] < 2:
            return
        yield best
        pairs.merge(best)
        if step % 100 == 0:
            pairs.prune(full, threshold)


class _Pairs:
    """The words as sequences of symbols, and the frequencies of neighbouring symbols.

    Attributes:
        stats: pair -> frequency; pruned pairs are absent, and come back with the change since then.
    """

    def __init__(self, counts: Mapping[str, int]):
        ordered = sorted(counts.items(), key=lambda item: item[1], reverse=True)
        self._words: List[_Word] = [tuple(word[:-1]) + (word[-1] + "</w>",) for word, _ in ordered]
        self._freqs = [freq for _, freq in ordered]
        self.stats: DefaultDict[_Pair, int] = defaultdict(int)
        # pair -> word -> how often the pair is in the word
        self._index: DefaultDict[_Pair, DefaultDict[int, int]] = defaultdict(lambda: defaultdict(int))
        # the pairs that had the greatest frequency at the last look, and those that have reached it since
        self._top = 0
        self._ties: List[_Pair] = []
        self._risen: List[_Pair] = []
        for number, (word, freq) in enumerate(zip(self._words, self._freqs)):
            for pair in zip(word, word[1:]):
                self.stats[pair] += freq
                self._index[pair][number] += 1

    def most_frequent(self) -> _Pair:
        """Returns the pair of greatest frequency, of equals the greatest pair; it must be merged next."""
        stats, top = self.stats, self._top
        for pair in self._risen:
            freq = stats.get(pair, 0)
            if freq > top:
                self._ties = []
                break
            if freq == top:
                insort(self._ties, pair)
        self._risen = []
        while self._ties:
            pair = self._ties.pop()
            if stats.get(pair) == top:
                return pair
        self._top = top = max(stats.values())
        self._ties = sorted([pair for pair, freq in stats.items() if freq == top])
        return self._ties.pop()

    def prune(self, full: Dict[_Pair, int], threshold: float) -> None:
        """Moves pairs below the threshold to ``full``."""
        stats = self.stats
        for pair in [pair for pair, freq in stats.items() if freq < threshold]:
            freq = stats.pop(pair)
            if freq < 0:
                full[pair] = full.get(pair, 0) + freq
            else:
                full[pair] = freq

    def restore(self, full: Dict[_Pair, int]) -> None:
        """Takes over all pairs of ``full``."""
        self.stats = defaultdict(int, full)
        self._ties = []

    def merge(self, pair: _Pair) -> None:
        """Makes one symbol of a pair in all words that have it, and corrects the frequencies around it."""
        first, second = pair
        merged = first + second
        self.stats[pair] = 0
        for number, times in self._index.pop(pair, {}).items():
            if times < 1:
                continue
            old = self._words[number]
            new: List[str] = []
            position, last = 0, len(old) - 1
            while position <= last:
                if old[position] == first and position < last and old[position + 1] == second:
                    self._forget(old, position, pair, number)
                    new.append(merged)
                    position += 2
                else:
                    new.append(old[position])
                    position += 1
            self._words[number] = tuple(new)
            self._count(new, merged, number)
        self.stats[pair] = 0

    def _forget(self, word: _Word, position: int, pair: _Pair, number: int) -> None:
        """Takes away the pairs that overlap the one at this position."""
        freq = self._freqs[number]
        first, second = pair
        after = position + 2
        gone = []
        if position:
            gone.append((word[position - 1], first))
        # in A B C B C the pair C B is taken away by the second occurrence of B C
        if after < len(word) and (word[after] != first or after + 1 >= len(word) or word[after + 1] != second):
            gone.append((second, word[after]))
        for other in gone:
            self.stats[other] -= freq
            self._index[other][number] -= 1

    def _count(self, word: List[str], merged: str, number: int) -> None:
        """Adds the pairs that the merged symbol forms with its neighbours."""
        freq = self._freqs[number]
        last = len(word) - 1
        for position, symbol in enumerate(word):
            if symbol != merged:
                continue
            found = []
            if position:
                found.append((word[position - 1], merged))
            # in A BC BC the pair BC BC is counted by the second occurrence of BC
            if position < last and word[position + 1] != merged:
                found.append((merged, word[position + 1]))
            for pair in found:
                total = self.stats[pair] = self.stats[pair] + freq
                if total >= self._top:
                    self._risen.append(pair)
                self._index[pair][number] += 1
