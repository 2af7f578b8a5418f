"""Subjects and objects in both languages: pronouns, names and noun phrases, with or without a preposition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Sequence, Tuple

from data_prep import demo_lexicon as lex
from data_prep.demo_english import indefinite_article
from data_prep.demo_german import decline_adjective, decline_noun, der_word, ein_word, table_column
from data_prep.demo_lexicon import Words


@dataclass(frozen=True)
class Nominal:
    """What can be a subject or an object; subclasses know the words.

    Attributes:
        person: 1, 2 or 3.
        plural: whether the verb is in the plural.
        gender: m, f or n.
        human: whether English says who and he or she.
        light: whether it is a pronoun that stands early in the German clause.
        owner: key of the pronoun whose possessive refers to it, empty if there is none.
    """

    person: int = 3
    plural: bool = False
    gender: str = "m"
    human: bool = True
    light: bool = False
    owner: str = ""

    def german(self, case: str) -> Words:
        """Return the German words in ``case``."""
        raise NotImplementedError

    def english(self, subject: bool = False) -> Words:
        """Return the English words, as a subject or as an object."""
        raise NotImplementedError

    def fits(self, tags: Sequence[str]) -> bool:
        """Tell whether a verb that wants one of ``tags`` accepts this."""
        return self.human and ("person" in tags or "grown" in tags)

    @property
    def definite(self) -> bool:
        """Whether it stands before nicht and before adverbs like schon."""
        return True

    @property
    def shows_case(self) -> bool:
        """Whether nominative and accusative differ."""
        return self.german("nom") != self.german("acc")


@dataclass(frozen=True)
class Pronoun(Nominal):
    """A personal pronoun."""

    key: str = "er"

    def german(self, case: str) -> Words:
        """See base class."""
        entry = lex.PRONOUNS[self.key]
        return ({"nom": entry.nominative, "acc": entry.accusative, "dat": entry.dative}[case],)

    def english(self, subject: bool = False) -> Words:
        """See base class."""
        entry = lex.PRONOUNS[self.key]
        return (entry.english_subject if subject else entry.english_object,)


def pronoun(key: str) -> Pronoun:
    """Return the pronoun with that key of ``demo_lexicon.PRONOUNS``."""
    entry = lex.PRONOUNS[key]
    human = entry.english_subject != "it"
    return Pronoun(entry.person, entry.plural, entry.gender, human, light=True, owner=key, key=key)


@dataclass(frozen=True)
class Fixed(Nominal):
    """A question word or relative pronoun, or anything else with a form for each case."""

    forms: Tuple[Words, Words, Words] = ((), (), ())  # nominative, accusative, dative
    english_forms: Tuple[Words, Words] = ((), ())  # subject, object

    def german(self, case: str) -> Words:
        """See base class."""
        return self.forms[lex.CASES.index(case)]

    def english(self, subject: bool = False) -> Words:
        """See base class."""
        return self.english_forms[0 if subject else 1]


@dataclass(frozen=True)
class Name(Nominal):
    """A first name."""

    name: str = ""

    def german(self, case: str) -> Words:
        """See base class."""
        return (self.name + "s" if case == "gen" else self.name,)

    def english(self, subject: bool = False) -> Words:
        """See base class."""
        return (self.name,)


@dataclass(frozen=True)
class Both(Nominal):
    """Two phrases joined by und."""

    first: Nominal = field(default_factory=Nominal)
    second: Nominal = field(default_factory=Nominal)

    def german(self, case: str) -> Words:
        """See base class."""
        return self.first.german(case) + ("und",) + self.second.german(case)

    def english(self, subject: bool = False) -> Words:
        """See base class."""
        return self.first.english(subject) + ("and",) + self.second.english(subject)

    def fits(self, tags: Sequence[str]) -> bool:
        """See base class."""
        return self.first.fits(tags) and self.second.fits(tags)

    @property
    def definite(self) -> bool:
        """See base class."""
        return self.first.definite and self.second.definite


@dataclass(frozen=True)
class AdjectiveUse:
    """An adjective with its degree (``positive``, ``comparative``, ``superlative``) and a word like very."""

    adjective: lex.Adjective
    degree: str = "positive"
    modifier: lex.Phrase = lex.Phrase((), ())

    def german(self, declension: str, case: str, gender: str, plural: bool) -> Words:
        """Return the inflected German words."""
        adjective = self.adjective
        stems = {"positive": adjective.stem, "comparative": adjective.comparative, "superlative": adjective.superlative}
        return self.modifier.german + (decline_adjective(stems[self.degree], declension, case, gender, plural),)

    def english(self) -> Words:
        """Return the English words."""
        adjective = self.adjective
        words = {
            "positive": adjective.english,
            "comparative": adjective.english_comparative,
            "superlative": adjective.english_superlative,
        }
        return self.modifier.english + tuple(words[self.degree].split())


# Determiner: German stem, how it is declined, how the adjective after it is declined, English singular and plural.
DETERMINERS: Dict[str, Tuple[str, str, str, str, str]] = {
    "the": ("", "definite", "weak", "the", "the"),
    "this": ("dies", "der", "weak", "this", "these"),
    "every": ("jed", "der", "weak", "every", ""),
    "which": ("welch", "der", "weak", "which", "which"),
    "all": ("all", "der", "weak", "", "all the"),
    "many": ("viel", "der", "strong", "", "many"),
    "some": ("einig", "der", "strong", "", "some"),
    "a": ("ein", "ein", "mixed", "a", ""),
    "no": ("kein", "ein", "mixed", "no", "no"),
    "not any": ("kein", "ein", "mixed", "a", "any"),  # behind an English not
    "whose": ("", "none", "strong", "whose", "whose"),  # dessen, deren: given as number
    "bare": ("", "none", "strong", "", ""),
}


@dataclass(frozen=True)
class NounPhrase(Nominal):
    """A noun with all that goes with it.

    Attributes:
        noun: entry of the lexicon.
        determiner: key of ``DETERMINERS``, or ``my`` with ``possessor``.
        possessor: key of the owner's pronoun.
        number: words between determiner and adjectives: zwei, dessen.
        adjectives: in order.
        genitive: whose it is (das Buch des Mannes, Annas Buch); the determiner is then ``the``.
        relative: relative clause, commas included.
    """

    noun: lex.Noun = lex.NOUNS[0]
    determiner: str = "the"
    possessor: str = ""
    number: lex.Phrase = lex.Phrase((), ())
    adjectives: Tuple[AdjectiveUse, ...] = ()
    genitive: Optional[Nominal] = None
    relative: lex.Phrase = lex.Phrase((), ())

    @property
    def definite(self) -> bool:
        """See base class."""
        return self.determiner in ("the", "this", "my", "all", "every")

    def fits(self, tags: Sequence[str]) -> bool:
        """See base class."""
        return not self.noun.tags.isdisjoint(tags)

    def german(self, case: str) -> Words:
        """See base class."""
        determiner, declension = self._german_determiner(case)
        adjectives: Words = ()
        for use in self.adjectives:
            adjectives += use.german(declension, case, self.gender, self.plural)
        after = self.genitive.german("gen") if self.genitive and not isinstance(self.genitive, Name) else ()
        noun = (decline_noun(self.noun, case, self.plural),)
        return determiner + self.number.german + adjectives + noun + after + self.relative.german

    def _german_determiner(self, case: str) -> Tuple[Words, str]:
        """Return the determiner's words and the declension of the adjective behind it."""
        if isinstance(self.genitive, Name):
            return self.genitive.german("gen"), "strong"
        if self.determiner == "my":
            stem, kind, declension = lex.PRONOUNS[self.possessor].possessive, "ein", "mixed"
        else:
            stem, kind, declension = DETERMINERS[self.determiner][:3]
        if kind == "definite":
            return (lex.DEFINITE[case][table_column(self.gender, self.plural)],), declension
        if kind == "none":
            return (), declension
        inflect = ein_word if kind == "ein" else der_word
        return (inflect(stem, case, self.gender, self.plural),), declension

    def english(self, subject: bool = False) -> Words:
        """See base class."""
        words: Words = self.number.english
        for use in self.adjectives:
            words += use.english()
        words += tuple((self.noun.english_plural if self.plural else self.noun.english).split())
        before, after = self._english_genitive()
        determiner = before or self._english_determiner(words[0])
        return determiner + words + after + self.relative.english

    def _english_genitive(self) -> Tuple[Words, Words]:
        """Return what stands before the noun (the man 's) and what stands behind it (of the house)."""
        if self.genitive is None:
            return (), ()
        if self.genitive.human and not self.genitive.plural:
            return self.genitive.english() + ("'s",), ()
        return (), ("of",) + self.genitive.english()

    def _english_determiner(self, next_word: str) -> Words:
        if self.determiner == "my":
            return (lex.PRONOUNS[self.possessor].english_possessive,)
        word = DETERMINERS[self.determiner][4 if self.plural else 3]
        if self.determiner == "not any" and not self.plural and not self.noun.plural:
            word = "any"
        if word == "a":
            word = indefinite_article(next_word)
        return tuple(word.split())


def prepositional(preposition: str, case: str, nominal: Nominal) -> Words:
    """Put a preposition before a phrase: in + dem Garten gives im Garten.

    Before a relative clause the article stays apart (in dem Haus , das ...), as it points forward.
    """
    words = nominal.german(case)
    merged = lex.CONTRACTIONS.get((preposition, words[0]))
    if merged and isinstance(nominal, NounPhrase) and nominal.determiner == "the" and not nominal.relative.german:
        return (merged,) + words[1:]
    return (preposition,) + words


def owner_key(gender: str, plural: bool, human: bool) -> str:
    """Return the pronoun that refers to such a noun; none for das Kind, where usage wavers."""
    if plural:
        return "sie_pl"
    if gender == "n":
        return "" if human else "es"
    key = "er" if gender == "m" else "sie"
    return key if human else key + "_it"


def refer(nominal: Nominal) -> Nominal:
    """Return the pronoun for a phrase that was mentioned before."""
    return pronoun(nominal.owner)


def noun_phrase(noun: lex.Noun, plural: bool = False, determiner: str = "the", **settings: Any) -> NounPhrase:
    """Build a noun phrase with the agreement features of its noun."""
    plural = plural or noun.plural_only
    human = noun.kind in ("person", "thief")
    return NounPhrase(
        plural=plural, gender=noun.gender, human=human, owner=owner_key(noun.gender, plural, human),
        noun=noun, determiner=determiner, **settings,
    )


def relative_pronoun(head: NounPhrase) -> Fixed:
    """Return the relative pronoun that agrees with its head."""
    column = table_column(head.gender, head.plural)
    forms = tuple((lex.RELATIVE[case][column],) for case in ("nom", "acc", "dat"))
    english = (("who",), ("whom",)) if head.human else (("that",), ("that",))
    return Fixed(
        plural=head.plural, gender=head.gender, human=head.human, light=True, owner=head.owner,
        forms=forms, english_forms=english,
    )


WHO = Fixed(forms=(("wer",), ("wen",), ("wem",)), english_forms=(("who",), ("whom",)))
WHAT = Fixed(human=False, forms=(("was",), ("was",), ()), english_forms=(("what",), ("what",)))
THAT = Fixed(human=False, forms=(("das",), ("das",), ("dem",)), english_forms=(("that",), ("that",)))
ANYONE = Fixed()
IT = pronoun("es")
