"""Choices from the demo's lexicon: words by tag, role and flag, and the verbs that the grammar itself needs."""

from __future__ import annotations

import functools
from typing import Callable, FrozenSet, Optional, Tuple

from data_prep import demo_lexicon as lex
from data_prep.demo_lexicon import Words

SEIN = lex.simple_verb("sein", "ist war gewesen", "be", "s")
HABEN = lex.simple_verb("haben", "hat hatte gehabt", "have")
WERDEN = lex.simple_verb("werden", "wird wurde geworden", "become", "s")
KOSTEN = lex.simple_verb("kosten", "weak", "cost")
GEFALLEN = lex.simple_verb("gefallen", "gefällt gefiel gefallen", "like")
GEHOEREN = lex.simple_verb("gehören", "weak", "belong to")
GET = lex.simple_verb("werden", "wird wurde geworden", "get", "s")


@functools.lru_cache(maxsize=None)
def nouns_with(tags: Words) -> Tuple[Tuple[lex.Noun, ...], Tuple[lex.Noun, ...]]:
    """Return the simple nouns and the compounds that have one of the tags."""
    simple = tuple(noun for noun in lex.SIMPLE_NOUNS if not noun.tags.isdisjoint(tags))
    compound = tuple(noun for noun in lex.COMPOUNDS if not noun.tags.isdisjoint(tags))
    return simple, compound


@functools.lru_cache(maxsize=None)
def adjectives_for(tags: FrozenSet[str]) -> Tuple[lex.Adjective, ...]:
    """Return the adjectives that go with a noun of these tags."""
    return tuple(adjective for adjective in lex.ADJECTIVES if not adjective.tags.isdisjoint(tags))


def _verbs_where(test: Callable[[lex.Verb], bool]) -> Tuple[lex.Verb, ...]:
    return tuple(verb for verb in lex.VERBS if test(verb))


def find_slot(verb: lex.Verb, role: str) -> Optional[lex.Slot]:
    """Return the verb's complement of that role, if it has one."""
    return next((slot for slot in verb.slots if slot.role == role), None)


def takes_people(verb: lex.Verb) -> bool:
    """Tell whether people can be the verb's subject."""
    return "person" in verb.subjects or "grown" in verb.subjects


PERSONAL = _verbs_where(takes_people)
ACTIVE = _verbs_where(lambda verb: takes_people(verb) and "state" not in verb.flags)
PLACED = _verbs_where(lambda verb: bool(verb.places) or find_slot(verb, "loc") is not None)
EVENTFUL = _verbs_where(lambda verb: takes_people(verb) and "noperfect" not in verb.flags)
MOVING = _verbs_where(lambda verb: find_slot(verb, "dir") is not None and find_slot(verb, "acc") is None)
PASSIVE = _verbs_where(lambda verb: "passive" in verb.flags)
LASTING = _verbs_where(lambda verb: "since" in verb.flags)
GROWING = frozenset(("person", "animal", "room", "vehicle", "drink", "young"))
GRADED = tuple(adjective for adjective in lex.ADJECTIVES if adjective.graded)
SCHEDULED = _verbs_where(lambda verb: verb.name in ("stattfinden", "beginnen", "enden", "abfahren", "ankommen"))

OWNABLE = frozenset(("thing", "clothes", "text", "furniture", "own", "pet", "kin", "home", "doctor", "room"))

DESCRIBED = (
    ("person",), ("person",), ("animal",), ("food", "drink"), ("text",), ("clothes",), ("thing",), ("vehicle",),
    ("furniture", "part"), ("building",), ("room", "outdoor"), ("abstract",), ("event", "show"),
)
NO_PHRASE = lex.Phrase((), ())
