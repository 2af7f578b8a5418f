"""The command line of scripts/score.py."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from powernorm_fairseq.experiments import score

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"score", "precisions", "bp", "ratio", "sys_len", "ref_len", "signature"}


@pytest.fixture
def files(tmp_path):
    """Two systems and their reference; returns the paths as text."""
    contents = {
        "ref": "the cat sat on the mat .\nDer Nord-Süd-Dialog begann gestern .\n",
        "sys": "the cat sat on a mat .\nder Nord-Süd-Dialog begann .\n",
        "base": "a dog sat there .\nder Dialog begann .\n",
        "short": "one line\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text.encode())
    return {name: str(tmp_path / name) for name in contents}


def run(capsys, *arguments):
    status = score.main(list(arguments))
    return (status, *capsys.readouterr())


def test_one_metric_prints_the_line_of_the_original_tool(files, capsys):
    status, out, _ = run(capsys, "--sys", files["sys"], "--ref", files["ref"], "--metric", "tokenized")
    assert (status, out) == (
        0,
        "BLEU = 36.66, 81.8/55.6/28.6/20.0 (BP=0.913, ratio=0.917, hyp_len=11, ref_len=12)\n",
    )


def test_without_metric_all_are_reported(files, capsys):
    status, out, _ = run(capsys, "--sys", files["sys"], "--ref", files["ref"])
    assert status == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["tokenized", "compound-split", "sacrebleu"]


def test_sacrebleu_is_left_out_where_it_does_not_fit(files, capsys, tmp_path):
    (tmp_path / "latin1").write_bytes(b"ein H\xe4ndler\n")
    path = str(tmp_path / "latin1")
    status, out, err = run(capsys, "--sys", path, "--ref", path, "--json")
    assert status == 0
    assert list(json.loads(out)) == ["tokenized"]
    assert "left out sacrebleu" in err and "line 1: not valid UTF-8" in err
    assert run(capsys, "--sys", path, "--ref", path, "--metric", "sacrebleu")[0] == 1


def test_json_has_every_part_of_every_metric(files, capsys):
    arguments = ["--metric", "sacrebleu", "--metric", "tokenized", "--lowercase", "--json"]
    status, out, _ = run(capsys, "--sys", files["sys"], "--ref", files["ref"], *arguments)
    results = json.loads(out)
    assert status == 0
    assert list(results) == ["sacrebleu", "tokenized"]
    assert all(set(parts) == PARTS and len(parts["precisions"]) == 4 for parts in results.values())
    assert "case:lc" in results["sacrebleu"]["signature"]


def test_baseline_adds_a_paired_bootstrap(files, capsys):
    arguments = ["--sys", files["sys"], "--ref", files["ref"], "--baseline", files["base"], "--samples", "50"]
    status, out, _ = run(capsys, *arguments, "--json")
    results = json.loads(out)
    assert status == 0
    for parts in results.values():
        assert parts["bootstrap"]["score"] == pytest.approx(parts["score"])
        assert 0 <= parts["bootstrap"]["p_value"] <= 1
        assert parts["bootstrap"]["samples"] == 50
    status, out, _ = run(capsys, *arguments)
    assert len(out.splitlines()) == 6
    assert "paired bootstrap, 50 samples" in out


@pytest.mark.parametrize(
    ("kind", "line"),
    [("subword-nmt", "ein haus@@ boot schw@@ imm@@ t heute"), ("sentencepiece", "▁ein ▁haus boot ▁schwimm t ▁heute")],
)
@pytest.mark.parametrize("found", [True, False])
def test_subwords_are_joined_on_both_sides(kind, line, found, tmp_path, capsys):
    (tmp_path / "sys").write_bytes((line + "\n").encode())
    (tmp_path / "ref").write_bytes(b"ein hausboot schwimmt heute\n")
    arguments = ["--sys", str(tmp_path / "sys"), "--ref", str(tmp_path / "ref"), "--metric", "tokenized"]
    _, out, _ = run(capsys, *arguments, "--remove-bpe", *([] if found else [kind]))
    assert out.startswith("BLEU = 100.00")
    _, out, _ = run(capsys, *arguments)
    assert not out.startswith("BLEU = 100.00")


def test_standard_input_and_gzip(files, tmp_path):
    (tmp_path / "ref.gz").write_bytes(gzip.compress(Path(files["ref"]).read_bytes()))
    command = [sys.executable, str(ROOT / "scripts" / "score.py"), "--sys", "-", "--metric", "tokenized"]
    outputs = []
    for reference in (files["ref"], str(tmp_path / "ref.gz")):
        with open(files["sys"], "rb") as stream:
            done = subprocess.run([*command, "--ref", reference], stdin=stream, stdout=subprocess.PIPE, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and outputs[0].startswith(b"BLEU = 36.66")
    with pytest.raises(SystemExit):
        score.main(["--sys", "-", "--ref", "-"])


def test_every_metric_with_several_references(files, capsys):
    arguments = ["--sys", files["sys"], "--ref", files["ref"], files["base"], "--json"]
    for metric in ("tokenized", "compound-split", "sacrebleu", "chrf", "ter"):
        arguments += ["--metric", metric]
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert all("nrefs:2" in parts["signature"] for parts in json.loads(out).values())


def test_published_references_and_plain_text_are_taken(files, tmp_path, capsys):
    (tmp_path / "raw").write_text("the cat sat on a mat.\nder Nord-S\u00fcd-Dialog begann.\n", encoding="utf-8")
    raw = str(tmp_path / "raw")
    arguments = ["--sys", files["sys"], "--ref", files["ref"], "--metric", "sacrebleu"]
    assert "= 100.00 " in run(capsys, *arguments, "--raw-ref", raw)[1]
    status, out, _ = run(capsys, "--sys", raw, "--ref", raw, "--plain", "--metric", "tokenized")
    assert "hyp_len=11" in out


def test_the_references_of_a_test_set_are_sacrebleus(files, tmp_path):
    """Out of sacreBLEU's own store, where they are once it has fetched them."""
    store = tmp_path / "store" / "wmt14" / "full"
    store.mkdir(parents=True)
    for field in ("src", "ref", "docid", "genre", "origlang"):
        text = "the cat sat on a mat.\nder Nord-S\u00fcd-Dialog begann.\n"
        (store / "wmt14_full.en-de.{}".format(field)).write_text(text, encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "score.py"), "--sys", files["sys"], "--ref", files["ref"]]
    command += ["--metric", "sacrebleu", "--test-set", "wmt14/full/en-de", "--lang", "de"]
    environment = {**os.environ, "SACREBLEU": str(tmp_path / "store")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    assert b"= 100.00 " in done.stdout


def test_an_unknown_test_set_is_one_sentence(files, capsys):
    arguments = ["--sys", files["sys"], "--ref", files["ref"], "--metric", "sacrebleu", "--test-set", "wmt14/no/en-de"]
    status, _, err = run(capsys, *arguments)
    assert status == 1 and "cannot give the test set wmt14/no/en-de" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("system", "reference", "message"),
    [("short", "ref", "short has 1 lines, but "), ("missing", "ref", "missing cannot be read: No such file")],
)
def test_bad_input_is_one_sentence_and_a_failure(system, reference, message, files, tmp_path, capsys):
    paths = {**files, "missing": str(tmp_path / "missing")}
    status, out, err = run(capsys, "--sys", paths[system], "--ref", paths[reference])
    assert (status, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_baseline_of_another_length_is_a_failure(files, capsys):
    status, _, err = run(capsys, "--sys", files["sys"], "--ref", files["ref"], "--baseline", files["short"])
    assert status == 1
    assert "short has 1 lines" in err


def test_unknown_metric_lists_the_known_ones(files, capsys):
    with pytest.raises(SystemExit) as stopped:
        score.main(["--sys", files["sys"], "--ref", files["ref"], "--metric", "bleurt"])
    assert stopped.value.code != 0
    assert "compound-split" in capsys.readouterr().err


def test_help_needs_neither_torch_nor_fairseq():
    code = (
        "import sys; from powernorm_fairseq.experiments import score\n"
        "score.build_parser().format_help(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
    loaded = set(done.stdout.decode().split())
    assert "powernorm_fairseq.scoring.metrics" in loaded and not loaded & {"torch", "fairseq", "numpy", "sacrebleu"}
    command = [sys.executable, str(ROOT / "scripts" / "score.py"), "--help"]
    assert "--baseline" in subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
