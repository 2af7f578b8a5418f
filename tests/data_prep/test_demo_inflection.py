"""German and English inflection of the demo's grammar, against hand-written paradigms."""

import pytest

from data_prep import demo_lexicon as lex
from data_prep.demo_english import english_finite, english_gerund, english_participle, english_past
from data_prep.demo_german import conjugate_past, conjugate_present, decline_noun, imperative, participle, zu_infinitive
from data_prep.demo_words import SEIN

NOUNS = {noun.lemma: noun for noun in lex.NOUNS}
FORMS = [(1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]  # ich du er wir ihr sie


def verb(name: str, english: str = "") -> lex.Verb:
    """The verb with that infinitive, and that English where the infinitive has several meanings."""
    return next(entry for entry in lex.VERBS if entry.name == name and english in ("", entry.english))


CALL = verb("anrufen")


@pytest.mark.parametrize(
    "lemma, forms",
    [
        ("Mann", "Mann Mann Mann Mannes Männer Männer Männern Männer"),
        ("Frau", "Frau Frau Frau Frau Frauen Frauen Frauen Frauen"),
        ("Kind", "Kind Kind Kind Kindes Kinder Kinder Kindern Kinder"),
        ("Lehrer", "Lehrer Lehrer Lehrer Lehrers Lehrer Lehrer Lehrern Lehrer"),
        ("Student", "Student Studenten Studenten Studenten Studenten Studenten Studenten Studenten"),
        ("Nachbar", "Nachbar Nachbarn Nachbarn Nachbarn Nachbarn Nachbarn Nachbarn Nachbarn"),
        ("Haus", "Haus Haus Haus Hauses Häuser Häuser Häusern Häuser"),
        ("Auto", "Auto Auto Auto Autos Autos Autos Autos Autos"),
        ("Bus", "Bus Bus Bus Busses Busse Busse Bussen Busse"),
        ("See", "See See See Sees Seen Seen Seen Seen"),
        ("Café", "Café Café Café Cafés Cafés Cafés Cafés Cafés"),
        ("Mädchen", "Mädchen Mädchen Mädchen Mädchens Mädchen Mädchen Mädchen Mädchen"),
        ("Tür", "Tür Tür Tür Tür Türen Türen Türen Türen"),
        ("Apfelkuchen", "Apfelkuchen Apfelkuchen Apfelkuchen Apfelkuchens " + "Apfelkuchen " * 4),
    ],
)
def test_nouns_decline_in_four_cases_and_two_numbers(lemma: str, forms: str) -> None:
    declined = [decline_noun(NOUNS[lemma], case, plural) for plural in (False, True) for case in lex.CASES]
    assert declined == forms.split()


@pytest.mark.parametrize(
    "name, present, past, perfect",
    [
        (
            "kaufen",
            "kaufe kaufst kauft kaufen kauft kaufen",
            "kaufte kauftest kaufte kauften kauftet kauften",
            "gekauft",
        ),
        (
            "warten",
            "warte wartest wartet warten wartet warten",
            "wartete wartetest wartete warteten wartetet warteten",
            "gewartet",
        ),
        (
            "öffnen",
            "öffne öffnest öffnet öffnen öffnet öffnen",
            "öffnete öffnetest öffnete öffneten öffnetet öffneten",
            "geöffnet",
        ),
        (
            "spielen",
            "spiele spielst spielt spielen spielt spielen",
            "spielte spieltest spielte spielten spieltet spielten",
            "gespielt",
        ),
        (
            "lächeln",
            "lächle lächelst lächelt lächeln lächelt lächeln",
            "lächelte lächeltest lächelte lächelten lächeltet lächelten",
            "gelächelt",
        ),
        (
            "wandern",
            "wandere wanderst wandert wandern wandert wandern",
            "wanderte wandertest wanderte wanderten wandertet wanderten",
            "gewandert",
        ),
        (
            "reparieren",
            "repariere reparierst repariert reparieren repariert reparieren",
            "reparierte repariertest reparierte reparierten repariertet reparierten",
            "repariert",
        ),
        (
            "besuchen",
            "besuche besuchst besucht besuchen besucht besuchen",
            "besuchte besuchtest besuchte besuchten besuchtet besuchten",
            "besucht",
        ),
        ("helfen", "helfe hilfst hilft helfen helft helfen", "half halfst half halfen halft halfen", "geholfen"),
        ("lesen", "lese liest liest lesen lest lesen", "las lasest las lasen last lasen", "gelesen"),
        (
            "schlafen",
            "schlafe schläfst schläft schlafen schlaft schlafen",
            "schlief schliefst schlief schliefen schlieft schliefen",
            "geschlafen",
        ),
        (
            "anhalten",
            "halte hältst hält halten haltet halten",
            "hielt hieltest hielt hielten hieltet hielten",
            "angehalten",
        ),
        ("einladen", "lade lädst lädt laden ladet laden", "lud ludest lud luden ludet luden", "eingeladen"),
        ("anrufen", "rufe rufst ruft rufen ruft rufen", "rief riefst rief riefen rieft riefen", "angerufen"),
        (
            "mitbringen",
            "bringe bringst bringt bringen bringt bringen",
            "brachte brachtest brachte brachten brachtet brachten",
            "mitgebracht",
        ),
        (
            "vorbereiten",
            "bereite bereitest bereitet bereiten bereitet bereiten",
            "bereitete bereitetest bereitete bereiteten bereitetet bereiteten",
            "vorbereitet",
        ),
        ("haben", "habe hast hat haben habt haben", "hatte hattest hatte hatten hattet hatten", "gehabt"),
    ],
)
def test_verbs_conjugate(name: str, present: str, past: str, perfect: str) -> None:
    entry = verb(name)
    assert [conjugate_present(entry, *form) for form in FORMS] == present.split()
    assert [conjugate_past(entry, *form) for form in FORMS] == past.split()
    assert participle(entry) == perfect


def test_sein_conjugates() -> None:
    assert [conjugate_present(SEIN, *form) for form in FORMS] == "bin bist ist sind seid sind".split()
    assert [conjugate_past(SEIN, *form) for form in FORMS] == "war warst war waren wart waren".split()


@pytest.mark.parametrize(
    "name, forms",
    [
        ("lesen", "lies lest lesen"),
        ("essen", "iss esst essen"),
        ("mitnehmen", "nimm nehmt nehmen"),
        ("sprechen", "sprich sprecht sprechen"),
        ("schlafen", "schlaf schlaft schlafen"),
        ("laufen", "lauf lauft laufen"),
        ("kaufen", "kaufe kauft kaufen"),
        ("warten", "warte wartet warten"),
        ("öffnen", "öffne öffnet öffnen"),
        ("streicheln", "streichle streichelt streicheln"),
        ("anrufen", "ruf ruft rufen"),
    ],
)
def test_imperatives(name: str, forms: str) -> None:
    assert [imperative(verb(name), address) for address in ("du", "ihr", "Sie")] == forms.split()


def test_zu_goes_inside_a_separable_verb() -> None:
    assert zu_infinitive(CALL) == ("anzurufen",)
    assert zu_infinitive(verb("lesen")) == ("zu", "lesen")
    assert zu_infinitive(verb("besuchen")) == ("zu", "besuchen")


@pytest.mark.parametrize(
    "base, forms",
    [
        ("call", "calls called called calling"),
        ("carry", "carries carried carried carrying"),
        ("play", "plays played played playing"),
        ("watch", "watches watched watched watching"),
        ("stop", "stops stopped stopped stopping"),
        ("write", "writes wrote written writing"),
        ("go", "goes went gone going"),
        ("have", "has had had having"),
        ("lie", "lies lay lain lying"),
        ("put", "puts put put putting"),
    ],
)
def test_english_verbs(base: str, forms: str) -> None:
    present = english_finite(base, "present", 3, False)
    others = [english_past(base), english_participle(base), english_gerund(base)]
    assert [present, *others] == forms.split()


def test_be_agrees_with_its_subject() -> None:
    assert [english_finite("be", "present", *form) for form in FORMS] == "am are is are are are".split()
    assert [english_finite("be", "past", *form) for form in FORMS] == "was were was were were were".split()
