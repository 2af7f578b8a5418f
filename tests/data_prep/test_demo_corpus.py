"""The demo's corpus: fixed by its seed, in disjoint splits, and right in both languages."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.corpora import main
from data_prep.demo_corpus import english, generate, german, write_corpus
from data_prep.demo_corpus.sentences import Drawing
from data_prep.demo_corpus.structure import LEXICON, Clause, Phrase, read_lexicon
from data_prep.errors import DataPrepError

TOP = Path(__file__).resolve().parents[2]
SIZES = {"train": 300, "valid": 20, "test": 30}
WORDS = read_lexicon()


def read(folder):
    return {path.name: path.read_text(encoding="utf-8").splitlines() for path in folder.iterdir()}


# The files


def test_the_corpus_of_a_seed_never_changes():
    """After a change on purpose, the demo's scores are new ones: say so when updating the digest."""
    text = "".join("%s\t%s\n" % pair for pair in generate(1000, 1))
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert digest == "393b2dc136c395477cce07d0df22960611cbe902ef92448d930df66ca2c5824a"


def test_hash_randomisation_does_not_matter():
    code = "from data_prep.demo_corpus import generate; print(ascii(list(generate(100, 1))))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        said = subprocess.run([sys.executable, "-c", code], cwd=str(TOP), env=environment, stdout=subprocess.PIPE)
        assert said.stdout.decode().strip() == ascii(list(generate(100, 1)))


def test_seeds_differ_and_a_longer_run_starts_with_the_shorter_one():
    assert list(generate(50, 1)) != list(generate(50, 2))
    assert list(generate(300, 4))[:100] == list(generate(100, 4))


def test_splits_share_no_sentence_and_grow_apart(tmp_path):
    write_corpus(tmp_path / "small", SIZES, seed=1)
    write_corpus(tmp_path / "large", {**SIZES, "train": 500}, seed=1)
    small, large = read(tmp_path / "small"), read(tmp_path / "large")
    assert {name: len(lines) for name, lines in small.items()} == {
        "%s.%s" % (split, language): size for split, size in SIZES.items() for language in ("de", "en")
    }
    for language in ("de", "en"):
        sentences = [line for split in SIZES for line in large["%s.%s" % (split, language)]]
        assert len(sentences) == len(set(sentences)) == 550
        assert large["train." + language][:300] == small["train." + language]
        assert large["test." + language] == small["test." + language]


def test_test_split_has_new_sentences_of_known_words(tmp_path):
    write_corpus(tmp_path, {"train": 4000, "test": 300}, seed=1)
    files = read(tmp_path)
    for language in ("de", "en"):
        known = {word for line in files["train." + language] for word in line.split()}
        words = [word for line in files["test." + language] for word in line.split()]
        assert sum(word not in known for word in words) <= 0.002 * len(words)


def test_command_line(tmp_path, capsys):
    """From nothing to fairseq's data; the text goes through unchanged."""
    words = ["demo", "--pairs", "60", "--seed", "2", "--bpe-tokens", "90", "--workers", "1", "--out", str(tmp_path)]
    assert main([*words, "--dry-run"]) == 0 and not list(tmp_path.iterdir())
    assert main(words) == 0 and capsys.readouterr().out.endswith("%s\n" % tmp_path)
    pairs = list(zip(*(read(tmp_path / "tok")["train." + language] for language in ("de", "en"))))
    assert pairs == list(generate(860, 2))[800:]
    assert (tmp_path / "bin" / "train.de-en.de.bin").exists()
    with pytest.raises(DataPrepError, match="60-2/train.de|was made otherwise"):
        main([*words[:2], "70", *words[3:]])
    with pytest.raises(DataPrepError, match="--pairs 0 makes no sense"):
        main([*words[:2], "0", *words[3:]])
    with pytest.raises(ValueError, match="a number of pairs is not negative"):
        write_corpus(tmp_path, {"train": -1}, seed=1)


def test_a_wrong_line_of_the_lexicon_is_named(tmp_path):
    file = tmp_path / "words.tsv"
    file.write_text(LEXICON.read_text(encoding="utf-8").replace("noun\tKind\tn\t", "noun\tKind n\t"), encoding="utf-8")
    with pytest.raises(ValueError, match="words.tsv, line 5: no noun or verb"):
        read_lexicon(file)


# The languages


def find(what, word):
    (found,) = [entry for entry in WORDS[what] if entry[0] == word]
    return found


def noun(word, determiner="der", adjective=None, **settings):
    return Phrase(find("noun", word), determiner, adjective and find("adjective", adjective), **settings)


def clause(subject, tense, verb, **settings):
    return Clause(subject, tense, find("verb", verb), **settings)


MAN, DOG = noun("Mann"), noun("Hund", "ein", "alt")
INVITES = clause(noun("Kind"), "present", "ein|laden", gap="accusative")
GIVE = {"dative": noun("Frau", "mein"), "accusative": noun("Brief", "dies", "neu")}


@pytest.mark.parametrize(
    "structure, pair",
    [
        (clause(MAN, "present", "suchen", accusative=DOG),
         "der Mann sucht einen alten Hund = the man looks for an old dog"),
        (clause(MAN, "past", "suchen", accusative=DOG, front="accusative"),
         "einen alten Hund suchte der Mann = the man looked for an old dog"),
        (clause(MAN, "perfect", "geben", **GIVE),
         "der Mann hat meiner Frau diesen neuen Brief gegeben = the man gave my woman this new letter"),
        (clause(MAN, "present", "auf|machen", accusative=noun("Tür", plural=True), negated=True),
         "der Mann macht die Türen nicht auf = the man does not open the doors"),
        (clause(noun("Kind", "unser", plural=True), "past", "zu|hören", dative=Phrase(pronoun="3p")),
         "unsere Kinder hörten ihnen zu = our children listened to them"),
        (clause(MAN, "must", "schlafen", negated=True),
         "der Mann muss nicht schlafen = the man does not have to sleep"),
        (clause(MAN, "can", "schlafen", negated=True),
         "der Mann kann nicht schlafen = the man cannot sleep"),
        (clause(Phrase(pronoun="1s"), "perfect", "schwimmen", adverb=find("adverb", "gestern"), front="adverb"),
         "gestern bin ich geschwommen = yesterday I swam"),
        (clause(MAN, "present", "helfen", dative=noun("Vogel", plural=True), adverb=find("adverb", "oft")),
         "der Mann hilft oft den Vögeln = the man often helps the birds"),
        (clause(MAN, "future", "warten", place=noun("Wald")),
         "der Mann wird im Wald warten = the man will wait in the forest"),
        (Clause(noun("Maus", "kein", "klein", plural=True), "past", adjective=find("adjective", "alt")),
         "keine kleinen Mäuse waren alt = no small mice were old"),
        (clause(MAN._replace(other=noun("Frau", "ein")), "want", "schlafen"),
         "der Mann und eine Frau wollen schlafen = the man and a woman want to sleep"),
        (clause(MAN._replace(relative=INVITES), "present", "schlafen"),
         "der Mann , den das Kind einlädt , schläft = the man who the child invites sleeps"),
    ],
)  # fmt: skip
def test_statements(structure, pair):
    in_german, in_english = pair.split(" = ")
    assert " ".join(german.main(structure)) == in_german
    assert " ".join(english.statement(structure)) == in_english


def test_questions_and_clauses_with_the_verb_at_the_end():
    closes = clause(MAN, "present", "zu|machen", accusative=noun("Fenster", "ein"))
    assert " ".join(german.main(closes, [])) == "macht der Mann ein Fenster zu"
    assert " ".join(english.question(closes)) == "does the man close a window"
    assert " ".join(german.final(closes, "weil")) == "weil der Mann ein Fenster zumacht"
    assert " ".join(german.final(closes._replace(tense="perfect"), "weil")) == "weil der Mann ein Fenster zugemacht hat"


def test_german_to_english_is_a_function_and_every_word_is_used():
    drawing, translations = Drawing(3), {}
    for _ in range(8000):
        in_german, in_english = drawing.sentence()
        assert translations.setdefault(in_german, in_english) == in_english
    text = " %s " % " ".join(translations.values())
    for entry in WORDS["noun"] + WORDS["adjective"] + WORDS["adverb"]:
        assert entry.english in text, entry
    for verb in WORDS["verb"] + WORDS["opinion"]:
        assert " %s " % verb.english in text and " %s " % verb.english_past in text, verb
