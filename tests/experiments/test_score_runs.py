"""score_runs.py, which reproduce.py calls, on folders written here."""

import json

import pytest

from powernorm_fairseq.experiments import recipes, score_runs


@pytest.fixture
def folder(tmp_path):
    for norm, seed, state in (("ln", 1, "finished"), ("ln", 2, "finished"), ("pn", 1, "running")):
        run = tmp_path / f"{norm}-{seed}"
        run.mkdir()
        (run / "experiment.json").write_text(json.dumps({"preset": "demo", "norm": norm, "seed": seed}))
        (run / "status.json").write_text(json.dumps({"state": state}))
    return tmp_path


def test_scoring_leaves_out_what_is_not_finished(folder, capsys, monkeypatch):
    scored = []
    monkeypatch.setattr(score_runs, "score", lambda run, about, data, flags: scored.append((run.name, data, flags)))
    assert score_runs.main(["--dir", str(folder), "--data", "bin", "--", "--beam", "1"]) == 1  # pn has no score
    assert scored == [("ln-1", "bin", ["--beam", "1"]), ("ln-2", "bin", ["--beam", "1"])]
    assert "pn-1 has no score: its training is running" in capsys.readouterr().err


@pytest.mark.parametrize("preset, program", [("demo", "evaluate"), ("ptb", "evaluate_lm")])
def test_language_models_are_scored_by_perplexity(tmp_path, monkeypatch, preset, program):
    calls = []
    for name in ("evaluate", "evaluate_lm"):
        module = getattr(score_runs, name)
        monkeypatch.setattr(module, "main", lambda words, name=name: calls.append((name, words)) or 0)
    score_runs.score(tmp_path, {"preset": preset, "norm": "pn", "flags": {}}, "bin", ["--cpu"])
    ((called, words),) = calls
    assert called == program and words[-2:] == ["--", "--cpu"] and str(tmp_path / "test") in words


def test_as_many_epochs_are_averaged_as_the_recipe_keeps(folder, monkeypatch):
    run, about = folder / "ln-1", {"preset": "demo", "norm": "ln"}
    calls = []
    monkeypatch.setattr(score_runs.average, "main", lambda words: calls.append(words) or 0)
    assert score_runs.averaged(run, about).name == "checkpoint_last.pt"
    usual = str(recipes.compose("demo", "ln")["checkpoint"]["keep_last_epochs"])
    for count, expected in ((2, "2"), (9, usual)):
        for epoch in range(count):
            (run / f"checkpoint{epoch}.pt").touch()
        (run / "checkpoint_best.pt").touch()
        assert score_runs.averaged(run, about).name == "averaged.pt"
        assert calls[-1][calls[-1].index("--num-epoch-checkpoints") + 1] == expected
    (run / "averaged.pt").touch()
    assert score_runs.averaged(run, about).name == "averaged.pt" and len(calls) == 2  # newer than all: kept
