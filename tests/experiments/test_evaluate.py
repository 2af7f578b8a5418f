"""From text to BLEU with the real programs: fairseq-preprocess, fairseq-train, averaging, fairseq-generate."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")
from powernorm_fairseq import scoring
from powernorm_fairseq.experiments import average, evaluate, evaluation, references

ROOT = Path(__file__).resolve().parents[2]
WORDS = [("der", "the"), ("hund", "dog"), ("katze", "cat"), ("sieht", "sees"), ("rot", "red"), ("läuft", "runs")]
COMPOUNDS = [("haus@@ tür", "front-@@ door"), ("bahn@@ hof", "sta@@ tion")]


def program(name):
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def call(*command, check=True):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert not check or result.returncode == 0, result.stderr.decode()[-3000:]
    return result


def evaluate_sh(*arguments, check=True):
    return call(str(ROOT / "scripts" / "evaluate.sh"), *map(str, arguments), check=check)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A corpus translated word for word, a model trained on it for a few seconds, and three averaged checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    rng = random.Random(1)
    for split, count in (("train", 200), ("valid", 10), ("test", 21)):
        pairs = [rng.choices(WORDS + COMPOUNDS, k=rng.randint(1, 6)) for _ in range(count)]
        if split == "test":
            pairs[4] = []  # an empty line stays one
        for side, lang in enumerate(("de", "en")):
            lines = (" ".join(pair[side] for pair in sentence) + "\n" for sentence in pairs)
            (folder / "{}.{}".format(split, lang)).write_text("".join(lines), encoding="utf-8")
    with open(str(folder / "test.en"), "r+", encoding="utf-8") as file:
        lines = file.read().split("\n")
        lines[7] += " unseen"  # by training: fairseq knows it as <unk>
        file.seek(0)
        file.write("\n".join(lines))
    # beside bin/, as data_prep leaves them: the prepared text, the published one, and its record
    for name, change in (("tok", str), ("ref", str.upper)):
        (folder / name).mkdir()
        text = change((folder / "test.en").read_text(encoding="utf-8").replace("@@ ", ""))
        (folder / name / "test.en").write_text(text, encoding="utf-8")
    (folder / "manifest.json").write_text('{"options": {"recipe": "text"}}')
    prefixes = ["--{}pref={}".format(split, folder / split) for split in ("train", "valid", "test")]
    options = ["--source-lang", "de", "--target-lang", "en", "--joined-dictionary", "--destdir", str(folder / "bin")]
    call(program("fairseq-preprocess"), *options, *prefixes)
    sizes = "--{0}-layers 1 --{0}-embed-dim 32 --{0}-ffn-embed-dim 32 --{0}-attention-heads 2"
    flags = " ".join([sizes.format("encoder"), sizes.format("decoder")])
    flags += " --arch transformer --share-all-embeddings --optimizer adam --lr 0.01 --dropout 0 --max-tokens 400"
    flags += " --max-epoch 30 --save-interval 10 --no-progress-bar --cpu --seed 1 --disable-validation"
    user_dir = ["--user-dir", str(ROOT / "powernorm_fairseq")]
    call(program("fairseq-train"), str(folder / "bin"), *flags.split(), *user_dir, "--save-dir", str(folder / "run"))
    arguments = ["--inputs", str(folder / "run"), "--num-epoch-checkpoints", "3", "--output", str(folder / "avg.pt")]
    assert average.main(arguments) == 0
    return folder


@pytest.fixture(scope="module")
def evaluated(trained):
    """The averaged checkpoint evaluated with all sentences in one batch."""
    result = evaluate_sh("--data", trained / "bin", "--checkpoint", trained / "avg.pt", "--preset", "wmt14")
    return trained / "avg.wmt14.test", result.stdout.decode()


def test_references_are_the_corpus_line_for_line(trained, evaluated):
    folder, _ = evaluated
    text = (trained / "test.en").read_text(encoding="utf-8").replace("@@ ", "")
    assert (folder / "ref.txt").read_text(encoding="utf-8") == text


def test_hypotheses_are_one_per_line_without_subwords(evaluated):
    hypotheses = (evaluated[0] / "hyp.txt").read_text(encoding="utf-8").split("\n")
    assert len(hypotheses) == 21 + 1
    assert not any("@@" in line for line in hypotheses)
    assert len(set(hypotheses)) > 5  # trained enough for the order to show


def test_printed_and_stored_scores_are_those_of_the_text(evaluated):
    folder, printed = evaluated
    stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    texts = [scoring.Text.read(folder / name) for name in ("hyp.txt", "ref.txt", "../ref/test.en")]
    scorer = scoring.Scorer([texts[1]], raw_references=[texts[2]])
    assert list(stored["scores"]) == ["tokenized", "compound-split", "sacrebleu"]
    for metric, parts in stored["scores"].items():
        bleu = scorer.score(metric, texts[0])
        assert {**bleu.as_json(), "text": bleu.text} == parts
        assert "{}: {}\n".format(metric, bleu.text) in printed
    assert (stored["beam"], stored["lenpen"], stored["sentences"]) == (4, 0.6, 21)
    assert stored["scores"]["tokenized"]["precisions"][0] > 30  # of words: a tiny model may have no four in a row
    assert stored["scores"]["sacrebleu"]["score"] < 1  # all of the published text is in upper case


def test_batch_size_changes_nothing(trained, evaluated):
    out = trained / "small batches"
    evaluate_sh(
        *("--data", trained / "bin", "--checkpoint", trained / "avg.pt", "--preset", "wmt14"),
        *("--out", out, "--batch-size", 3),
    )
    for name in ("hyp.txt", "ref.txt"):
        assert (out / name).read_bytes() == (evaluated[0] / name).read_bytes()
    assert (out / "generate.log").read_bytes() != (evaluated[0] / "generate.log").read_bytes()


def test_without_the_prepared_text_the_unknown_words_are_counted(trained, tmp_path, capsys):
    shutil.copytree(str(trained / "bin"), str(tmp_path / "bin"))
    assert run(trained, "--data", tmp_path / "bin", "--out", tmp_path / "out") == 0
    assert "1 of 21 with an unknown subword; --ref FILE names better ones" in capsys.readouterr().err
    assert "<<unk>>" in (tmp_path / "out" / "ref.txt").read_text()
    references = ["--ref", trained / "tok" / "test.en", "--raw-ref", trained / "tok" / "test.en", "--overwrite"]
    assert run(trained, "--data", tmp_path / "bin", "--out", tmp_path / "out", *references) == 0
    assert "<<unk>>" not in (tmp_path / "out" / "ref.txt").read_text()
    scores = json.loads((tmp_path / "out" / "result.json").read_text())["scores"]
    assert scores["sacrebleu"]["score"] > 1


def test_prepared_text_of_other_data_is_refused(trained, tmp_path, capsys):
    shutil.copytree(str(trained / "bin"), str(tmp_path / "bin"))
    shutil.copytree(str(trained / "tok"), str(tmp_path / "tok"))
    (tmp_path / "manifest.json").write_text('{"options": {}}')
    text = (tmp_path / "tok" / "test.en").read_text(encoding="utf-8").split("\n")
    text[2] = "something else"
    (tmp_path / "tok" / "test.en").write_text("\n".join(text), encoding="utf-8")
    assert run(trained, "--data", tmp_path / "bin", "--out", tmp_path / "out") == 1
    assert "line 3 of " in capsys.readouterr().err


def run(trained, *arguments, preset="wmt14"):
    paths = ["--data", str(trained / "bin"), "--checkpoint", str(trained / "avg.pt"), "--preset", preset]
    return evaluate.main([*paths, *map(str, arguments)])


def test_result_holds_what_was_decoded_with(trained):
    out = trained / "beam 2"
    assert run(trained, "--out", out, "--", "--beam", 2, "--lenpen", 0.9) == 0
    stored = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert (stored["beam"], stored["lenpen"]) == (2, 0.9)


def test_finished_results_are_printed_without_decoding(trained, evaluated, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "decode", None)
    assert run(trained, "--max-tokens", 500) == 0  # another batch size is no reason to decode again
    assert capsys.readouterr().out == evaluated[1]


def test_results_of_another_checkpoint_are_kept_without_overwrite(trained, evaluated, capsys):
    before = (evaluated[0] / "result.json").read_bytes()
    assert run(trained, "--", "--nbest", "2") == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (evaluated[0] / "result.json").read_bytes() == before


def test_overwrite_spares_folders_of_others(trained, capsys):
    other = trained / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    assert run(trained, "--out", other, "--overwrite") == 1
    assert "not written by an evaluation" in capsys.readouterr().err
    assert (other / "thesis.tex").exists()


def test_failure_of_fairseq_is_shown(tmp_path, capsys):
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(scoring.ScoringError, match="fairseq-generate failed with exit status 1; see above"):
        evaluate.run_visibly(command, tmp_path / "generate-test.txt", tmp_path / "messages.log", 3)
    assert "no such model" in capsys.readouterr().err


def test_failure_leaves_nothing_behind(trained, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "generate_command", lambda *arguments: [sys.executable, "-c", "raise SystemExit(3)"])
    assert run(trained, "--out", trained / "failed") == 1
    assert "exit status 3" in capsys.readouterr().err
    assert not list(trained.glob("failed*"))


@pytest.mark.parametrize(
    ("preset", "beam", "lenpen", "lowercase"),
    [
        ("iwslt14", "5", "1.0", True),
        ("wmt14", "4", "0.6", False),
        ("multi30k", "5", "1.0", True),
        ("demo", "5", "1.0", False),
    ],
)
def test_presets_decode_as_the_notes_say(preset, beam, lenpen, lowercase, trained, capsys):
    assert run(trained, "--dry-run", "--batch-size", 7, "--", "--cpu", preset=preset) == 0
    command = capsys.readouterr().out
    assert "--beam {} --lenpen {} ".format(beam, lenpen) in command
    assert "--source-lang de --target-lang en" in command  # from the checkpoint
    assert command.rstrip().endswith("--batch-size 7 --cpu")
    assert evaluate.PRESETS[preset].lowercase == lowercase


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--checkpoint", "missing.pt"], "missing.pt is no checkpoint file"),
        (["--data", "missing"], "missing is no folder"),
        (["--subset", "test9"], "has no test9 data"),
        (["--target-lang", "fr"], "has no test data for de to fr"),
    ],
)
def test_bad_input_is_one_sentence(change, message, trained, capsys):
    assert run(trained, *change) == 1
    assert message in capsys.readouterr().err


def test_plain_and_lower_cased_data_is_scored_as_such(tmp_path, monkeypatch):
    """Without decoding: what data_prep wrote down about its text decides how it is scored."""
    for name, text in (("tok", "he said: well-known.\n"), ("ref", "He said: Well-known.\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.en").write_text(text)
    monkeypatch.setattr(evaluate, "decode", lambda *_: (["he said: well-known."], ["he said: well-known."]))
    scores = []
    for options in ({"plain": True, "lowercased": True}, {"plain": False, "lowercased": False}):
        (tmp_path / "manifest.json").write_text(json.dumps({"options": options}))
        found = references.find(tmp_path / "bin", "test", "en", [], [])
        args = argparse.Namespace(preset="text", references=found)
        command = ["fairseq-generate", "bin", "--beam", "5", "--lenpen", "1.0"]
        scores.append(evaluate.evaluate(args, command, tmp_path, 1, "en")["scores"])
    assert list(scores[0]) == ["tokenized", "sacrebleu", "chrf"]
    assert scores[0]["sacrebleu"]["score"] == pytest.approx(100) and "case:lc" in scores[0]["sacrebleu"]["signature"]
    assert scores[0]["tokenized"]["sys_len"] == 5 and scores[1]["tokenized"]["sys_len"] == 3
    assert scores[1]["sacrebleu"]["score"] < 100


@pytest.mark.parametrize(("symbol", "kind"), [("▁haus", "sentencepiece"), ("haus@@", "subword-nmt"), ("haus", None)])
def test_dictionary_tells_the_kind_of_subwords(symbol, kind, tmp_path):
    (tmp_path / "dict.en.txt").write_text("a\u2028b 7\n{} 5\n".format(symbol), encoding="utf-8")
    assert evaluation.find_bpe(tmp_path / "dict.en.txt") == kind


def test_index_tells_the_number_of_sentences(trained):
    assert evaluate.count_sentences(trained / "bin" / "test.de-en.en.idx") == 21
    assert evaluate.count_sentences(trained / "test.en") is None


def test_script_answers_help_with_every_flag():
    printed = evaluate_sh("--help").stdout.decode()
    flags = [action.option_strings[-1] for action in evaluate.build_parser()._actions]
    assert all(flag + " " in printed for flag in flags)
    assert all(preset in printed for preset in evaluate.PRESETS)


def test_script_without_arguments_fails_with_the_help():
    result = evaluate_sh(check=False)
    assert result.returncode != 0
    assert b"usage:" in result.stderr
