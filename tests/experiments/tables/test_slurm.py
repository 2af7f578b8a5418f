"""reproduce.py --launcher slurm: which jobs it submits; slurm/test_cluster.py runs them on a real Slurm."""

import sys

from powernorm_fairseq.experiments.slurm import submit
from powernorm_fairseq.experiments.tables import reproduce
from tests.experiments.tables.table_results import result, write_run


def words(data, tmp_path, *more):
    own = ["table1", "--dataset", "iwslt14", "--norms", "ln,pn", "--seeds", "1,2", "--data", data]
    return [str(word) for word in (*own, "--dir", tmp_path / "runs", "--launcher", "slurm", *more)]


def test_a_job_for_each_training_that_is_missing_and_one_after_them(sbatch, data, tmp_path, capsys):
    length = {"--max-update": ["100000"], "--patience": ["5"]}
    write_run(tmp_path / "runs" / "iwslt14", result("iwslt14", "ln", 1, 35.0, length=length))
    more = ["--gpus", "1", "--time", "12:00:00", "--partition", "gpu", "--", "--fp16"]
    assert reproduce.main(words(data, tmp_path, *more)) == 0
    jobs = tmp_path / "runs" / "iwslt14" / "slurm"
    assert sbatch() == [
        *(f"--parsable {jobs}/{name}.sbatch" for name in ("pn-seed1", "ln-seed2", "pn-seed2")),
        f"--parsable --dependency=afterany:1:2:3 {jobs}/report.sbatch",
    ]
    out = capsys.readouterr().out
    assert "pn-seed1: job 1" in out and "ln-seed1" not in out and "report: job 4, after 3 trainings" in out
    text = (jobs / "pn-seed2.sbatch").read_text()
    assert "--gpus-per-node=1" in text and "--time=12:00:00" in text and "--partition=gpu" in text
    save_dir = tmp_path / "runs" / "iwslt14" / "pn-seed2" / "checkpoints"
    assert f"--norm pn --seed 2 --data {data} --save-dir {save_dir} -- --fp16" in text
    report = (jobs / "report.sbatch").read_text()
    assert f"--data {data} --dir {tmp_path}/runs --no-training -- --fp16" in report and "#SBATCH --gpus=1" in report


def test_trainings_in_the_queue_are_not_submitted_again(sbatch, data, tmp_path, capsys, monkeypatch):
    assert reproduce.main(words(data, tmp_path)) == 0
    squeue = tmp_path / "programs" / "squeue"
    squeue.write_text('#!/usr/bin/env bash\n[[ "$*" != *"--jobs 2 "* ]] || echo "2|RUNNING|None|1:07"\n')
    squeue.chmod(0o755)
    capsys.readouterr()
    assert reproduce.main(words(data, tmp_path)) == 0
    out = capsys.readouterr().out
    assert "pn-seed1: job 2 is running 1:07" in out and "ln-seed1: job 6" in out  # the others' jobs are gone
    assert sbatch()[-1].startswith("--parsable --dependency=afterany:6:2:")


def test_what_would_wait_in_vain_is_replaced(sbatch, data, tmp_path, capsys, monkeypatch):
    """A training that Slurm holds for ever, and a report that would not wait for the trainings of today."""
    assert reproduce.main(words(data, tmp_path)) == 0
    held, waiting = "2|PENDING|launch failed requeued held|0:00", "5|PENDING|Dependency|0:00"
    squeue = f'case "$*" in *"--jobs 2 "*) echo "{held}";; *"--jobs 5 "*) echo "{waiting}";; esac'
    for name, text in (("squeue", squeue), ("scancel", f'echo "$*" >>{tmp_path}/cancelled')):
        program = tmp_path / "programs" / name
        program.write_text(f"#!/usr/bin/env bash\n{text}\n")
        program.chmod(0o755)
    capsys.readouterr()
    assert reproduce.main(words(data, tmp_path)) == 0
    out = capsys.readouterr().out
    assert "pn-seed1: job 7" in out and "report: job 10, after 4 trainings" in out
    assert (tmp_path / "cancelled").read_text() == "2\n5\n"


def test_dry_run_prints_the_jobs_and_writes_nothing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHON", sys.executable)
    assert reproduce.main(words(data, tmp_path, "--dry-run")) == 0
    assert "== sbatch --parsable --dependency=afterany:JOB" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_lack_of_sbatch_is_one_sentence(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(submit, "check_training", lambda args, words: [])
    monkeypatch.setenv("PATH", "")
    assert reproduce.main(words(data, tmp_path)) == 1
    assert capsys.readouterr().err.strip() == (
        "reproduce: sbatch was not found; is this a machine of a Slurm cluster?"
    )
