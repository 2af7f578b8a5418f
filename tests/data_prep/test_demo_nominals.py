"""Noun phrases and pronouns of the demo's grammar, against hand-written ones."""

from typing import Sequence, Tuple

import pytest

from data_prep import demo_lexicon as lex
from data_prep.demo_clauses import finish
from data_prep.demo_nominals import AdjectiveUse, Name, NounPhrase, noun_phrase, prepositional, refer, relative_pronoun
from tests.data_prep.test_demo_inflection import NOUNS
from tests.data_prep.test_demo_lexicon import ADJECTIVES


def phrase(
    lemma: str, *adjectives: str, determiner: str = "the", plural: bool = False, possessor: str = ""
) -> NounPhrase:
    uses = tuple(AdjectiveUse(ADJECTIVES[name]) for name in adjectives)
    return noun_phrase(NOUNS[lemma], plural, determiner, adjectives=uses, possessor=possessor)


def both(german: Sequence[str], english: Sequence[str], end: str = ".") -> Tuple[str, str]:
    return finish(tuple(german), end), finish(tuple(english), end)


# Rows: nominative, accusative, dative, genitive; columns: masculine, feminine, neuter, plural.
NOUN_PHRASES = {
    "the": """
        der_alte_Mann    die_alte_Frau    das_alte_Haus     die_alten_Häuser
        den_alten_Mann   die_alte_Frau    das_alte_Haus     die_alten_Häuser
        dem_alten_Mann   der_alten_Frau   dem_alten_Haus    den_alten_Häusern
        des_alten_Mannes der_alten_Frau   des_alten_Hauses  der_alten_Häuser""",
    "this": """
        dieser_alte_Mann    diese_alte_Frau    dieses_alte_Haus     diese_alten_Häuser
        diesen_alten_Mann   diese_alte_Frau    dieses_alte_Haus     diese_alten_Häuser
        diesem_alten_Mann   dieser_alten_Frau  diesem_alten_Haus    diesen_alten_Häusern
        dieses_alten_Mannes dieser_alten_Frau  dieses_alten_Hauses  dieser_alten_Häuser""",
    "not any": """
        kein_alter_Mann     keine_alte_Frau    kein_altes_Haus      keine_alten_Häuser
        keinen_alten_Mann   keine_alte_Frau    kein_altes_Haus      keine_alten_Häuser
        keinem_alten_Mann   keiner_alten_Frau  keinem_alten_Haus    keinen_alten_Häusern
        keines_alten_Mannes keiner_alten_Frau  keines_alten_Hauses  keiner_alten_Häuser""",
    "bare": """
        alter_Mann       alte_Frau    altes_Haus      alte_Häuser
        alten_Mann       alte_Frau    altes_Haus      alte_Häuser
        altem_Mann       alter_Frau   altem_Haus      alten_Häusern
        alten_Mannes     alter_Frau   alten_Hauses    alter_Häuser""",
}


@pytest.mark.parametrize("determiner", NOUN_PHRASES)
def test_determiners_and_adjectives_agree_with_their_noun(determiner: str) -> None:
    columns = [("Mann", False), ("Frau", False), ("Haus", False), ("Haus", True)]
    declined = [
        "_".join(phrase(lemma, "alt", determiner=determiner, plural=plural).german(case))
        for case in lex.CASES
        for lemma, plural in columns
    ]
    assert declined == NOUN_PHRASES[determiner].split()


def test_indefinite_article_and_possessives_decline_like_kein() -> None:
    assert phrase("Mann", "alt", determiner="a").german("dat") == ("einem", "alten", "Mann")
    assert phrase("Haus", "alt", determiner="a").german("acc") == ("ein", "altes", "Haus")
    assert phrase("Buch", "neu", determiner="my", possessor="ich").german("nom") == ("mein", "neues", "Buch")
    assert phrase("Tochter", determiner="my", possessor="ihr").german("dat") == ("eurer", "Tochter")
    assert phrase("Sohn", determiner="my", possessor="ihr").german("nom") == ("euer", "Sohn")
    assert phrase("Eltern", determiner="my", possessor="sie").german("dat") == ("ihren", "Eltern")


def test_adjectives_with_special_stems() -> None:
    assert phrase("Wald", "dunkel").german("nom") == ("der", "dunkle", "Wald")
    assert phrase("Turm", "hoch", determiner="a").german("nom") == ("ein", "hoher", "Turm")
    assert phrase("Auto", "teuer", determiner="a").german("dat") == ("einem", "teuren", "Auto")
    assert phrase("Kind", "müde", determiner="a").german("nom") == ("ein", "müdes", "Kind")


@pytest.mark.parametrize(
    "compound, german, english",
    [
        ("Haustür", "die Haustüren", "the house doors"),
        ("Arbeitszimmer", "die Arbeitszimmer", "the study rooms"),
        ("Kinderbuch", "die Kinderbücher", "the children 's books"),
        ("Stadtbus", "die Stadtbusse", "the city buses"),
    ],
)
def test_compounds_inflect_like_their_head(compound: str, german: str, english: str) -> None:
    plural = phrase(compound, plural=True)
    assert (" ".join(plural.german("nom")), " ".join(plural.english())) == (german, english)


@pytest.mark.parametrize(
    "preposition, case, lemma, expected",
    [
        ("in", "dat", "Garten", "im Garten"),
        ("in", "acc", "Haus", "ins Haus"),
        ("in", "acc", "Garten", "in den Garten"),
        ("an", "dat", "Bahnhof", "am Bahnhof"),
        ("an", "acc", "Fenster", "ans Fenster"),
        ("zu", "dat", "Arzt", "zum Arzt"),
        ("zu", "dat", "Schule", "zur Schule"),
        ("von", "dat", "Kind", "vom Kind"),
        ("bei", "dat", "Bäcker", "beim Bäcker"),
        ("auf", "dat", "Tisch", "auf dem Tisch"),
    ],
)
def test_prepositions_merge_with_the_article(preposition: str, case: str, lemma: str, expected: str) -> None:
    assert " ".join(prepositional(preposition, case, phrase(lemma))) == expected


def test_prepositions_do_not_merge_with_other_words() -> None:
    garden = phrase("Garten")
    followed = noun_phrase(NOUNS["Garten"], relative=lex.Phrase((",", "der", "schön", "ist", ","), ()))
    assert prepositional("in", "dat", phrase("Garten", determiner="this"))[:2] == ("in", "diesem")
    assert prepositional("in", "dat", followed)[:3] == ("in", "dem", "Garten")
    assert prepositional("in", "dat", garden)[0] == "im"


def test_genitives() -> None:
    man = phrase("Mann", "alt")
    book = noun_phrase(NOUNS["Buch"], genitive=man)
    roof = noun_phrase(NOUNS["Dach"], genitive=phrase("Haus"))
    name = noun_phrase(
        NOUNS["Buch"],
        genitive=Name(name="Anna", owner="sie"),
        adjectives=(AdjectiveUse(ADJECTIVES["neu"]),),
    )
    assert both(book.german("nom"), book.english()) == ("Das Buch des alten Mannes .", "The old man 's book .")
    assert both(roof.german("nom"), roof.english()) == ("Das Dach des Hauses .", "The roof of the house .")
    assert both(name.german("nom"), name.english()) == ("Annas neues Buch .", "Anna 's new book .")


def test_english_articles() -> None:
    assert phrase("Apfel", determiner="a").english() == ("an", "apple")
    assert phrase("Apfel", "groß", determiner="a").english() == ("a", "big", "apple")
    assert phrase("Universität", determiner="a").english() == ("a", "university")
    assert phrase("Freund", "ehrlich", determiner="a").english() == ("an", "honest", "friend")
    assert phrase("Brot", determiner="not any").english() == ("any", "bread")
    assert phrase("Buch", determiner="not any").english() == ("a", "book")


def test_all_takes_the_article_in_english() -> None:
    words = phrase("Buch", "alt", determiner="all", plural=True)
    assert both(words.german("dat"), words.english()) == ("Allen alten Büchern .", "All the old books .")


@pytest.mark.parametrize(
    "lemma, plural, forms, english",
    [
        ("Mann", False, "der den dem", "who whom"),
        ("Frau", False, "die die der", "who whom"),
        ("Haus", False, "das das dem", "that that"),
        ("Leute", True, "die die denen", "who whom"),
    ],
)
def test_relative_pronouns_agree_with_their_head(lemma: str, plural: bool, forms: str, english: str) -> None:
    link = relative_pronoun(phrase(lemma, plural=plural))
    assert [" ".join(link.german(case)) for case in ("nom", "acc", "dat")] == forms.split()
    assert [" ".join(link.english(True)), " ".join(link.english())] == english.split()


def test_pronouns_refer_by_gender_and_english_by_sense() -> None:
    assert refer(phrase("Tisch")).english(True) == ("it",)
    assert refer(phrase("Tisch")).german("nom") == ("er",)
    assert refer(phrase("Lampe")).german("nom") == ("sie",)
    assert refer(phrase("Lehrerin")).english(True) == ("she",)
    assert refer(phrase("Lehrer", plural=True)).english() == ("them",)
