"""score_runs.py, which reproduce.py calls, on folders written here."""

import json

import pytest

from powernorm_fairseq.experiments import recipes
from powernorm_fairseq.experiments import score_runs as score
from powernorm_fairseq.experiments.trainings import trainings


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
    monkeypatch.setattr(score, "score", lambda training, data, flags: scored.append((training.seed, data, flags)))
    assert score.main(["--dir", str(folder), "--data", "bin", "--", "--beam", "1"]) == 1  # pn has no score
    assert scored == [(1, "bin", ["--beam", "1"]), (2, "bin", ["--beam", "1"])]
    assert "pn-1 is left out: running" in capsys.readouterr().err


def test_as_many_epochs_are_averaged_as_the_recipe_keeps(folder, monkeypatch):
    training = trainings(folder)[0]
    calls = []
    monkeypatch.setattr(score.average, "main", lambda words: calls.append(words) or 0)
    assert score.checkpoint(training).name == "checkpoint_last.pt"
    usual = str(recipes.compose("demo", "ln")["checkpoint"]["keep_last_epochs"])
    for count, expected in ((2, "2"), (9, usual)):
        for epoch in range(count):
            (training.folder / f"checkpoint{epoch}.pt").touch()
        (training.folder / "checkpoint_best.pt").touch()
        assert score.checkpoint(training).name == "averaged.pt"
        assert calls[-1][calls[-1].index("--num-epoch-checkpoints") + 1] == expected
    (training.folder / "averaged.pt").touch()
    assert score.checkpoint(training).name == "averaged.pt" and len(calls) == 2  # newer than all: kept
