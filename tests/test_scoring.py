"""Scores against multi-bleu.perl: the expected lines were printed by it (Moses master, Perl 5.36)."""

import gzip
import os
import random
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from powernorm_fairseq import scoring
from powernorm_fairseq.scoring import Scorer, ScoringError, Text, multi_bleu
from powernorm_fairseq.scoring.metrics import detokenize

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


def score(metric, hypotheses, references, **options):
    return Scorer([references], **options).score(metric, hypotheses)


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
    assert score("tokenized", *texts(hypotheses, references)).text == "BLEU = " + expected


@pytest.mark.parametrize(
    ("metric", "lowercase", "expected"),
    [
        ("tokenized", True, "35.79, 78.9/53.3/27.3/14.3 (BP=1.000, ratio=1.000, hyp_len=19, ref_len=19)"),
        ("compound-split", False, "64.36, 86.2/72.0/61.9/58.8 (BP=0.933, ratio=0.935, hyp_len=29, ref_len=31)"),
        ("compound-split", True, "70.27, 93.1/80.0/66.7/64.7 (BP=0.933, ratio=0.935, hyp_len=29, ref_len=31)"),
    ],
)
def test_lower_casing_and_splitting_are_perls(metric, lowercase, expected):
    result = score(metric, *texts(HYPOTHESES, REFERENCES), lowercase=lowercase)
    assert result.text == "BLEU = " + expected
    assert ("case:lc" in result.signature) == lowercase
    assert ("split:hyphens" in result.signature) == (metric == "compound-split")


def test_parts_are_unrounded():
    result = score("tokenized", *texts(["a b c d e f g h"], ["a b c d e f"])).as_json()
    assert result["precisions"] == [75.0, 100 * (5 / 7), 100 * (4 / 6), 60.0]
    assert result["score"] == pytest.approx(68.0375, abs=1e-4)
    assert (result["bp"], result["ratio"], result["sys_len"], result["ref_len"]) == (1.0, 8 / 6, 8, 6)


def test_empty_hypotheses_score_zero_where_moses_divides_by_zero():
    result = multi_bleu([b"", b""], [[b"a b", b"c"]])
    assert result.text == "BLEU = 0.00, 0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000, hyp_len=0, ref_len=3)"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_files_are_read_as_todays_multi_bleu_reads_them(end, compressed, tmp_path):
    (tmp_path / "ref").write_bytes(b"a b c d e\na b c d e .\n")
    data = (end or b"\n").join([b"a b c d e", b"a b c d e ."]) + end
    path = tmp_path / ("hyp.gz" if compressed else "hyp")
    path.write_bytes(gzip.compress(data) if compressed else data)
    hypotheses, references = Text.read(path), Text.read(tmp_path / "ref")
    for metric in ("tokenized", "compound-split"):
        expected = "BLEU = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, hyp_len=11, ref_len=11)"
        assert score(metric, hypotheses, references).text == expected


def test_a_damaged_gzip_file_is_an_error(tmp_path):
    whole = gzip.compress(b"a b c\n" * 100)
    for name, data in (("cut", whole[:-9]), ("text.gz", b"a b c\n")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ScoringError, match="{} is (a damaged gzip file|not in gzip format)".format(name)):
            Text.read(tmp_path / name)


def test_several_references_are_clipped_and_measured_as_in_moses():
    # multi-bleu.perl hyp < ref0 ref1: n-grams of either count, and of two equally close lengths the shorter
    system, first, second = texts(["a b c d e f"], ["a b c d x e f"], ["a y c d e"])
    result = Scorer([first, second]).score("tokenized", system)
    assert result.text == "BLEU = 70.71, 100.0/100.0/75.0/33.3 (BP=1.000, ratio=1.200, hyp_len=6, ref_len=5)"
    assert result.signature.startswith("nrefs:2|")


def test_any_bytes_can_be_scored(tmp_path):
    line = bytes(byte for byte in range(1, 256) if byte != 10)
    (tmp_path / "hyp").write_bytes(line + b" \xff \xfe \x00 a b\n")
    text = Text.read(tmp_path / "hyp")
    assert score("tokenized", text, text, lowercase=True).score == 100
    with pytest.raises(ScoringError, match="hyp, line 1: not valid UTF-8"):
        score("sacrebleu", text, text)


@pytest.mark.skipif(
    "MOSES_SCRIPTS" not in os.environ or not shutil.which("perl"),
    reason="set MOSES_SCRIPTS to the scripts folder of mosesdecoder, and install perl, to compare with the original",
)
def test_equal_to_the_perl_script(tmp_path):
    rng = random.Random(7)
    words = ["a", "b", "The", "the", "x-y", "p-q-r", "Ä", "ä", "--", "-", "\u00a0", "@-@", "0", "\x1d"]
    script = Path(os.environ["MOSES_SCRIPTS"]) / "generic" / "multi-bleu.perl"
    for case in range(100):
        lengths = [rng.randint(0, 12) for _ in range(rng.randint(1, 9))]
        references = [
            [" ".join(rng.choices(words, k=length)) for length in lengths] + ["a b"] for _ in range(case % 3 + 1)
        ]
        hypotheses = [
            " ".join(rng.choice(words) if rng.random() < 0.2 else word for word in line.split(" "))
            for line in references[-1]
        ]
        paths = []
        for number, lines in enumerate([hypotheses, *references]):
            end = rng.choice(["\n", "\r\n"])
            text = (end.join(lines) + rng.choice(["", end])).encode()
            compressed = number > 0 and rng.random() < 0.5
            paths.append(tmp_path / "text_{}{}".format(number, ".gz" if compressed else ""))
            paths[-1].write_bytes(gzip.compress(text) if compressed else text)
        lowercase = case % 2 == 1
        command = ["perl", "-X", str(script)] + ["-lc"] * lowercase + [str(path) for path in paths[1:]]
        with open(str(paths[0]), "rb") as file:
            printed = subprocess.run(command, stdin=file, stdout=subprocess.PIPE).stdout
        scorer = Scorer([Text.read(path) for path in paths[1:]], lowercase=lowercase)
        assert scorer.score("tokenized", Text.read(paths[0])).text == printed.decode().strip()


@pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")
def test_compounds_are_split_as_the_release_does_it_on_text_tokenised_with_a(tmp_path):
    raw = ["Der Nord-Süd-Dialog begann, sagte er.", "Ein \u201eKfz-Zeichen\u201c kostet 3,50 Euro (ca. 4-5 US-Dollar)."]
    from data_prep.tokenizer import tokenize_lines

    tokens = tokenize_lines(raw, "de", aggressive=True)
    hypotheses = [line.replace("begann", "beginnt") for line in tokens]
    assert "@-@" in tokens[0]
    expected = [tokenize_lines(detokenize(text, "de"), "de") for text in texts(hypotheses, tokens)]
    split = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    lines = []
    for side in expected:
        text = "".join(line + "\n" for line in side).encode()
        printed = subprocess.run(["perl", "-ple", split], input=text, stdout=subprocess.PIPE, check=True).stdout
        lines.append(printed.splitlines())
    assert b"@-@" not in b"".join(lines[0])
    ours = score("compound-split", *texts(hypotheses, tokens), lang="de")
    assert ours.text == multi_bleu(lines[0], [lines[1]]).text
    # the published reference, tokenised, is what the release compares with
    published = Scorer(texts(tokens), lang="de", raw_references=texts(raw)).score("compound-split", texts(tokens)[0])
    quoted = tokenize_lines(raw, "de")[1]
    assert "\u201e" in quoted and published.parts["ref_len"] == ours.parts["ref_len"]


def test_different_line_counts_are_an_error_that_names_both():
    with pytest.raises(ScoringError, match="text 0 has 2 lines, but text 1 has 1"):
        score("tokenized", *texts(["a", "b"], ["a"]))


def test_unknown_metric_lists_the_known_ones():
    with pytest.raises(ValueError, match="'bleu' is not known; choose from tokenized, compound-split, sacrebleu, chrf"):
        score("bleu", *texts(["a"], ["a"]))


def test_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\r\nc\x0cd\x85\n\n".encode())
    assert len(Text.read(tmp_path / "text").lines) == 3


def test_detokenizing_undoes_escapes_hyphens_and_spaces():
    tokenized = ["the cat &apos;s & amp ; toy , &quot; well @-@ known &quot; ( &amp; &#91; cheap &#93; ) !"]
    assert detokenize(Text.of("text", tokenized)) == ["the cat's & amp; toy, \"well-known\" (& [cheap])!"]


def test_sacrebleu_scores_detokenized_text_with_its_signature():
    # sacreBLEU's tokeniser splits at the hyphens of the detokenised text, and not at &quot;
    result = score("sacrebleu", *texts(["he said &quot; yes &quot; ."], ["he said &quot; yes &quot; ."]))
    assert result.score == pytest.approx(100)
    assert (result.parts["sys_len"], result.parts["ref_len"]) == (6, 6)
    assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert result.signature in result.text


def test_chrf_and_ter_are_sacrebleus_own():
    from sacrebleu.metrics import CHRF, TER

    system, first, second = texts(["he said &quot; no &quot; ."], ["he said &quot; yes &quot; ."], ["he says : no !"])
    scorer = Scorer([first, second])
    plain = [['he said "no".'], ['he said "yes".'], ["he says: no!"]]
    for metric, original in (("chrf", CHRF()), ("ter", TER())):
        result = scorer.score(metric, system)
        assert result.score == original.corpus_score(plain[0], plain[1:]).score
        assert result.signature == original.get_signature().format() and "nrefs:2" in result.signature
    assert Scorer([first], lowercase=True).score("chrf", texts(["HE SAID &quot; YES &quot; ."])[0]).score == 100


def test_detokenised_metrics_compare_with_the_published_references():
    # normalising has changed the reference, and no detokenising can undo that
    system, prepared, published = texts(["it &apos;s so and so"], ["it &apos;s so and so"], ["it\u2019s so and so"])
    assert Scorer([prepared]).score("sacrebleu", system).score == pytest.approx(100)
    with_published = Scorer([prepared], raw_references=[published])
    assert with_published.score("sacrebleu", system).score < 100
    assert with_published.score("tokenized", system).score == score("tokenized", system, prepared).score
    with pytest.raises(ScoringError, match="text 0 has 2 lines, but text 1 has 1"):
        Scorer([prepared], raw_references=texts(["a", "b"]))


def test_plain_text_is_tokenised_where_a_metric_is_defined_on_tokens():
    system, reference = texts(["He said, well-known?"], ["He said, well-known."])
    tokens = texts(["He said , well-known ?"], ["He said , well-known ."])
    plain = Scorer([reference], tokenized=False)
    for metric in ("tokenized", "compound-split", "sacrebleu"):
        assert plain.score(metric, system).text == Scorer([tokens[1]]).score(metric, tokens[0]).text


class FakeModel:
    """What ``load_from_checkpoint`` of unbabel-comet returns, as far as scoring uses it: a stand-in, not COMET."""

    def predict(self, data, batch_size, gpus):
        scores = [0.5 if sample["mt"] == sample["ref"] and sample["src"] else 0.25 for sample in data]
        return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


def test_comet_gets_detokenised_text_and_its_source(monkeypatch, tmp_path):
    loaded = []
    package = types.ModuleType("comet")
    package.__version__ = "0"
    package.download_model = lambda name: "/downloaded/" + name
    package.load_from_checkpoint = lambda path: (loaded.append(path), FakeModel())[1]
    monkeypatch.setitem(sys.modules, "comet", package)
    system, reference, source = texts(["yes .", "no"], ["yes .", "never"], ["ja", "nein"])
    raw = texts(["yes.", "never"])
    (tmp_path / "model.ckpt").write_bytes(b"")
    local = str(tmp_path / "model.ckpt")
    result = Scorer([reference], source=source, raw_references=raw, model=local).score("comet", system)
    assert result.score == 0.375 and result.parts["segments"] == [0.5, 0.25]
    Scorer([reference], source=source).score("comet", system)
    assert loaded == [local, "/downloaded/Unbabel/wmt22-comet-da"]
    with pytest.raises(ScoringError, match="needs the source"):
        Scorer([reference]).score("comet", system)
    with pytest.raises(ScoringError, match="takes one reference, not 2"):
        Scorer([reference, reference], source=source).score("comet", system)
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(ScoringError, match="pip install unbabel-comet"):
        Scorer([reference], source=source).score("comet", system)


def test_sacrebleu_of_nothing_is_an_error():
    with pytest.raises(ScoringError, match="no lines"):
        score("sacrebleu", *texts([], []))


COMPARED = ("tokenized", "compound-split", "sacrebleu", "chrf", "ter")


@pytest.mark.parametrize("metric", COMPARED)
@pytest.mark.parametrize("lowercase", [False, True])
def test_bootstrap_has_the_scores_of_the_metric(metric, lowercase):
    rng = random.Random(3)
    words = "The the cat-like Ä ä a\u00a0b b c d".split(" ")
    references = [" ".join(rng.choices(words, k=9)) for _ in range(40)]

    def damaged(line, rate):
        return " ".join(rng.choice(words) if rng.random() < rate else word for word in line.split(" "))

    good, bad = ([damaged(line, rate) for line in references] for rate in (0.1, 0.5))
    system, baseline, reference = texts(good, bad, references)
    result = Scorer([reference], lowercase=lowercase).compare(metric, system, baseline, samples=100)
    for text, value in ((system, result.score), (baseline, result.baseline_score)):
        assert value == pytest.approx(score(metric, text, reference, lowercase=lowercase).score, abs=1e-9)
    assert result.p_value < 0.05
    assert result.ci > 0 and result.baseline_ci > 0
    assert abs(result.mean - result.score) < result.ci


@pytest.mark.parametrize("metric", COMPARED)
def test_a_system_is_not_significantly_better_than_itself(metric):
    system, reference = texts(HYPOTHESES, REFERENCES)
    assert Scorer([reference]).compare(metric, system, system, samples=20).p_value == 1


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
