"""Sentences as the demo's grammar draws them: clean, varied, and with one translation each."""

import random
import re
from typing import Dict, List, Tuple

import pytest

from data_prep import demo_lexicon as lex
from data_prep import demo_patterns as patterns
from data_prep.demo_clauses import AmbiguousError, finish
from data_prep.demo_complex_sentences import to_do
from data_prep.demo_draw_clauses import Composer
from data_prep.demo_german import decline_noun
from data_prep.demo_simple_sentences import subject_question


def test_two_way_prepositions_tell_place_from_direction() -> None:
    composer = Composer(random.Random(0))
    places = {composer.place(("Kino",), "loc", around=False).german for _ in range(40)}
    directions = {composer.place(("Kino",), "dir", around=False).german for _ in range(40)}
    assert ("im", "Kino") in places and ("ins", "Kino") in directions
    assert places.isdisjoint(directions)


def test_half_past_is_counted_from_the_other_side() -> None:
    composer = Composer(random.Random(0))
    times = {composer.clock() for _ in range(400)}
    assert lex.Phrase(("halb", "vier"), ("half", "past", "three")) in times
    assert lex.Phrase(("halb", "eins"), ("half", "past", "twelve")) in times
    assert lex.Phrase(("ein", "Uhr"), ("one", "o", "'clock")) in times


def test_people_are_asked_for_with_wer() -> None:
    composer = Composer(random.Random(3))
    asked: Dict[str, set] = {}
    for _ in range(4000):
        words = subject_question(composer)[0]
        asked.setdefault(words[0], set()).add(words[-1])
    assert {"unterrichtet", "untersucht", "gestohlen", "gespielt"} <= asked["wer"]
    assert asked["was"].isdisjoint({"unterrichtet", "untersucht", "gestohlen", "gespielt"})
    assert {"stattgefunden", "abgefahren"} <= asked["was"]


def test_a_comma_goes_before_an_infinitive_clause_but_not_before_a_bare_infinitive() -> None:
    composer = Composer(random.Random(5))
    texts = [" ".join(to_do(composer)[0]) for _ in range(400)]
    bare = [text for text in texts if re.search(r" (zu \w+|\w+zu\w+)$", text) and "," not in text]
    assert bare and len(bare) < 100
    assert not [text for text in texts if re.search(r", (zu \w+|\w+zu\w+)$", text)]


@pytest.fixture(scope="module")
def sample() -> List[Tuple[str, str]]:
    """Sentence pairs as drawn, repetitions included."""
    composer = Composer(random.Random(11))
    return [patterns.sentence(composer) for _ in range(8000)]


def test_translation_is_a_function(sample: List[Tuple[str, str]]) -> None:
    translations: Dict[str, str] = {}
    for german, english in sample:
        assert translations.setdefault(german, english) == english, german
    assert len(translations) < len(sample)  # some were drawn twice, so the loop had something to compare


def test_all_patterns_keep_the_translation_a_function() -> None:
    """Short patterns repeat themselves soonest, so each is drawn often."""
    for pattern, _ in patterns.PATTERNS:
        composer = Composer(random.Random(5))
        translations: Dict[str, str] = {}
        for _ in range(150):
            try:
                german, english, end = pattern(composer)
            except AmbiguousError:
                continue
            text = finish(german, end)
            assert translations.setdefault(text, finish(english, end)) == finish(english, end), text


def test_sentences_are_clean_tokens(sample: List[Tuple[str, str]]) -> None:
    for sentence in (text for pair in sample for text in pair):
        tokens = sentence.split(" ")
        assert "" not in tokens and sentence == sentence.strip()
        assert tokens[-1] in (".", "?", "!") and not any(mark in tokens[:-1] for mark in (".", "?", "!"))
        assert all(token == "," or "," not in token for token in tokens)
        assert (",", ",") not in list(zip(tokens, tokens[1:])) and tokens[-2] != ","
        assert sentence[0].isupper()


def test_german_nouns_are_capitalised_and_other_words_are_not(sample: List[Tuple[str, str]]) -> None:
    nouns = {
        decline_noun(noun, case, plural)
        for noun in lex.NOUNS
        for case in lex.CASES
        for plural in (False, True)
        if not plural or noun.plural
    }
    proper = set(lex.FEMALE_NAMES) | set(lex.MALE_NAMES) | {town.german for town in lex.TOWNS}
    proper |= {name + "s" for name in lex.FEMALE_NAMES + lex.MALE_NAMES}
    proper |= {
        word
        for table in (lex.DAYS, lex.MONTHS, lex.SPANS, lex.TIMES_HABIT, lex.TIMES_PAST, lex.TIMES_FUTURE)
        for entry in table
        for word in entry.german
        if word[0].isupper()
    }
    proper |= set("Sie Ihr Ihre Ihren Ihrem Ihrer Ihres Ihnen Uhr Viertel Hause Euro Jahre".split())
    proper |= set("Zeit Geld Hilfe Arbeit Glück".split())
    unexpected = {word for german, _ in sample for word in german.split()[1:] if word[0].isupper()} - nouns - proper
    assert unexpected == set()


def test_every_phenomenon_occurs(sample: List[Tuple[str, str]]) -> None:
    german = " \n ".join(pair[0] for pair in sample)
    words = "nicht kein weil obwohl dass ob wenn um ohne statt damit nachdem während bevor als seit gern".split()
    words += "im ins am zum zur vom wer wen wem was wo wohin wann warum dessen deren bitte möchte würde wurde".split()
    assert [word for word in words if " %s " % word not in german and " %s " % word.capitalize() not in german] == []
    assert " anzurufen" in german and " angerufen" in german
    assert "ß" in german and "ü" in german


def test_sentences_vary(sample: List[Tuple[str, str]]) -> None:
    lengths = [len(german.split()) for german, _ in sample]
    assert 8 < sum(lengths) / len(lengths) < 12
    assert max(lengths) <= 40
    assert len({german for german, _ in sample}) > 0.97 * len(sample)
