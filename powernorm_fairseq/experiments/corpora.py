"""The catalogue of corpora: a new one is an entry here, and a recipe of the same name in ``configs/``."""

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple


@dataclass(frozen=True)
class Corpus:
    """A corpus: how it is prepared, trained on, decoded and scored, and what was published.

    Attributes:
        title: in reports.
        preparation: arguments of data_prep; None if the user has to bring the data.
        published: norm, or name of a row -> score of the test set: BLEU, or perplexity (Table 2).
        synchronised: norms whose statistics the paper takes over all processes.
        processes: how many GPUs the recipe's tokens are for; a training with more than one wants them all.
        beam: of decoding; none for language models.
        lenpen: length penalty.
        metrics: of translations.
        lowercase: whether they ignore case.
        language_model: whether its tables are those of language models.
        recipe: name of the recipe, if it is another.
        reference: the corpus whose published scores are shown for orientation, if it has none.
    """

    title: str
    preparation: Optional[Tuple[str, ...]] = None
    published: Dict[str, float] = field(default_factory=dict)
    synchronised: Tuple[str, ...] = ()
    processes: int = 1
    beam: Optional[int] = 5
    lenpen: float = 1.0
    metrics: Tuple[str, ...] = ("tokenized", "sacrebleu")
    lowercase: bool = False
    language_model: bool = False
    recipe: str = ""
    reference: str = "iwslt14"


CORPORA: Dict[str, Corpus] = {
    "iwslt14": Corpus(
        "IWSLT14 De-En",
        ("iwslt14",),
        # un, and ln in its recipe: from the README of its authors' code, means of five seeds, pre-norm, beam 5,
        # average of 10 checkpoints
        {
            **{"ln": 35.5, "bn": 34.4, "pnv": 35.5, "pn": 35.9, "brn": 34.7, "mabn": 34.9, "gn": 35.7},
            **{"un": 35.4, "ln-lr0.0007-warmup6000": 35.3},
        },
        lowercase=True,
    ),
    "wmt14": Corpus(
        "WMT14 En-De",
        ("wmt14",),
        {"ln": 29.5, "bn": 28.1, "pnv": 28.5, "pn": 30.1},
        synchronised=("bn", "pnv"),
        processes=128,
        beam=4,
        lenpen=0.6,
        metrics=("tokenized", "compound-split", "sacrebleu"),
        reference="wmt14",
    ),
    "multi30k": Corpus("Multi30k De-En (test2016)", ("multi30k", "--bpe-tokens", "4000"), lowercase=True),
    "demo": Corpus("the demo's made-up corpus", ("demo",)),
    "ptb": Corpus(
        "Penn Treebank",
        ("lm", "ptb"),
        {"ln": 53.2, "bn": 60.7, "pnv": 55.3, "pn": 47.6},
        beam=None,
        language_model=True,
        reference="ptb",
    ),
    "wikitext103": Corpus(
        "WikiText-103",
        ("lm", "wikitext103"),
        {"ln": 20.9, "bn": 27.2, "pnv": 21.3, "pn": 17.9},
        beam=None,
        language_model=True,
        reference="wikitext103",
    ),
    # As a corpus of tables: text for a small language model; as a preset of evaluate: any translation.
    "text": Corpus(
        "the user's text",
        metrics=("tokenized", "sacrebleu", "chrf"),
        language_model=True,
        recipe="lm_tiny",
        reference="ptb",
    ),
}


def recipe_of(name: str) -> str:
    """The name of a corpus's recipe."""
    return CORPORA[name].recipe or name
