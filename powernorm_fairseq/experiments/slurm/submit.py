"""Writes and submits the Slurm job of a training; ``reproduce.py --launcher slurm`` does so for a table.

What is submitted is a copy of ``train.sbatch`` (of ``report.sbatch`` for the report of a table) with the settings
filled in; it lies beside the results and can be submitted again by hand.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from powernorm_fairseq.console import UserError, program
from powernorm_fairseq.experiments import recipes

JOBS = Path(__file__).resolve().parent  # of the job files
KINDS = ("train", "report")
CPUS_PER_GPU = 4  # a process for each GPU, with threads that load its data
MEMORY_PER_GPU = "16G"
Options = Dict[str, Optional[str]]


def job_file(kind: str, options: Options, arguments: Sequence[str], hook: Optional[Path] = None) -> str:
    """The text of ``KIND.sbatch`` with these options of sbatch, which win over its own, and these arguments."""
    lines = (JOBS / f"{kind}.sbatch").read_text(encoding="utf-8").splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    kept = {}
    for number in own:
        name, _, value = lines[number][len("#SBATCH ") :].partition("=")
        kept[name] = value or None
    wanted = {**kept, **options}
    header = ["#SBATCH " + (name if value is None else f"{name}={value}") for name, value in wanted.items()]
    settings = {"POWERNORM_JOBS": JOBS, "PYTHON": python(), "POWERNORM_HOOK": hook}
    for name in ("POWERNORM_REQUEUES", "POWERNORM_RETRIES", "POWERNORM_IDLE_RETRIES"):
        settings[name] = os.environ.get(name)
    exports = [f"export {name}={shlex.quote(str(value))}" for name, value in settings.items() if value]
    exports.append("set -- " + " ".join(map(shlex.quote, arguments)))
    return "\n".join([*lines[: own[0]], *header, *exports, *lines[own[-1] + 1 :]]) + "\n"


def python() -> str:
    """The Python of the jobs."""
    return os.environ.get("PYTHON") or sys.executable


def cluster_options(args: argparse.Namespace, kind: str) -> Options:
    """What the user wants of the cluster for a kind of job."""
    named = {"--partition": args.partition, "--account": args.account, "--qos": args.qos}
    options: Options = {name: value for name, value in named.items() if value}
    for option in args.sbatch_option:
        chosen, colon, rest = option.partition(":")
        if colon and chosen in KINDS:
            if chosen != kind:
                continue
            option = rest
        name, equals, value = option.partition("=")
        options["--" + name.lstrip("-")] = value if equals else None
    return options


def training_options(args: argparse.Namespace) -> Options:
    """What a training needs.

    A training on several machines has them for itself, with all their memory. One that shares a machine gets cores and
    memory by its GPUs; without GPUs, the cluster's own measure.
    """
    options: Options = {"--nodes": str(args.nodes), "--ntasks-per-node": str(args.tasks_per_node)}
    cores = args.cpus_per_task
    if args.gpus:
        options["--gpus-per-node"] = str(args.gpus)
        cores = cores or max(1, args.gpus * CPUS_PER_GPU // args.tasks_per_node)
    if cores:
        options["--cpus-per-task"] = str(cores)
    if args.gpus and args.nodes > 1:
        options["--exclusive"] = None
        options["--mem"] = args.mem or "0"
    elif args.mem:
        options["--mem"] = args.mem
    elif args.gpus:
        options["--mem-per-gpu"] = MEMORY_PER_GPU
    if args.time:
        options["--time"] = args.time
    options["--signal"] = f"B:USR1@{args.warning}"
    return {**options, **cluster_options(args, "train")}


def report_options(args: argparse.Namespace) -> Options:
    """What a report needs: a GPU to decode with, if there are any."""
    gpu = {"--gpus": "1", "--cpus-per-task": str(CPUS_PER_GPU), "--mem-per-gpu": MEMORY_PER_GPU} if args.gpus else {}
    return {**gpu, **cluster_options(args, "report")}


def submit(file: Path, text: str, options: Sequence[str], dry_run: bool) -> str:
    """Writes a job file and submits it; returns the job's id."""
    command = ["sbatch", "--parsable", *options, str(file)]
    if dry_run:
        print(f"== {file}\n{text}== {' '.join(map(shlex.quote, command))}")
        return "JOB"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise UserError("sbatch was not found; is this a machine of a Slurm cluster?") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"sbatch refused {file}: {re.sub('sbatch: (error: )?', '', words)}")
    return done.stdout.decode().strip().split(";")[0]


def seconds(time: str) -> Optional[int]:
    """What sbatch takes ``--time`` for; None if it is no number of anything."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        return None
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is None and len(numbers) < 3:  # minutes, or minutes:seconds
        numbers = [0, *numbers]
    numbers += [0] * (3 - len(numbers))
    return int(days or 0) * 86400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]


def check_cluster_arguments(args: argparse.Namespace) -> None:
    """Refuses what cannot work on any cluster."""
    limit = seconds(args.time) if args.time else None
    if limit is not None and 0 < limit <= args.warning:
        raise UserError(
            f"--time {args.time} is no longer than the {args.warning} s before it at which a job is warned (--warning)"
        )
    if args.hook is not None:
        args.hook = args.hook.absolute()
        if not args.hook.is_file():
            raise UserError(f"--hook {args.hook} is no file")


def check_training(args: argparse.Namespace, words: Sequence[str]) -> List[str]:
    """Lets train.sh check a training as if it were on the cluster; returns what it warns of."""
    place = {"NNODES": str(args.nodes), "NODE_RANK": "0", "MASTER_ADDR": "first", "MASTER_PORT": "1"}
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env = {**outside, **place, "POWERNORM_DRY_RUN_GPUS": str(args.gpus)}
    own, extra = recipes.split_flags(words)
    if not args.gpus and "--nproc" not in own:
        own += ["--nproc", str(args.tasks_per_node)]
    command = [python(), "-m", "powernorm_fairseq", "train", *own, "--dry-run", *(["--", *extra] if extra else [])]
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        raise UserError((said.splitlines() or ["train failed"])[-1].replace("train: ", "", 1))
    return said.splitlines()


def add_cluster_arguments(parser: argparse._ActionsContainer) -> None:
    """What the user may want of the cluster."""
    parser.add_argument("--partition", help="of the cluster")
    parser.add_argument("--account", help="that is charged")
    parser.add_argument("--qos", help="quality of service")
    parser.add_argument("--nodes", type=int, default=1, help="machines for each training (default: 1); several are "
                        "asked for exclusively, with all their memory")  # fmt: skip
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs on each machine (default: none)")
    parser.add_argument("--tasks-per-node", type=int, default=1, metavar="N", help="tasks on each machine; with GPUs "
                        "leave it at 1, on CPUs it is the number of processes (default: 1)")  # fmt: skip
    parser.add_argument("--cpus-per-task", type=int, metavar="N", help="cores of each task (default: "
                        f"{CPUS_PER_GPU} for each GPU)")  # fmt: skip
    parser.add_argument("--mem", help="memory on each machine, as for sbatch (default: all of it on several machines, "
                        f"{MEMORY_PER_GPU} for each GPU on one)")  # fmt: skip
    parser.add_argument("--time", help="limit of one stretch, as for sbatch; the job goes on after it")
    parser.add_argument("--warning", type=int, default=300, metavar="S", help="seconds before the limit at which to "
                        "save and requeue; more than a validation and a save take (default: 300)")  # fmt: skip
    parser.add_argument("--hook", type=Path, metavar="FILE", help="shell file that every training's job reads first: "
                        "modules, containers, copies of the data; scripts/slurm/run.sh --help has more")  # fmt: skip
    parser.add_argument("--sbatch-option", action="append", default=[], metavar="[KIND:]NAME[=VALUE]", help="any other "
                        "option of sbatch, for example constraint=a100; for one kind of job train:constraint=a100 or "
                        "report:time=60; may be repeated")  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Write and submit the Slurm job of a training.",
        epilog="Flags after -- go to fairseq-train, as in train.sh.",
    )
    recipes.add_recipe_arguments(parser)
    parser.add_argument("--nproc", type=int, metavar="N", help="processes of each task (default: one for each GPU)")
    parser.add_argument("--precision", help="as for train.sh")
    parser.add_argument("--tensorboard", action="store_true", help="write curves beside the checkpoints")
    add_cluster_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the job file and the command, and do nothing")
    return parser


@program("submit")
def main(argv: Sequence[str]) -> int:
    """Submits one training; returns the exit status."""
    args = recipes.parse_args(build_parser(), argv)
    recipes.check_names(args)
    args.data = ":".join(str(Path(part).absolute()) for part in args.data.split(":"))
    args.save_dir = args.save_dir.absolute()
    check_cluster_arguments(args)
    jobs = args.save_dir / "slurm"
    arguments = ["--preset", args.preset, "--norm", args.norm, "--data", args.data, "--save-dir", str(args.save_dir)]
    arguments += ["--seed", str(args.seed)]
    arguments += ["--nproc", str(args.nproc)] if args.nproc else []
    arguments += ["--precision", args.precision] if args.precision else []
    arguments += ["--tensorboard"] if args.tensorboard else []
    arguments += ["--", *args.flags] if args.flags else []
    for line in check_training(args, arguments):
        print(line, file=sys.stderr)
    names = {"--job-name": f"{args.preset}-{args.norm}-{args.seed}", "--output": str(jobs / "%j.out")}
    text = job_file("train", {**names, **training_options(args)}, arguments, args.hook)
    print(f"job {submit(jobs / 'train.sbatch', text, [], args.dry_run)}: training in {args.save_dir}; output in {jobs}")
    return 0
