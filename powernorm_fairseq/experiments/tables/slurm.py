"""Runs what is missing of a table as Slurm jobs: one for each training, and one after them that scores and reports.

It also says how far the runs of a table are: in the queue, in training, and how often each was started and failed.
"""

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Sequence

from powernorm_fairseq import files
from powernorm_fairseq.experiments.slurm import submit
from powernorm_fairseq.experiments.tables.document import Grid, markdown_table, number
from powernorm_fairseq.experiments.tables.run import Run
from powernorm_fairseq.files import read_json

JOB = "job.json"  # in a run's folder: the Slurm job that trains it
REPORT = "report.json"  # beside the job files: the Slurm job that reports
WAITING_OR_RUNNING = ("pending", "running", "requeue", "suspended", "completing", "preempt")
HELD = "launch failed requeued held"  # a machine failed as the job was to start there; Slurm leaves it in the queue


def job_of(run: Run) -> str:
    """The Slurm job that trains a run; empty if there was none."""
    return str(read_json(run.folder / JOB).get("job", ""))


def queue(job: str) -> str:
    """What Slurm says of a job, as long as it remembers it.

    Nothing of one that ended well: whether a training is finished, train.sh knows better.
    """
    if not job or shutil.which("squeue") is None:
        return ""
    command = ["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%F|%T|%r|%M"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    for line in done.stdout.decode().splitlines():
        found, state, reason, time = line.split("|")
        if found == job and state != "COMPLETED":
            return f"{state.lower()} ({reason})" if state == "PENDING" else f"{state.lower()} {time}"
    return ""


def cancel(job: str) -> None:
    """Takes a job out of the queue; one that cannot be cancelled stays, and two trainings cannot share a folder."""
    subprocess.run(["scancel", job])


def status(runs: Sequence[Run]) -> str:
    """All runs in numbers, as a Markdown table."""
    rows = []
    for run in runs:
        log = run.log.update()
        best = log.best()
        rows.append({
            "run": run.name,
            "queue": queue(job_of(run)),
            "state": run.state(),
            "update": log.updates or None,
            "of": run.total_updates,
            "loss": log.latest.get("loss"),
            "best valid": number(best["loss"], 3) if best else None,
            "starts": _lines(run.checkpoints / "train.log", "train: 20"),
            "failures": _lines(run.checkpoints / "failures", ""),
        })  # fmt: skip
    return markdown_table(Grid.of(rows))


def _lines(file: Path, start: str) -> int:
    """How many lines of a file begin so."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return sum(line.startswith(start) for line in text.splitlines())


def launch(runs: Sequence[Run], args: argparse.Namespace, folder: Path, again: Sequence[str]) -> List[str]:
    """Submits a job for each training that has none, and one for the report.

    Args:
        runs: those that are not finished.
        args: what the user wants of the cluster (submit.add_cluster_arguments), and ``dry_run``.
        folder: of the dataset's runs; job files and output go into ``slurm`` there.
        again: the arguments of reproduce.py that score and report.

    Returns:
        What was done, in lines.
    """
    submit.check_cluster_arguments(args)
    checked = [line for run in runs for line in submit.check_training(args, run.train_words())]
    lines, jobs, output = list(dict.fromkeys(checked)), [], folder / "slurm"  # type: List[str], List[str], Path
    for run in runs:
        state = queue(job_of(run))
        if HELD in state and not args.dry_run:
            cancel(job_of(run))
            state = ""
        if state.startswith(WAITING_OR_RUNNING):
            jobs.append(job_of(run))
            lines.append(f"{run.name}: job {jobs[-1]} is {state}")
        elif not run.trained and not run.trains_elsewhere:
            names = {"--job-name": f"{run.dataset}-{run.name}", "--output": str(output / f"{run.name}-%j.out")}
            text = submit.job_file("train", {**names, **submit.training_options(args)}, run.train_words(), args.hook)
            jobs.append(submit.submit(output / f"{run.name}.sbatch", text, [], args.dry_run))
            lines.append(f"{run.name}: job {jobs[-1]}")
            if not args.dry_run:
                run.folder.mkdir(parents=True, exist_ok=True)
                files.write(run.folder / JOB, {"job": jobs[-1]})
    options: Dict[str, Any] = {"--job-name": "reproduce-report", "--output": str(output / "report-%j.out")}
    text = submit.job_file("report", {**options, **submit.report_options(args)}, again)
    after = ["--dependency=afterany:" + ":".join(jobs)] if jobs else []
    report = submit.submit(output / "report.sbatch", text, after, args.dry_run)
    if not args.dry_run:
        before = read_json(output / REPORT).get("job", "")
        if queue(before).startswith("pending"):
            cancel(before)  # it does not wait for the trainings that were submitted since
        files.write(output / REPORT, {"job": report})
    return [*lines, f"report: job {report}, after {len(jobs)} trainings; its output is in {output}"]
