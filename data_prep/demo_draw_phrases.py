"""Drawing noun phrases, places and times at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Optional, Sequence, Tuple, TypeVar

from data_prep import demo_lexicon as lex
from data_prep.demo_nominals import (
    AdjectiveUse,
    Both,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
    noun_phrase,
    prepositional,
    pronoun,
)
from data_prep.demo_parts import DIRECTION, EN_DIRECTION, EN_PLACE, PLACE, Part, time_part, town_phrase
from data_prep.demo_words import OWNABLE, adjectives_for, nouns_with, takes_people

T = TypeVar("T")

OBJECT_PRONOUNS = ("ich", "du", "er", "wir", "ihr")
DATIVE_PRONOUNS = OBJECT_PRONOUNS + ("sie", "sie_pl")
SUBJECT_PRONOUNS = ("ich", "ich", "du", "er", "er", "sie", "sie", "wir", "wir", "ihr", "sie_pl", "sie_pl")
QUESTION_PRONOUNS = ("du", "du", "ihr", "Sie", "Sie", "er", "sie", "wir", "sie_pl")


class PhraseComposer:
    """Draws noun phrases, places and times at random; every draw takes numbers from ``rng.random()`` alone.

    That method gives the same numbers in every version of Python, unlike ``choice`` and its relatives.

    Args:
        rng: source of all randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        self.random = rng.random

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.random() < probability

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[int(self.random() * len(options))]

    def weighted(self, options: Sequence[Tuple[T, float]]) -> T:
        """Return one of the options, by weight."""
        total = 0.0
        for _, weight in options:  # not sum(): it rounds differently from Python 3.12 on
            total += weight
        target = self.random() * total
        for option, weight in options:
            target -= weight
            if target < 0:
                return option
        return options[-1][0]

    # Noun phrases

    def noun(self, tags: Sequence[str]) -> lex.Noun:
        """Draw a noun with one of the tags; a compound is half as likely as a simple noun."""
        simple, compound = nouns_with(tuple(tags))
        share = len(compound) / (len(compound) + 2 * len(simple))
        return self.choose(compound if self.chance(share) else simple)

    def noun_phrase(
        self, tags: Sequence[str], owner: Optional[Nominal] = None, definite: bool = False, rich: bool = True
    ) -> NounPhrase:
        """Draw a noun phrase.

        Args:
            tags: what the noun may be.
            owner: the subject, to which his, her and their refer.
            definite: only the, this and possessives.
            rich: with adjectives and genitives.
        """
        noun = self.noun(tags)
        plural = noun.plural_only or (bool(noun.plural) and self.chance(self._plural_share(noun)))
        determiner = self._determiner(noun, plural, definite)
        phrase = noun_phrase(noun, plural, determiner)
        if determiner == "my":
            phrase = replace(phrase, possessor=self._possessor(owner))
        elif determiner == "number":
            phrase = replace(phrase, determiner="bare", number=self.choose(lex.SMALL_NUMBERS))
        return self._enrich(phrase) if rich else phrase

    @staticmethod
    def _plural_share(noun: lex.Noun) -> float:
        if "pair" in noun.tags:
            return 0.9
        return 0.0 if "elder" in noun.tags else 0.08 if "kin" in noun.tags else 0.2

    def _determiner(self, noun: lex.Noun, plural: bool, definite: bool) -> str:
        mine = 0.0
        if not noun.tags.isdisjoint(OWNABLE):
            mine = 0.15
        options = [("the", 0.5), ("my", mine), ("this", 0.05)]
        if "kin" in noun.tags:
            options = [("the", 0.1), ("my", 0.9)]
        elif not definite:
            if not noun.plural:
                options += [("bare", 0.5)]
            elif plural:
                options += [("bare", 0.15), ("number", 0.13), ("many", 0.06), ("some", 0.06), ("all", 0.04)]
            else:
                options += [("a", 0.3)]
        return self.weighted(options)

    def _possessor(self, owner: Optional[Nominal]) -> str:
        speaker, listener = ("ich", "wir"), ("du", "ihr")
        if owner is None or not owner.owner:
            return self.choose(speaker + listener)
        if owner.person == 1 or owner.owner == "Sie" or self.chance(0.7):
            return owner.owner
        return self.choose(speaker if owner.person == 2 else speaker + listener)

    def _enrich(self, phrase: NounPhrase) -> NounPhrase:
        if self.chance(0.28):
            phrase = replace(phrase, adjectives=self.adjectives(phrase))
        if phrase.determiner == "the" and self.chance(0.1):
            phrase = replace(phrase, genitive=self._genitive(phrase.noun))
        return phrase

    def adjectives(self, phrase: NounPhrase) -> Tuple[AdjectiveUse, ...]:
        """Draw an adjective for a noun phrase, if there is one that fits."""
        # Not the word of the noun itself: a patient patient.
        options = [entry for entry in adjectives_for(phrase.noun.tags) if entry.english != phrase.noun.english]
        if not options:
            return ()
        adjective = self.choose(options)
        if adjective.graded and phrase.determiner == "the" and self.chance(0.07):
            return (AdjectiveUse(adjective, "superlative"),)
        if adjective.graded and phrase.determiner == "a" and self.chance(0.12):
            return (AdjectiveUse(adjective, modifier=self.choose(lex.ATTRIBUTIVE_DEGREES)),)
        return (AdjectiveUse(adjective),)

    def _genitive(self, head: lex.Noun) -> Optional[Nominal]:
        if head.kind == "part":
            return noun_phrase(self.noun(("building",)))
        if head.tags.isdisjoint(OWNABLE):
            return None
        if self.chance(0.4):
            return self.name()
        noun = self.noun(("job", "kin"))
        possessor = self._possessor(None) if "kin" in noun.tags else ""
        return noun_phrase(noun, self.chance(0.15), "my" if possessor else "the", possessor=possessor)

    def name(self) -> Name:
        """Draw a first name."""
        if self.chance(0.5):
            return Name(gender="f", owner="sie", name=self.choose(lex.FEMALE_NAMES))
        return Name(gender="m", owner="er", name=self.choose(lex.MALE_NAMES))

    def subject(self, verb: lex.Verb, definite: bool = False, referable: bool = False) -> Nominal:
        """Draw a subject for a verb.

        Args:
            verb: says what its subject may be.
            definite: nothing indefinite, as wanted with nicht.
            referable: only people that a pronoun can take up again.
        """
        while True:
            subject = self._any_subject(verb, definite)
            if not referable or (subject.owner and subject.human):
                return subject

    def _any_subject(self, verb: lex.Verb, definite: bool) -> Nominal:
        if takes_people(verb):
            kind = self.weighted((("pronoun", 0.3), ("name", 0.1), ("both", 0.04), ("noun", 0.56)))
            if kind == "pronoun":
                return pronoun(self.choose(SUBJECT_PRONOUNS))
            if kind == "name":
                return self.name()
            if kind == "both":
                return self.both(verb.subjects)
        phrase = self.noun_phrase(verb.subjects, definite=definite)
        if phrase.determiner == "a" and phrase.human and self.chance(0.15):
            return replace(phrase, determiner=self.choose(("every", "no")), adjectives=())
        return phrase

    def both(self, tags: Sequence[str], owner: Optional[Nominal] = None) -> Both:
        """Draw two phrases joined by und."""
        first = self.noun_phrase(tags, owner, definite=True, rich=False)
        second = first
        while second.noun.lemma == first.noun.lemma:
            second = self.noun_phrase(tags, owner, definite=True, rich=False)
        return Both(plural=True, human=first.human, owner="sie_pl", first=first, second=second)

    def question_subject(self, verb: lex.Verb) -> Nominal:
        """Draw a subject as one asks about it, mostly a pronoun."""
        if takes_people(verb) and self.chance(0.6):
            return pronoun(self.choose(QUESTION_PRONOUNS))
        return self.subject(verb, definite=True)

    def object_pronoun(self, subject: Nominal, case: str) -> Pronoun:
        """Draw a pronoun that cannot mean the subject itself."""
        options = DATIVE_PRONOUNS if case == "dat" else OBJECT_PRONOUNS
        person = 2 if subject.owner == "Sie" else subject.person
        return pronoun(self.choose([key for key in options if person == 3 or lex.PRONOUNS[key].person != person]))

    # Places

    def place(self, tags: Sequence[str], role: str, around: bool = True) -> Part:
        """Draw where (``loc``) or where to (``dir``)."""
        rank, english_rank = (DIRECTION, EN_DIRECTION) if role == "dir" else (PLACE, EN_PLACE)
        phrase = self._place_phrase(self.choose(tags), role, around)
        return Part(phrase.german, phrase.english, rank, english_rank, role, "stay" if role == "loc" else "")

    def _place_phrase(self, tag: str, role: str, around: bool) -> lex.Phrase:
        if tag == "Hause":
            there = role == "dir"
            return lex.Phrase(("nach" if there else "zu", "Hause"), ("home",) if there else ("at", "home"))
        if tag == "map":
            return town_phrase(self.choose(lex.TOWNS), role)
        if tag in ("person", "family"):
            tag = self.choose(("doctor", "kin"))
            visited = self.noun_phrase((tag,), definite=True, rich=False)
            return lex.Phrase(prepositional("zu", "dat", visited), ("to",) + visited.english())
        noun = self.noun((tag,))
        german, english = noun.place[:2] if role == "loc" else noun.place[2:]
        if around and self.chance(0.2):
            german, english = self._around(noun, role, german, english)
        phrase = noun_phrase(noun, determiner="a" if self.chance(0.15) else "the")
        if self.chance(0.2):
            phrase = replace(phrase, adjectives=self.adjectives(phrase))
        case = "acc" if role == "dir" and german != "zu" else "dat"
        return lex.Phrase(prepositional(german, case, phrase), tuple(english.split()) + phrase.english())

    def _around(self, noun: lex.Noun, role: str, german: str, english: str) -> Tuple[str, str]:
        if noun.kind == "furniture":
            return self.choose(lex.AROUND_FURNITURE)
        if role == "loc" and "outer" in noun.tags:
            return self.choose(lex.AROUND_BUILDING)
        if role == "dir" and "through" in noun.tags:
            return "durch", "through"
        if role == "dir" and "across" in noun.tags:
            return "über", "across"
        return german, english

    # Times

    def time(self, period: str, event: float = 0.1) -> Part:
        """Draw when: a ready phrase, a weekday, a number of days, before or after an event.

        Args:
            period: ``habit``, ``past`` or ``future``.
            event: weight of the last kind.
        """
        tables = {"habit": lex.TIMES_HABIT, "past": lex.TIMES_PAST, "future": lex.TIMES_FUTURE}
        kinds = [("table", 0.6), ("event", event)]
        if period != "habit":
            kinds += [("today", 0.08), ("day", 0.12), ("span", 0.1)]
        kind = self.weighted(kinds)
        if kind == "table":
            phrase = self.choose(tables[period])
        elif kind == "event":
            phrase = self._event_time()
        elif kind == "today":
            phrase = lex.TODAY
        elif kind == "day":
            phrase = self.day()
        else:
            phrase = self._span(period)
        if (kind in ("today", "day") or phrase.german in lex.SINGLE_DAYS) and self.chance(0.2):
            clock = self.clock()
            phrase = lex.Phrase(phrase.german + ("um",) + clock.german, phrase.english + ("at",) + clock.english)
        return time_part(phrase)

    def _event_time(self) -> lex.Phrase:
        german, case, english = self.choose((("nach", "dat", "after"), ("vor", "dat", "before"),
                                             ("während", "gen", "during")))
        event = noun_phrase(self.noun(("event",)))
        return lex.Phrase(prepositional(german, case, event), (english,) + event.english())

    def _span(self, period: str) -> lex.Phrase:
        number, unit = self.choose(lex.SMALL_NUMBERS), self.choose(lex.SPANS)
        if period == "past":
            return lex.Phrase(("vor",) + number.german + unit.german, number.english + unit.english + ("ago",))
        return lex.Phrase(("in",) + number.german + unit.german, ("in",) + number.english + unit.english)

    def day(self) -> lex.Phrase:
        """Draw a weekday or a date."""
        if self.chance(0.6):
            day = self.choose(lex.DAYS)
            return lex.Phrase(("am",) + day.german, ("on",) + day.english)
        number, month = self.choose(lex.ORDINALS), self.choose(lex.MONTHS)
        english = ("on", "the") + number.english + ("of",) + month.english
        return lex.Phrase(("am",) + number.german + month.german, english)

    def clock(self) -> lex.Phrase:
        """Draw a time of day; halb vier is half past three."""
        index = int(self.random() * 12)
        hour, before = lex.HOURS[index], lex.HOURS[index - 1]
        spoken = ("eins",) if index == 0 else hour.german
        kind = self.weighted((("full", 0.5), ("half", 0.3), ("past", 0.1), ("to", 0.1)))
        if kind == "full":
            return lex.Phrase(hour.german + ("Uhr",), hour.english + ("o", "'clock"))
        if kind == "half":
            return lex.Phrase(("halb",) + spoken, ("half", "past") + before.english)
        if kind == "past":
            return lex.Phrase(("Viertel", "nach") + spoken, ("a", "quarter", "past") + hour.english)
        return lex.Phrase(("Viertel", "vor") + spoken, ("a", "quarter", "to") + hour.english)
