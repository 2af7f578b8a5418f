"""submit.py without a cluster: what it writes and how it calls sbatch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.slurm import submit

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "scripts" / "slurm"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def table(data, folder, *more):
    words = ["table", "--preset", "iwslt14", "--norms", "ln,pn", "--seeds", "1,2,3", "--data", data, "--dir", folder]
    return [str(word) for word in (*words, *more)]


def train(data, folder, *more):
    words = ["train", "--preset", "wmt14", "--norm", "pn", "--data", data, "--save-dir", folder, *more]
    return [str(word) for word in words]


def options(file):
    """The options of a job file."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert len(lines) == len({line.split("=")[0] for line in lines})  # each of them once
    return {line.split()[1].partition("=")[0]: line.split()[1].partition("=")[2] for line in lines}


def test_table_is_an_array_and_a_job_after_it(sbatch, data, tmp_path, capsys):
    assert submit.main(table(data, tmp_path / "t", "--max-parallel", 2, "--", "--max-update", "7")) == 0
    jobs = tmp_path / "t" / "slurm"
    assert sbatch() == [
        f"--parsable {jobs}/table.sbatch",
        f"--parsable --dependency=afterany:1 {jobs}/score.sbatch",
    ]
    assert options(jobs / "table.sbatch")["--array"] == "0-5%2"
    noted = json.loads((tmp_path / "t" / "table.json").read_text())
    assert noted["jobs"] == {"train": "1", "score": "2"} and noted["flags"] == ["--max-update", "7"]
    assert "6 trainings" in capsys.readouterr().out


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
        ([], "--requeue", ""),
        ([], "--signal", "B:USR1@300"),
        ([], "--job-name", "wmt14-pn-1"),
    ],
)
def test_what_the_cluster_is_asked_for(words, option, value, sbatch, data, tmp_path):
    assert submit.main(train(data, tmp_path / "t", *words)) == 0
    assert options(tmp_path / "t" / "slurm" / "train.sbatch")[option] == value


def test_job_file_calls_train_sh_with_the_arguments(sbatch, data, tmp_path):
    """The written file, run by hand with a pretended srun."""
    words = ["--seed", "4", "--nproc", "2", "--tensorboard", "--", "--adam-betas", "(0.9, 0.98)"]
    assert submit.main(train(data, tmp_path / "t", *words)) == 0
    srun = tmp_path / "programs" / "srun"
    srun.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    env = {**os.environ, "SLURM_JOB_ID": "1", "SRUN_OPTIONS": "--mpi=none"}
    job = tmp_path / "t" / "slurm" / "train.sbatch"
    printed = subprocess.run(["bash", str(job)], env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert printed.splitlines() == [
        *("--kill-on-bad-exit=0", "--wait=60", "--mpi=none", str(ROOT / "scripts/train.sh")),
        *("--preset", "wmt14", "--norm", "pn", "--data", str(data), "--save-dir", str(tmp_path / "t")),
        *("--seed", "4", "--nproc", "2", "--tensorboard"),
        *("--", "--adam-betas", "(0.9, 0.98)"),
    ]


@pytest.mark.parametrize("index, norm, seed", [(0, "ln", 1), (2, "ln", 3), (3, "pn", 1), (5, "pn", 3)])
def test_element_of_the_array_is_a_norm_and_a_seed(index, norm, seed, sbatch, data, tmp_path):
    assert submit.main(table(data, tmp_path / "t", "--", "--fp16")) == 0
    srun = tmp_path / "programs" / "srun"
    srun.write_text('#!/usr/bin/env bash\necho "$*"\n')
    srun.chmod(0o755)
    env = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": str(index)}
    command = ["bash", str(tmp_path / "t" / "slurm" / "table.sbatch")]
    printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert f"--norm {norm} --seed {seed} --save-dir {tmp_path}/t/{norm}-{seed} -- --fp16" in printed
    beyond = subprocess.run(command, env={**env, "SLURM_ARRAY_TASK_ID": "6"}, stderr=subprocess.PIPE)
    assert beyond.returncode == 1 and b"beyond 2 norms x 3 seeds" in beyond.stderr


def test_shipped_files_work_by_hand(tmp_path):
    """From the top of the checkout, and with a sentence elsewhere."""
    (tmp_path / "srun").write_text('#!/usr/bin/env bash\necho "$*"\n')
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(ROOT)}
    command = ["bash", str(SLURM / "train.sbatch"), "--preset", "demo"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    assert f"{ROOT}/scripts/train.sh --preset demo" in done.stdout.decode()
    for name in ("train", "table", "score", "report"):
        command = ["bash", str(SLURM / f"{name}.sbatch")]
        done = subprocess.run(command, env={**env, "SLURM_SUBMIT_DIR": str(tmp_path)}, stderr=subprocess.PIPE)
        assert done.returncode == 1 and b"is not the checkout" in done.stderr


def test_dry_run_prints_and_does_nothing(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert submit.main(table(data, tmp_path / "t", "--dry-run", "--gpus", 1)) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --array=0-5\n" in printed and "#SBATCH --gpus=1\n" in printed
    assert f"sbatch --parsable --dependency=afterany:JOB {tmp_path}/t/slurm/score.sbatch" in printed
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--norms", "ln,layer"], "--norms layer is not known; choose from bn, "),
        (["--seeds", "1,x"], "--seeds 1,x are no numbers"),
        (["--data", "/nowhere"], "--data /nowhere is no folder"),
    ],
)
def test_bad_input_is_one_sentence(words, message, data, tmp_path, capsys):
    assert submit.main([*table(data, tmp_path / "t"), *words]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "t").exists()


def test_refusal_and_lack_of_sbatch_are_reported(sbatch, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("REFUSE", "invalid account")
    assert submit.main(train(data, tmp_path / "t")) == 1
    assert capsys.readouterr().err.strip().endswith("train.sbatch: invalid account")
    monkeypatch.setenv("PATH", "")
    assert submit.main(train(data, tmp_path / "t")) == 1
    assert "sbatch was not found" in capsys.readouterr().err


def test_folder_of_another_table(sbatch, data, tmp_path, capsys):
    assert submit.main(table(data, tmp_path / "t")) == 0
    assert submit.main([*table(data, tmp_path / "t"), "--preset", "multi30k"]) == 1
    assert "is the folder of another table (iwslt14" in capsys.readouterr().err


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
