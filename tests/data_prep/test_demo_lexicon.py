"""The demo's lexicon: large enough, and nothing in it asks for what it does not hold."""

from typing import Dict

import pytest

from data_prep import demo_lexicon as lex
from data_prep.demo_words import EVENTFUL

ADJECTIVES = {adjective.lemma: adjective for adjective in lex.ADJECTIVES}


@pytest.mark.parametrize(
    "lemma, degrees",
    [
        ("alt", "älter ältest older oldest"),
        ("groß", "größer größt bigger biggest"),
        ("gut", "besser best better best"),
        ("hoch", "höher höchst higher highest"),
        ("teuer", "teurer teuerst more_expensive most_expensive"),
        ("dunkel", "dunkler dunkelst darker darkest"),
        ("interessant", "interessanter interessantest more_interesting most_interesting"),
        ("glücklich", "glücklicher glücklichst happier happiest"),
        ("nett", "netter nettest nicer nicest"),
        ("schlecht", "schlechter schlechtest worse worst"),
    ],
)
def test_degrees_of_adjectives(lemma: str, degrees: str) -> None:
    entry = ADJECTIVES[lemma]
    forms = [entry.comparative, entry.superlative, entry.english_comparative, entry.english_superlative]
    assert [form.replace(" ", "_") for form in forms] == degrees.split()


def test_lexicon_is_large_enough() -> None:
    assert len(lex.SIMPLE_NOUNS) >= 250
    assert len(lex.COMPOUNDS) >= 150
    assert len({entry.name for entry in lex.VERBS}) >= 150
    assert len(lex.ADJECTIVES) >= 80


def test_every_tag_that_verbs_and_adjectives_ask_for_names_a_noun() -> None:
    known = set().union(*(noun.tags for noun in lex.NOUNS))
    asked = set().union(*(set(entry.subjects) | set(entry.places) for entry in lex.VERBS))
    asked |= {tag for entry in lex.VERBS for slot in entry.slots for tag in slot.tags}
    asked |= set().union(*(entry.tags for entry in lex.ADJECTIVES))
    assert asked - known == {"map", "Hause"}


def test_every_place_a_verb_asks_for_has_its_prepositions() -> None:
    tags = {tag for entry in lex.VERBS for tag in entry.places}
    tags |= {tag for entry in lex.VERBS for slot in entry.slots if slot.role in ("loc", "dir") for tag in slot.tags}
    tags -= {"map", "Hause", "person", "family"}
    assert [noun.lemma for noun in lex.NOUNS if noun.tags & tags and len(noun.place) != 4] == []


def test_every_verb_that_a_reason_leads_to_exists() -> None:
    names = {entry.name for entry in EVENTFUL}
    assert set().union(*(reason.verbs for reason in lex.REASONS)) <= names
    assert lex.PURPOSEFUL <= names
    assert lex.LEISURE <= {entry.name for entry in lex.VERBS}


def test_no_noun_has_two_translations() -> None:
    by_form: Dict[str, set] = {}
    for noun in lex.NOUNS:
        by_form.setdefault(noun.lemma, set()).add(noun.english)
    assert {lemma: english for lemma, english in by_form.items() if len(english) > 1} == {}
