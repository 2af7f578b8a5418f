"""From a language model's checkpoint to perplexity per word: against a plain loop, and with the real programs."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

import torch

from powernorm_fairseq.experiments import evaluate_lm, score_runs, train
from powernorm_fairseq.experiments.tables import catalogue, data, reproduce
from tests.conftest import preprocess
from tests.models.training import USER_DIR, LMRun

TEXT = "a b@@ c\nb@@ b@@ a c\n\nc a a b@@ c a c\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of subwords with blocks of 5 tokens, after a few updates, and its data."""
    folder = tmp_path_factory.mktemp("lm")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").write_text(TEXT * (20 if split == "train" else 1))
    preprocess(folder, ".en", "--only-source")
    run = LMRun(folder / "bin", "--tokens-per-sample", 5)
    run.train(6)
    run.trainer.consolidate_optimizer()
    run.trainer.save_checkpoint(str(folder / "model.pt"), {})
    return folder, run


def arguments(trained, *more):
    folder, _ = trained
    return ["--data", str(folder / "bin"), "--checkpoint", str(folder / "model.pt"), "--cpu", *map(str, more)]


def result(folder):
    return json.loads((folder / "result.json").read_text())


def plain_loss(run, block, context=0):
    """Summed loss of the test text in nats: token after token, from the ``context`` or more tokens in front of it."""
    dictionary = run.task.source_dictionary
    tokens = [i for line in TEXT.splitlines() for i in [*map(dictionary.index, line.split()), dictionary.eos()]]
    source = [dictionary.eos(), *tokens[:-1]]  # what stands in front of each token
    run.model.eval()
    total = 0.0
    for first in range(0, len(tokens), block - context):
        begin, end = max(0, first - context), min(first + block - context, len(tokens))
        with torch.no_grad():
            out = run.model(torch.tensor([source[begin:end]]))
            scores = run.model.get_normalized_probs(out, log_probs=True)[0]
        total -= sum(scores[i - begin, tokens[i]].item() for i in range(first, end))
    return total


TOKENS, WORDS = 18, 14  # with four ends of lines; four tokens end in @@


def test_perplexity_is_per_word_and_that_of_a_plain_loop(trained, tmp_path, capsys):
    assert evaluate_lm.main(arguments(trained, "--out", tmp_path / "out")) == 0
    found = result(tmp_path / "out")
    loss = plain_loss(trained[1], block=5)
    assert (found["tokens"], found["words"], found["subwords"]) == (TOKENS, WORDS, "subword-nmt")
    assert found["loss"] == pytest.approx(loss / WORDS, rel=1e-5)
    assert found["ppl"] == pytest.approx(math.exp(loss / WORDS), rel=1e-5)
    assert found["ppl_per_token"] == pytest.approx(math.exp(loss / TOKENS), rel=1e-5)
    assert (found["tokens_per_sample"], found["context_window"], found["sample_break_mode"]) == (5, 0, "none")
    assert f"perplexity {found['ppl']:.2f} per word (14 words, 18 tokens" in capsys.readouterr().out


def test_shorter_blocks_and_context_windows(trained, tmp_path):
    assert evaluate_lm.main(arguments(trained, "--out", tmp_path / "short", "--tokens-per-sample", 3)) == 0
    assert result(tmp_path / "short")["loss"] * WORDS == pytest.approx(plain_loss(trained[1], 3), rel=1e-5)
    assert evaluate_lm.main(arguments(trained, "--out", tmp_path / "window", "--context-window", 3)) == 0
    windowed = result(tmp_path / "window")
    assert windowed["loss"] * WORDS == pytest.approx(plain_loss(trained[1], 5, context=3), rel=1e-5)
    assert windowed["context_window"] == 3 and windowed["tokens"] == TOKENS


def test_finished_results_stay_unless_overwritten(trained, tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluate_lm.main(arguments(trained, "--out", out)) == 0
    before = (out / "result.json").stat().st_mtime_ns
    assert evaluate_lm.main(arguments(trained, "--out", out)) == 0
    assert (out / "result.json").stat().st_mtime_ns == before
    assert evaluate_lm.main(arguments(trained, "--out", out, "--context-window", 1)) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert evaluate_lm.main(arguments(trained, "--out", out, "--context-window", 1, "--overwrite")) == 0
    assert result(out)["context_window"] == 1


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--tokens-per-sample", 6], "--tokens-per-sample 6 does not fit the model; give 1 to 5"),
        (["--context-window", 5], "--context-window 5 leaves nothing to predict; give 0 to 4"),
        (["--subset", "none"], "none.idx is missing"),
        (["--checkpoint", "none.pt"], "none.pt is no checkpoint file"),
        (["--max-tokens", 5, "--", "--num-shards", 2], "of 18 tokens, which says nothing about the others"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(trained, tmp_path, capsys, flags, message):
    assert evaluate_lm.main(arguments(trained, "--out", tmp_path / "out", *flags)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_table_2_of_a_text_with_the_real_programs(toy_text, tmp_path, capfd):
    """reproduce.py trains by the recipe, scores and reports."""
    command = ["table2", "--dataset", "text", "--norms", "pn", "--data", str(toy_text), "--dir", str(tmp_path / "runs")]
    assert reproduce.main([*command, "--", "--cpu", "--max-epoch", "1", "--num-workers", "0"]) == 0
    report = re.sub(" +", " ", capfd.readouterr().out)
    run = tmp_path / "runs/text/pn-seed1"
    found = result(run / "checkpoints/test")
    assert found["tokens_per_sample"] == 32 and found["subwords"] is None and found["words"] == found["tokens"]
    assert "| norm | paper, Penn Treebank | perplexity |" in report and f"| {found['ppl']:.2f} |" in report
    assert "47.6" in report
    assert "per word, blocks of 32, context window 0" in (tmp_path / "runs/text/table2.md").read_text()


def test_a_model_that_leaks_is_refused_unless_asked_for_and_marked(trained, tmp_path, capsys):
    run = LMRun(trained[0] / "bin", "--tokens-per-sample", 5, "--no-causal-mask")
    run.train(3)
    run.trainer.consolidate_optimizer()
    run.trainer.save_checkpoint(str(tmp_path / "leak.pt"), {})
    words = ["--data", str(trained[0] / "bin"), "--checkpoint", str(tmp_path / "leak.pt"), "--cpu"]
    assert evaluate_lm.main(words) == 1
    assert "was trained with --no-causal-mask" in capsys.readouterr().err
    assert evaluate_lm.main([*words, "--leaking", "--out", str(tmp_path / "out")]) == 0
    found = result(tmp_path / "out")
    assert found["leaking"] and found["scores"]["ppl"]["signature"].startswith("LEAKING")
    assert found["loss"] * WORDS == pytest.approx(plain_loss(run, 5), rel=1e-5)
    assert "LEAKING: without causal mask" in capsys.readouterr().out
    assert evaluate_lm.main(arguments(trained, "--leaking", "--out", tmp_path / "masked")) == 0
    assert not result(tmp_path / "masked")["leaking"]  # nothing leaks


def test_table_2_without_mask_with_the_real_programs(toy_text, tmp_path, capfd):
    command = ["leak", "--dataset", "text", "--norms", "ln", "--data", str(toy_text), "--dir", str(tmp_path / "runs")]
    assert reproduce.main([*command, "--", "--cpu", "--max-epoch", "1", "--num-workers", "0"]) == 0
    report = re.sub(" +", " ", capfd.readouterr().out)
    assert "| LN (leaks) | 53.2 |" in report and "These models see the words that they are to predict" in report
    run = tmp_path / "runs/text/ln-leak-seed1"
    assert result(run)["label"] == "LN (leaks)" and result(run / "checkpoints/test")["leaking"]
    assert "--no-causal-mask" in (run / "checkpoints/command.txt").read_text()
    assert "LEAKING" in (tmp_path / "runs/text/leak.md").read_text()


@pytest.mark.slow  # a whole process for one number
def test_fairseq_eval_lm_has_the_same_perplexity(trained, tmp_path):
    assert evaluate_lm.main(arguments(trained, "--out", tmp_path / "out")) == 0
    flags = [str(trained[0] / "bin"), "--path", str(trained[0] / "model.pt"), "--tokens-per-sample", "5", "--cpu"]
    program = str(Path(sys.executable).parent / "fairseq-eval-lm")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [program, *flags, "--user-dir", USER_DIR]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert "Perplexity: {:.2f}".format(result(tmp_path / "out")["ppl_per_token"]) in done.stdout.decode()


def test_table_2_has_the_papers_rows_and_its_data(tmp_path, capsys):
    for dataset, published in (("ptb", [53.2, 60.7, 55.3, 47.6]), ("wikitext103", [20.9, 27.2, 21.3, 17.9])):
        table = catalogue.find_table("table2", dataset)
        rows = catalogue.table_rows(table, dataset, table.norms, {})
        assert [row.norm for row in rows] == ["ln", "bn", "pnv", "pn"] and table.metric == ("ppl", "perplexity", -1)
        assert [catalogue.published(row.norm, dataset) for row in rows] == published
        assert data.command(dataset, tmp_path, None)[3:] == ["lm", dataset, "--out", str(tmp_path)]
    assert reproduce.main(["table2", "--dataset", "text", "--dir", str(tmp_path)]) == 1
    assert "--dataset text needs --data BIN" in capsys.readouterr().err
    assert reproduce.main(["table1", "--dataset", "ptb", "--dir", str(tmp_path)]) == 1
    assert "table1 has no --dataset ptb" in capsys.readouterr().err


def test_scoring_leaves_out_what_is_not_trained(tmp_path, capsys):
    assert score_runs.main(["--dir", str(tmp_path), "--data", "none"]) == 1
    assert "has no training" in capsys.readouterr().err
    (tmp_path / "pn-1").mkdir()
    (tmp_path / "pn-1" / "experiment.json").write_text('{"norm": "pn", "seed": 1, "preset": "ptb"}')
    assert score_runs.main(["--dir", str(tmp_path), "--data", "none"]) == 1
    assert "pn-1 has no score: its training is none" in capsys.readouterr().err


@pytest.mark.parametrize("preset, arch_flags", [("ptb", "--label-smoothing 0.1"), ("wikitext103", "--adaptive-input")])
def test_recipes_become_flags(toy_text, tmp_path, capsys, preset, arch_flags):
    command = ["--preset", preset, "--norm", "bn", "--data", str(toy_text), "--save-dir", str(tmp_path / "run")]
    assert train.main([*command, "--dry-run"]) == 0
    call = capsys.readouterr().out
    assert "--task language_modeling" in call and "--norm bn" in call and arch_flags in call
    assert train.main([*command, "--dry-run", "--", "--norm", "ln"]) == 1
    assert "--norm cannot come after --" in capsys.readouterr().err


def test_missing_text_is_found_before_training(toy_data, toy_text, tmp_path, capsys):
    command = ["--preset", "ptb", "--norm", "pn", "--save-dir", str(tmp_path / "run"), "--dry-run", "--data"]
    assert train.main([*command, str(toy_data)]) == 1
    assert "has no train text; data_prep lm prepares text" in capsys.readouterr().err
    assert train.main([*command, str(tmp_path / "none")]) == 1
    assert "is no folder; data_prep lm makes one" in capsys.readouterr().err
