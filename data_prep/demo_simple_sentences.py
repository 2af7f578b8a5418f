"""Sentence patterns of one clause: statements, questions, commands, comparisons and the like."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Tuple

from data_prep import demo_lexicon as lex
from data_prep.demo_clauses import (
    Clause,
    Sentence,
    english_infinitive,
    english_main,
    english_question,
    fronted,
    german_imperative,
    german_main,
    german_question,
    reason_clause,
)
from data_prep.demo_draw_clauses import FUTURE, PAST, PRESENT, Composer, Timing
from data_prep.demo_draw_phrases import DATIVE_PRONOUNS, QUESTION_PRONOUNS, SUBJECT_PRONOUNS
from data_prep.demo_english import english_finite
from data_prep.demo_german import VOWELS
from data_prep.demo_nominals import (
    ANYONE,
    IT,
    THAT,
    WHAT,
    WHO,
    AdjectiveUse,
    Name,
    Nominal,
    NounPhrase,
    noun_phrase,
    owner_key,
    prepositional,
    pronoun,
)
from data_prep.demo_parts import (
    COMPANY,
    DATIVE,
    DEFINITE_ACC,
    EN_OBJECT,
    EN_OBLIQUE,
    EN_TIME,
    INDEFINITE_ACC,
    LIGHT_DAT,
    TIME,
    Part,
    frequency_part,
    predicate_part,
    stranded,
    time_part,
    town_phrase,
)
from data_prep.demo_words import (
    ACTIVE,
    GEFALLEN,
    GEHOEREN,
    GET,
    GRADED,
    GROWING,
    KOSTEN,
    LASTING,
    MOVING,
    NO_PHRASE,
    PASSIVE,
    PERSONAL,
    PLACED,
    SCHEDULED,
    SEIN,
    WERDEN,
    find_slot,
    nouns_with,
)


def statement(composer: Composer) -> Sentence:
    """Der Mann ruft heute den Arzt an; with something else in front: Heute ruft der Mann den Arzt an."""
    clause = composer.action(relative=0.08)
    if composer.chance(0.07):
        open_question = clause.tense == "future"
        adverb = time_part(composer.choose(lex.SENTENCE_ADVERBS if open_question else lex.SENTENCE_ADVERBS[:3]))
        clause = replace(clause, parts=(adverb,) + clause.parts)
        return german_main(clause, adverb), english_main(clause, adverb), "."
    candidates = fronted(clause, "")
    first = composer.choose(candidates) if candidates and composer.chance(0.4) else None
    return german_main(clause, first), english_main(clause, first), "."


def yes_no_question(composer: Composer) -> Sentence:
    """Hast du den Arzt angerufen?"""
    subject = pronoun(composer.choose(QUESTION_PRONOUNS)) if composer.chance(0.6) else None
    clause = composer.action(lex.VERBS if subject is None else PERSONAL, subject, negation=0.08)
    return german_question(clause), english_question(clause), "?"


def subject_question(composer: Composer) -> Sentence:
    """Wer hat den Arzt angerufen? Was liegt auf dem Tisch?"""
    verb = composer.choose(lex.VERBS)
    people = any(noun_phrase(noun).human for noun in nouns_with(verb.subjects)[0])
    clause = composer.action((verb,), WHO if people else WHAT)
    return german_main(clause), english_main(clause), "?"


def object_question(composer: Composer) -> Sentence:
    """Wen hast du angerufen? Worauf wartest du?"""
    role = composer.choose(("acc", "acc", "dat", "prep"))
    verb = composer.choose([verb for verb in PERSONAL if find_slot(verb, role) and "vague" not in verb.flags])
    subject = composer.question_subject(verb)
    clause = composer.action((verb,), subject, negation=0.0, gap=role)
    slot = find_slot(verb, role)
    assert slot is not None
    people = set(slot.tags) <= {"person", "kin"} or ("person" in slot.tags and composer.chance(0.7))
    asked = WHO if people else WHAT
    if slot.german:
        link = "r" if slot.german[0] in VOWELS else ""
        german = (slot.german,) + asked.german(slot.case) if people else ("wo" + link + slot.german,)
    elif role == "dat":
        german, asked = WHO.german("dat"), WHO
    else:
        german = asked.german("acc")
    clause = replace(clause, parts=clause.parts + (stranded(slot, clause.verb),))
    return german + german_question(clause), asked.english() + english_question(clause), "?"


def adverb_question(composer: Composer) -> Sentence:
    """Wo arbeitet sie? Wohin fährt der Bus? Wann kommst du? Warum lachst du?"""
    kind = composer.choose(("where", "where to", "when", "why"))
    heading = [verb for verb in MOVING if not verb.prefix]
    verbs = {"where": PLACED, "where to": heading}.get(kind, PERSONAL)
    verb = composer.choose(verbs)
    gap = {"where": "loc", "where to": "dir"}.get(kind, "")
    clause = composer.action((verb,), composer.question_subject(verb), negation=0.0, adverbs=kind != "when", gap=gap)
    clause = replace(clause, parts=tuple(part for part in clause.parts if part.role != gap or not gap))
    german, english = {
        "where": ("wo", "where"), "where to": ("wohin", "where"), "when": ("wann", "when"), "why": ("warum", "why"),
    }[kind]
    return (german,) + german_question(clause), (english,) + english_question(clause), "?"


def which_question(composer: Composer) -> Sentence:
    """Welches Buch hast du gelesen? Wie viele Bücher hast du gelesen?"""
    verb = composer.choose([verb for verb in PERSONAL if find_slot(verb, "acc")])
    slot = find_slot(verb, "acc")
    assert slot is not None
    clause = composer.action((verb,), composer.question_subject(verb), negation=0.0, gap="acc")
    noun = composer.noun(slot.tags)
    if noun.plural and "kin" not in noun.tags and composer.chance(0.4):
        asked = noun_phrase(noun, True, "bare", number=lex.Phrase(("wie", "viele"), ("how", "many")))
    else:
        asked = noun_phrase(noun, noun.plural_only, "which")
    return asked.german("acc") + german_question(clause), asked.english() + english_question(clause), "?"


def command(composer: Composer) -> Sentence:
    """Ruf bitte den Arzt an!"""
    address = composer.choose(("du", "ihr", "Sie"))
    verbs = [verb for verb in ACTIVE if "nocommand" not in verb.flags]
    clause = composer.action(verbs, pronoun(address), PRESENT, negation=0.12, adverbs=False)
    clause = replace(clause, gladly=False)
    english = (("do", "not") if clause.english_negated else ()) + english_infinitive(clause)
    if composer.chance(0.5):
        clause = replace(clause, parts=clause.parts + (Part(("bitte",), (), TIME, EN_TIME),))
        english = ("please",) + english
    return german_imperative(clause, address), english, "!"


def describing(composer: Composer) -> Sentence:
    """Die Suppe ist heute sehr heiß."""
    timing, negated = composer.choose((PRESENT, PRESENT, PAST)), composer.chance(0.2)
    subject, tags = composer.described()
    description = composer.description(tags, negated)
    if description is None:
        return describing(composer)
    clause = composer.state(subject, timing, description, negated)
    if subject.human and composer.chance(0.3):
        frequent = not negated and composer.chance(0.5)
        part = frequency_part(composer.choose(lex.FREQUENCIES)) if frequent else composer.time(timing.period)
        clause = replace(clause, parts=clause.parts + (part,))
    if composer.chance(0.12):
        return german_question(clause), english_question(clause), "?"
    candidates = fronted(clause, "time")
    first = candidates[0] if candidates and composer.chance(0.4) else None
    return german_main(clause, first), english_main(clause, first), "."


def _compared(composer: Composer, adjective: lex.Adjective) -> Optional[Tuple[Nominal, Nominal]]:
    """Draw two different things that the adjective can be said of, None if the draw fails."""
    tag = composer.choose(sorted(adjective.tags))
    first = composer.noun_phrase((tag,), definite=True)
    second = composer.noun_phrase((tag,), definite=True, rich=False)
    if first.noun.lemma == second.noun.lemma:
        return None
    if tag != "person":
        return first, second
    subject = composer.subject(SEIN, definite=True) if composer.chance(0.5) else first
    return subject, composer.object_pronoun(subject, "acc") if composer.chance(0.4) else second


def comparison(composer: Composer) -> Sentence:
    """Der Hund ist größer als die Katze. Er ist nicht so alt wie ich."""
    adjective = composer.choose(GRADED)
    pair = _compared(composer, adjective)
    if pair is None:
        return comparison(composer)
    subject, other = pair
    kind = composer.weighted((("more", 0.55), ("much more", 0.15), ("as", 0.15), ("not as", 0.15)))
    german, english = other.german("nom"), other.english()
    if kind.endswith("more"):
        much = lex.Phrase(("viel",), ("much",)) if kind == "much more" else NO_PHRASE
        german = much.german + (adjective.comparative, "als") + german
        english = much.english + tuple(adjective.english_comparative.split()) + ("than",) + english
    else:
        german = ("so" if kind == "not as" else "genauso", adjective.lemma, "wie") + german
        english = ("as", adjective.english, "as") + english
    timing = composer.choose((PRESENT, PRESENT, PAST))
    clause = composer.state(subject, timing, lex.Phrase(german, english), kind == "not as")
    return german_main(clause), english_main(clause), "."


def superlative(composer: Composer) -> Sentence:
    """Das ist das schönste Haus in der Stadt. Anna ist die klügste Studentin im Dorf."""
    adjective = composer.choose([adjective for adjective in GRADED if adjective.tags & {"person", "job", "building"}])
    people = bool(adjective.tags & {"person", "job"})
    best = noun_phrase(composer.noun(("job",) if people else ("building",)),
                       adjectives=(AdjectiveUse(adjective, "superlative"),))
    where = noun_phrase(composer.choose(nouns_with(("Stadt", "Dorf"))[0]))
    subject: Nominal = THAT
    if people and composer.chance(0.7):
        names = lex.FEMALE_NAMES if best.gender == "f" else lex.MALE_NAMES
        subject = Name(gender=best.gender, owner=best.owner, name=composer.choose(names))
    german = best.german("nom") + prepositional("in", "dat", where)
    phrase = lex.Phrase(german, best.english() + ("in",) + where.english())
    clause = composer.state(subject, composer.choose((PRESENT, PAST)), phrase)
    return german_main(clause), english_main(clause), "."


def existence(composer: Composer) -> Sentence:
    """In der Stadt gibt es viele alte Häuser."""
    noun = composer.choose([noun for noun in nouns_with(("town",))[0] if "live" not in noun.tags])
    plural = composer.chance(0.4)
    thing = noun_phrase(noun, plural, composer.choose(("many", "some", "bare", "no") if plural else ("a", "a", "no")))
    if composer.chance(0.5):
        thing = replace(thing, adjectives=composer.adjectives(thing))
    where = composer.place(("live",), "loc", around=False)
    if composer.chance(0.4):
        town = town_phrase(composer.choose([town for town in lex.TOWNS if not town.country]), "loc")
        where = replace(where, german=town.german, english=town.english)
    tense = composer.choose(("present", "present", "past"))
    finite = "gab" if tense == "past" else "gibt"
    if composer.chance(0.6):
        german = where.german + (finite, "es") + thing.german("acc")
    else:
        german = ("es", finite) + where.german + thing.german("acc")
    return german, ("there", english_finite("be", tense, 3, plural)) + thing.english() + where.english, "."


def liking(composer: Composer) -> Sentence:
    """Das Buch gefällt mir: I like the book."""
    thing = composer.noun_phrase(("text", "clothes", "thing", "building", "outdoor", "show", "tune"), definite=True)
    who: Nominal = pronoun(composer.choose(DATIVE_PRONOUNS))
    if composer.chance(0.5):
        who = composer.noun_phrase(("person",), definite=True, rich=False)
    timing, negated = composer.choose((PRESENT, PRESENT, PAST)), composer.chance(0.25)
    dative = Part(who.german("dat"), (), LIGHT_DAT if who.light else DATIVE, EN_OBJECT, "dat", "stay")
    german = Clause(thing, GEFALLEN, (dative,), timing.tense, negated=negated)
    liked = Part((), thing.english(), DEFINITE_ACC, EN_OBJECT)
    english = Clause(who, GEFALLEN, (liked,), timing.tense, english_negated=negated)
    first = dative if composer.chance(0.35) else None
    return german_main(german, first), english_main(english), "."


def belonging(composer: Composer) -> Sentence:
    """Das Fahrrad gehört meiner Schwester."""
    noun = composer.noun(("thing", "clothes", "own", "pet", "text", "home"))
    thing = noun_phrase(noun, composer.chance(0.2) and bool(noun.plural), composer.choose(("the", "this")))
    slot = lex.Slot("dat", "dat", "", "", ("person",))
    negated = composer.chance(0.2)
    owner = composer.complement(slot, GEHOEREN, ANYONE, negated)
    tense = composer.choose(("present", "present", "past"))
    clause = Clause(thing, GEHOEREN, (owner,), tense, negated=negated, english_negated=negated)
    if composer.chance(0.25):
        return german_question(clause), english_question(clause), "?"
    return german_main(clause), english_main(clause), "."


def passive(composer: Composer) -> Sentence:
    """Das Fahrrad wurde gestern von meinem Bruder repariert."""
    verb = composer.choose(PASSIVE)
    slot = find_slot(verb, "acc")
    assert slot is not None
    negated = composer.chance(0.1)
    subject = composer.noun_phrase(slot.tags, definite=negated)
    modal = composer.weighted(((None, 0.7), (lex.MODALS["müssen"], 0.2), (lex.MODALS["können"], 0.1)))
    timing = Timing(composer.choose(("present", "past")), modal)
    parts: Tuple[Part, ...] = ()
    if not modal and not negated and composer.chance(0.35):
        agent = composer.noun_phrase(verb.subjects, definite=True, rich=False)
        german = prepositional("von", "dat", agent)
        parts += (Part(german, ("by",) + agent.english(), COMPANY, EN_OBLIQUE),)
    if timing.tense == "past" and composer.chance(0.5):
        parts += (composer.time("past"),)
    aspect = "progressive" if timing.tense == "present" and not modal else "simple"
    clause = Clause(
        subject, verb, parts, timing.tense, aspect, modal, negated=negated, english_negated=negated, passive=True
    )
    if composer.chance(0.15):
        return german_question(clause), english_question(clause), "?"
    candidates = fronted(clause, "time")
    first = candidates[0] if candidates and composer.chance(0.4) else None
    return german_main(clause, first), english_main(clause, first), "."


def schedule(composer: Composer) -> Sentence:
    """Der Zug fährt am Montag um halb vier ab."""
    verb = composer.choose(SCHEDULED)
    subject = composer.noun_phrase([tag for tag in verb.subjects if tag != "person"], definite=True)
    day, clock = composer.day(), composer.clock()
    at = lex.Phrase(("um",) + clock.german, ("at",) + clock.english)
    kind = composer.choose(("day", "clock", "both"))
    phrase = day if kind == "day" else at
    if kind == "both":
        phrase = lex.Phrase(day.german + at.german, day.english + at.english)
    part = time_part(phrase)
    clause = Clause(subject, verb, (part,), composer.choose(("present", "present", "past", "perfect", "future")))
    if composer.chance(0.15):
        return german_question(clause), english_question(clause), "?"
    first = part if composer.chance(0.25) else None
    return german_main(clause, first), english_main(clause, first), "."


def since(composer: Composer) -> Sentence:
    """Sie wohnt seit drei Jahren in Berlin."""
    clause = composer.action(LASTING, None, PRESENT, negation=0.0, adverbs=False)
    number, unit = composer.choose(lex.SMALL_NUMBERS), composer.choose(lex.SPANS)
    phrase = lex.Phrase(("seit",) + number.german + unit.german, ("for",) + number.english + unit.english)
    part = time_part(phrase, "stay")
    aspect = "perfect" if "state" in clause.verb.flags else "perfect progressive"
    clause = replace(clause, parts=clause.parts + (part,), aspect=aspect, gladly=False)
    first = part if composer.chance(0.25) else None
    return german_main(clause, first), english_main(clause, first), "."


def amount(composer: Composer) -> Sentence:
    """Das Buch kostet zwanzig Euro. Mein Bruder ist zwölf Jahre alt. Es ist halb vier."""
    kind = composer.weighted((("price", 0.45), ("age", 0.45), ("clock", 0.1)))
    number = composer.choose(lex.SMALL_NUMBERS + lex.LARGE_NUMBERS)
    timing = composer.choose((PRESENT, PRESENT, PAST))
    if kind == "clock":
        clause = composer.state(IT, timing, composer.clock())
    elif kind == "price":
        subject: Nominal = composer.noun_phrase(("clothes", "thing", "furniture", "text", "food"), definite=True)
        price = Part(number.german + ("Euro",), number.english + ("euros",), INDEFINITE_ACC, EN_OBJECT)
        clause = Clause(subject, KOSTEN, (price,), timing.tense)
    else:
        subject = composer.subject(SEIN, definite=True)
        if isinstance(subject, NounPhrase):
            number = composer.choose(lex.SMALL_NUMBERS if "young" in subject.noun.tags else lex.LARGE_NUMBERS)
        age = lex.Phrase(number.german + ("Jahre", "alt"), number.english + ("years", "old"))
        clause = composer.state(subject, timing, age)
    if composer.chance(0.15):
        return german_question(clause), english_question(clause), "?"
    return german_main(clause), english_main(clause), "."


def profession(composer: Composer) -> Sentence:
    """Sie ist Ärztin. Er möchte Lehrer werden."""
    noun = composer.noun(("job",))
    keys = [key for key in SUBJECT_PRONOUNS if key not in ("er", "sie")] + [owner_key(noun.gender, False, True)]
    subject: Nominal = pronoun(composer.choose(keys))
    if composer.chance(0.3):
        names = lex.FEMALE_NAMES if noun.gender == "f" else lex.MALE_NAMES
        subject = Name(gender=noun.gender, name=composer.choose(names))
    title = noun_phrase(noun, subject.plural, "bare")
    negated = composer.chance(0.15)
    german = replace(title, determiner="not any") if negated else title
    english = title if subject.plural else replace(title, determiner="a")
    part = predicate_part(lex.Phrase(german.german("nom"), english.english()))
    timing = composer.choose((PRESENT, PRESENT, PAST))
    modal = composer.choose((None, None, lex.MODALS["wollen"], lex.MODALS["möchten"]))
    if modal:
        timing = PRESENT
    clause = Clause(subject, WERDEN if modal else SEIN, (part,), timing.tense, modal=modal, english_negated=negated)
    if composer.chance(0.15):
        return german_question(clause), english_question(clause), "?"
    return german_main(clause), english_main(clause), "."


def growing(composer: Composer) -> Sentence:
    """Der Junge wird immer stärker."""
    adjective = composer.choose([adjective for adjective in GRADED if adjective.tags & GROWING])
    subject = composer.noun_phrase(sorted(adjective.tags & GROWING), definite=True, rich=False)
    more, _, base = adjective.english_comparative.rpartition(" ")
    english = ("more", "and", "more", base) if more else (base, "and", base)
    part = predicate_part(lex.Phrase(("immer", adjective.comparative), english))
    clause = Clause(subject, GET, (part,), composer.choose(("present", "past", "future")))
    return german_main(clause), english_main(clause), "."


def forecast(composer: Composer) -> Sentence:
    """Im Winter schneit es oft."""
    timing = composer.choose((PRESENT, PAST, FUTURE))
    reason = composer.reason((("rain", 0.5), ("sky", 0.5)))
    negated = composer.chance(0.25)
    if timing == PRESENT:
        weather, negated = " ".join(reason.phrase.german), False
        parts = tuple(time_part(season) for season, typical in lex.SEASONS if weather in typical)
        if composer.chance(0.6):
            parts += (frequency_part(composer.choose(lex.FREQUENCIES[:3])),)
    else:
        parts = (composer.time(timing.period),)
    clause = reason_clause(reason, IT, timing.tense)
    clause = replace(clause, parts=clause.parts + parts, negated=negated, english_negated=negated)
    first = parts[0] if composer.chance(0.7) else None
    return german_main(clause, first), english_main(clause, first), "."
