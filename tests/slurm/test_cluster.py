"""On a real Slurm: jobs that are warned, pre-empted, cancelled or failing, and a table from submission to scores."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
    folder = tmp_path / "table"
    submit_py = [sys.executable, str(ROOT / "scripts/slurm/submit.py"), "table", "--preset", "demo"]
    submit_py += ["--norms", "ln,pn", "--seeds", "1", "--data", str(toy_data), "--dir", str(folder)]
    submit_py += ["--nodes", str(len(cluster.machines)), "--tasks-per-node", str(2 // len(cluster.machines))]
    submit_py += ["--partition", "normal", "--time", "30", "--", *TINY]
    env = {**cluster.env, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(submit_py, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    jobs = json.loads((folder / "table.json").read_text())["jobs"]

    def outputs():
        found = [f"{file}:\n{file.read_text(errors='replace')[-2000:]}" for file in folder.glob("slurm/*.out")]
        return f"{cluster.states()}\n" + "\n".join(found)

    log = folder / "ln-1" / "train.log"
    wait_for(log.exists, 60, outputs)  # it is starting, so that it cannot be through before Slurm reacts
    urgent = submit(cluster, "--partition=urgent", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    wait_for(lambda: cluster.states().get(urgent) == "COMPLETED", 90, outputs)
    status_py = [sys.executable, str(ROOT / "scripts/slurm/status.py"), str(folder)]
    shown = subprocess.run(status_py, env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    assert re.search(r"\| ln +\| 1 +\| [a-z]+ .*\| (stopped|running) ", shown), shown
    assert "scoring: pending (Dependency)" in shown
    score = folder / "slurm" / f"score-{jobs['score']}.out"
    finished = ("COMPLETED", "FAILED", "CANCELLED")
    wait_for(lambda: cluster.states().get(jobs["score"]) in finished, 400, outputs)
    assert cluster.states()[jobs["score"]] == "COMPLETED", outputs()

    text = score.read_text()
    for norm in ("ln", "pn"):
        assert re.search(rf"^\| {norm} +\| 1 +\| finished +\|( +[\d.]+ +\|)+$", text, re.MULTILINE), text
        assert json.loads((folder / f"{norm}-1" / "status.json").read_text())["state"] == "finished"
        assert (folder / f"{norm}-1" / "averaged.pt").exists()
        assert "world_size': 2" in (folder / f"{norm}-1" / "train.log").read_text(errors="replace")
    first = (folder / "slurm" / f"train-{jobs['train']}_0.out").read_text(errors="replace")
    assert "stopping after this update" in first and "back into the queue (restart 1)" in first
    assert "Loaded checkpoint" in first and log.read_text(errors="replace").count("scripts/train.sh") == 2
    if len(cluster.machines) == 2:
        assert f"tcp://{cluster.machines[0]}:" in first  # they met where Slurm's variables say
    assert "Restarts=1" in cluster.call("scontrol", "show", "job", f"{jobs['train']}_0")
