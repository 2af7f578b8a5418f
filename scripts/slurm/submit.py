#!/usr/bin/env python3
"""Writes and submits Slurm jobs: one training, or a table of them with a job that scores what came out.

What is submitted is a copy of ``train.sbatch``, ``table.sbatch`` or ``score.sbatch`` with the settings filled in; it
lies beside the results and can be submitted again by hand.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts import train_recipe
from scripts.slurm.table import Table, load

SLURM = Path(__file__).resolve().parent
ROOT = SLURM.parents[1]
Options = Dict[str, Optional[str]]


class SubmitError(Exception):
    """A failure that one sentence explains."""


def job_file(kind: str, options: Options, arguments: Sequence[str]) -> str:
    """The text of ``KIND.sbatch`` with these options of sbatch, which win over its own, and these arguments."""
    lines = (SLURM / f"{kind}.sbatch").read_text(encoding="utf-8").splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    kept = {}
    for number in own:
        name, _, value = lines[number][len("#SBATCH ") :].partition("=")
        kept[name] = value or None
    wanted = {**kept, **options}
    header = ["#SBATCH " + (name if value is None else f"{name}={value}") for name, value in wanted.items()]
    settings = [f"export POWERNORM_ROOT={shlex.quote(str(ROOT))}"]
    if os.environ.get("PYTHON"):
        settings.append(f"export PYTHON={shlex.quote(os.environ['PYTHON'])}")
    settings.append("set -- " + " ".join(map(shlex.quote, arguments)))
    return "\n".join([*lines[: own[0]], *header, *settings, *lines[own[-1] + 1 :]]) + "\n"


def cluster_options(args: argparse.Namespace) -> Options:
    """What the user wants of the cluster, for every job."""
    named = {"--partition": args.partition, "--account": args.account, "--qos": args.qos}
    options: Options = {name: value for name, value in named.items() if value}
    for option in args.sbatch_option:
        name, equals, value = option.partition("=")
        options["--" + name.lstrip("-")] = value if equals else None
    return options


def training_options(args: argparse.Namespace) -> Options:
    """What a training needs."""
    options: Options = {"--nodes": str(args.nodes), "--ntasks-per-node": str(args.tasks_per_node)}
    if args.gpus:
        options["--gpus-per-node"] = str(args.gpus)
    if args.cpus_per_task:
        options["--cpus-per-task"] = str(args.cpus_per_task)
    if args.time:
        options["--time"] = args.time
    options["--signal"] = f"B:USR1@{args.warning}"
    return {**options, **cluster_options(args)}


def submit(file: Path, text: str, options: Sequence[str], dry_run: bool) -> str:
    """Writes a job file and submits it; returns the job's id."""
    command = ["sbatch", "--parsable", *options, str(file)]
    if dry_run:
        print(f"== {file}\n{text}== {' '.join(map(shlex.quote, command))}")
        return "JOB"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=str(ROOT))
    except FileNotFoundError:
        raise SubmitError("sbatch was not found; is this a machine of a Slurm cluster?") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise SubmitError(f"sbatch refused {file}: {re.sub('sbatch: (error: )?', '', words)}")
    return done.stdout.decode().strip().split(";")[0]


def submit_training(args: argparse.Namespace) -> None:
    """One training."""
    jobs = args.save_dir / "slurm"
    arguments = ["--preset", args.preset, "--norm", args.norm, "--data", args.data, "--save-dir", str(args.save_dir)]
    arguments += ["--seed", str(args.seed), *_train_sh_options(args)]
    options = {
        "--job-name": f"{args.preset}-{args.norm}-{args.seed}",
        "--output": str(jobs / "%j.out"),
        **training_options(args),
    }
    job = submit(jobs / "train.sbatch", job_file("train", options, arguments), [], args.dry_run)
    print(f"job {job}: training in {args.save_dir}; output in {jobs}")


def submit_table(args: argparse.Namespace) -> None:
    """An array of trainings, and a job that scores them when all have ended, well or not."""
    jobs = args.dir / "slurm"
    table = Table(args.preset, args.norms, args.seeds, args.data, args.flags)
    before = load(args.dir)
    if before is not None and (before.preset, before.data) != (table.preset, table.data):
        raise SubmitError(f"{args.dir} is the folder of another table ({before.preset}, {before.data})")
    last = len(args.norms) * len(args.seeds) - 1
    arguments = ["--preset", args.preset, "--norms", ",".join(args.norms), "--seeds", ",".join(map(str, args.seeds))]
    arguments += ["--data", args.data, "--dir", str(args.dir), *_train_sh_options(args)]
    options = {
        "--job-name": f"{args.preset}-table",
        "--array": f"0-{last}" + (f"%{args.max_parallel}" if args.max_parallel else ""),
        "--output": str(jobs / "train-%A_%a.out"),
        **training_options(args),
    }
    table.jobs["train"] = submit(jobs / "table.sbatch", job_file("table", options, arguments), [], args.dry_run)
    options = {"--job-name": f"{args.preset}-score", "--output": str(jobs / "score-%j.out"), **cluster_options(args)}
    if args.gpus:
        options["--gpus"] = "1"
    after = f"--dependency=afterany:{table.jobs['train']}"
    text = job_file("score", options, ["--dir", str(args.dir), "--data", args.data])
    table.jobs["score"] = submit(jobs / "score.sbatch", text, [after], args.dry_run)
    if not args.dry_run:
        table.save(args.dir)
    print(f"job {table.jobs['train']}: {last + 1} trainings in {args.dir}; job {table.jobs['score']} scores them")
    print(f"look at them: {SLURM / 'status.py'} {args.dir}")


def _train_sh_options(args: argparse.Namespace) -> List[str]:
    options = ["--nproc", str(args.nproc)] if args.nproc else []
    options += ["--tensorboard"] if args.tensorboard else []
    return [*options, "--", *args.flags] if args.flags else options


def add_cluster_arguments(parser: argparse._ActionsContainer) -> None:
    """What the user may want of the cluster."""
    parser.add_argument("--partition", help="of the cluster")
    parser.add_argument("--account", help="that is charged")
    parser.add_argument("--qos", help="quality of service")
    parser.add_argument("--nodes", type=int, default=1, help="machines for each training (default: 1)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs on each machine (default: none)")
    parser.add_argument("--tasks-per-node", type=int, default=1, metavar="N", help="tasks on each machine; with GPUs "
                        "leave it at 1, on CPUs it is the number of processes (default: 1)")
    parser.add_argument("--cpus-per-task", type=int, metavar="N", help="cores of each task")
    parser.add_argument("--time", help="limit of one stretch, as for sbatch; the job goes on after it")
    parser.add_argument("--warning", type=int, default=300, metavar="S", help="seconds before the limit at which to "
                        "save and requeue; more than a validation and a save take (default: 300)")
    parser.add_argument("--sbatch-option", action="append", default=[], metavar="NAME[=VALUE]", help="any other "
                        "option of sbatch, for example constraint=a100; may be repeated")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Write and submit Slurm jobs: one training, or a table of them with a job that scores them.",
        epilog="Flags after -- go to fairseq-train, as in scripts/train.sh.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="train|table")
    train = kinds.add_parser("train", help="one training")
    train.add_argument("--norm", required=True, choices=train_recipe.norm_names(), help="the encoder's norm")
    train.add_argument("--seed", type=int, default=1, help="of weights, dropout and data order (default: 1)")
    train.add_argument("--save-dir", required=True, type=Path, metavar="DIR", help="as for train.sh; also the job file")
    table = kinds.add_parser("table", help="norms x seeds as a job array, then averaging and scoring")
    table.add_argument("--norms", required=True, help="names, separated by commas")
    table.add_argument("--seeds", default="1", help="numbers, separated by commas (default: 1)")
    table.add_argument("--dir", required=True, type=Path, help="folder of the table; each training in DIR/NORM-SEED")
    table.add_argument("--max-parallel", type=int, metavar="N", help="trainings at a time (default: no limit)")
    for kind, presets in ((train, train_recipe.PRESETS), (table, train_recipe.TRANSLATION)):
        kind.add_argument("--preset", required=True, choices=presets, help="the recipe")
        kind.add_argument("--data", required=True, metavar="BIN", help="output folder of fairseq-preprocess")
        kind.add_argument("--nproc", type=int, metavar="N", help="processes of each task (default: one for each GPU)")
        kind.add_argument("--tensorboard", action="store_true", help="write curves beside the checkpoints")
        add_cluster_arguments(kind)
        kind.add_argument("--dry-run", action="store_true", help="print the job files and commands, and do nothing")
    return parser


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; what follows ``--`` becomes ``flags``."""
    own, flags = train_recipe.split_flags(argv)
    parser = build_parser()
    args = parser.parse_args(own)
    args.flags = flags
    args.data = ":".join(str(Path(part).absolute()) for part in args.data.split(":"))
    for part in args.data.split(":"):
        if not Path(part).is_dir():
            raise SubmitError(f"--data {part} is no folder")
    if args.kind == "train":
        args.save_dir = args.save_dir.absolute()
        return args
    args.dir = args.dir.absolute()
    args.norms = args.norms.split(",")
    for norm in args.norms:
        if norm not in train_recipe.norm_names():
            raise SubmitError(f"--norms {norm} is not known; choose from {', '.join(train_recipe.norm_names())}")
    try:
        args.seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        raise SubmitError(f"--seeds {args.seeds} are no numbers separated by commas") from None
    return args


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Submits what the command line says; returns the exit status."""
    try:
        args = parse_args(sys.argv[1:] if argv is None else argv)
        submit_training(args) if args.kind == "train" else submit_table(args)
    except SubmitError as error:
        print(f"submit: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
