"""The corpora of the language-modelling tables as data: where they are, which files, how many tokens to expect.

Both are published as words already, with rare words as ``<unk>``, which is fairseq's own word for the unknown. A token
count takes the end of each line as a token, empty lines included: the convention of all published counts and of
fairseq-preprocess.
"""

from dataclasses import dataclass
from typing import Dict

from data_prep.download import Archive


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


def wikitext103() -> LMRecipe:
    """WikiText-103, 267,735 words: 103,227,021 / 217,646 / 245,569 tokens."""
    return LMRecipe(
        name="wikitext103",
        archive=Archive(
            "wikitext-103-v1.zip",
            (
                "https://wikitext.smerity.com/wikitext-103-v1.zip",
                "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
            ),
        ),
        files={split: f"wikitext-103/wiki.{split}.tokens" for split in ("train", "valid", "test")},
        expected={"train": 103_227_021, "valid": 217_646, "test": 245_569},
        words=267_735 - 1,
    )


LM_RECIPES = {"ptb": ptb, "wikitext103": wikitext103}
