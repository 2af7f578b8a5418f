"""Sentence patterns of two clauses: subordinate clauses, infinitives, relative clauses, coordination."""

from __future__ import annotations

from dataclasses import replace

from data_prep import demo_lexicon as lex
from data_prep.demo_clauses import (
    Clause,
    Sentence,
    english_infinitive,
    english_main,
    english_predicate,
    german_final,
    german_infinitive,
    german_main,
    german_predicate,
    german_question,
    reason_clause,
)
from data_prep.demo_draw_clauses import FUTURE, PAST, PERFECT, PRESENT, Composer, Timing
from data_prep.demo_english import english_gerund
from data_prep.demo_german import zu_infinitive
from data_prep.demo_lexicon import Words
from data_prep.demo_nominals import ANYONE, IT, refer
from data_prep.demo_words import ACTIVE, DESCRIBED, EVENTFUL, PERSONAL, adjectives_for


def subordinate_first(german: str, english: str, inner: Clause, outer: Clause) -> Sentence:
    """Write a subordinate clause and then the main clause, which starts with its verb in German."""
    german_words = (german,) + german_final(inner) + (",",) + german_question(outer)
    english_words = tuple(english.split()) + english_main(inner) + (",",) + english_main(outer)
    return german_words, english_words, "."


def main_first(german: str, english: str, outer: Clause, inner: Clause) -> Sentence:
    """Write a main clause and then a subordinate one."""
    german_words = german_main(outer) + (",", german) + german_final(inner)
    return german_words, english_main(outer) + tuple(english.split()) + english_main(inner), "."


def because(composer: Composer) -> Sentence:
    """Weil der Mann müde war, ging er nach Hause; or the main clause first."""
    timing = composer.choose((PRESENT, PAST))
    german, english = composer.choose((("weil", "because"), ("weil", "because"), ("obwohl", "although")))
    reason = composer.reason()
    negation = 0.12 if german == "obwohl" else 0.0
    verbs = EVENTFUL if german == "obwohl" else [verb for verb in EVENTFUL if verb.name in reason.verbs]
    verb = composer.choose(verbs)
    subject = composer.subject(verb, definite=True, referable=True)
    if composer.chance(0.5):
        cause = composer.because(reason, subject, timing)
        actor = refer(subject) if cause.subject is subject else subject
        clause = composer.action((verb,), actor, timing, negation, adverbs=False)
        return subordinate_first(german, english, cause, clause)
    clause = composer.action((verb,), subject, timing, negation, adverbs=False)
    return main_first(german, english, clause, composer.because(reason, refer(subject), timing))


def conditional(composer: Composer) -> Sentence:
    """Wenn es regnet, bleiben wir zu Hause."""
    reason = composer.reason()
    verb = composer.choose([verb for verb in EVENTFUL if verb.name in reason.verbs])
    subject = composer.subject(verb, definite=True, referable=True)
    modal = lex.MODALS[composer.choose(("können", "müssen", "wollen"))]
    timing = composer.choose((FUTURE, PRESENT, Timing("present", modal)))
    condition = composer.because(reason, subject, PRESENT)
    actor = refer(subject) if condition.subject is subject else subject
    clause = composer.action((verb,), actor, timing, negation=0.05, adverbs=False)
    return subordinate_first("wenn", "if", condition, clause)


def meanwhile(composer: Composer) -> Sentence:
    """Während der Mann liest, schläft das Kind. Als er nach Hause kam, weinte das Kind."""
    german, english, timings = composer.choose((
        ("während", "while", (PRESENT, PAST)), ("als", "when", (PAST,)), ("bevor", "before", (PRESENT, PAST)),
    ))
    timing = composer.choose(timings)
    first = composer.action(ACTIVE, None, timing, negation=0.0, adverbs=False)
    second = composer.action(EVENTFUL, None, timing, adverbs=False)
    if composer.chance(0.5):
        return subordinate_first(german, english, first, second)
    return main_first(german, english, second, first)


def after(composer: Composer) -> Sentence:
    """Nachdem sie gegessen hatte, ging sie nach Hause."""
    verb = composer.choose(ACTIVE)
    subject = composer.subject(verb, definite=True, referable=True)
    first = composer.action((verb,), subject, Timing("pluperfect"), negation=0.0, adverbs=False)
    second = composer.action(EVENTFUL, refer(subject), PAST, adverbs=False)
    return subordinate_first("nachdem", "after", first, second)


def purpose(composer: Composer) -> Sentence:
    """Er geht in die Stadt, um ein Buch zu kaufen; also with ohne and statt."""
    german, english, form = composer.choose((
        ("um", ("to",), str), ("um", ("to",), str), ("ohne", ("without",), english_gerund),
        ("statt", ("instead", "of"), english_gerund),
    ))
    verbs = [verb for verb in ACTIVE if verb.name in lex.PURPOSEFUL] if german == "um" else ACTIVE
    timing = composer.choose((PRESENT, PAST, PERFECT))
    clause = replace(composer.action(verbs, None, timing, negation=0.0, adverbs=False), gladly=False)
    others = [verb for verb in ACTIVE if verb.name != clause.verb.name]
    aim = composer.infinitive(others, clause.subject)
    german_words = german_main(clause) + (",", german) + german_infinitive(aim)
    return german_words, english_main(clause) + english + english_infinitive(aim, form), "."


def so_that(composer: Composer) -> Sentence:
    """Sie spricht leise, damit das Kind schlafen kann."""
    timing = composer.choose((PRESENT, PAST))
    clause = composer.action(ACTIVE, None, timing, negation=0.0, adverbs=False)
    aim = composer.action(ACTIVE, None, Timing(timing.tense, lex.MODALS["können"]), negation=0.0, adverbs=False)
    return main_first("damit", "so that", clause, aim)


def _matrix_clause(composer: Composer, matrix: lex.Matrix, timing: Timing, negated: bool = False) -> Clause:
    subject = composer.subject(matrix.verb, definite=True, referable=True)
    timing = Composer.usual_timing(timing, matrix.verb, subject)
    return Clause(subject, matrix.verb, (), timing.tense, negated=negated, english_negated=negated)


def that(composer: Composer) -> Sentence:
    """Sie sagt, dass sie den Arzt angerufen hat."""
    matrix = composer.choose([matrix for matrix in lex.MATRIX_VERBS if "dass" in matrix.clauses])
    timing = composer.choose((PRESENT, PAST))
    outer = _matrix_clause(composer, matrix, timing)
    own = "own" in matrix.clauses and composer.chance(0.4)
    subject = refer(outer.subject) if own else None
    inner = composer.action(PERSONAL if subject else lex.VERBS, subject, None if timing == PRESENT else PAST)
    return main_first("dass", "that", outer, inner)


def whether(composer: Composer) -> Sentence:
    """Er weiß nicht, ob der Zug angekommen ist; or with a question word: wann der Zug angekommen ist."""
    matrix = composer.choose([matrix for matrix in lex.MATRIX_VERBS if "ob" in matrix.clauses])
    timing = composer.choose((PRESENT, PAST))
    outer = _matrix_clause(composer, matrix, timing, negated=matrix.verb.name == "wissen")
    inner_timing = None if timing == PRESENT else PAST
    german, english = composer.choose((("ob", "whether"), ("ob", "whether"), ("warum", "why"), ("wann", "when")))
    inner = composer.action(EVENTFUL, None, inner_timing, 0.05 if german == "ob" else 0.0, adverbs=german == "ob")
    if inner.subject.person == outer.subject.person < 3:  # nobody asks about what they did themselves
        return whether(composer)
    return main_first(german, english, outer, inner)


def to_do(composer: Composer) -> Sentence:
    """Er hat versucht, den Arzt anzurufen."""
    matrix = composer.choose([matrix for matrix in lex.MATRIX_VERBS if matrix.clauses[-1].startswith("zu")])
    outer = _matrix_clause(composer, matrix, composer.choose((PRESENT, PAST, PERFECT)))
    inner = composer.infinitive(ACTIVE, outer.subject)
    gerund = matrix.clauses[-1].endswith("ing")
    english = english_infinitive(inner, english_gerund) if gerund else ("to",) + english_infinitive(inner)
    aim = german_infinitive(inner)
    comma: Words = () if aim == zu_infinitive(inner.verb) else (",",)  # none before a bare infinitive
    return german_main(outer) + comma + aim, english_main(outer) + english, "."


def judgement(composer: Composer) -> Sentence:
    """Es ist wichtig, den Arzt anzurufen."""
    timing = composer.choose((PRESENT, PAST))
    outer = composer.state(IT, timing, composer.choose(lex.JUDGEMENTS), composer.chance(0.15))
    inner = composer.infinitive(ACTIVE, ANYONE)
    german = german_main(outer) + (",",) + german_infinitive(inner)
    return german, english_main(outer) + ("to",) + english_infinitive(inner), "."


def relative_subject(composer: Composer) -> Sentence:
    """Der Mann, der das Buch liest, ist mein Freund."""
    while True:
        verb = composer.choose(lex.VERBS)
        head = composer.noun_phrase(verb.subjects, definite=True)
        relative = composer.relative(head, verb)
        if head.determiner == "the" and head.genitive is None and relative.german:
            break
    head = replace(head, relative=relative)
    description = composer.description(head.noun.tags)
    if description and composer.chance(0.4):
        clause = composer.state(head, composer.choose((PRESENT, PAST)), description, composer.chance(0.1))
    else:
        clause = composer.action((verb,), head, negation=0.05, adverbs=False)
    return german_main(clause), english_main(clause), "."


def coordination(composer: Composer) -> Sentence:
    """Der Mann liest, und die Frau kocht. Das Haus ist alt, aber es ist schön. Er lacht, denn er ist glücklich."""
    german, english = composer.choose((("und", ", and"), ("aber", ", but"), ("denn", "because")))
    timing = composer.choose((PRESENT, PAST))
    if german == "denn":
        reason = composer.reason()
        verb = composer.choose([verb for verb in EVENTFUL if verb.name in reason.verbs])
        first = composer.action((verb,), composer.subject(verb, referable=True), timing, negation=0.0, adverbs=False)
        second = composer.because(reason, refer(first.subject), timing)
    else:
        first = composer.action(EVENTFUL, None, timing, negation=0.0, adverbs=False)
        second = composer.action(EVENTFUL, None, timing, negation=0.6 if german == "aber" else 0.0, adverbs=False)
    german_words = german_main(first) + (",", german) + german_main(second)
    return german_words, english_main(first) + tuple(english.split()) + english_main(second), "."


def contrast(composer: Composer) -> Sentence:
    """Der Tisch ist alt, aber er ist schön. Das Buch ist kurz, und es ist spannend."""
    subject = composer.noun_phrase(composer.choose(DESCRIBED), definite=True, rich=False)
    options = [adjective for adjective in adjectives_for(subject.noun.tags) if adjective.graded]
    if len(options) < 2 or not subject.owner:
        return contrast(composer)
    index = int(composer.random() * len(options))
    one, other = options[index], options[index - 1 - int(composer.random() * (len(options) - 1))]
    timing = composer.choose((PRESENT, PAST))
    first = composer.state(subject, timing, lex.Phrase((one.lemma,), (one.english,)))
    negated = composer.chance(0.3)
    second = composer.state(refer(subject), timing, lex.Phrase((other.lemma,), (other.english,)), negated)
    agree = (one.lemma in lex.UNWANTED) == ((other.lemma in lex.UNWANTED) != negated)
    german, english = ("und", "and") if agree else ("aber", "but")
    german_words = german_main(first) + (",", german) + german_main(second)
    return german_words, english_main(first) + (",", english) + english_main(second), "."


def sequence(composer: Composer) -> Sentence:
    """Der Mann kam nach Hause und kochte eine Suppe."""
    timing = composer.choose((PRESENT, PAST, PERFECT))
    first = composer.action(ACTIVE, None, timing, negation=0.0, adverbs=False)
    second = composer.action(ACTIVE, first.subject, timing, negation=0.0, adverbs=False)
    if first.verb is second.verb or first.gladly or second.gladly:
        return sequence(composer)
    german = german_predicate(second)
    if first.tense == "perfect" and first.verb.auxiliary == second.verb.auxiliary:
        german = german[1:]  # hat gekocht und gegessen
    return german_main(first) + ("und",) + german, english_main(first) + ("and",) + english_predicate(second), "."


def unreal(composer: Composer) -> Sentence:
    """Wenn ich mehr Zeit hätte, würde ich das Buch lesen."""
    reason = composer.reason((("wish", 0.5), ("dream", 0.5)))
    verb = composer.choose([verb for verb in EVENTFUL if verb.name in reason.verbs])
    subject = composer.subject(verb, definite=True, referable=True)
    condition = reason_clause(reason, subject, "conditional")
    clause = composer.action((verb,), refer(subject), Timing("conditional"), negation=0.0, adverbs=False)
    german = ("wenn",) + german_final(condition) + (",",) + german_question(clause)
    english = ("had" if reason.kind == "wish" else "were",) + reason.phrase.english
    return german, ("if",) + subject.english(True) + english + (",",) + english_main(clause), "."
