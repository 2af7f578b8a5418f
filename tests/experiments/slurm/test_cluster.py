"""On a real Slurm: jobs that are warned, pre-empted, cancelled or failing, and a table from submission to scores."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TINY = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-layers 1 --decoder-layers 1 --num-workers 0 --max-tokens 100 --log-interval 5 --warmup-updates 20 "
    "--keep-last-epochs 2 --max-epoch 10"
).split()
# Stands for a training: the first time it runs until it is told to stop, the second time it is through at once.
STAND_IN = """#!/usr/bin/env bash
trap 'echo "task $SLURM_PROCID stops" && exit 75' USR1
echo "task $SLURM_PROCID, start ${SLURM_RESTART_COUNT:-0}"
[[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]] || exit 0
for _ in {1..600}; do sleep 0.1; done
"""


def wait_for(condition, timeout, what):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def submit(cluster, *arguments):
    return cluster.call("sbatch", "--parsable", *map(str, arguments))


def stand_in(cluster, folder, text=STAND_IN):
    """Submits a job of two tasks by run.sh; returns its id and its output file, once it is running."""
    script, out = folder / "stand-in", folder / "out"
    script.write_text(text)
    script.chmod(0o755)
    job_file = folder / "job"  # as the .sbatch files do it: what Slurm signals is run.sh itself
    job_file.write_text(f"#!/usr/bin/env bash\nSRUN_OPTIONS=--wait=2 exec {ROOT}/scripts/slurm/run.sh {script}\n")
    job = submit(cluster, "--ntasks=2", "--requeue", "--open-mode=append", f"--output={out}", job_file)
    assert job
    return job, out


def started(out, count=2):
    return out.exists() and out.read_text().count(", start") >= count


def test_warned_job_goes_back_into_the_queue_and_on(cluster, tmp_path):
    """The signal of --signal=B:USR1@..., which Slurm sends before a time limit."""
    job, out = stand_in(cluster, tmp_path)
    wait_for(lambda: started(out), 60, cluster.states)
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: cluster.states().get(job) == "COMPLETED", 60, out.read_text)
    text = out.read_text()
    assert "Slurm asks for room; telling the tasks" in text and "back into the queue (restart 1)" in text
    assert all(f"task {task} stops" in text and f"task {task}, start 1" in text for task in (0, 1))


def test_cancelled_job_stays_cancelled(cluster, tmp_path):
    """Its tasks get SIGTERM, and may well save and end with the status of a job that wants to go on."""
    job, out = stand_in(cluster, tmp_path, STAND_IN.replace("USR1", "TERM"))
    wait_for(lambda: started(out), 60, cluster.states)
    cluster.call("scancel", job)
    wait_for(lambda: cluster.states().get(job) == "CANCELLED", 30, cluster.states)
    time.sleep(1)
    assert cluster.states()[job] == "CANCELLED" and "restart 1" not in out.read_text()


def test_failed_task_ends_the_job(cluster, tmp_path):
    failing = "#!/usr/bin/env bash\necho 'x, start'\n[[ $SLURM_PROCID -eq 0 ]] && exit 3\nsleep 600\n"
    job, out = stand_in(cluster, tmp_path, failing)
    wait_for(lambda: cluster.states().get(job) == "FAILED", 60, cluster.states)
    assert "task 0: Exited with exit code 3" in out.read_text()
    assert re.search(r"ExitCode=(3|137|143):0", cluster.call("scontrol", "show", "job", job))  # the highest of all


def test_table_from_submission_to_scores(cluster, toy_data, tmp_path):
    """Two trainings of two tasks each, on two machines; a job of higher priority takes the place of the first."""
    command = [sys.executable, str(ROOT / "scripts/reproduce.py"), "table1", "--dataset", "demo", "--norms", "ln,pn"]
    command += ["--data", str(toy_data), "--dir", str(tmp_path)]
    launch = ["--launcher", "slurm", "--nodes", str(len(cluster.machines)), "--partition", "normal", "--time", "30"]
    launch += ["--tasks-per-node", str(2 // len(cluster.machines)), "--sbatch-option", "report:ntasks=1", "--", *TINY]
    env = {**cluster.env, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *launch], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    folder = tmp_path / "demo"
    jobs = dict(re.findall(r"^([\w-]+): job (\d+)", done.stdout.decode(), re.MULTILINE))

    def outputs():
        found = [f"{file}:\n{file.read_text(errors='replace')[-2000:]}" for file in folder.glob("slurm/*.out")]
        return f"{cluster.states()}\n" + "\n".join(found)

    log = folder / "ln-seed1" / "checkpoints" / "train.log"
    wait_for(log.exists, 60, outputs)  # it is starting, so that it cannot be through before Slurm reacts
    urgent = submit(cluster, "--partition=urgent", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    wait_for(lambda: cluster.states().get(urgent) == "COMPLETED", 90, outputs)
    shown = subprocess.run([*command, "--status"], env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert re.search(r"\| ln-seed1 +\| [a-z]+ .*\| (stopped|running|interrupted) ", shown), shown
    finished = ("COMPLETED", "FAILED", "CANCELLED")
    wait_for(lambda: cluster.states().get(jobs["report"]) in finished, 400, outputs)
    assert cluster.states()[jobs["report"]] == "COMPLETED", outputs()

    assert "| LN" in (folder / "slurm" / f"report-{jobs['report']}.out").read_text()
    for norm in ("ln", "pn"):
        run = folder / f"{norm}-seed1"
        assert json.loads((run / "result.json").read_text())["scores"]["tokenized"]["score"] >= 0
        assert json.loads((run / "checkpoints" / "status.json").read_text())["state"] == "finished"
        assert "world_size': 2" in (run / "checkpoints" / "train.log").read_text(errors="replace")
    first = (folder / "slurm" / f"ln-seed1-{jobs['ln-seed1']}.out").read_text(errors="replace")
    assert "stopping after this update" in first and "back into the queue (restart 1)" in first
    assert "Loaded checkpoint" in first and log.read_text(errors="replace").count("powernorm train") == 2
    if len(cluster.machines) == 2:
        assert f"tcp://{cluster.machines[0]}:" in first  # they met where Slurm's variables say
    assert "Restarts=1" in cluster.call("scontrol", "show", "job", jobs["ln-seed1"])
    shown = subprocess.run([*command, "--status"], env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert re.search(r"\| ln-seed1 .*\| finished .*\| 2 +\| 0 +\|", shown), shown


# Failures

# Stands for a training that fails: it saves (or not) a checkpoint, and fails until its third start.
FAILING = """#!/usr/bin/env bash
echo "task $SLURM_PROCID, start ${SLURM_RESTART_COUNT:-0}"
[[ "${SLURM_RESTART_COUNT:-0}" -lt 2 ]] || exit 0
SAVE
exit 3
"""


def failing(cluster, folder, save, variables=""):
    """Submits a job of one task that fails; returns its id and its output file."""
    script, out, job_file = folder / "stand-in", folder / "out", folder / "job"
    script.write_text(FAILING.replace("SAVE", save))
    script.chmod(0o755)
    (folder / "save").mkdir()
    words = f"{ROOT}/scripts/slurm/run.sh {script} --save-dir {folder}/save"
    job_file.write_text(f"#!/usr/bin/env bash\nexport SRUN_OPTIONS=--wait=2 {variables}\nexec {words}\n")
    job = submit(cluster, "--requeue", "--open-mode=append", f"--output={out}", job_file)
    return job, out


def test_training_that_fails_after_a_checkpoint_is_tried_again(cluster, tmp_path):
    save = f"touch {tmp_path}/save/new && mv {tmp_path}/save/new {tmp_path}/save/checkpoint_last.pt && sleep 1.1"
    job, out = failing(cluster, tmp_path, save)
    wait_for(lambda: cluster.states().get(job) == "COMPLETED", 90, lambda: (cluster.states(), out.read_text()))
    assert out.read_text().count("failed with status 3, and is tried again; back into the queue") == 2
    assert len((tmp_path / "save" / "failures").read_text().splitlines()) == 2


def test_training_that_makes_no_progress_is_not_tried_again(cluster, tmp_path):
    job, out = failing(cluster, tmp_path, "")
    wait_for(lambda: cluster.states().get(job) == "FAILED", 60, lambda: (cluster.states(), out.read_text()))
    assert "failed with status 3 without a new checkpoint; not tried again" in out.read_text()


@pytest.mark.parametrize(
    "variable, words",
    [("POWERNORM_RETRIES=1", "that was done 1 times (POWERNORM_RETRIES)"),
     ("POWERNORM_REQUEUES=1", "it was there 1 times (POWERNORM_REQUEUES)")],
)  # fmt: skip
def test_attempts_are_limited(variable, words, cluster, tmp_path):
    save = f"rm -f {tmp_path}/save/*.pt; date >{tmp_path}/save/checkpoint_last.pt; sleep 1.1"
    job, out = failing(cluster, tmp_path, save, variable)
    wait_for(lambda: cluster.states().get(job) == "FAILED", 60, lambda: (cluster.states(), out.read_text()))
    assert words in out.read_text() and ", start 1" in out.read_text()


@pytest.mark.slow
def test_training_with_a_process_that_hangs_goes_back_into_the_queue_and_on(cluster, toy_data, tmp_path):
    """A process of the training is stopped (SIGSTOP) in the middle of an update."""
    folder = tmp_path / "save"
    command = [sys.executable, str(ROOT / "scripts/slurm/submit.py"), "--preset", "demo", "--norm", "pn"]
    command += ["--nproc", "2", "--data", str(toy_data), "--save-dir", str(folder), "--time", "30"]
    command += ["--cpus-per-task", "1", "--", *TINY, "--max-epoch", "60", "--save-interval", "1", "--cpu"]
    env = {**cluster.env, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "POWERNORM_HANG_MINUTES": "0.15"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    job = re.search(r"job (\d+)", done.stdout.decode()).group(1)
    out = folder / "slurm" / f"{job}.out"
    wait_for((folder / "checkpoint3.pt").exists, 120, lambda: out.read_text()[-3000:])
    ranks = subprocess.run(["pgrep", "-f", f"fairseq-train .*{folder} .*--distributed-rank 1"], stdout=subprocess.PIPE)
    os.kill(int(ranks.stdout.split()[0]), signal.SIGSTOP)
    wait_for(lambda: cluster.states().get(job) == "COMPLETED", 200, lambda: out.read_text()[-3000:])
    text = out.read_text(errors="replace")
    assert "rank 1 is stopped, and no process has made progress for 9 s; all were ended" in text
    assert "failed with status 1, and is tried again; back into the queue (restart 1)" in text
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
