"""The corpora as data: which archives, which texts in which order, which steps, and how much to expect.

Sources: fairseq's ``prepare-iwslt14.sh`` and ``prepare-wmt14en2de.sh`` for addresses, order and its own two ways to
prepare WMT14, the release of the PowerNorm paper for what it does otherwise (newstest2013, 1 to 80 tokens), and the
Multi30k repository's ``task1-tokenize.sh`` for Multi30k. None of the archives has a published checksum, so none is
written here; a text that has another number of lines than the published one is pointed out.

The corpora of language modelling are published as words already, with rare words as ``<unk>``, which is fairseq's own
word for the unknown. A token count takes the end of each line as a token, empty lines included: the convention of all
published counts and of fairseq-preprocess.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from data_prep.download import Archive
from data_prep.errors import DataPrepError
from data_prep.readers import Text
from data_prep.tokenizer import Steps

SPLITS = ("train", "valid", "test")


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
        langs: source and target language; ``txt`` alone, the ending of its files, for language modelling.
        archives: what to fetch.
        splits: train, test and, unless ``hold_out`` is given, valid.
        bpe_tokens: default number of merges (or, for sentencepiece, pieces).
        hold_out: every so many-th line of the (cleaned) training text becomes valid and not train.
        clean_bpe: the same limits as in ``Steps.clean``, for train and valid after subwords were applied.
        unpack: whether texts are in the archives; otherwise these are the texts themselves.
        expected: pairs, or tokens, of the splits when made from the published archives, where known.
        words: size of the vocabulary as published, ``<unk>`` included and the end of a line not, where known.
    """

    name: str
    langs: Tuple[str, ...]
    archives: Tuple[Archive, ...]
    splits: Dict[str, Split]
    bpe_tokens: Optional[int] = None
    hold_out: Optional[int] = None
    clean_bpe: Optional[Tuple[int, int, float]] = None
    unpack: bool = True
    expected: Optional[Dict[str, int]] = None
    words: Optional[int] = None


def _archive(name: str, *folders: str) -> Archive:
    """A file that is in several places."""
    return Archive(name, tuple(folder + name for folder in folders))


def iwslt14() -> Recipe:
    """IWSLT14 German-English, lower-cased: 160,239 / 7,283 / 6,750 pairs."""
    sets = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    train = Text("de-en/train.tags.de-en.{lang}", "tags", strict=False)
    test = tuple(Text(f"de-en/IWSLT14.{name}.de-en.{{lang}}.xml", "segments") for name in sets)
    return Recipe(
        name="iwslt14",
        langs=("de", "en"),
        archives=(
            _archive(
                "de-en.tgz",
                "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/",
                "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/",
                "https://wit3.fbk.eu/archive/2014-01/texts/de/en/",
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
    folder, _, name = path.rpartition("/")
    return _archive(name, *(f"{host}{folder}/" for host in hosts))


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

    Args:
        recipe: one of ``WMT14_RECIPES``, which ``--help`` tells apart. Default: ``"release"``
    """
    if recipe not in WMT14_RECIPES:
        raise DataPrepError(f"recipe={recipe!r} is not known; choose from {', '.join(WMT14_RECIPES)}")
    classic = recipe == "fairseq-icml17"
    raw = Steps(normalize=True, printing=True, aggressive=True)
    train = (_EUROPARL, _COMMON_CRAWL, _COMMENTARY_9 if classic else _COMMENTARY_12)
    splits = {"train": Split(train, raw), "test": Split((_NEWSTEST_2014,), Steps(aggressive=True))}
    names = [
        "wmt13/training-parallel-europarl-v7.tgz",
        "wmt13/training-parallel-commoncrawl.tgz",
        "wmt14/training-parallel-nc-v9.tgz" if classic else "wmt17/translation-task/training-parallel-nc-v12.tgz",
        "wmt14/test-full.tgz",
    ]
    settings: Dict[str, Any] = {"bpe_tokens": 40_000, "hold_out": 100, "clean_bpe": (1, 250, 1.5)}
    if recipe == "release":
        settings = {"bpe_tokens": 32_764}
        splits["train"] = Split(train, replace(raw, clean=(1, 80, 9.0)))
        splits["valid"] = Split((_NEWSTEST_2013,), raw)
        names.append("wmt17/translation-task/dev.tgz")
    name = "wmt14" if recipe == "release" else f"wmt14-{recipe}"
    return Recipe(name, ("en", "de"), tuple(map(_statmt, names)), splits, **settings)


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
    return Recipe(
        name="multi30k",
        langs=("de", "en"),
        archives=tuple(_archive(f"{name}.{lang}.gz", *bases) for name in names.values() for lang in ("de", "en")),
        splits={split: Split((Text(name + ".{lang}.gz"),), steps) for split, name in names.items()},
        bpe_tokens=10_000,
        unpack=False,
        expected={"train": 29_000, "valid": 1_014, "test": 1_000},
    )


def _own_files(langs: Sequence[str], paths: Sequence[Path], strict: bool) -> Text:
    """A text in files of the user's own, one of each language."""
    roles = tuple((lang, str(path.absolute())) for lang, path in zip(langs, paths))
    return Text("{role}", strict=strict, roles=roles)


def text(files: Mapping[str, Sequence[Tuple[Path, Path]]], langs: Tuple[str, str], steps: Steps) -> Recipe:
    """Any parallel text: files of two languages, line by line.

    Args:
        files: split -> pairs of files.
        langs: source and target language.
        steps: of train; valid and test are not cleaned.
    """
    splits = {}
    for split, pairs in files.items():
        train = split == "train"
        texts = tuple(_own_files(langs, pair, strict=not train) for pair in pairs)
        splits[split] = Split(texts, steps if train else replace(steps, clean=None))
    return Recipe("text", langs, (), splits, bpe_tokens=10_000, unpack=False)


def lm_text(files: Mapping[str, Sequence[Path]]) -> Recipe:
    """Any text, a sentence or a paragraph on each line.

    Args:
        files: split -> its files.
    """
    splits = {
        split: Split(tuple(_own_files(("txt",), [path], strict=False) for path in paths), Steps(tokenize=False))
        for split, paths in files.items()
    }
    return Recipe("text", ("txt",), (), splits, unpack=False)


def bare_files(recipe: Recipe, folder: Path) -> Recipe:
    """The same without its archive: the three files, plain or compressed, as people have them.

    Raises: DataPrepError if the folder has neither them nor the archive.
    """
    found = {}
    for split in SPLITS:
        bare = folder / recipe.splits[split].texts[0].path.rsplit("/", 1)[-1]
        paths = [path for path in (bare, bare.with_name(bare.name + ".gz")) if path.is_file()]
        if not paths:
            raise DataPrepError(f"{folder} has neither {recipe.archives[0].name} nor {bare.name}")
        found[split] = paths[:1]
    return replace(recipe, archives=(), unpack=False, splits=lm_text(found).splits)


def _words(name: str, archive: Archive, path: str, train: int, valid: int, test: int, words: int) -> Recipe:
    """A corpus of words: the path of a split in the archive, its tokens, and the words, ends of lines included."""
    splits = {split: Split((Text(path.format(split), strict=False),), Steps(tokenize=False)) for split in SPLITS}
    expected = {"train": train, "valid": valid, "test": test}
    return Recipe(name, ("txt",), (archive,), splits, expected=expected, words=words - 1)


def ptb() -> Recipe:
    """Penn Treebank as Mikolov prepared it, 10,000 words: 929,589 / 73,760 / 82,430 tokens."""
    hosts = ("http://www.fit.vutbr.cz/~imikolov/rnnlm/", "https://www.fit.vutbr.cz/~imikolov/rnnlm/")
    archive = _archive("simple-examples.tgz", *hosts)
    return _words("ptb", archive, "simple-examples/data/ptb.{}.txt", 929_589, 73_760, 82_430, 10_000)


def _wikitext(size: int, train: int, words: int) -> Recipe:
    hosts = ("https://wikitext.smerity.com/", "https://s3.amazonaws.com/research.metamind.io/wikitext/")
    archive = _archive(f"wikitext-{size}-v1.zip", *hosts)
    return _words(f"wikitext{size}", archive, f"wikitext-{size}/wiki.{{}}.tokens", train, 217_646, 245_569, words)


def wikitext2() -> Recipe:
    """WikiText-2, 33,278 words: 2,088,628 / 217,646 / 245,569 tokens."""
    return _wikitext(2, 2_088_628, 33_278)


def wikitext103() -> Recipe:
    """WikiText-103, 267,735 words: 103,227,021 / 217,646 / 245,569 tokens."""
    return _wikitext(103, 103_227_021, 267_735)


LM_RECIPES = {"ptb": ptb, "wikitext2": wikitext2, "wikitext103": wikitext103}
