"""The words of ``lexicon.tsv``, and the structure of a sentence in no language."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

LEXICON = Path(__file__).parent / "lexicon.tsv"


class Noun(NamedTuple):
    """A noun; a place has the prepositions that go with it."""

    german: str
    gender: str
    german_plural: str
    english: str
    english_plural: str
    kinds: str
    german_preposition: str = ""
    english_preposition: str = ""


class Verb(NamedTuple):
    """A verb with the kinds of nouns that it takes."""

    infinitive: str
    third: str
    past: str
    participle: str
    auxiliary: str
    english: str
    english_past: str
    subjects: str
    datives: str
    accusatives: str


class Word(NamedTuple):
    """An adjective or an adverb, and what it goes with: kinds of nouns, or tenses."""

    german: str
    english: str
    fits: str
    place: str = ""


class Phrase(NamedTuple):
    """A noun phrase; a name has no determiner, and a pronoun (``1s``, ``1p``, ``3m``, ``3f``, ``3p``) no noun."""

    noun: Optional[Noun] = None
    determiner: str = ""
    adjective: Optional[Word] = None
    plural: bool = False
    relative: Optional["Clause"] = None
    other: Optional["Phrase"] = None  # behind "and"
    pronoun: str = ""

    @property
    def person(self) -> str:
        """The form that a verb has with this subject: ``1s``, ``3s`` or ``p``."""
        if self.plural or self.other or self.pronoun.endswith("p"):
            return "p"
        return "1s" if self.pronoun == "1s" else "3s"


class Clause(NamedTuple):
    """A clause; without a verb, the subject *is* its ``adjective``. ``gap`` is the case of a relative pronoun."""

    subject: Phrase
    tense: str
    verb: Optional[Verb] = None
    adjective: Optional[Word] = None
    dative: Optional[Phrase] = None
    accusative: Optional[Phrase] = None
    adverb: Optional[Word] = None
    place: Optional[Phrase] = None
    negated: bool = False
    front: str = "subject"
    gap: str = ""


def read_lexicon(path: Path = LEXICON) -> Dict[str, List[Any]]:
    """The words by what they are; an ``opinion`` is a verb before *that*."""
    classes = {"noun": Noun, "verb": Verb, "opinion": Verb, "adjective": Word, "adverb": Word}
    lexicon: Dict[str, List[Any]] = {what: [] for what in classes}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        what, *fields = line.split("\t")
        if line.startswith("#"):
            continue
        try:
            lexicon[what].append(classes[what](*fields))
        except (KeyError, TypeError):
            raise ValueError("{}, line {}: no {}".format(path, number, " or ".join(classes))) from None
    return lexicon


def match(kinds: str, others: str) -> bool:
    """Whether two lists of kinds have one in common."""
    return not set(kinds.split(",")).isdisjoint(others.split(","))
