"""The German-English corpus of the demo: drawn from a small grammar, so that nothing has to be downloaded.

Each pair is one structure, written down by the rules of both languages. German has genders, cases, declined adjectives,
separable verbs, the verb in second place or at the end, and objects before the subject; English has its own order, *do*
and *a* or *an*. German to English is a function: Präteritum and Perfekt both become a simple past.

``lexicon.tsv`` has the words, ``structure`` what a sentence is made of, ``german`` and ``english`` write it down, and
``sentences`` draws it. ``python -m data_prep demo`` prepares the files for fairseq, too.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Iterator, Mapping, Set

from data_prep.demo_corpus.sentences import Drawing, Pair


def generate(num_pairs: int, seed: int) -> Iterator[Pair]:
    """Sentence pairs, German and English; no sentence of either language comes twice."""
    drawing = Drawing(seed)
    seen: Set[str] = set()
    for _ in range(num_pairs):
        pair = drawing.sentence()
        while not seen.isdisjoint(pair):
            pair = drawing.sentence()
        seen.update(pair)
        yield pair


def write_corpus(folder: Path, sizes: Mapping[str, int], seed: int) -> None:
    """Writes ``SPLIT.de`` and ``SPLIT.en``, which share no sentence; a file has its name when it is complete.

    Args:
        folder: where they go; made if need be.
        sizes: number of pairs of each split. The others stay the same when ``train`` grows.
        seed: the same seed gives the same corpus with every Python.
    """
    if min(sizes.values()) < 0:
        raise ValueError("sizes={}: a number of pairs is not negative".format(dict(sizes)))
    folder.mkdir(parents=True, exist_ok=True)
    pairs = generate(sum(sizes.values()), seed)
    for split in sorted(sizes, key=lambda split: split == "train"):  # train last
        own = list(itertools.islice(pairs, sizes[split]))
        for language, lines in zip(("de", "en"), zip(*own)):
            aside = folder / "{}.{}.part".format(split, language)
            aside.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
            aside.replace(aside.with_suffix(""))
