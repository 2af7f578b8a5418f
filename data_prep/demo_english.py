"""English inflection: verbs, and the choice between a and an."""

from __future__ import annotations

from data_prep import demo_lexicon as lex


def english_past(verb: str) -> str:
    """Return the simple past of an English verb (``was`` for be)."""
    return lex.ENGLISH_VERBS[verb][1] if verb in lex.ENGLISH_VERBS else _regular_past(verb)


def english_participle(verb: str) -> str:
    """Return the past participle of an English verb."""
    return lex.ENGLISH_VERBS[verb][2] if verb in lex.ENGLISH_VERBS else _regular_past(verb)


def _regular_past(verb: str) -> str:
    if verb in lex.ENGLISH_DOUBLING:
        return verb + verb[-1] + "ed"
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def english_gerund(verb: str) -> str:
    """Return the -ing form of an English verb."""
    if verb in lex.ENGLISH_DOUBLING:
        return verb + verb[-1] + "ing"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and verb != "be" and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return verb + "ing"


def english_finite(verb: str, tense: str, person: int, plural: bool) -> str:
    """Return the ``present`` or ``past`` form of an English verb that agrees with its subject."""
    singular = person == 3 and not plural
    if verb == "be":
        if tense == "past":
            return "was" if not plural and person != 2 else "were"
        return "am" if person == 1 and not plural else "is" if singular else "are"
    if tense == "past":
        return english_past(verb)
    if not singular:
        return verb
    if verb == "have":
        return "has"
    if verb.endswith(("s", "x", "ch", "sh", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def indefinite_article(next_word: str) -> str:
    """Return ``a`` or ``an``, whichever the next word wants."""
    word = next_word.lower()
    if word in lex.ENGLISH_AN_BEFORE_CONSONANT:
        return "an"
    return "an" if word[0] in "aeiou" and word not in lex.ENGLISH_A_BEFORE_VOWEL else "a"
