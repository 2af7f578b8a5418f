"""Runs what is missing of a table as Slurm jobs: one for each training, and one after them that scores and reports."""

import argparse
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Sequence

from powernorm_fairseq import files
from powernorm_fairseq.experiments.slurm import submit
from powernorm_fairseq.experiments.tables import status
from powernorm_fairseq.experiments.tables.run import Run
from powernorm_fairseq.experiments.tables.status import JOB
from powernorm_fairseq.files import read_json

REPORT = "report.json"  # beside the job files: the Slurm job that reports
HELD = "launch failed requeued held"  # a machine failed as the job was to start there; Slurm leaves it in the queue


def queued(run: Run) -> str:
    """What Slurm says of the job that trains a run: empty if it has none, or has none any more."""
    job = read_json(run.folder / JOB).get("job")
    state = status.queue([job]).get(job, "") if job else ""
    return state if state.startswith(("pending", "running", "requeue", "suspended", "completing", "preempt")) else ""


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
    lines, jobs = [], []  # type: List[str], List[str]
    submit.check_cluster_arguments(args)
    checked = [line for run in runs for line in submit.check_training(args, run.train_words())]
    lines += dict.fromkeys(checked)
    for run in runs:
        state = queued(run)
        if HELD in state and not args.dry_run:
            _cancel(read_json(run.folder / JOB)["job"])
            state = ""
        if state:
            jobs.append(read_json(run.folder / JOB)["job"])
            lines.append(f"{run.name}: job {jobs[-1]} is {state}")
        elif not run.trained and not run.trains_elsewhere:
            jobs.append(_submit_training(run, args, folder / "slurm"))
            lines.append(f"{run.name}: job {jobs[-1]}")
    report = _submit_report(args, folder / "slurm", jobs, again)
    return [*lines, f"report: job {report}, after {len(jobs)} trainings; its output is in {folder / 'slurm'}"]


def _submit_training(run: Run, args: argparse.Namespace, jobs: Path) -> str:
    options = {
        "--job-name": f"{run.dataset}-{run.name}",
        "--output": str(jobs / f"{run.name}-%j.out"),
        **submit.training_options(args),
    }
    text = submit.job_file("train", options, run.train_words(), args.hook)
    job = submit.submit(jobs / f"{run.name}.sbatch", text, [], args.dry_run)
    if not args.dry_run:
        run.folder.mkdir(parents=True, exist_ok=True)
        files.write(run.folder / JOB, {"job": job})
    return job


def _submit_report(args: argparse.Namespace, jobs: Path, after: Sequence[str], again: Sequence[str]) -> str:
    options: Dict[str, Any] = {
        "--job-name": "reproduce-report",
        "--output": str(jobs / "report-%j.out"),
        **submit.report_options(args),
    }
    words = ["--dependency=afterany:" + ":".join(after)] if after else []
    job = submit.submit(jobs / "report.sbatch", submit.job_file("report", options, again), words, args.dry_run)
    if not args.dry_run:
        before = read_json(jobs / REPORT).get("job")
        if before and status.queue([before]).get(before, "").startswith("pending"):
            _cancel(before)  # it does not wait for the trainings that were submitted since
        files.write(jobs / REPORT, {"job": job})
    return job


def _cancel(job: str) -> None:
    subprocess.run(["scancel", job])  # what cannot be cancelled stays; two trainings cannot share a folder
