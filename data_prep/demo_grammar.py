"""Makes the German-English corpus of the demo from a small grammar of both languages.

Every sentence pair is built from one structure: a clause with a subject, a verb, complements and adverbials is drawn
at random, then written down twice, once by the rules of each language. So the German has real morphology (gender,
case, adjective declension, strong and separable verbs, compounds) and real word order (verb second, verb final,
infinitives with *zu*), the English has its own, and both always mean the same.

German to English is a function. Where German leaves a choice, one rule decides:

- Präteritum and Perfekt both become a simple past; a Perfekt with *schon*, *gerade* or *noch nie* and a present with
  *seit* become a present perfect.
- A present with *gerade* or *jetzt* becomes a progressive, any other present a simple present.
- *sein* and *ihr* (his, her, their) always belong to the subject of their clause; *sie* is never an object. The polite
  *Sie* occurs in questions and commands only, never as the first word.
- An object comes before the subject only where the case endings show it.

The corpus depends on the seed alone: the same on every platform and every Python from 3.8.

This module draws and writes the corpus. The grammar is in its siblings, each of which imports only from those before
it: ``demo_lexicon`` and ``demo_words`` (words), ``demo_german`` and ``demo_english`` (inflection), ``demo_nominals``,
``demo_parts`` and ``demo_clauses`` (writing both languages), ``demo_draw_phrases`` and ``demo_draw_clauses`` (drawing
at random), ``demo_simple_sentences``, ``demo_complex_sentences`` and ``demo_patterns`` (sentences).

Example::

    python data_prep/demo_grammar.py --out data/demo --train 20000 --valid 500 --test 500 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Union

if __package__ in (None, ""):  # run as a script: the first entry is this folder, whose modules are not top-level ones
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep.demo_draw_clauses import Composer
from data_prep.demo_patterns import Pair, sentence

DEFAULT_SIZES: Mapping[str, int] = {"train": 20000, "valid": 500, "test": 500}
STAMP = "corpus.json"


def generate(num_pairs: int, seed: int) -> Iterator[Pair]:
    """Return sentence pairs, German and English, as tokens between single spaces.

    No German sentence and no English one comes twice. A longer run starts with the pairs of a shorter one.

    Args:
        num_pairs: how many.
        seed: the same seed gives the same pairs on every platform and Python version.

    Raises:
        ValueError: if ``num_pairs`` is negative.
    """
    if num_pairs < 0:
        raise ValueError("num_pairs=%d: must not be negative" % num_pairs)
    return itertools.islice(_distinct_pairs(Composer(random.Random(seed))), num_pairs)


def _distinct_pairs(composer: Composer) -> Iterator[Pair]:
    german_seen, english_seen = set(), set()
    while True:
        german, english = sentence(composer)
        if german not in german_seen and english not in english_seen:
            german_seen.add(german)
            english_seen.add(english)
            yield german, english


def write_corpus(
    out_dir: Union[str, Path], sizes: Mapping[str, int] = DEFAULT_SIZES, seed: int = 1, overwrite: bool = False
) -> bool:
    """Write ``SPLIT.de`` and ``SPLIT.en`` for every split, and ``corpus.json``, which says what they are.

    The splits share no sentence of either language. ``train`` is drawn last: with a larger one the other splits stay
    as they are, and the smaller one is its beginning. Files get their names only when all of them are complete, and
    ``corpus.json`` comes last, so an interrupted run is simply run again.

    Args:
        out_dir: folder, made if need be.
        sizes: number of pairs for each split.
        seed: see ``generate``.
        overwrite: replace files that this call would write otherwise.

    Returns:
        False if the same corpus was there already, True if it was written.

    Raises:
        FileExistsError: if other files are in the way and ``overwrite`` is not set.
        ValueError: if a size is negative or a split's name is no plain word.
    """
    for split, size in sizes.items():
        if size < 0 or not split.isidentifier():
            raise ValueError("sizes={%r: %r}: want plain names and no negative numbers" % (split, size))
    folder = Path(out_dir)
    settings = {"seed": seed, "sizes": dict(sizes), "grammar": _fingerprint(seed)}
    stamp = _read_stamp(folder)
    if all(stamp.get(key) == value for key, value in settings.items()) and _is_complete(folder, stamp):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    drafts: Dict[str, Path] = {}
    try:
        digests = _write_drafts(folder, sizes, seed, drafts)
        if not overwrite:
            _refuse_to_replace(folder, digests)
        if (folder / STAMP).exists():
            (folder / STAMP).unlink()
        for name, draft in drafts.items():
            os.replace(draft, folder / name)
        _write_stamp(folder, {**settings, "sha256": digests})
    finally:
        for draft in drafts.values():
            if draft.exists():
                draft.unlink()
    return True


def _fingerprint(seed: int) -> str:
    """Return a digest that changes with the grammar: that of the first pairs."""
    text = "".join("%s\t%s\n" % pair for pair in generate(200, seed))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_stamp(folder: Path) -> Dict[str, Any]:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(folder: Path, stamp: Mapping[str, Any]) -> None:
    draft = folder / (STAMP + ".partial")
    draft.write_text(json.dumps(stamp, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, folder / STAMP)


def _is_complete(folder: Path, stamp: Mapping[str, Any]) -> bool:
    files = stamp.get("sha256", {})
    return all((folder / name).is_file() and _digest(folder / name) == digest for name, digest in files.items())


def _write_drafts(folder: Path, sizes: Mapping[str, int], seed: int, drafts: Dict[str, Path]) -> Dict[str, str]:
    """Write all files under temporary names, noted in ``drafts``, and return their digests."""
    pairs = generate(sum(sizes.values()), seed)
    for split in sorted(sizes, key=lambda split: split == "train"):  # train last; the sort keeps the others' order
        names = split + ".de", split + ".en"
        for name in names:
            drafts[name] = folder / (name + ".partial")
        with open(drafts[names[0]], "w", encoding="utf-8", newline="\n") as german_file, \
                open(drafts[names[1]], "w", encoding="utf-8", newline="\n") as english_file:
            for german, english in itertools.islice(pairs, sizes[split]):
                german_file.write(german + "\n")
                english_file.write(english + "\n")
    return {name: _digest(draft) for name, draft in drafts.items()}


def _refuse_to_replace(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise if a file exists with other content than it is to get; the same content is what a killed run left."""
    for name, digest in digests.items():
        path = folder / name
        if path.exists() and _digest(path) != digest:
            raise FileExistsError("%s holds another corpus; choose another folder or overwrite it" % path)


def _parse_arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write the demo's German-English corpus: SPLIT.de and SPLIT.en for train, valid and test.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the files")
    for split, size in DEFAULT_SIZES.items():
        parser.add_argument("--" + split, type=int, default=size, metavar="N", help="pairs in %s" % split)
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the corpus")
    parser.add_argument("--overwrite", action="store_true", help="replace other files of the same names")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status."""
    args = _parse_arguments(argv)
    sizes = {split: getattr(args, split) for split in DEFAULT_SIZES}
    try:
        written = write_corpus(args.out, sizes, args.seed, args.overwrite)
    except (OSError, ValueError) as error:
        print("demo_grammar: %s" % error, file=sys.stderr)
        return 1
    for split, size in sizes.items():
        print("%s: %d pairs in %s" % (split, size, Path(args.out) / (split + ".{de,en}")))
    print("written" if written else "already complete, left as it is")
    return 0


if __name__ == "__main__":
    sys.exit(main())
