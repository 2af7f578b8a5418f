"""Scores against multi-bleu.perl: the expected lines were printed by it (Moses master, Perl 5.36)."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from powernorm_fairseq import scoring
from powernorm_fairseq.scoring import ScoringError, Text, multi_bleu

REFERENCES = [
    "the cat sat on the mat .",
    "Der Nord-Süd-Dialog begann gestern .",
    "a well-known state-of-the-art system",
    "Ähren im Wind",
]
HYPOTHESES = [
    "the cat sat on a mat .",
    "der Nord-Süd-Dialog begann .",
    "a well known state-of-the-art system",
    "ähren im wind",
]


def texts(*all_lines):
    return [Text.of("text {}".format(number), lines) for number, lines in enumerate(all_lines)]


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [
        (HYPOTHESES, REFERENCES, "29.04, 68.4/40.0/18.2/14.3 (BP=1.000, ratio=1.000, hyp_len=19, ref_len=19)"),
        (REFERENCES, REFERENCES, "100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, hyp_len=19, ref_len=19)"),
        (
            [HYPOTHESES[0], "", HYPOTHESES[2]],
            REFERENCES[:3],
            "25.33, 75.0/50.0/25.0/16.7 (BP=0.717, ratio=0.750, hyp_len=12, ref_len=16)",
        ),
        (["a b c d e"], ["a b c x d e"], "0.00, 100.0/75.0/33.3/0.0 (BP=0.819, ratio=0.833, hyp_len=5, ref_len=6)"),
        (["a b c"], ["a b c"], "0.00, 100.0/100.0/100.0/0.0 (BP=1.000, ratio=1.000, hyp_len=3, ref_len=3)"),
        (
            ["a b c d e f g h"],
            ["a b c d e f"],
            "68.04, 75.0/71.4/66.7/60.0 (BP=1.000, ratio=1.333, hyp_len=8, ref_len=6)",
        ),
        (
            ["the the the the the the the"],
            ["the cat is on the mat"],
            "0.00, 28.6/0.0/0.0/0.0 (BP=1.000, ratio=1.167, hyp_len=7, ref_len=6)",
        ),
        (["x y z w v"], ["a b c d e"], "0.00, 0.0/0.0/0.0/0.0 (BP=1.000, ratio=1.000, hyp_len=5, ref_len=5)"),
        (["a b"], [""], "0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"),
        (
            ["  a\tb  c \x0b d\x0ce\r"],
            ["a b c d e"],
            "100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, hyp_len=5, ref_len=5)",
        ),
        (
            ["a\u00a0b c d e f\u2028g \x1c h"],
            ["a\u00a0b c d e f g h"],
            "43.47, 71.4/50.0/40.0/25.0 (BP=1.000, ratio=1.000, hyp_len=7, ref_len=7)",
        ),
        (
            ["a b c d e"],
            ["a b c d e" + " w" * 9999],
            "0.00, 100.0/100.0/100.0/100.0 (BP=0.000, ratio=0.001, hyp_len=5, ref_len=9999)",
        ),
    ],
    ids=[
        "plain",
        "identical",
        "an empty hypothesis",
        "no 4-gram matches",
        "shorter than four words",
        "longer than the reference",
        "repeated words are clipped",
        "nothing in common",
        "empty references",
        "blanks to Perl",
        "no blanks to Perl",
        "Moses' limit of 9999 words",
    ],
)
def test_tokenized_is_what_multi_bleu_prints(hypotheses, references, expected):
    assert scoring.score("tokenized", *texts(hypotheses, references)).text == "BLEU = " + expected


@pytest.mark.parametrize(
    ("metric", "lowercase", "expected"),
    [
        ("tokenized", True, "35.79, 78.9/53.3/27.3/14.3 (BP=1.000, ratio=1.000, hyp_len=19, ref_len=19)"),
        ("compound-split", False, "64.36, 86.2/72.0/61.9/58.8 (BP=0.933, ratio=0.935, hyp_len=29, ref_len=31)"),
        ("compound-split", True, "70.27, 93.1/80.0/66.7/64.7 (BP=0.933, ratio=0.935, hyp_len=29, ref_len=31)"),
    ],
)
def test_lower_casing_and_splitting_are_perls(metric, lowercase, expected):
    result = scoring.score(metric, *texts(HYPOTHESES, REFERENCES), lowercase=lowercase)
    assert result.text == "BLEU = " + expected
    assert ("case:lc" in result.signature) == lowercase
    assert ("split:hyphens" in result.signature) == (metric == "compound-split")


def test_parts_are_unrounded():
    result = scoring.score("tokenized", *texts(["a b c d e f g h"], ["a b c d e f"])).as_json()
    assert result["precisions"] == [75.0, 100 * (5 / 7), 100 * (4 / 6), 60.0]
    assert result["score"] == pytest.approx(68.0375, abs=1e-4)
    assert (result["bp"], result["ratio"], result["sys_len"], result["ref_len"]) == (1.0, 8 / 6, 8, 6)


def test_empty_hypotheses_score_zero_where_moses_divides_by_zero():
    result = multi_bleu([b"", b""], [b"a b", b"c"])
    assert result.text == "BLEU = 0.00, 0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000, hyp_len=0, ref_len=3)"


def test_last_line_without_line_feed_loses_a_character_as_in_moses(tmp_path):
    (tmp_path / "hyp").write_bytes(b"a b c d e\na b c d e .")
    (tmp_path / "ref").write_bytes(b"a b c d e\na b c d e .\n")
    hypotheses, references = Text.read(tmp_path / "hyp"), Text.read(tmp_path / "ref")
    expected = "BLEU = 90.48, 100.0/100.0/100.0/100.0 (BP=0.905, ratio=0.909, hyp_len=10, ref_len=11)"
    assert scoring.score("tokenized", hypotheses, references).text == expected
    assert scoring.score("compound-split", hypotheses, references).score == 100  # perl -l has removed it before


def test_any_bytes_can_be_scored(tmp_path):
    line = bytes(byte for byte in range(1, 256) if byte != 10)
    (tmp_path / "hyp").write_bytes(line + b" \xff \xfe \x00 a b\n")
    text = Text.read(tmp_path / "hyp")
    assert scoring.score("tokenized", text, text, lowercase=True).score == 100
    with pytest.raises(ScoringError, match="hyp, line 1: not valid UTF-8"):
        scoring.score("sacrebleu", text, text)


@pytest.mark.skipif(
    "MOSES_SCRIPTS" not in os.environ or not shutil.which("perl"),
    reason="set MOSES_SCRIPTS to the scripts folder of mosesdecoder, and install perl, to compare with the original",
)
@pytest.mark.parametrize("metric", ["tokenized", "compound-split"])
def test_equal_to_the_perl_scripts(metric, tmp_path):
    rng = random.Random(7)
    words = ["a", "b", "The", "the", "x-y", "p-q-r", "Ä", "ä", "--", "-", "\u00a0", "@-@", "0", "\x1d"]
    script = Path(os.environ["MOSES_SCRIPTS"]) / "generic" / "multi-bleu.perl"
    for case in range(100):
        references = [" ".join(rng.choices(words, k=rng.randint(0, 12))) for _ in range(rng.randint(1, 9))] + ["a b"]
        hypotheses = [
            " ".join(rng.choice(words) if rng.random() < 0.2 else word for word in line.split(" "))
            for line in references
        ]
        for name, lines in (("hyp", hypotheses), ("ref", references)):
            text = "".join(line + "\n" for line in lines).encode()
            if metric == "compound-split":
                command = ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"]
                text = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout
            (tmp_path / name).write_bytes(text)
        lowercase = case % 2 == 1
        command = ["perl", "-X", str(script)] + ["-lc"] * lowercase + [str(tmp_path / "ref")]
        with open(str(tmp_path / "hyp"), "rb") as file:
            printed = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, check=True).stdout
        ours = scoring.score(metric, *texts(hypotheses, references), lowercase=lowercase)
        assert ours.text == printed.decode().strip()


def test_different_line_counts_are_an_error_that_names_both():
    with pytest.raises(ScoringError, match="text 0 has 2 lines, but text 1 has 1"):
        scoring.score("tokenized", *texts(["a", "b"], ["a"]))


def test_unknown_metric_lists_the_known_ones():
    with pytest.raises(ValueError, match="'bleu' is not known; choose from tokenized, compound-split, sacrebleu"):
        scoring.score("bleu", *texts(["a"], ["a"]))


def test_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\r\nc\x0cd\x85\n\n".encode())
    assert len(Text.read(tmp_path / "text").lines) == 3


def test_detokenizing_undoes_escapes_hyphens_and_spaces():
    tokenized = ["the cat &apos;s & amp ; toy , &quot; well @-@ known &quot; ( &amp; &#91; cheap &#93; ) !"]
    assert scoring.detokenize(Text.of("text", tokenized)) == ["the cat's & amp; toy, \"well-known\" (& [cheap])!"]


def test_sacrebleu_scores_detokenized_text_with_its_signature():
    # sacreBLEU's tokeniser splits at the hyphens of the detokenised text, and not at &quot;
    result = scoring.score("sacrebleu", *texts(["he said &quot; yes &quot; ."], ["he said &quot; yes &quot; ."]))
    assert result.score == pytest.approx(100)
    assert (result.sys_len, result.ref_len) == (6, 6)
    assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert result.signature in result.text


def test_sacrebleu_of_nothing_is_an_error():
    with pytest.raises(ScoringError, match="no lines"):
        scoring.score("sacrebleu", *texts([], []))


@pytest.mark.parametrize("metric", scoring.METRICS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_bootstrap_has_the_scores_of_the_metric(metric, lowercase):
    rng = random.Random(3)
    words = "The the cat-like Ä ä a\u00a0b b c d".split(" ")
    references = [" ".join(rng.choices(words, k=9)) for _ in range(40)]

    def damaged(line, rate):
        return " ".join(rng.choice(words) if rng.random() < rate else word for word in line.split(" "))

    good, bad = ([damaged(line, rate) for line in references] for rate in (0.1, 0.5))
    system, baseline, reference = texts(good, bad, references)
    result = scoring.compare(metric, system, baseline, reference, lowercase=lowercase, samples=100)
    for text, value in ((system, result.score), (baseline, result.baseline_score)):
        assert value == pytest.approx(scoring.score(metric, text, reference, lowercase=lowercase).score, abs=1e-9)
    assert result.p_value < 0.05
    assert result.ci > 0 and result.baseline_ci > 0
    assert abs(result.mean - result.score) < result.ci


@pytest.mark.parametrize("metric", scoring.METRICS)
def test_a_system_is_not_significantly_better_than_itself(metric):
    system, reference = texts(HYPOTHESES, REFERENCES)
    assert scoring.compare(metric, system, system, reference, samples=20).p_value == 1


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("subword-nmt", "ein haus@@ boot schw@@ imm@@ t", "ein hausboot schwimmt"),
        ("subword-nmt", "abge@@ brochen@@", "abgebrochen"),
        ("subword-nmt", "@@ @-@ a@b", "@-@ a@b"),
        ("subword-nmt", "", ""),
        ("sentencepiece", "\u2581ein \u2581haus boot \u2581schw imm t .", "ein hausboot schwimmt."),
        ("sentencepiece", "\u2581", ""),
        ("sentencepiece", "", ""),
    ],
)
def test_subwords_are_joined(kind, line, expected):
    assert scoring.remove_bpe(line, kind) == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["a", "b@@"], "subword-nmt"),
        (["a@@", "\u2581b", "\u2581c"], "sentencepiece"),
        (["a", "@-@"], None),
        ([], None),
    ],
)
def test_kind_of_subwords_is_found(words, kind):
    assert scoring.find_bpe_kind(words) == kind


LOG = """2026-01-01 | INFO | fairseq | H-9 is no hypothesis
S-2\tdrei
T-2\tthree
H-2\t-0.5\tthree !
D-2\t-0.5\tthree detokenised
H-2\t-0.7\tsecond best
P-2\t-0.1 -0.2
T-0\t
H-0\t-0.1\t
T-1\ttwo\u2028lines
H-1\t-1.5e-05\tH-0\tT-0
Generate test with beam=5: BLEU4 = 0.00
"""


def test_hypotheses_come_in_corpus_order():
    lines = [line + "\n" for line in LOG.split("\n")]
    hypotheses, references = scoring.parse_generate_log(lines)
    assert hypotheses == ["", "H-0\tT-0", "three !"]
    assert references == ["", "two\u2028lines", "three"]


def test_numbers_are_ordered_as_numbers():
    lines = ["{}-{}\t{}x{}".format(kind, n, "" if kind == "T" else "0\t", n) for n in range(120) for kind in "TH"]
    random.Random(0).shuffle(lines)
    hypotheses, references = scoring.parse_generate_log(lines)
    assert hypotheses == references == ["x{}".format(n) for n in range(120)]


@pytest.mark.parametrize(
    ("lines", "count", "message"),
    [
        (["T-0\ta", "T-1\tb", "H-1\t0\tb"], None, "no hypothesis for sentence 0"),
        (["T-0\ta", "H-0\t0\ta"], 2, "no hypothesis for sentence 1"),
        (["H-0\t0\ta"], None, "no reference for sentence 0"),
        (["nothing"], None, "no hypotheses"),
    ],
)
def test_lost_sentences_are_an_error(lines, count, message):
    with pytest.raises(ScoringError, match=message):
        scoring.parse_generate_log(lines, count=count)
