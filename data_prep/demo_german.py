"""German inflection: nouns, articles, adjectives and verbs, one word at a time."""

from __future__ import annotations

from data_prep import demo_lexicon as lex
from data_prep.demo_lexicon import Words

VOWELS = "aeiouyäöü"


def table_column(gender: str, plural: bool) -> int:
    """Column of the inflection tables: masculine, feminine, neuter, plural."""
    return 3 if plural else "mfn".index(gender)


def _genitive(noun: lex.Noun) -> str:
    if noun.genitive:
        return noun.genitive
    if noun.lemma.endswith(("s", "ß", "x", "z", "sch")):
        return noun.lemma + "es"
    syllables = sum(
        1 for before, letter in zip(" " + noun.lemma.lower(), noun.lemma.lower())
        if letter in VOWELS and before not in VOWELS
    )
    return noun.lemma + ("es" if syllables == 1 and noun.lemma[-1] not in VOWELS else "s")


def decline_noun(noun: lex.Noun, case: str, plural: bool = False) -> str:
    """Return the noun in one of the four cases.

    Args:
        noun: entry of the lexicon.
        case: ``nom``, ``acc``, ``dat`` or ``gen``.
        plural: plural instead of singular.
    """
    if plural:
        needs_n = case == "dat" and not noun.plural.endswith(("n", "s"))
        return noun.plural + ("n" if needs_n else "")
    if noun.weak:
        return noun.lemma if case == "nom" else noun.plural
    if case == "gen" and noun.gender != "f":
        return _genitive(noun)
    return noun.lemma


def decline_adjective(stem: str, declension: str, case: str, gender: str, plural: bool = False) -> str:
    """Return an adjective stem with its ending; ``declension`` is ``strong``, ``weak`` or ``mixed``."""
    return stem + lex.ADJECTIVE_ENDINGS[declension][case][table_column(gender, plural)]


def der_word(stem: str, case: str, gender: str, plural: bool = False) -> str:
    """Decline dies-, jed-, welch-, viel- and their like."""
    return stem + lex.DER_WORD_ENDINGS[case][table_column(gender, plural)]


def ein_word(stem: str, case: str, gender: str, plural: bool = False) -> str:
    """Decline ein, kein and the possessives; euer loses its second e before an ending."""
    ending = lex.EIN_WORD_ENDINGS[case][table_column(gender, plural)]
    return ("eur" if stem == "euer" and ending else stem) + ending


def form_index(person: int, plural: bool) -> int:
    """Index into the six forms for ich, du, er, wir, ihr, sie."""
    return person - 1 + (3 if plural else 0)


def _present_stem(infinitive: str) -> str:
    return infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]


def _first_person(verb: lex.Verb) -> str:
    stem = _present_stem(verb.infinitive)
    return (stem[:-2] + "l" if verb.infinitive.endswith("eln") else stem) + "e"


def _second_person(verb: lex.Verb) -> str:
    if verb.third.endswith("et"):
        return verb.third[:-1] + "st"
    if _present_stem(verb.infinitive).endswith("t"):  # halten: er hält, du hältst
        return verb.third + "st"
    if verb.third[-2] in "sßzx":
        return verb.third
    return verb.third[:-1] + "st"


def conjugate_present(verb: lex.Verb, person: int, plural: bool = False) -> str:
    """Return the present form without the separable prefix."""
    slot = form_index(person, plural)
    if verb.infinitive in lex.IRREGULAR_PRESENT:
        return lex.IRREGULAR_PRESENT[verb.infinitive][slot]
    stem = _present_stem(verb.infinitive)
    if slot == 0:
        return _first_person(verb)
    if slot == 1:
        return _second_person(verb)
    if slot == 2:
        return verb.third
    if slot == 4:
        link = "e" if stem.endswith(("t", "d")) or verb.third.endswith("et") else ""
        return stem + link + "t"
    return verb.infinitive


def conjugate_past(verb: lex.Verb, person: int, plural: bool = False) -> str:
    """Return the preterite form without the separable prefix."""
    slot = form_index(person, plural)
    dental = verb.past.endswith(("t", "d"))
    ending = ("", "est" if dental or verb.past[-1] in "sßz" else "st", "", "en", "et" if dental else "t", "en")[slot]
    return verb.past + (ending[1:] if ending == "en" and verb.past.endswith("e") else ending)


def participle(verb: lex.Verb) -> str:
    """Return the past participle with its prefix: angerufen."""
    return verb.prefix + verb.participle


def zu_infinitive(verb: lex.Verb) -> Words:
    """Return the infinitive with zu, which goes inside a separable verb: anzurufen."""
    return (verb.prefix + "zu" + verb.infinitive,) if verb.prefix else ("zu", verb.infinitive)


def imperative(verb: lex.Verb, address: str) -> str:
    """Return the imperative for ``du``, ``ihr`` or ``Sie``, without prefix and pronoun."""
    if address == "Sie":
        return verb.infinitive
    if address == "ihr":
        return conjugate_present(verb, 2, plural=True)
    stem = _present_stem(verb.infinitive)
    changed = verb.third if stem.endswith("t") else verb.third[:-1]
    # Only an e that becomes i stays changed: lies, nimm, but schlaf and lauf.
    if not verb.third.endswith("et") and changed != stem and "ä" not in changed:
        return changed
    weak = verb.past.endswith("te")
    return _first_person(verb) if weak or stem.endswith(("t", "d")) else stem
