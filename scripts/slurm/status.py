#!/usr/bin/env python3
"""Prints how far the trainings of a table are, what Slurm says about them, and their scores."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.slurm.table import Training, load, trainings

METRICS = ("tokenized", "sacrebleu")


def queue(jobs: Sequence[str]) -> Dict[str, str]:
    """What Slurm says of jobs, as long as it remembers them: ``123`` or ``123_4`` (of an array) -> state.

    Those that ended well are left out: whether a training is finished, train.sh knows better.
    """
    if not jobs or shutil.which("squeue") is None:
        return {}
    states: Dict[str, str] = {}
    for job in jobs:  # one by one: an id that Slurm has forgotten is an error for all
        command = ["squeue", "--noheader", "--array", "--states=all", "--jobs", job, "--format", "%F|%K|%T|%r|%M"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        for line in done.stdout.decode().splitlines():
            number, index, state, reason, time = line.split("|")
            name = number if index == "N/A" else f"{number}_{index}"
            if state != "COMPLETED":
                states[name] = f"{state.lower()} ({reason})" if state == "PENDING" else f"{state.lower()} {time}"
    return states


def row(training: Training, array: Optional[str], states: Dict[str, str]) -> Dict[str, Any]:
    """A training in numbers."""
    progress = training.progress()
    queued = states.get(f"{array}_{training.index}") if array and training.index is not None else None
    return {
        "norm": training.norm,
        "seed": training.seed,
        "queue": queued,
        "state": training.state,
        "updates": progress.get("updates"),
        "loss": progress.get("loss"),
        "valid_loss": progress.get("valid_loss"),
        **{metric: training.scores.get(metric) for metric in METRICS},
    }


def rows(folder: Path, states: Dict[str, str]) -> List[Dict[str, Any]]:
    """All trainings of a table in numbers."""
    table = load(folder)
    array = table.jobs.get("train") if table else None
    return [row(training, array, states) for training in trainings(folder)]


def means(numbers: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """For each norm with several scored seeds: their mean and standard deviation."""
    result = []
    for norm in dict.fromkeys(number["norm"] for number in numbers):
        scored = [number for number in numbers if number["norm"] == norm and number[METRICS[0]] is not None]
        if len(scored) > 1:
            mean: Dict[str, Any] = {"norm": norm, "seed": f"mean of {len(scored)}"}
            for metric in METRICS:
                values = [number[metric] for number in scored if number[metric] is not None]
                if len(values) > 1:
                    mean[metric] = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
            result.append(mean)
    return result


def markdown(numbers: Sequence[Dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as a table with aligned columns."""
    cells = [list(columns)] + [[_text(number.get(column)) for column in columns] for number in numbers]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def report(folder: Path, states: Dict[str, str]) -> str:
    """The table as text."""
    numbers = rows(folder, states)
    columns = ["norm", "seed", "queue", "state", "updates", "loss", "valid_loss", *METRICS]
    text = markdown([*numbers, *means(numbers)], columns if states else [name for name in columns if name != "queue"])
    table = load(folder)
    score = states.get(table.jobs.get("score", "")) if table else None
    return text + (f"\nscoring: {score}" if score else "")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Print the queue state, progress and scores of a table.")
    parser.add_argument("dir", type=Path, help="folder of the table")
    parser.add_argument("--json", action="store_true", help="print JSON, one object for each training")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prints the table."""
    args = build_parser().parse_args(argv)
    table = load(args.dir)
    states = queue(list(table.jobs.values())) if table else {}
    if not trainings(args.dir):
        print(f"status: {args.dir} holds no table", file=sys.stderr)
        return 1
    print(json.dumps(rows(args.dir, states), indent=2) if args.json else report(args.dir, states))
    return 0


if __name__ == "__main__":
    sys.exit(main())
