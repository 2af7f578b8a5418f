"""The classic recipes as data: which archives, which texts in which order, which steps.

Sources: fairseq's ``prepare-iwslt14.sh`` and ``prepare-wmt14en2de.sh`` for addresses, order and its own two ways to
prepare WMT14, the release of the PowerNorm paper for what it does otherwise (newstest2013, 1 to 80 tokens), and the
Multi30k repository's ``task1-tokenize.sh`` for Multi30k. None of the archives has a published checksum, so none is
written here; a text that has another number of lines than the published one is pointed out.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from data_prep.download import Archive
from data_prep.errors import DataPrepError
from data_prep.readers import Text


@dataclass(frozen=True)
class Steps:
    """What happens to the lines of a split, in this order.

    Attributes:
        lower_first: lower-case the raw text.
        normalize: normalise punctuation.
        printing: replace characters that do not print.
        tokenize: tokenise as Moses does; otherwise the text stays plain, but for runs of blanks.
        aggressive: split at hyphens when tokenising.
        clean: fewest and most tokens and greatest ratio of a pair that stays; ``None`` keeps all.
        lower_last: lower-case the tokens.
    """

    lower_first: bool = False
    normalize: bool = False
    printing: bool = False
    tokenize: bool = True
    aggressive: bool = False
    clean: Optional[Tuple[int, int, float]] = None
    lower_last: bool = False


@dataclass(frozen=True)
class Split:
    """One of train, valid and test: texts, one after the other, and their steps."""

    texts: Tuple[Text, ...]
    steps: Steps


@dataclass(frozen=True)
class Recipe:
    """A corpus.

    Attributes:
        name: as on the command line.
        source: source language.
        target: target language.
        archives: what to fetch.
        splits: train, test and, unless ``hold_out`` is given, valid.
        hold_out: every so many-th line of the (cleaned) training text becomes valid and not train.
        clean_bpe: the same limits as in ``Steps.clean``, for train and valid after subwords were applied.
        bpe_tokens: default number of merges (or, for sentencepiece, pieces).
        unpack: whether the archives are tar files; otherwise they are the texts themselves.
        expected: lines of the splits when made from the published archives, where known.
    """

    name: str
    source: str
    target: str
    archives: Tuple[Archive, ...]
    splits: Dict[str, Split]
    bpe_tokens: int
    hold_out: Optional[int] = None
    clean_bpe: Optional[Tuple[int, int, float]] = None
    unpack: bool = True
    expected: Optional[Dict[str, int]] = None


def iwslt14() -> Recipe:
    """IWSLT14 German-English, lower-cased: 160,239 / 7,283 / 6,750 pairs."""
    sets = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    train = Text("de-en/train.tags.de-en.{lang}", "tags", strict=False)
    test = tuple(Text(f"de-en/IWSLT14.{name}.de-en.{{lang}}.xml", "segments") for name in sets)
    return Recipe(
        name="iwslt14",
        source="de",
        target="en",
        archives=(
            Archive(
                "de-en.tgz",
                (
                    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                    "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                    "https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",
                ),
            ),
        ),
        splits={
            "train": Split((train,), Steps(clean=(1, 175, 1.5), lower_last=True)),
            "test": Split(test, Steps(lower_last=True)),
        },
        bpe_tokens=10_000,
        hold_out=23,
        expected={"train": 160_239, "valid": 7_283, "test": 6_750},
    )


def _statmt(path: str) -> Archive:
    """An archive of statmt.org, which answers under two names; recent years are under the first."""
    hosts = ["https://data.statmt.org/", "https://www.statmt.org/", "http://www.statmt.org/"]
    if not path.startswith("wmt17/"):
        hosts.append(hosts.pop(0))
    return Archive(path.rsplit("/", 1)[1], tuple(host + path for host in hosts))


_EUROPARL = Text("training/europarl-v7.de-en.{lang}", strict=False, pairs=1_920_209)
_COMMON_CRAWL = Text("commoncrawl.de-en.{lang}", strict=False, pairs=2_399_123)
_COMMENTARY_9 = Text("training/news-commentary-v9.de-en.{lang}", strict=False, pairs=201_288)
_COMMENTARY_12 = Text("training/news-commentary-v12.de-en.{lang}", strict=False, pairs=270_769)
_NEWSTEST_2013 = Text("dev/newstest2013.{lang}", pairs=3_000)
_NEWSTEST_2014 = Text(
    "test-full/newstest2014-deen-{role}.{lang}.sgm", "segments", roles=(("en", "src"), ("de", "ref")), pairs=3_003
)
WMT14_RECIPES = ("release", "fairseq", "fairseq-icml17")


def wmt14(recipe: str = "release") -> Recipe:
    """WMT14 English-German, case kept: Europarl v7, Common Crawl, News Commentary; test is newstest2014.

    Europarl has 1,920,209 pairs, Common Crawl 2,399,123, News Commentary v12 270,769 (v9: 201,288), newstest2013 3,000
    and newstest2014 3,003.

    Args:
        recipe: ``release`` as the PowerNorm release: 1 to 80 tokens, valid is newstest2013. ``fairseq`` as fairseq's
            prepare-wmt14en2de.sh: every 100th line is valid, 40,000 merges are learned on uncleaned text, and train
            and valid are cleaned after BPE, 1 to 250 subwords and ratio 1.5. ``fairseq-icml17`` as that with --icml17:
            News Commentary v9 in place of v12. Default: ``"release"``
    """
    if recipe not in WMT14_RECIPES:
        raise DataPrepError(f"recipe={recipe!r} is not known; choose from {', '.join(WMT14_RECIPES)}")
    classic = recipe == "fairseq-icml17"
    raw = Steps(normalize=True, printing=True, aggressive=True)
    train = (_EUROPARL, _COMMON_CRAWL, _COMMENTARY_9 if classic else _COMMENTARY_12)
    splits = {"train": Split(train, raw), "test": Split((_NEWSTEST_2014,), Steps(aggressive=True))}
    archives = [
        _statmt("wmt13/training-parallel-europarl-v7.tgz"),
        _statmt("wmt13/training-parallel-commoncrawl.tgz"),
        _statmt(
            "wmt14/training-parallel-nc-v9.tgz" if classic else "wmt17/translation-task/training-parallel-nc-v12.tgz"
        ),
        _statmt("wmt14/test-full.tgz"),
    ]
    name = "wmt14" if recipe == "release" else f"wmt14-{recipe}"
    if recipe != "release":
        shared: Dict[str, Any] = {"bpe_tokens": 40_000, "hold_out": 100, "clean_bpe": (1, 250, 1.5)}
        return Recipe(name, "en", "de", tuple(archives), splits, **shared)
    splits["train"] = Split(train, replace(raw, clean=(1, 80, 9.0)))
    splits["valid"] = Split((_NEWSTEST_2013,), raw)
    archives.append(_statmt("wmt17/translation-task/dev.tgz"))
    return Recipe(name, "en", "de", tuple(archives), splits, bpe_tokens=32_764)


def multi30k(test_set: str = "2016") -> Recipe:
    """Multi30k task 1 German-English, lower-cased: 29,000 / 1,014 / 1,000 pairs.

    Args:
        test_set: ``2016`` or ``2017`` (both Flickr). Default: ``"2016"``
    """
    if test_set not in ("2016", "2017"):
        raise DataPrepError(f"test_set={test_set!r} is not known; choose from 2016, 2017")
    names = {"train": "train", "valid": "val", "test": f"test_{test_set}_flickr"}
    steps = Steps(lower_first=True, normalize=True)
    bases = (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
        "https://github.com/multi30k/dataset/raw/master/data/task1/raw/",
    )
    files = [f"{name}.{lang}.gz" for name in names.values() for lang in ("de", "en")]
    return Recipe(
        name="multi30k",
        source="de",
        target="en",
        archives=tuple(Archive(name, tuple(base + name for base in bases)) for name in files),
        splits={split: Split((Text(name + ".{lang}.gz"),), steps) for split, name in names.items()},
        bpe_tokens=10_000,
        unpack=False,
        expected={"train": 29_000, "valid": 1_014, "test": 1_000},
    )


def text(files: Mapping[str, Sequence[Tuple[Path, Path]]], langs: Tuple[str, str], steps: Steps) -> Recipe:
    """Any parallel text: files of two languages, line by line.

    Args:
        files: split -> pairs of files.
        langs: source and target language.
        steps: of train; valid and test are not cleaned.
    """
    splits = {}
    for split, pairs in files.items():
        texts = []
        for pair in pairs:
            roles = tuple((lang, str(path.absolute())) for lang, path in zip(langs, pair))
            texts.append(Text("{role}", strict=split != "train", roles=roles))
        splits[split] = Split(tuple(texts), steps if split == "train" else replace(steps, clean=None))
    return Recipe("text", langs[0], langs[1], (), splits, bpe_tokens=10_000, unpack=False)
