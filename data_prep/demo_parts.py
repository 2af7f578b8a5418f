"""Constituents of a clause in both languages: what they say and where each language puts them."""

from __future__ import annotations

from dataclasses import dataclass

from data_prep import demo_lexicon as lex
from data_prep.demo_lexicon import Words
from data_prep.demo_nominals import Both, Name, Nominal, NounPhrase, prepositional
from data_prep.demo_words import find_slot

# German middle field, in order. Pronouns come first; nicht, its like and manner stand between the definite object and
# the indefinite one.
(LIGHT_SUBJECT, LIGHT_ACC, LIGHT_DAT, SUBJECT, TIME, INDEFINITE_SUBJECT, DATIVE, DEFINITE_ACC, FOCUS, MANNER,
 INDEFINITE_ACC, COMPANY, PLACE, PREPOSITIONAL, DIRECTION, PREDICATE) = range(16)

# English, behind the verb; EN_MIDDLE stands inside the verb group (has often read).
EN_MIDDLE, EN_INDIRECT, EN_OBJECT, EN_OBLIQUE, EN_MANNER, EN_DIRECTION, EN_COMPANY, EN_PLACE, EN_TIME = range(9)


@dataclass(frozen=True)
class Part:
    """A constituent of a clause, ready in both languages.

    Attributes:
        german: the words.
        english: the words.
        rank: place in the German middle field.
        english_rank: place behind the English verb.
        role: what it is, for the patterns that move or ask for it.
        fronting: where English has it when German starts with it: ``front`` or ``stay``; empty if German never does.
        light: whether it is a pronoun.
        negative: whether it holds kein, for which English puts not at the verb.
        behind: German words that stand behind the end of the clause: a relative clause.
        like_genitive: whether it is a dative that a noun before it would turn into a genitive (der Mann der Frau).
    """

    german: Words
    english: Words
    rank: int
    english_rank: int
    role: str = ""
    fronting: str = ""
    light: bool = False
    negative: bool = False
    behind: Words = ()
    like_genitive: bool = False


def town_phrase(town: lex.Town, role: str) -> lex.Phrase:
    """Say in or to a town or country: nach Berlin, but in die Schweiz."""
    if town.article:
        german: Words = ("in", "die" if role == "dir" else "der", town.german)
    else:
        german = ("nach" if role == "dir" else "in", town.german)
    return lex.Phrase(german, ("to" if role == "dir" else "in", town.english))


def time_part(phrase: lex.Phrase, fronting: str = "front") -> Part:
    """Make an adverbial of time."""
    return Part(phrase.german, phrase.english, TIME, EN_TIME, "time", fronting)


def frequency_part(phrase: lex.Phrase) -> Part:
    """Make an adverb of frequency, which English puts inside the verb group."""
    rank = FOCUS if phrase.german == ("nie",) else TIME
    return Part(phrase.german, phrase.english, rank, EN_MIDDLE, "frequency")


def focus_part(phrase: lex.Phrase) -> Part:
    """Make an adverb that stands where nicht would."""
    return Part(phrase.german, phrase.english, FOCUS, EN_MIDDLE, "focus")


def predicate_part(phrase: lex.Phrase) -> Part:
    """Make what follows sein or werden."""
    return Part(phrase.german, phrase.english, PREDICATE, EN_OBJECT, "predicate")


def _dative_like_genitive(nominal: Nominal) -> bool:
    if isinstance(nominal, Both):
        return _dative_like_genitive(nominal.first)
    return isinstance(nominal, NounPhrase) and nominal.german("dat") == nominal.german("gen")


def make_complement(slot: lex.Slot, verb: lex.Verb, nominal: Nominal) -> Part:
    """Write an object, plain or with a preposition, in both languages."""
    english: Words = ((slot.english,) if slot.english else ()) + nominal.english()
    behind = nominal.relative.german if isinstance(nominal, NounPhrase) else ()
    negative = isinstance(nominal, NounPhrase) and nominal.determiner == "not any"
    # A name shows no case (Paul dankt die Lehrerin), so it stays behind the verb.
    fixed = nominal.light or bool(behind) or isinstance(nominal, Name)
    fronting = "stay" if nominal.definite and not fixed else ""
    english_rank = EN_OBLIQUE if slot.english else EN_OBJECT
    german = prepositional(slot.german, slot.case, nominal) if slot.german else nominal.german(slot.case)
    german = german[: len(german) - len(behind)]
    if slot.role == "prep":
        rank = PREPOSITIONAL
    elif slot.role == "dat":
        rank = LIGHT_DAT if nominal.light else DATIVE
        if english_rank == EN_OBJECT and any(other.role == "acc" for other in verb.slots):
            english_rank = EN_INDIRECT
    else:
        rank = LIGHT_ACC if nominal.light else DEFINITE_ACC if nominal.definite else INDEFINITE_ACC
        if fronting and not nominal.shows_case:
            fronting = "if subject shows case"
    return Part(
        german, english, rank, english_rank, slot.role, fronting, nominal.light, negative, behind,
        like_genitive=slot.role == "dat" and _dative_like_genitive(nominal),
    )


def stranded(slot: lex.Slot, verb: lex.Verb) -> Part:
    """Make what stays of a complement that was moved to the front: an English preposition, if there is one.

    An indirect object has none in its place (gives him a ring) but leaves one behind (whom he gives a ring to).
    """
    indirect = slot.role == "dat" and find_slot(verb, "acc") is not None
    return Part((), tuple((slot.english or ("to" if indirect else "")).split()), PREPOSITIONAL, EN_OBLIQUE)
