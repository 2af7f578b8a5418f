"""Draws the structure of a sentence at random, and writes it down in both languages."""

from __future__ import annotations

import random
from typing import Any, Dict, List, Optional, Sequence, Tuple

from data_prep.demo_corpus import english, german
from data_prep.demo_corpus.structure import Clause, Noun, Phrase, Verb, match, read_lexicon

Pair = Tuple[str, str]
Words = Tuple[List[str], List[str], str]
TENSES = ("present", "present", "past", "past", "perfect", "perfect", "future", "can", "must", "want")
DETERMINERS = ("der", "der", "der", "ein", "ein", "kein", "mein", "unser", "dies")
# As an object, sie (her or them) would leave open which. Nor is "ich ... mich" there, which English says otherwise.
PRONOUNS = {"nominative": ("1s", "1p", "3m", "3f", "3p"), "accusative": ("3m",), "dative": ("3m", "3f", "3p")}
QUESTION_WORDS = (("", ""), ("", ""), ("wann", "when"), ("warum", "why"), ("wo", "where"))
CONJUNCTIONS = (("weil", "because"), ("während", "while"), ("obwohl", "although"), ("dass", "that"))


class Drawing:
    """Draws sentences with nothing but ``random()``, whose numbers are the same in every Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random
        self.lexicon = read_lexicon()

    def choose(self, items: Sequence[Any]) -> Any:
        """One of them, each as likely as the others."""
        return items[int(self.random() * len(items))]

    def word(self, what: str, kinds: str, field: str) -> Any:
        """A word of the lexicon that goes with one of these kinds."""
        return self.choose([word for word in self.lexicon[what] if match(getattr(word, field), kinds)])

    def sentence(self) -> Pair:
        """A sentence pair: tokens between spaces."""
        kinds = (self.statement, self.statement, self.statement, self.question, self.two_clauses, self.two_clauses)
        in_german, in_english, end = self.choose(kinds)()
        return _finish(in_german, end), _finish(in_english, end)

    def statement(self) -> Words:
        """A main clause, with whatever comes first in German."""
        clause = self.clause(self.choose(TENSES), rich=True)
        clause = clause._replace(front=self.front(clause))
        return german.main(clause), english.statement(clause), "."

    def question(self) -> Words:
        """A question, with or without a question word."""
        clause = self.clause(self.choose(TENSES))._replace(negated=False)
        in_german, in_english = self.choose(QUESTION_WORDS)
        if in_german == "wann":
            clause = clause._replace(adverb=None)
        elif in_german == "wo":
            clause = clause._replace(place=None)
        first = ([in_german], [in_english]) if in_german else ([], [])
        return german.main(clause, first[0]), [*first[1], *english.question(clause)], "?"

    def two_clauses(self) -> Words:
        """A main clause and a subordinate one, whose verb is at the end; the subordinate one may come first."""
        (in_german, in_english), tense = self.choose(CONJUNCTIONS), self.choose(TENSES)
        main, side = self.clause(tense, that=in_german == "dass"), self.clause(tense)
        german_side, english_side = german.final(side, in_german), [in_english, *english.statement(side)]
        if in_german != "dass" and self.random() < 0.4:
            return german.main(main, [*german_side, ","]), [*english_side, ",", *english.statement(main)], "."
        return [*german.main(main), ",", *german_side], [*english.statement(main), *english_side], "."

    def clause(self, tense: str, rich: bool = False, that: bool = False) -> Clause:
        """A clause; a rich one may have relative clauses, and one with ``that`` has another clause for an object."""
        if tense in ("present", "past") and not that and self.random() < 0.3:
            subject = self.phrase(self.choose(("person", "animal", "thing", "food")), "nominative", rich)
            adjective = self.word("adjective", subject.noun.kinds if subject.determiner else "person", "fits")
            return Clause(subject, tense, adjective=adjective, negated=self.random() < 0.2)
        verb = self.choose(self.lexicon["opinion" if that else "verb"])
        subject = self.phrase(verb.subjects, "nominative", rich)
        clause = Clause(subject, tense, verb, **self.objects(verb, rich))
        if self.random() < 0.45:
            clause = clause._replace(adverb=self.word("adverb", tense, "fits"))
        if not that and self.random() < 0.3:
            return clause._replace(place=self.place())
        return clause._replace(negated=_can_be_negated(clause) and self.random() < 0.3)

    def objects(self, verb: Verb, rich: bool = False) -> Dict[str, Any]:
        """The objects that a verb takes."""
        kinds = {"dative": verb.datives, "accusative": verb.accusatives}
        return {case: self.phrase(kind, case, rich) for case, kind in kinds.items() if kind != "-"}

    def front(self, clause: Clause) -> str:
        """What comes first in German: an object only where its form tells it from the subject."""
        choices = ["subject", "subject", *(["place"] if clause.place else [])]
        if clause.adverb and clause.adverb.place == "end":
            choices.append("adverb")
        for case in ("dative", "accusative"):
            what = getattr(clause, case)
            if what and what.determiner and german.phrase(what, case)[0] != german.phrase(what, "nominative")[0]:
                choices.append(case)
        return self.choose(choices)

    def phrase(self, kinds: str, case: str, rich: bool = False) -> Phrase:
        """A pronoun, a name, a noun with what goes with it, or two nouns."""
        if match(kinds, "person") and self.random() < 0.3:
            if self.random() < 0.3:
                return Phrase(self.word("noun", "name", "kinds"))
            return Phrase(pronoun=self.choose(PRONOUNS[case]))
        what = self.noun_phrase(self.word("noun", kinds, "kinds"))
        if rich and self.random() < 0.2:
            return what._replace(relative=self.relative(what))
        if self.random() < 0.07:
            return what._replace(other=self.noun_phrase(self.word("noun", what.noun.kinds.split(",")[-1], "kinds")))
        return what

    def noun_phrase(self, noun: Noun, determiners: Sequence[str] = DETERMINERS, plural: float = 0.3) -> Phrase:
        """A noun with a determiner and perhaps an adjective."""
        adjective = self.word("adjective", noun.kinds, "fits") if self.random() < 0.35 else None
        return Phrase(noun, self.choose(determiners), adjective, plural=self.random() < plural)

    def relative(self, head: Phrase) -> Optional[Clause]:
        """A relative clause; its pronoun is the object where German tells the two cases apart, else the subject."""
        tense, kinds = self.choose(TENSES), head.noun.kinds
        if head.noun.gender == "m" and not head.plural and self.random() < 0.5:
            verb = self.word("verb", kinds, "accusatives")
            objects = {**self.objects(verb), "accusative": None}
            return Clause(self.phrase(verb.subjects, "nominative"), tense, verb, **objects, gap="accusative")
        if not match(kinds, "person,animal"):
            return None
        verb = self.word("verb", kinds, "subjects")
        return Clause(head, tense, verb, **self.objects(verb), gap="nominative")

    def place(self) -> Phrase:
        """Where something happens."""
        return self.noun_phrase(self.word("noun", "place", "kinds"), ("der", "der", "ein", "dies", "unser"), plural=0)


def _can_be_negated(clause: Clause) -> bool:
    """*nicht* stands neither beside *kein* or *ein*, whose negation is *kein*, nor beside *nie*."""
    phrases = [what for what in (clause.subject, clause.dative, clause.accusative) if what]
    determiners = {part.determiner for what in phrases for part in (what, what.other) if part}
    return determiners.isdisjoint(("kein", "ein")) and not (clause.adverb and clause.adverb.place == "middle")


def _finish(words: Sequence[str], end: str) -> str:
    """One line: no comma before another sign, and a capital letter."""
    text = " ".join([*words, end]).replace(", ,", ",").replace(", " + end, end)
    return text[0].upper() + text[1:]
