"""A structure in English."""

from __future__ import annotations

from typing import List, Tuple

from data_prep.demo_corpus.structure import Clause, Phrase

PRONOUNS = {"1s": "I me", "1p": "we us", "3m": "he him", "3f": "she her", "3p": "they them"}
DETERMINERS = {"": "", "der": "the", "ein": "a", "kein": "no", "mein": "my", "unser": "our", "dies": "this"}
BE = {"present": {"1s": "am", "3s": "is", "p": "are"}, "past": {"1s": "was", "3s": "was", "p": "were"}}


def phrase(what: Phrase, subject: bool = False) -> List[str]:
    """A noun phrase; pronouns alone show whether it is the subject."""
    if what.noun is None:
        return [PRONOUNS[what.pronoun].split()[0 if subject else 1]]
    words = [what.adjective.english] if what.adjective else []
    words.append(what.noun.english_plural if what.plural else what.noun.english)
    determiner = DETERMINERS[what.determiner]
    if what.plural:
        determiner = {"a": "", "this": "these"}.get(determiner, determiner)
    elif determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    if what.relative is not None:
        inner = [] if what.relative.gap == "nominative" else phrase(what.relative.subject, subject=True)
        words += ["who" if what.noun.kinds == "person" else "that", *inner, *predicate(what.relative)]
    if what.other is not None:
        words += ["and", *phrase(what.other, subject)]
    return [determiner, *words] if determiner else words


def third_person(infinitive: str) -> str:
    """Of the present; the first word of several takes the ending."""
    first, *rest = infinitive.split()
    ending = "es" if first.endswith(("s", "sh", "ch")) else "s"
    return " ".join(["has" if first == "have" else first + ending, *rest])


def _verb(clause: Clause, split: bool) -> Tuple[str, str]:
    """An auxiliary and the verb; ``split`` asks for an auxiliary, which may be *do*."""
    person = clause.subject.person
    if clause.verb is None:
        return BE[clause.tense][person], clause.adjective.english
    infinitive = clause.verb.english
    if clause.tense in ("future", "can"):
        return {"future": "will", "can": "can"}[clause.tense], infinitive
    if clause.tense in ("past", "perfect"):
        return ("did", infinitive) if split else ("", clause.verb.english_past)
    infinitive = {"must": "have to ", "want": "want to "}.get(clause.tense, "") + infinitive
    if split:
        return "does" if person == "3s" else "do", infinitive
    return "", third_person(infinitive) if person == "3s" else infinitive


def _rest(clause: Clause, verb: str) -> List[str]:
    """The verb with what stands around it: adverb, verb, dative, accusative, place, adverb."""
    middle = clause.adverb and clause.adverb.place == "middle"
    words = [clause.adverb.english, verb] if middle else [verb]
    for what in (clause.dative, clause.accusative):
        words += phrase(what) if what else []
    if clause.place:
        words += [clause.place.noun.english_preposition, *phrase(clause.place)]
    return words if middle or not clause.adverb or clause.front == "adverb" else [*words, clause.adverb.english]


def predicate(clause: Clause) -> List[str]:
    """All but the subject of a statement."""
    auxiliary, verb = _verb(clause, clause.negated)
    if clause.negated:
        auxiliary = "cannot" if auxiliary == "can" else auxiliary + " not"
    return [*filter(None, [auxiliary]), *_rest(clause, verb)]


def statement(clause: Clause) -> List[str]:
    """A statement; an adverb that German begins with comes first here, too."""
    first = [clause.adverb.english] if clause.front == "adverb" else []
    return [*first, *phrase(clause.subject, subject=True), *predicate(clause)]


def question(clause: Clause) -> List[str]:
    """A question, without a question word."""
    auxiliary, verb = _verb(clause, split=True)
    return [auxiliary, *phrase(clause.subject, subject=True), *_rest(clause, verb)]
