"""Drawing clauses at random: complements, tense, adverbials, reasons and relative clauses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import FrozenSet, List, Optional, Sequence, Tuple

from data_prep import demo_lexicon as lex
from data_prep.demo_clauses import Clause, english_main, german_final, reason_clause
from data_prep.demo_draw_phrases import PhraseComposer
from data_prep.demo_german import table_column
from data_prep.demo_nominals import Fixed, Nominal, NounPhrase, noun_phrase, prepositional, relative_pronoun
from data_prep.demo_parts import (
    COMPANY,
    EN_COMPANY,
    EN_MANNER,
    MANNER,
    Part,
    focus_part,
    frequency_part,
    make_complement,
    predicate_part,
    stranded,
    time_part,
)
from data_prep.demo_words import ACTIVE, DESCRIBED, NO_PHRASE, SEIN, adjectives_for, find_slot, nouns_with

EVERY_REASON = (("mood", 0.4), ("lack", 0.15), ("duty", 0.2), ("rain", 0.1), ("sky", 0.15))


@dataclass(frozen=True)
class Timing:
    """Tense and modal of a clause, and the adverbials that go with it: habit, past, future or none."""

    tense: str
    modal: Optional[lex.Modal] = None
    period: str = "none"


PRESENT = Timing("present", None, "habit")
PAST = Timing("past", None, "past")
PERFECT = Timing("perfect", None, "past")
FUTURE = Timing("future", None, "future")


class Composer(PhraseComposer):
    """Draws clauses at random; every draw takes numbers from ``rng.random()`` alone.

    That method gives the same numbers in every version of Python, unlike ``choice`` and its relatives.

    Args:
        rng: source of all randomness.
    """

    # Complements

    def _nominal(self, slot: lex.Slot, verb: lex.Verb, subject: Nominal, negated: bool) -> Nominal:
        light = {"acc": 0.15, "dat": 0.3, "prep": 0.12}[slot.role]
        if "person" in slot.tags and self.chance(light):
            return self.object_pronoun(subject, slot.case)
        if "person" in slot.tags and self.chance(0.08):
            return self.name()
        if not negated and len(nouns_with(slot.tags)[0]) > 3 and self.chance(0.03):
            return self.both(slot.tags, subject)
        phrase = self.noun_phrase(slot.tags, subject, definite=negated)
        if "fresh" in verb.flags and slot.role == "acc" and (phrase.determiner == "my" or phrase.genitive):
            phrase = replace(phrase, determiner="the", genitive=None)
        if negated and slot.role == "acc" and phrase.determiner in ("the", "this") and self.chance(0.5):
            uses = tuple(use for use in phrase.adjectives if use.degree == "positive")
            return replace(phrase, determiner="not any", genitive=None, adjectives=uses)
        return phrase

    def complement(
        self, slot: lex.Slot, verb: lex.Verb, subject: Nominal, negated: bool = False, relative: float = 0.0
    ) -> Part:
        """Fill one slot of a verb."""
        if slot.role in ("loc", "dir"):
            return self.place(slot.tags, slot.role, "seat" not in slot.tags)
        nominal = self._nominal(slot, verb, subject, negated)
        plain = isinstance(nominal, NounPhrase) and nominal.determiner in ("the", "a") and not nominal.genitive
        # Next to a second complement English would be hard to read.
        if plain and len(verb.slots) == 1 and self.chance(relative):
            nominal = replace(nominal, relative=self.relative(nominal, verb))
        return make_complement(slot, verb, nominal)

    # Adverbials

    def timing(self, verb: lex.Verb, subject: Nominal) -> Timing:
        """Draw a tense that the verb has and that one uses with this subject."""
        lasting = "noperfect" in verb.flags
        familiar = subject.person == 2 or subject.owner == "Sie"  # whom one tells about the past in the perfect
        options: List[Tuple[Timing, float]] = [(PRESENT, 0.32)]
        if not familiar:
            options.append((PAST, 0.22))
        if not lasting:
            options += [(PERFECT, 0.4 if familiar else 0.2), (FUTURE, 0.09)]
            if subject.human:
                options += [(self._modal_timing(), 0.2)]
        return self.weighted(options)

    def _modal_timing(self) -> Timing:
        if self.chance(0.28):
            return Timing("past", lex.MODALS[self.choose(("können", "müssen", "wollen", "dürfen"))], "past")
        modal = lex.MODALS[self.choose(tuple(lex.MODALS))]
        advice = modal.infinitive == "sollen" and self.chance(0.6)
        return Timing("past" if advice else "present", modal, "future")

    def _time_and_aspect(self, verb: lex.Verb, timing: Timing, negated: bool) -> Tuple[Tuple[Part, ...], str]:
        lasting = "noperfect" in verb.flags or (negated and timing.period == "habit")
        if timing.period == "none" or lasting or not self.chance(0.5):
            return (), "simple"
        progressive = verb.flags.isdisjoint(("state", "noprogress"))
        if timing.tense == "present" and not timing.modal and progressive and self.chance(0.25):
            return (time_part(self.choose(lex.TIMES_NOW), ""),), "progressive"
        if timing.tense == "perfect" and not negated and self.chance(0.35):
            return (focus_part(self.choose(lex.PERFECT_ADVERBS)),), "perfect"
        if timing.tense == "present" and not negated and self.chance(0.45):
            return (frequency_part(self.choose(lex.FREQUENCIES)),), "simple"
        # Before a dative object, the event could be read as the other's: nach dem Fest der Lehrerin.
        return (self.time(timing.period, 0.0 if find_slot(verb, "dat") else 0.1),), "simple"

    def _adjuncts(self, verb: lex.Verb, subject: Nominal, negated: bool) -> Tuple[Part, ...]:
        """Draw manner, company, beneficiary and place, each seldom."""
        parts: Tuple[Part, ...] = ()
        if "with" in verb.flags:
            parts += (self._vehicle(),)
        if verb.manners and not negated and self.chance(0.2):
            manner = self.choose(lex.MANNERS[self.choose(verb.manners)])
            parts += (Part(manner.german, manner.english, MANNER, EN_MANNER, "manner"),)
        if "benefit" in verb.flags and self.chance(0.25):
            parts += (self._oblique("für", "acc", "for", ("kin",), subject),)
        elif subject.human and verb.name in lex.LEISURE and not self._has_person(verb) and self.chance(0.12):
            parts += (self._oblique("mit", "dat", "with", ("kin",), subject),)
        if verb.places and self.chance(0.25):
            parts += (self.place(verb.places, "loc"),)
        return parts

    @staticmethod
    def _has_person(verb: lex.Verb) -> bool:
        return any(slot.role in ("dat", "prep") or "person" in slot.tags for slot in verb.slots)

    def _vehicle(self) -> Part:
        noun = self.choose(nouns_with(lex.TRANSPORT)[0])
        german = prepositional("mit", "dat", noun_phrase(noun))
        return Part(german, ("by", noun.english), COMPANY, EN_COMPANY)

    def _oblique(self, german: str, case: str, english: str, tags: Sequence[str], subject: Nominal) -> Part:
        nominal = self.noun_phrase(tags, subject, definite=True, rich=False)
        return Part(prepositional(german, case, nominal), (english,) + nominal.english(), COMPANY, EN_COMPANY)

    # Clauses

    def action(
        self,
        verbs: Sequence[lex.Verb] = lex.VERBS,
        subject: Optional[Nominal] = None,
        timing: Optional[Timing] = None,
        negation: float = 0.12,
        adverbs: bool = True,
        relative: float = 0.0,
        gap: str = "",
    ) -> Clause:
        """Draw a clause.

        Args:
            verbs: what to choose from; those that do not fit a given subject are left out.
            subject: given subject, drawn if None.
            timing: given tense, drawn if None.
            negation: how often it is negated.
            adverbs: whether adverbials of time are added.
            relative: how often an object has a relative clause.
            gap: role of the complement that is left out, for questions and relative clauses.
        """
        if subject is not None and not isinstance(subject, Fixed):
            verbs = [verb for verb in verbs if subject.fits(verb.subjects)]
        verb = self.choose(verbs)
        negated = self.chance(negation)
        if subject is None:
            subject = self.subject(verb, definite=negated)
        timing = timing or self.timing(verb, subject)
        timing = self.usual_timing(timing, verb, subject)
        parts = tuple(
            self.complement(slot, verb, subject, negated, relative) for slot in verb.slots if slot.role != gap
        )
        nobody = isinstance(subject, NounPhrase) and subject.determiner == "no"
        aspect = "simple"
        heavy = any(part.behind for part in parts)
        if adverbs and not nobody and not heavy:
            when, aspect = self._time_and_aspect(verb, timing, negated)
            parts += when
        if not heavy:
            parts += self._adjuncts(verb, subject, negated)
        gladly = (
            timing == PRESENT and not negated and not nobody and verb.name in lex.LEISURE and subject.human
            and aspect == "simple" and all(part.role not in ("time", "frequency", "manner") for part in parts)
            and self.chance(0.25)
        )
        return Clause(
            subject, verb, parts, timing.tense, aspect, timing.modal, gladly,
            negated=negated and not any(part.negative for part in parts), english_negated=negated,
        )

    @staticmethod
    def usual_timing(timing: Timing, verb: lex.Verb, subject: Nominal) -> Timing:
        """Replace a past tense by the one that people use with this verb and subject."""
        if timing == PERFECT and "noperfect" in verb.flags:
            return PAST
        familiar = subject.person == 2 or subject.owner == "Sie"
        return PERFECT if timing == PAST and familiar and "noperfect" not in verb.flags else timing

    def infinitive(self, verbs: Sequence[lex.Verb], subject: Nominal) -> Clause:
        """Draw a clause to be written as an infinitive."""
        return replace(self.action(verbs, subject, PRESENT, negation=0.0, adverbs=False), gladly=False)

    def state(self, subject: Nominal, timing: Timing, phrase: lex.Phrase, negated: bool = False) -> Clause:
        """Say that the subject is something."""
        return Clause(subject, SEIN, (predicate_part(phrase),), timing.tense, negated=negated, english_negated=negated)

    def description(self, tags: FrozenSet[str], negated: bool = False) -> Optional[lex.Phrase]:
        """Draw an adjective for a noun with these tags, maybe with very or too; None if nothing fits."""
        options = adjectives_for(tags)
        if not options:
            return None
        adjective = self.choose(options)
        plain = not adjective.graded or self.chance(0.6)
        degree = NO_PHRASE if plain else self.choose(lex.DEGREES[:2] if negated else lex.DEGREES)
        return lex.Phrase(degree.german + (adjective.lemma,), degree.english + (adjective.english,))

    def described(self) -> Tuple[Nominal, FrozenSet[str]]:
        """Draw what is to be described, with the tags that its adjective has to fit."""
        if self.chance(0.2):
            return self.subject(SEIN, definite=True), frozenset(("person",))
        phrase = self.noun_phrase(self.choose(DESCRIBED), definite=True, rich=False)
        if self.chance(0.1):
            phrase = replace(phrase, determiner="the", genitive=self._genitive(phrase.noun))
        return phrase, phrase.noun.tags

    def reason(self, kinds: Sequence[Tuple[str, float]] = EVERY_REASON) -> lex.Reason:
        """Draw a reason of one of the kinds."""
        kind = self.weighted(kinds)
        if kind == "duty":
            return lex.Reason(kind, NO_PHRASE, lex.PURPOSEFUL)
        return self.choose([reason for reason in lex.REASONS if reason.kind == kind])

    def because(self, reason: lex.Reason, subject: Nominal, timing: Timing) -> Clause:
        """Write a reason down; the subject is the one who acts for it."""
        if reason.kind == "duty":
            modal = lex.MODALS[self.choose(("müssen", "wollen"))]
            return self.action(ACTIVE, subject, Timing(timing.tense, modal), negation=0.0, adverbs=False)
        return reason_clause(reason, subject, timing.tense)

    # Relative clauses

    def relative(self, head: NounPhrase, avoid: lex.Verb) -> lex.Phrase:
        """Draw a relative clause for a noun phrase, with its commas in German; empty if no verb fits.

        Args:
            head: the noun phrase; its own relative clause is left out of account.
            avoid: verb of the clause around it.
        """
        for _ in range(20):
            kind = self.weighted((("subject", 0.4), ("acc", 0.3), ("dat", 0.1), ("prep", 0.1), ("whose", 0.1)))
            phrase = self._relative_of_kind(head, kind, avoid)
            if phrase is not None:
                return lex.Phrase((",",) + phrase.german + (",",), phrase.english)
        return NO_PHRASE

    def _relative_of_kind(self, head: NounPhrase, kind: str, avoid: lex.Verb) -> Optional[lex.Phrase]:
        link = relative_pronoun(head)
        if kind == "whose":
            return self._whose(head) if head.human else None
        others = [verb for verb in lex.VERBS if verb.name != avoid.name]
        if kind == "subject":
            verbs = [verb for verb in others if head.fits(verb.subjects)]
            if not verbs:
                return None
            clause = self.action(verbs, link, self._plain_timing(), adverbs=False)
            return lex.Phrase(german_final(clause), english_main(clause))
        verbs = [verb for verb in others if any(slot.role == kind and head.fits(slot.tags) for slot in verb.slots)]
        if not verbs:
            return None
        clause = self.action(verbs, None, self._plain_timing(), negation=0.0, adverbs=False, gap=kind)
        if kind == "acc" and not (link.shows_case or clause.subject.shows_case):
            return None
        slot = find_slot(clause.verb, kind)
        assert slot is not None
        clause = replace(clause, parts=clause.parts + (stranded(slot, clause.verb),))
        german = ((slot.german,) if slot.german else ()) + link.german(slot.case) + german_final(clause)
        return lex.Phrase(german, link.english() + english_main(clause))

    def _plain_timing(self) -> Timing:
        return self.weighted(((PRESENT, 0.45), (PAST, 0.3), (PERFECT, 0.25)))

    def _whose(self, head: NounPhrase) -> Optional[lex.Phrase]:
        noun = self.noun(("kin", "pet", "own", "home"))
        description = self.description(noun.tags)
        if noun.plural_only or description is None:
            return None
        word = lex.RELATIVE["gen"][table_column(head.gender, head.plural)]
        owned = noun_phrase(noun, determiner="whose", number=lex.Phrase((word,), ()))
        clause = self.state(replace(owned, light=True), self.choose((PRESENT, PAST)), description)
        return lex.Phrase(german_final(clause), english_main(clause))
