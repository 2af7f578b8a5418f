"""A structure in German."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from data_prep.demo_corpus.structure import Clause, Phrase

CASES = ("nominative", "accusative", "dative")
GENDERS = ("m", "f", "n", "p")  # p: the plural of all
# First person, third person, plural.
AUXILIARIES = {"hat": "habe hat haben", "ist": "bin ist sind", "war": "war war waren", "future": "werde wird werden"}
AUXILIARIES.update({"can": "kann kann können", "must": "muss muss müssen", "want": "will will wollen"})
PRONOUNS = {"1s": "ich mich mir", "1p": "wir uns uns", "3m": "er ihn ihm", "3f": "sie sie ihr", "3p": "sie sie ihnen"}


def _forms(text: str) -> Dict[Tuple[str, str], str]:
    """(gender, case) -> form, from a row for each gender; - is no ending."""
    rows = [row.split() for row in text.split("/")]
    return {(g, c): form.strip("-") for g, row in zip(GENDERS, rows) for c, form in zip(CASES, row)}


DEFINITE = _forms("der den dem/die die der/das das dem/die die den")
STRONG = _forms("er en em/e e er/es es em/e e en")
EIN = _forms("- en em/e e er/- - em/e e en")
WEAK = _forms("e en en/e e en/e e en/en en en")
MIXED = _forms("er en en/e e en/es es en/en en en")


def phrase(what: Phrase, case: str) -> List[str]:
    """A noun phrase in a case."""
    if what.noun is None:
        return [PRONOUNS[what.pronoun].split()[CASES.index(case)]]
    form = ("p" if what.plural else what.noun.gender, case)
    noun = what.noun.german_plural if what.plural else what.noun.german
    if form == ("p", "dative") and noun[-1] not in "ns":
        noun += "n"
    determiner, ending = _determiner(what.determiner, form)
    words = [determiner, what.adjective.german + ending if what.adjective else "", noun]
    if what.relative is not None:
        words += [",", *final(what.relative, DEFINITE[form[0], what.relative.gap]), ","]
    if what.other is not None:
        words += ["und", *phrase(what.other, case)]
    return [word for word in words if word]


def _determiner(name: str, form: Tuple[str, str]) -> Tuple[str, str]:
    """The determiner, and the ending of an adjective behind it."""
    if not name:
        return "", ""
    if name == "der":
        return DEFINITE[form], WEAK[form]
    if name == "dies":
        return name + STRONG[form], WEAK[form]
    return ("", STRONG[form]) if name == "ein" and form[0] == "p" else (name + EIN[form], MIXED[form])


def _predicate(clause: Clause) -> Tuple[str, str, str]:
    """The finite verb, what stands at the end, and the prefix that a finite verb leaves there or takes up."""
    person, verb = ("1s", "3s", "p").index(clause.subject.person), clause.verb
    if verb is None:
        return AUXILIARIES["ist" if clause.tense == "present" else "war"].split()[person], clause.adjective.german, ""
    prefix, _, infinitive = verb.infinitive.rpartition("|")
    if clause.tense == "present":
        first = "weiß" if infinitive == "wissen" else infinitive[:-1]
        return (first, verb.third, infinitive)[person], "", prefix
    if clause.tense == "past":
        return verb.past + ("" if person < 2 else "n" if verb.past.endswith("e") else "en"), "", prefix
    if clause.tense == "perfect":
        return AUXILIARIES[verb.auxiliary].split()[person], prefix + verb.participle, ""
    return AUXILIARIES[clause.tense].split()[person], prefix + infinitive, ""


def _parts(clause: Clause) -> Dict[str, List[str]]:
    """All but subject and predicate, in German order: pronouns, adverb, dative, accusative, place."""
    objects = {"dative": clause.dative, "accusative": clause.accusative}
    parts = {case: phrase(what, case) for case, what in objects.items() if what and what.pronoun}
    if clause.adverb:
        parts["adverb"] = [clause.adverb.german]
    parts.update({case: phrase(what, case) for case, what in objects.items() if what and not what.pronoun})
    if clause.place:
        preposition, words = clause.place.noun.german_preposition, phrase(clause.place, "dative")
        short = {"in dem": ["im"], "an dem": ["am"]}.get("{} {}".format(preposition, words[0]))
        parts["place"] = [*(short or [preposition, words[0]]), *words[1:]]
    if clause.negated:
        parts["not"] = ["nicht"]
    return parts


def main(clause: Clause, begin: Optional[List[str]] = None) -> List[str]:
    """A main clause with its verb in second place, or behind ``begin``."""
    verb, end, prefix = _predicate(clause)
    parts = {"subject": phrase(clause.subject, "nominative"), **_parts(clause)}
    front = parts.pop(clause.front) if begin is None else begin
    return [*front, verb, *sum(parts.values(), []), *filter(None, (end, prefix))]


def final(clause: Clause, begin: str) -> List[str]:
    """A subordinate clause behind ``begin``, with its verb at the end."""
    verb, end, prefix = _predicate(clause)
    subject = [] if clause.gap == "nominative" else phrase(clause.subject, "nominative")
    return [begin, *subject, *sum(_parts(clause).values(), []), *filter(None, (end, prefix + verb))]
