"""Clauses: one verb with its parts, written down by the word order of each language."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Callable, List, Optional, Tuple

from data_prep import demo_lexicon as lex
from data_prep.demo_english import english_finite, english_gerund, english_participle
from data_prep.demo_german import (
    conjugate_past,
    conjugate_present,
    form_index,
    imperative,
    participle,
    zu_infinitive,
)
from data_prep.demo_lexicon import Words
from data_prep.demo_nominals import IT, Nominal
from data_prep.demo_parts import (
    DATIVE,
    EN_MIDDLE,
    EN_OBJECT,
    FOCUS,
    INDEFINITE_ACC,
    INDEFINITE_SUBJECT,
    LIGHT_ACC,
    LIGHT_SUBJECT,
    SUBJECT,
    Part,
    predicate_part,
)
from data_prep.demo_words import HABEN, SEIN, WERDEN

Sentence = Tuple[Words, Words, str]


@dataclass(frozen=True)
class Clause:
    """A verb with its parts, from which both languages are written.

    Attributes:
        subject: also set for imperatives and infinitives, whose reflexives and possessives agree with it.
        verb: entry of the lexicon.
        parts: everything but subject and verb.
        tense: present, past, perfect, pluperfect, future or conditional: the German one.
        aspect: ``simple``, ``progressive``, ``perfect`` or ``perfect progressive`` in English.
        modal: modal verb; ``tense`` is then its own, present or past.
        gladly: German gern, English like to.
        negated: nicht.
        english_negated: not; also where German says kein.
        passive: werden-passive.
    """

    subject: Nominal
    verb: lex.Verb
    parts: Tuple[Part, ...] = ()
    tense: str = "present"
    aspect: str = "simple"
    modal: Optional[lex.Modal] = None
    gladly: bool = False
    negated: bool = False
    english_negated: bool = False
    passive: bool = False

    def without(self, part: Part) -> Clause:
        """Return the clause without one of its parts."""
        return replace(self, parts=tuple(other for other in self.parts if other is not part))


class AmbiguousError(Exception):
    """A drawn sentence could be read in two ways; ``sentence`` draws another one."""


def _finite(verb: lex.Verb, tense: str, subject: Nominal) -> str:
    conjugate = conjugate_past if tense == "past" else conjugate_present
    return conjugate(verb, subject.person, subject.plural)


def german_verbs(clause: Clause) -> Tuple[str, Words]:
    """Return the finite verb and the words that close the clause (participle, infinitive, separable prefix)."""
    subject, verb, tense = clause.subject, clause.verb, clause.tense
    slot = form_index(subject.person, subject.plural)
    closing: Words = (participle(verb), "werden") if clause.passive else (verb.name,)
    if clause.modal:
        return (clause.modal.past if tense == "past" else clause.modal.present)[slot], closing
    if tense == "future":
        return conjugate_present(WERDEN, subject.person, subject.plural), closing
    if tense == "conditional":
        if verb.name in ("sein", "haben"):
            return lex.SUBJUNCTIVE[verb.name][slot], ()
        return lex.SUBJUNCTIVE["werden"][slot], closing
    if clause.passive:
        return _finite(WERDEN, tense, subject), (participle(verb),)
    if tense in ("perfect", "pluperfect"):
        auxiliary = SEIN if verb.auxiliary == "sein" else HABEN
        return _finite(auxiliary, "past" if tense == "pluperfect" else "present", subject), (participle(verb),)
    return _finite(verb, tense, subject), (verb.prefix,) if verb.prefix else ()


def _middle_field(clause: Clause, with_subject: bool) -> Words:
    items: List[Tuple[int, Words]] = [(part.rank, part.german) for part in clause.parts]
    if with_subject:
        subject = clause.subject
        rank = LIGHT_SUBJECT if subject.light else SUBJECT if subject.definite else INDEFINITE_SUBJECT
        items.append((rank, subject.german("nom")))
        between = any(rank < part.rank < DATIVE for part in clause.parts)
        if not subject.light and not between and any(part.like_genitive for part in clause.parts):
            raise AmbiguousError("%s before a dative like a genitive" % " ".join(subject.german("nom")))
    if clause.verb.reflexive:
        owner = lex.PRONOUNS.get(clause.subject.owner)
        items.append((LIGHT_ACC, (owner.reflexive if owner else "sich",)))
    if clause.negated:
        items.append((FOCUS, ("nicht",)))
    if clause.gladly:
        items.append((FOCUS, ("gern",)))
    items.sort(key=lambda item: item[0])
    return tuple(itertools.chain.from_iterable(words for _, words in items))


def _behind(clause: Clause) -> Words:
    return tuple(itertools.chain.from_iterable(part.behind for part in clause.parts))


def german_main(clause: Clause, first: Optional[Part] = None) -> Words:
    """Write a verb-second clause that starts with ``first``, or else with its subject."""
    finite, closing = german_verbs(clause)
    if first is None:
        return clause.subject.german("nom") + (finite,) + _middle_field(clause, False) + closing + _behind(clause)
    rest = clause.without(first)
    return first.german + (finite,) + _middle_field(rest, True) + closing + _behind(rest)


def german_predicate(clause: Clause) -> Words:
    """Write a clause behind und that shares the subject of the clause before it."""
    finite, closing = german_verbs(clause)
    return (finite,) + _middle_field(clause, False) + closing


def german_question(clause: Clause) -> Words:
    """Write a verb-first clause."""
    finite, closing = german_verbs(clause)
    return (finite,) + _middle_field(clause, True) + closing


def german_final(clause: Clause) -> Words:
    """Write a clause with its verb at the end, without the word that introduces it."""
    finite, closing = german_verbs(clause)
    simple = clause.verb.prefix and closing == (clause.verb.prefix,)
    ending = (closing[0] + finite,) if simple else closing + (finite,)
    return _middle_field(clause, True) + ending


def german_infinitive(clause: Clause) -> Words:
    """Write an infinitive clause with zu."""
    return _middle_field(clause, False) + zu_infinitive(clause.verb)


def german_imperative(clause: Clause, address: str) -> Words:
    """Write a command to ``du``, ``ihr`` or ``Sie``; the pronoun is said for Sie only."""
    pronoun_words: Words = ("Sie",) if address == "Sie" else ()
    prefix: Words = (clause.verb.prefix,) if clause.verb.prefix else ()
    return (imperative(clause.verb, address),) + pronoun_words + _middle_field(clause, False) + prefix


def _english_tense(clause: Clause) -> str:
    if clause.aspect != "simple":
        return clause.aspect
    return "past" if clause.tense == "perfect" else clause.tense


def _english_head(clause: Clause) -> Tuple[str, Words, str]:
    """Return the verb that carries the tense, the words that stay behind it, and the tense."""
    verb, tail, tense = clause.verb.english, clause.verb.tail, _english_tense(clause)
    if clause.passive:
        particle: Words = (clause.verb.particle,) if clause.verb.particle else ()
        verb, tail = "be", (english_participle(verb),) + tail + particle
    if clause.modal and tense == "past":
        return clause.modal.english_past, clause.modal.tail_past + (verb,) + tail, tense
    if clause.modal:
        return clause.modal.english_present, clause.modal.tail_present + (verb,) + tail, tense
    if clause.gladly:
        return "like", ("to", verb) + tail, tense
    return verb, tail, tense


MODAL_AUXILIARIES = ("can", "could", "should", "would")


def english_verbs(clause: Clause, inverted: bool = False) -> Tuple[str, Words]:
    """Return the finite verb or auxiliary, and the other words of the verb group.

    Args:
        clause: its subject decides the agreement.
        inverted: question order, which needs an auxiliary as much as not does.
    """
    subject = clause.subject
    verb, tail, tense = _english_head(clause)
    middle = tuple(itertools.chain.from_iterable(
        part.english for part in clause.parts if part.english_rank == EN_MIDDLE
    ))
    negation: Words = ("not",) if clause.english_negated else ()

    def finite(word: str, when: str) -> str:
        return english_finite(word, when, subject.person, subject.plural)

    if verb in MODAL_AUXILIARIES:
        first, rest = verb, tail
    elif tense == "future":
        first, rest = "will", (verb,) + tail
    elif tense == "conditional":
        first, rest = "would", (verb,) + tail
    elif tense == "perfect":
        first, rest = finite("have", "present"), (english_participle(verb),) + tail
    elif tense == "perfect progressive":
        first, rest = finite("have", "present"), ("been", english_gerund(verb)) + tail
    elif tense == "pluperfect":
        first, rest = "had", (english_participle(verb),) + tail
    elif tense == "progressive":
        first, rest = finite("be", "present"), (english_gerund(verb),) + tail
    elif verb == "be":
        first, rest = finite("be", tense), tail
    elif inverted or negation:
        first, rest = finite("do", tense), (verb,) + tail
    else:
        words = middle + (finite(verb, tense),) + tail
        return words[0], words[1:]
    if first == "can" and negation and not inverted:
        return "cannot", middle + rest
    return first, negation + middle + rest


def _english_complements(clause: Clause) -> Words:
    """Return what follows the verb; a particle goes before a noun and behind a pronoun (wake up Anna, wake him up)."""
    following = [part for part in clause.parts if part.english_rank > EN_MIDDLE]
    parts = sorted(following, key=lambda part: part.english_rank)
    particle: Words = (clause.verb.particle,) if clause.verb.particle and not clause.passive else ()
    words: Words = ()
    if not any(part.light and part.english_rank == EN_OBJECT for part in parts):
        words, particle = particle, ()
    for part in parts:
        words += part.english
        if part.english_rank == EN_OBJECT:
            words, particle = words + particle, ()
    return words


def english_main(clause: Clause, first: Optional[Part] = None) -> Words:
    """Write a statement; ``first`` is what German starts with, which English may keep or not."""
    front: Words = ()
    if first is not None and first.fronting == "front":
        clause = clause.without(first)
        front = first.english
    finite, rest = english_verbs(clause)
    return front + clause.subject.english(subject=True) + (finite,) + rest + _english_complements(clause)


def english_predicate(clause: Clause) -> Words:
    """Write a clause behind and that shares the subject of the clause before it."""
    finite, rest = english_verbs(clause)
    return (finite,) + rest + _english_complements(clause)


def english_question(clause: Clause) -> Words:
    """Write a clause in question order."""
    finite, rest = english_verbs(clause, inverted=True)
    subject = clause.subject.english(subject=True)
    return (finite,) + subject + rest + _english_complements(clause)


def english_infinitive(clause: Clause, form: Callable[[str], str] = str) -> Words:
    """Write verb and complements without subject; ``form`` makes the verb a gerund if wanted."""
    return (form(clause.verb.english),) + clause.verb.tail + _english_complements(clause)


def finish(words: Words, end: str) -> str:
    """Join the words to a sentence: no doubled commas, a capital, a final mark."""
    kept: List[str] = []
    for word in words + (end,):
        if word in (",", end) and kept and kept[-1] == ",":
            kept.pop()
        kept.append(word)
    kept[0] = kept[0][:1].upper() + kept[0][1:]
    return " ".join(kept)


def fronted(clause: Clause, role: str) -> List[Part]:
    """Return the parts German may start with; an object only where the cases tell it from the subject."""
    allowed = ("front", "stay") + (("if subject shows case",) if clause.subject.shows_case else ())
    return [part for part in clause.parts if part.fronting in allowed and (not role or part.role == role)]


def reason_clause(reason: lex.Reason, subject: Nominal, tense: str) -> Clause:
    """Write a mood, lack, wish or the weather as a clause."""
    if reason.kind == "rain":
        return Clause(IT, lex.simple_verb(reason.phrase.german[0], "weak", reason.phrase.english[0]), (), tense)
    if reason.kind in ("lack", "wish"):
        negative = reason.kind == "lack"
        part = Part(reason.phrase.german, reason.phrase.english, INDEFINITE_ACC, EN_OBJECT, negative=negative)
        return Clause(subject, HABEN, (part,), tense, english_negated=negative)
    holder = IT if reason.kind == "sky" else subject
    return Clause(holder, SEIN, (predicate_part(reason.phrase),), tense)
