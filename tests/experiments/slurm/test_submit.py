"""submit.py without a cluster: what it writes and how it calls sbatch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from powernorm_fairseq.experiments.slurm import submit

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "scripts" / "slurm"


def train(data, folder, *more):
    words = ["--preset", "iwslt14", "--norm", "pn", "--data", data, "--save-dir", folder, *more]
    return [str(word) for word in words]


def options(file):
    """The options of a job file."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert len(lines) == len({line.split("=")[0] for line in lines})  # each of them once
    return {line.split()[1].partition("=")[0]: line.split()[1].partition("=")[2] for line in lines}


@pytest.mark.parametrize(
    "words, option, value",
    [
        (["--partition", "gpu"], "--partition", "gpu"),
        (["--account", "me"], "--account", "me"),
        (["--qos", "low"], "--qos", "low"),
        (["--nodes", "16"], "--nodes", "16"),
        (["--gpus", "8"], "--gpus-per-node", "8"),
        (["--tasks-per-node", "4"], "--ntasks-per-node", "4"),
        (["--cpus-per-task", "6"], "--cpus-per-task", "6"),
        (["--time", "24:00:00"], "--time", "24:00:00"),
        (["--warning", "60"], "--signal", "B:USR1@60"),
        (["--sbatch-option", "constraint=a100"], "--constraint", "a100"),
        (["--sbatch-option", "exclusive"], "--exclusive", ""),
        (["--sbatch-option", "train:constraint=a100"], "--constraint", "a100"),
        (["--sbatch-option", "report:constraint=a100"], "--constraint", None),
        (["--gpus", "8"], "--cpus-per-task", "32"),
        (["--gpus", "8", "--tasks-per-node", "8"], "--cpus-per-task", "4"),
        (["--gpus", "8", "--cpus-per-task", "64"], "--cpus-per-task", "64"),
        ([], "--cpus-per-task", None),
        (["--gpus", "2"], "--mem-per-gpu", "16G"),
        (["--gpus", "2"], "--exclusive", None),
        (["--gpus", "2", "--mem", "100G"], "--mem", "100G"),
        (["--gpus", "8", "--nodes", "16"], "--exclusive", ""),
        (["--gpus", "8", "--nodes", "16"], "--mem", "0"),
        (["--gpus", "8", "--nodes", "16"], "--mem-per-gpu", None),
        ([], "--requeue", ""),
        ([], "--signal", "B:USR1@300"),
        ([], "--job-name", "iwslt14-pn-1"),
    ],
)
def test_what_the_cluster_is_asked_for(words, option, value, sbatch, data, tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "check_training", lambda args, words: [])  # starts a program; the tests below have it
    assert submit.main(train(data, tmp_path / "t", *words)) == 0
    assert options(tmp_path / "t" / "slurm" / "train.sbatch").get(option) == value


def test_job_file_trains_with_the_arguments(sbatch, data, tmp_path):
    """The written file, run by hand with a pretended srun."""
    words = ["--seed", "4", "--nproc", "2", "--precision", "bf16", "--tensorboard"]
    words += ["--", "--adam-betas", "(0.9, 0.98)"]
    assert submit.main(train(data, tmp_path / "t", *words)) == 0
    srun = tmp_path / "programs" / "srun"
    srun.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    env = {**os.environ, "SLURM_JOB_ID": "1", "SRUN_OPTIONS": "--mpi=none", "SLURM_CPUS_PER_TASK": "32"}
    job = tmp_path / "t" / "slurm" / "train.sbatch"
    printed = subprocess.run(["bash", str(job)], env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert printed.splitlines() == [
        *("--kill-on-bad-exit=0", "--wait=60", "--mpi=none", "--cpus-per-task=32"),
        *("bash", str(submit.JOBS / "powernorm.sh"), "train"),
        *("--preset", "iwslt14", "--norm", "pn", "--data", str(data), "--save-dir", str(tmp_path / "t")),
        *("--seed", "4", "--nproc", "2", "--precision", "bf16", "--tensorboard"),
        *("--", "--adam-betas", "(0.9, 0.98)"),
    ]


def test_hook_is_read_before_the_training_and_works_on_every_machine(sbatch, data, tmp_path):
    hook = tmp_path / "hook.sh"
    hook.write_text("export GREETING=hello\nSRUN_OPTIONS=--mpi=pmix\non_each_machine() { echo staging; }\n")
    assert submit.main(train(data, tmp_path / "t", "--hook", hook)) == 0
    srun = tmp_path / "programs" / "srun"
    srun.write_text('#!/usr/bin/env bash\necho "$GREETING $1 $2 $3"\n[[ "$*" != *on_each* ]] || "${@:3}"\n')
    srun.chmod(0o755)
    env = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3"}
    job = tmp_path / "t" / "slurm" / "train.sbatch"
    printed = subprocess.run(["bash", str(job)], env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert printed.splitlines() == [
        "hello --ntasks=3 --ntasks-per-node=1 bash", "staging", "hello --kill-on-bad-exit=0 --wait=60 --mpi=pmix"
    ]  # fmt: skip


def test_shipped_files_work_by_hand(tmp_path):
    """From the top of the checkout, and with a sentence elsewhere."""
    (tmp_path / "srun").write_text('#!/usr/bin/env bash\necho "$*"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
    command = ["bash", str(SLURM / "train.sbatch"), "--preset", "demo"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    assert f"{ROOT}/scripts/slurm/powernorm.sh train --preset demo" in done.stdout.decode()
    for name in ("train", "report"):
        command = ["bash", str(SLURM / f"{name}.sbatch")]
        done = subprocess.run(command, env={**env, "SLURM_SUBMIT_DIR": str(tmp_path)}, stderr=subprocess.PIPE)
        assert done.returncode == 1 and b"is not the checkout" in done.stderr


def test_dry_run_prints_and_does_nothing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHON", sys.executable)
    assert submit.main(train(data, tmp_path / "t", "--dry-run", "--gpus", 1)) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --gpus-per-node=1\n" in printed and "== sbatch --parsable " in printed
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--data", "/nowhere"], "--data /nowhere is no folder"),
        (["--time", "5"], "--time 5 is no longer than the 300 s before it at which a job is warned (--warning)"),
        (["--time", "0-0:04", "--warning", "240"], "is no longer than the 240 s"),
        (["--hook", "/nowhere"], "--hook /nowhere is no file"),
        (["--precision", "fp16"], "--precision fp16 needs a GPU"),
        (["--", "--save-dir", "x"], "--save-dir cannot come after --"),
        (["--", "--target-lang", "fr"], "has no train data for de to fr"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_not_submitted(words, message, sbatch, data, tmp_path, capsys):
    assert submit.main([*train(data, tmp_path / "t"), *words]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1 and not (tmp_path / "t").exists()


def test_what_the_training_would_warn_of_is_said_at_once(sbatch, data, tmp_path, capsys):
    assert submit.main(train(data, tmp_path / "t", "--gpus", 8, "--nodes", 2, "--precision", "fp16")) == 0
    assert "statistics are taken over 256 tokens, not over the recipe's 4096" in capsys.readouterr().err


@pytest.mark.parametrize(
    "time, wanted",
    [("90", 5400), ("90:30", 5430), ("1:02:03", 3723), ("2-3", 183600), ("1-0:30", 88200), ("1-1:1:1", 90061),
     ("UNLIMITED", None)],
)  # fmt: skip
def test_times_as_sbatch_reads_them(time, wanted):
    assert submit.seconds(time) == wanted


def test_refusal_and_lack_of_sbatch_are_reported(sbatch, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("REFUSE", "invalid account")
    assert submit.main(train(data, tmp_path / "t")) == 1
    assert capsys.readouterr().err.strip().endswith("train.sbatch: invalid account")
    monkeypatch.setattr(submit, "check_training", lambda args, words: [])
    monkeypatch.setenv("PATH", "")
    assert submit.main(train(data, tmp_path / "t")) == 1
    assert "sbatch was not found" in capsys.readouterr().err


@pytest.mark.parametrize("script", sorted(path.name for path in SLURM.glob("*.py") if path.stat().st_mode & 0o100))
def test_scripts_answer_help(script):
    done = subprocess.run([sys.executable, str(SLURM / script), "--help"], stdout=subprocess.PIPE, check=True)
    assert b"usage:" in done.stdout


def test_run_sh_says_where_it_belongs():
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run([str(SLURM / "run.sh"), "true"], env=env, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"this is no Slurm job" in done.stderr
    done = subprocess.run([str(SLURM / "run.sh"), "--help"], env=env, stdout=subprocess.PIPE, check=True)
    assert b"usage" in done.stdout
