"""The corpora of the language-modelling tables as data: where they are, which files, how many tokens to expect.

All are published as words already, with rare words as ``<unk>``, which is fairseq's own word for the unknown. A token
count takes the end of each line as a token, empty lines included: the convention of all published counts and of
fairseq-preprocess.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Tuple

from data_prep.download import Archive
from data_prep.errors import DataPrepError


@dataclass(frozen=True)
class LMRecipe:
    """A published corpus.

    Attributes:
        name: as on the command line.
        archive: what to fetch.
        files: split -> its file in the archive.
        expected: split -> tokens, ends of lines counted.
        words: size of the vocabulary as published, ``<unk>`` included and the end of a line not.
    """

    name: str
    archive: Archive
    files: Dict[str, str]
    expected: Dict[str, int]
    words: int

    def bare_files(self, folder: Path) -> Dict[str, Tuple[Path, ...]]:
        """The three files without their archive, plain or compressed, as people have them.

        Raises: DataPrepError if the folder has neither them nor the archive.
        """
        found: Dict[str, Tuple[Path, ...]] = {}
        for split, name in self.files.items():
            bare = folder / name.rsplit("/", 1)[-1]
            paths = [path for path in (bare, bare.with_name(bare.name + ".gz")) if path.is_file()]
            if not paths:
                raise DataPrepError(f"{folder} has neither {self.archive.name} nor {bare.name}")
            found[split] = (paths[0],)
        return found


def ptb() -> LMRecipe:
    """Penn Treebank as Mikolov prepared it, 10,000 words: 929,589 / 73,760 / 82,430 tokens."""
    return LMRecipe(
        name="ptb",
        archive=Archive(
            "simple-examples.tgz",
            (
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            ),
        ),
        files={split: f"simple-examples/data/ptb.{split}.txt" for split in ("train", "valid", "test")},
        expected={"train": 929_589, "valid": 73_760, "test": 82_430},
        words=10_000 - 1,  # the published 10,000 count the end of a line
    )


def _wikitext(size: int, train: int, words: int) -> LMRecipe:
    name = f"wikitext-{size}-v1.zip"
    hosts = ("https://wikitext.smerity.com/", "https://s3.amazonaws.com/research.metamind.io/wikitext/")
    return LMRecipe(
        name=f"wikitext{size}",
        archive=Archive(name, tuple(host + name for host in hosts)),
        files={split: f"wikitext-{size}/wiki.{split}.tokens" for split in ("train", "valid", "test")},
        expected={"train": train, "valid": 217_646, "test": 245_569},
        words=words - 1,
    )


def wikitext2() -> LMRecipe:
    """WikiText-2, 33,278 words: 2,088,628 / 217,646 / 245,569 tokens."""
    return _wikitext(2, 2_088_628, 33_278)


def wikitext103() -> LMRecipe:
    """WikiText-103, 267,735 words: 103,227,021 / 217,646 / 245,569 tokens."""
    return _wikitext(103, 103_227_021, 267_735)


LM_RECIPES = {"ptb": ptb, "wikitext2": wikitext2, "wikitext103": wikitext103}
