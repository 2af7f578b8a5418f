"""Word order of the demo's grammar, against hand-written clauses."""

from typing import Dict, Tuple

import pytest

from data_prep import demo_lexicon as lex
from data_prep.demo_clauses import (
    AmbiguousError,
    Clause,
    english_infinitive,
    english_main,
    english_question,
    fronted,
    german_final,
    german_imperative,
    german_infinitive,
    german_main,
    german_question,
    reason_clause,
)
from data_prep.demo_complex_sentences import main_first, subordinate_first
from data_prep.demo_nominals import Name, Nominal, noun_phrase, pronoun, refer
from data_prep.demo_parts import (
    COMPANY,
    DIRECTION,
    EN_COMPANY,
    EN_DIRECTION,
    EN_MANNER,
    EN_PLACE,
    MANNER,
    PLACE,
    Part,
    focus_part,
    frequency_part,
    make_complement,
    stranded,
    time_part,
)
from tests.data_prep.test_demo_inflection import CALL, NOUNS, verb
from tests.data_prep.test_demo_nominals import both, phrase


def complement(entry: lex.Verb, nominal: Nominal, role: str = "acc") -> Part:
    slot = next(slot for slot in entry.slots if slot.role == role)
    return make_complement(slot, entry, nominal)


def main_clause(clause: Clause, first: Part = None) -> Tuple[str, str]:
    return both(german_main(clause, first), english_main(clause, first))


def calls_the_doctor(subject: Nominal, **settings) -> Clause:
    return Clause(subject, CALL, (complement(CALL, phrase("Arzt")),), **settings)


THE_MAN = phrase("Mann")


@pytest.mark.parametrize(
    "settings, german, english",
    [
        ({}, "Der Mann ruft den Arzt an .", "The man calls the doctor ."),
        ({"tense": "past"}, "Der Mann rief den Arzt an .", "The man called the doctor ."),
        ({"tense": "perfect"}, "Der Mann hat den Arzt angerufen .", "The man called the doctor ."),
        ({"tense": "pluperfect"}, "Der Mann hatte den Arzt angerufen .", "The man had called the doctor ."),
        ({"tense": "future"}, "Der Mann wird den Arzt anrufen .", "The man will call the doctor ."),
        ({"tense": "conditional"}, "Der Mann würde den Arzt anrufen .", "The man would call the doctor ."),
        ({"modal": lex.MODALS["müssen"]}, "Der Mann muss den Arzt anrufen .", "The man has to call the doctor ."),
        (
            {"modal": lex.MODALS["können"], "tense": "past"},
            "Der Mann konnte den Arzt anrufen .",
            "The man could call the doctor .",
        ),
        (
            {"modal": lex.MODALS["sollen"]},
            "Der Mann soll den Arzt anrufen .",
            "The man is supposed to call the doctor .",
        ),
        (
            {"modal": lex.MODALS["sollen"], "tense": "past"},
            "Der Mann sollte den Arzt anrufen .",
            "The man should call the doctor .",
        ),
        ({"gladly": True}, "Der Mann ruft den Arzt gern an .", "The man likes to call the doctor ."),
        (
            {"negated": True, "english_negated": True},
            "Der Mann ruft den Arzt nicht an .",
            "The man does not call the doctor .",
        ),
        (
            {"negated": True, "english_negated": True, "modal": lex.MODALS["können"]},
            "Der Mann kann den Arzt nicht anrufen .",
            "The man cannot call the doctor .",
        ),
    ],
)
def test_tenses_and_modals_in_main_clauses(settings: Dict[str, object], german: str, english: str) -> None:
    assert main_clause(calls_the_doctor(THE_MAN, **settings)) == (german, english)


@pytest.mark.parametrize(
    "settings, german",
    [
        ({}, "der Mann den Arzt anruft"),
        ({"tense": "past"}, "der Mann den Arzt anrief"),
        ({"tense": "perfect"}, "der Mann den Arzt angerufen hat"),
        ({"tense": "future"}, "der Mann den Arzt anrufen wird"),
        ({"modal": lex.MODALS["wollen"]}, "der Mann den Arzt anrufen will"),
    ],
)
def test_verbs_come_last_in_subordinate_clauses(settings: Dict[str, object], german: str) -> None:
    assert " ".join(german_final(calls_the_doctor(THE_MAN, **settings))) == german


def test_questions_invert_and_english_needs_do() -> None:
    def ask(**settings) -> Tuple[str, str]:
        clause = calls_the_doctor(pronoun("du"), **settings)
        return both(german_question(clause), english_question(clause), "?")

    assert ask() == ("Rufst du den Arzt an ?", "Do you call the doctor ?")
    assert ask(tense="perfect") == ("Hast du den Arzt angerufen ?", "Did you call the doctor ?")
    assert ask(modal=lex.MODALS["können"]) == ("Kannst du den Arzt anrufen ?", "Can you call the doctor ?")
    assert ask(modal=lex.MODALS["müssen"]) == ("Musst du den Arzt anrufen ?", "Do you have to call the doctor ?")


def test_something_in_front_moves_the_subject_behind_the_verb() -> None:
    today = time_part(lex.TODAY)
    clause = calls_the_doctor(THE_MAN, tense="perfect")
    clause = Clause(clause.subject, clause.verb, clause.parts + (today,), "perfect")
    doctor = clause.parts[0]
    assert main_clause(clause) == ("Der Mann hat heute den Arzt angerufen .", "The man called the doctor today .")
    assert main_clause(clause, today) == (
        "Heute hat der Mann den Arzt angerufen .",
        "Today the man called the doctor .",
    )
    assert main_clause(clause, doctor) == (
        "Den Arzt hat der Mann heute angerufen .",
        "The man called the doctor today .",
    )


def test_objects_start_a_sentence_only_where_the_case_shows() -> None:
    see = verb("sehen")
    woman, man, girl = phrase("Frau"), phrase("Mann"), phrase("Mädchen")

    def may_front(subject: Nominal, nominal: Nominal) -> bool:
        return bool(fronted(Clause(subject, see, (complement(see, nominal),)), "acc"))

    assert may_front(woman, man)
    assert may_front(man, woman)
    assert may_front(pronoun("wir"), girl)
    assert not may_front(woman, girl)
    assert not may_front(Name(name="Anna"), woman)
    thank = verb("danken")
    datives = [complement(thank, nominal, "dat").fronting for nominal in (woman, man, Name(name="Paul"))]
    assert datives == ["stay", "stay", ""]
    assert not may_front(pronoun("wir"), Name(name="Paul"))


def test_pronouns_come_first_and_dative_before_accusative() -> None:
    give = verb("geben")
    ring = complement(give, phrase("Ring", determiner="a"))
    to_him, to_man = (complement(give, nominal, "dat") for nominal in (pronoun("er"), phrase("Mann")))
    woman = phrase("Frau")
    today = time_part(lex.TODAY)
    assert main_clause(Clause(woman, give, (ring, to_man))) == (
        "Die Frau gibt dem Mann einen Ring .",
        "The woman gives the man a ring .",
    )
    assert main_clause(Clause(woman, give, (ring, to_him, today)), today) == (
        "Heute gibt ihm die Frau einen Ring .",
        "Today the woman gives him a ring .",
    )


def test_a_dative_is_not_put_where_it_reads_as_a_genitive() -> None:
    help_ = verb("helfen")
    woman, man = (complement(help_, phrase(lemma), "dat") for lemma in ("Frau", "Mann"))
    today = time_part(lex.TODAY)
    assert main_clause(Clause(THE_MAN, help_, (woman,)))[0] == "Der Mann hilft der Frau ."
    assert main_clause(Clause(pronoun("er"), help_, (woman, today)), today)[0] == "Heute hilft er der Frau ."
    assert german_final(Clause(THE_MAN, help_, (man,)))[:4] == ("der", "Mann", "dem", "Mann")
    assert german_final(Clause(THE_MAN, help_, (woman, today)))[:3] == ("der", "Mann", "heute")
    with pytest.raises(AmbiguousError):
        german_final(Clause(THE_MAN, help_, (woman,)))
    with pytest.raises(AmbiguousError):
        german_main(Clause(THE_MAN, help_, (woman, today)), today)


def test_adverbials_have_their_place_in_each_language() -> None:
    go = verb("gehen")
    slowly = Part(("langsam",), ("slowly",), MANNER, EN_MANNER)
    home = Part(("nach", "Hause"), ("home",), DIRECTION, EN_DIRECTION)
    company = Part(("mit", "Anna"), ("with", "Anna"), COMPANY, EN_COMPANY)
    often = frequency_part(lex.Phrase(("oft",), ("often",)))
    today = time_part(lex.TODAY)
    assert main_clause(Clause(pronoun("er"), go, (home, company, slowly, today))) == (
        "Er geht heute langsam mit Anna nach Hause .", "He goes slowly home with Anna today .")
    assert main_clause(Clause(pronoun("er"), go, (home, often), modal=lex.MODALS["müssen"])) == (
        "Er muss oft nach Hause gehen .", "He often has to go home .")
    read = verb("lesen")
    book, a_book = (complement(read, phrase("Buch", determiner=determiner)) for determiner in ("the", "a"))
    garden = Part(("im", "Garten"), ("in", "the", "garden"), PLACE, EN_PLACE)
    assert main_clause(Clause(pronoun("er"), read, (garden, slowly, book, today))) == (
        "Er liest heute das Buch langsam im Garten .", "He reads the book slowly in the garden today .")
    assert main_clause(Clause(pronoun("er"), read, (slowly, a_book)))[0] == "Er liest langsam ein Buch ."


def test_negation_with_nicht_and_kein() -> None:
    read = verb("lesen")
    book = complement(read, phrase("Buch", determiner="not any"))
    no_book = Clause(pronoun("er"), read, (book,), english_negated=True)
    assert book.negative
    assert main_clause(no_book) == ("Er liest kein Buch .", "He does not read a book .")
    home = Part(("nach", "Hause"), ("home",), DIRECTION, EN_DIRECTION)
    not_home = Clause(pronoun("sie"), verb("gehen"), (home,), "past", negated=True, english_negated=True)
    assert main_clause(not_home) == ("Sie ging nicht nach Hause .", "She did not go home .")


def test_reflexive_verbs_agree_with_their_subject() -> None:
    hurry = verb("beeilen")
    assert main_clause(Clause(pronoun("ich"), hurry)) == ("Ich beeile mich .", "I hurry .")
    assert main_clause(Clause(pronoun("ihr"), hurry, tense="perfect")) == ("Ihr habt euch beeilt .", "You hurried .")
    assert german_infinitive(Clause(pronoun("du"), hurry)) == ("dich", "zu", "beeilen")
    assert german_infinitive(Clause(THE_MAN, hurry)) == ("sich", "zu", "beeilen")


def test_verbs_of_motion_use_sein() -> None:
    clause = Clause(pronoun("wir"), verb("aufstehen"), tense="perfect")
    assert main_clause(clause) == ("Wir sind aufgestanden .", "We got up .")


def test_dative_and_prepositional_verbs() -> None:
    help_, wait = verb("helfen"), verb("warten")
    helped = complement(help_, phrase("Student"), "dat")
    awaited = complement(wait, phrase("Student"), "prep")
    assert main_clause(Clause(pronoun("ich"), help_, (helped,))) == (
        "Ich helfe dem Studenten .",
        "I help the student .",
    )
    assert main_clause(Clause(pronoun("ich"), wait, (awaited,))) == (
        "Ich warte auf den Studenten .",
        "I wait for the student .",
    )


def test_passive() -> None:
    clause = Clause(phrase("Tür"), verb("schließen"), tense="past", passive=True)
    must = Clause(phrase("Tür"), verb("schließen"), modal=lex.MODALS["müssen"], passive=True)
    now = Clause(phrase("Tür"), verb("schließen"), aspect="progressive", passive=True)
    assert main_clause(clause) == ("Die Tür wurde geschlossen .", "The door was closed .")
    assert main_clause(must) == ("Die Tür muss geschlossen werden .", "The door has to be closed .")
    assert main_clause(now) == ("Die Tür wird geschlossen .", "The door is being closed .")


def test_adverbs_choose_the_english_aspect() -> None:
    now = calls_the_doctor(pronoun("sie"), aspect="progressive")
    already = focus_part(lex.Phrase(("schon",), ("already",)))
    done = calls_the_doctor(pronoun("sie"), tense="perfect", aspect="perfect")
    done = Clause(done.subject, done.verb, done.parts + (already,), "perfect", "perfect")
    assert main_clause(now)[1] == "She is calling the doctor ."
    assert main_clause(done) == ("Sie hat den Arzt schon angerufen .", "She has already called the doctor .")


def test_english_particles_go_around_pronouns() -> None:
    fetch = verb("abholen")
    assert main_clause(Clause(THE_MAN, fetch, (complement(fetch, phrase("Kind")),))) == (
        "Der Mann holt das Kind ab .",
        "The man picks up the child .",
    )
    assert main_clause(Clause(THE_MAN, fetch, (complement(fetch, pronoun("ich")),))) == (
        "Der Mann holt mich ab .",
        "The man picks me up .",
    )


def test_commands() -> None:
    clause = calls_the_doctor(pronoun("Sie"))
    assert german_imperative(clause, "Sie") == ("rufen", "Sie", "den", "Arzt", "an")
    assert german_imperative(calls_the_doctor(pronoun("du")), "du") == ("ruf", "den", "Arzt", "an")
    assert english_infinitive(clause) == ("call", "the", "doctor")


def test_subordinate_clause_in_front_is_followed_by_the_verb() -> None:
    tired = lex.Reason("mood", lex.Phrase(("müde",), ("tired",)), frozenset())
    home = Part(("nach", "Hause"), ("home",), DIRECTION, EN_DIRECTION)
    man = phrase("Mann", "alt")
    inner = reason_clause(tired, man, "past")
    outer = Clause(refer(man), verb("gehen"), (home,), "past")
    assert both(*subordinate_first("weil", "because", inner, outer)) == (
        "Weil der alte Mann müde war , ging er nach Hause .",
        "Because the old man was tired , he went home .",
    )
    inner = reason_clause(tired, refer(man), "past")
    outer = Clause(man, verb("gehen"), (home,), "past")
    assert both(*main_first("weil", "because", outer, inner)) == (
        "Der alte Mann ging nach Hause , weil er müde war .",
        "The old man went home because he was tired .",
    )


def test_relative_clauses_stand_behind_the_closed_clause() -> None:
    relative = lex.Phrase((",", "der", "dort", "wohnt", ","), ("who", "lives", "there"))
    doctor = noun_phrase(NOUNS["Arzt"], relative=relative)
    clause = Clause(pronoun("ich"), CALL, (complement(CALL, doctor),))
    assert main_clause(clause) == ("Ich rufe den Arzt an , der dort wohnt .", "I call the doctor who lives there .")
    subject = Clause(doctor, verb("schlafen"))
    assert main_clause(subject) == ("Der Arzt , der dort wohnt , schläft .", "The doctor who lives there sleeps .")


@pytest.mark.parametrize(
    "name, role, english",
    [("geben", "dat", ("to",)), ("erklären", "dat", ("to",)), ("helfen", "dat", ()), ("warten", "prep", ("for",)),
     ("lesen", "acc", ())],
)
def test_a_moved_complement_leaves_its_preposition_behind(name: str, role: str, english: Tuple[str, ...]) -> None:
    slot = next(slot for slot in verb(name).slots if slot.role == role)
    assert stranded(slot, verb(name)).english == english
