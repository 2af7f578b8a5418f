"""How far the runs of a table are: in the queue, in training, and how often each was started and failed."""

import shutil
import subprocess
from typing import Any, Dict, Sequence

from powernorm_fairseq.experiments.tables.document import Grid, markdown_table
from powernorm_fairseq.experiments.tables.run import Run
from powernorm_fairseq.files import read_json

JOB = "job.json"  # in a run's folder: the Slurm job that trains it
COLUMNS = ("run", "queue", "state", "update", "of", "loss", "best valid", "starts", "failures")


def queue(jobs: Sequence[str]) -> Dict[str, str]:
    """What Slurm says of jobs, as long as it remembers them: id -> state.

    Those that ended well are left out: whether a training is finished, train.sh knows better.
    """
    if not jobs or shutil.which("squeue") is None:
        return {}
    states: Dict[str, str] = {}
    for job in jobs:  # one by one: an id that Slurm has forgotten is an error for all
        command = ["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%F|%T|%r|%M"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        for line in done.stdout.decode().splitlines():
            number, state, reason, time = line.split("|")
            if state != "COMPLETED":
                states[number] = f"{state.lower()} ({reason})" if state == "PENDING" else f"{state.lower()} {time}"
    return states


def row(run: Run, states: Dict[str, str]) -> Dict[str, Any]:
    """A run in numbers."""
    log, failures = run.log.update(), run.checkpoints / "failures"
    best = log.best()
    return {
        "run": run.name,
        "queue": states.get(str(read_json(run.folder / JOB).get("job"))),
        "state": run.state(),
        "update": log.updates or None,
        "of": run.total_updates,
        "loss": log.latest.get("loss"),
        "best valid": best["loss"] if best else None,
        "starts": _lines(run.checkpoints / "train.log", "train: 20"),
        "failures": _lines(failures, ""),
    }


def _lines(file: Any, start: str) -> int:
    """How many lines of a file begin so."""
    if not file.exists():
        return 0
    with open(str(file), encoding="utf-8", errors="replace") as lines:
        return sum(line.startswith(start) for line in lines)


def report(runs: Sequence[Run]) -> str:
    """All runs as a Markdown table; the queue only where there is one."""
    jobs = [str(job) for job in (read_json(run.folder / JOB).get("job") for run in runs) if job]
    columns = [name for name in COLUMNS if name != "queue" or jobs]
    states = queue(jobs)
    rows = [row(run, states) for run in runs]
    return markdown_table(Grid(columns, [[_text(each.get(column)) for column in columns] for each in rows]))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
