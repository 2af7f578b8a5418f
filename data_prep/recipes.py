"""The classic recipes as data: which archives, which texts in which order, which steps.

Sources: fairseq's ``prepare-iwslt14.sh`` and ``prepare-wmt14en2de.sh`` for addresses and order, the release of the
PowerNorm paper for what WMT14 does otherwise (newstest2013, 1 to 80 tokens), and the Multi30k repository's
``task1-tokenize.sh`` for Multi30k. None of the archives has a published checksum, so none is written here.
"""

from dataclasses import dataclass, replace
from typing import Dict, Optional, Tuple

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
        aggressive: split at hyphens when tokenising.
        clean: fewest and most tokens and greatest ratio of a pair that stays; ``None`` keeps all.
        lower_last: lower-case the tokens.
    """

    lower_first: bool = False
    normalize: bool = False
    printing: bool = False
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
        hold_out: every so many-th line of the cleaned training text becomes valid and not train.
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


_NEWS_COMMENTARY = {
    "v9": "wmt14/training-parallel-nc-v9.tgz",
    "v12": "wmt17/translation-task/training-parallel-nc-v12.tgz",
}


def _statmt(path: str) -> Archive:
    """An archive of statmt.org, which answers under two names; recent years are under the first."""
    hosts = ["https://data.statmt.org/", "https://www.statmt.org/", "http://www.statmt.org/"]
    if not path.startswith("wmt17/"):
        hosts.append(hosts.pop(0))
    return Archive(path.rsplit("/", 1)[1], tuple(host + path for host in hosts))


def wmt14(news_commentary: str = "v12", valid_from_train: bool = False) -> Recipe:
    """WMT14 English-German, case kept.

    Args:
        news_commentary: ``v12`` as in the PowerNorm release, or ``v9``, the classic WMT14 set. Default: ``"v12"``
        valid_from_train: every 100th line of the cleaned training text is valid, in place of newstest2013.
            Default: ``False``
    """
    if news_commentary not in _NEWS_COMMENTARY:
        raise DataPrepError(f"news_commentary={news_commentary!r} is not known; choose from v12, v9")
    commentary = f"training/news-commentary-{news_commentary}.de-en.{{lang}}"
    corpora = ("training/europarl-v7.de-en.{lang}", "commoncrawl.de-en.{lang}", commentary)
    raw = Steps(normalize=True, printing=True, aggressive=True)
    roles = (("en", "src"), ("de", "ref"))
    newstest2014 = Text("test-full/newstest2014-deen-{role}.{lang}.sgm", "segments", roles=roles)
    splits = {
        "train": Split(tuple(Text(path, strict=False) for path in corpora), replace(raw, clean=(1, 80, 9.0))),
        "test": Split((newstest2014,), Steps(aggressive=True)),
    }
    archives = [
        _statmt("wmt13/training-parallel-europarl-v7.tgz"),
        _statmt("wmt13/training-parallel-commoncrawl.tgz"),
        _statmt(_NEWS_COMMENTARY[news_commentary]),
        _statmt("wmt14/test-full.tgz"),
    ]
    if not valid_from_train:
        splits["valid"] = Split((Text("dev/newstest2013.{lang}"),), raw)
        archives.append(_statmt("wmt17/translation-task/dev.tgz"))
    return Recipe(
        name="wmt14",
        source="en",
        target="de",
        archives=tuple(archives),
        splits=splits,
        bpe_tokens=32_764,
        hold_out=100 if valid_from_train else None,
    )


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
