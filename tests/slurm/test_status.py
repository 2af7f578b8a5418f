"""status.py and score.py on folders written here."""

import json
import os

import pytest

from scripts import train_recipe
from scripts.slurm import score, status
from scripts.slurm.table import Table, trainings

LOG = """\
train: 2026-01-01 train.sh
2026-01-01 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "num_updates": "100"}
2026-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "5.25", "valid_num_updates": "120"}
2026-01-01 | INFO | train_inner | {"epoch": 2, "loss": "4.5", "num_updates": "200"}
2026-01-01 | INFO | train_inner | {"epoch": 2, "lo
"""


def write_training(folder, norm, seed, state=None, bleu=None):
    run = folder / f"{norm}-{seed}"
    run.mkdir(parents=True)
    (run / "experiment.json").write_text(json.dumps({"preset": "demo", "norm": norm, "seed": seed}))
    (run / "train.log").write_text(LOG)
    if state:
        (run / "status.json").write_text(json.dumps({"state": state}))
    if bleu is not None:
        (run / "test").mkdir()
        scores = {"tokenized": {"score": bleu}, "sacrebleu": {"score": bleu + 1}}
        (run / "test" / "result.json").write_text(json.dumps({"scores": scores}))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    Table("demo", ["ln", "pn"], [1, 2], "bin", [], {"train": "70", "score": "71"}).save(folder)
    write_training(folder, "ln", 1, "finished", 30.0)
    write_training(folder, "ln", 2, "finished", 32.0)
    write_training(folder, "pn", 1, "running")
    return folder


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """A pretended squeue: of the array two have ended, one runs, one waits; so does the job that scores."""
    file = tmp_path / "squeue"
    file.write_text(
        "#!/usr/bin/env bash\n"
        '[[ "$*" != *"--states=all --jobs 70 "* ]] || echo "70|0|COMPLETED|None|9:07" || exit 1\n'
        '[[ "$*" != *"--jobs 70 "* ]] || printf "70|1|TIMEOUT|None|8:07\\n70|2|RUNNING|None|1:07\\n"\n'
        '[[ "$*" != *"--jobs 70 "* ]] || printf "70|3|PENDING|Priority|0:00\\n"\n'
        '[[ "$*" != *"--jobs 71 "* ]] || echo "71|N/A|PENDING|Dependency|0:00"\n'
    )
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_queue_progress_and_scores_at_a_glance(folder, squeue, capsys):
    assert status.main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[0]) == ["norm", "seed", "queue", "state", "updates", "loss", "valid_loss", *status.METRICS]
    assert cells(lines[2]) == ["ln", "1", "", "finished", "200", "4.5", "5.25", "30.00", "31.00"]
    assert cells(lines[3])[:4] == ["ln", "2", "timeout 8:07", "finished"]
    assert cells(lines[4]) == ["pn", "1", "running 1:07", "running", "200", "4.5", "5.25", "", ""]
    assert cells(lines[5])[:4] == ["pn", "2", "pending (Priority)", "none"]
    assert cells(lines[6]) == ["ln", "mean of 2", "", "", "", "", "", "31.00 ± 1.41", "32.00 ± 1.41"]
    assert lines[7] == "scoring: pending (Dependency)"


def test_json(folder, squeue, capsys):
    assert status.main([str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["tokenized"] for row in rows] == [30.0, 32.0, None, None]


def test_without_slurm_the_files_tell(folder, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert status.main([str(folder)]) == 0
    assert "queue" not in capsys.readouterr().out


def test_trainings_that_nobody_submitted_are_found(folder):
    write_training(folder, "bn", 9)
    (folder / "table.json").unlink()
    assert [training.folder.name for training in trainings(folder)] == ["bn-9", "ln-1", "ln-2", "pn-1"]


def test_folder_without_a_table(tmp_path, capsys):
    assert status.main([str(tmp_path)]) == 1
    assert "holds no table" in capsys.readouterr().err


def test_scoring_leaves_out_what_is_not_finished(folder, capsys, monkeypatch):
    scored = []
    monkeypatch.setattr(score, "score", lambda training, data, flags: scored.append((training.seed, data, flags)))
    assert score.main(["--dir", str(folder), "--", "--beam", "1"]) == 1  # pn has no score
    assert scored == [(1, "bin", ["--beam", "1"]), (2, "bin", ["--beam", "1"])]
    captured = capsys.readouterr()
    assert "pn-1 is left out: running" in captured.err and "| ln" in captured.out
    score.main(["--dir", str(folder), "--data", "other"])
    assert scored[-1] == (2, "other", [])


def test_as_many_epochs_are_averaged_as_the_recipe_keeps(folder, monkeypatch):
    training = trainings(folder)[0]
    calls = []
    monkeypatch.setattr(score.average_checkpoints, "main", lambda words: calls.append(words) or 0)
    assert score.checkpoint(training).name == "checkpoint_last.pt"
    usual = str(train_recipe.compose("demo", "ln")["checkpoint"]["keep_last_epochs"])
    for count, expected in ((2, "2"), (9, usual)):
        for epoch in range(count):
            (training.folder / f"checkpoint{epoch}.pt").touch()
        (training.folder / "checkpoint_best.pt").touch()
        assert score.checkpoint(training).name == "averaged.pt"
        assert calls[-1][calls[-1].index("--num-epoch-checkpoints") + 1] == expected
    (training.folder / "averaged.pt").touch()
    assert score.checkpoint(training).name == "averaged.pt" and len(calls) == 2  # newer than all: kept
