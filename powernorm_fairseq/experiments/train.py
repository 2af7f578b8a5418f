"""Trains a model by one of the project's recipes: ``powernorm train``, or ``scripts/train.sh`` of a checkout."""

import argparse
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from powernorm_fairseq import files
from powernorm_fairseq.console import Arguments, UserError, run_main
from powernorm_fairseq.experiments import batches, checks, ranks, recipes
from powernorm_fairseq.experiments.ranks import STOPPED, Place, say

PACKAGE = Path(__file__).resolve().parents[1]
COMMAND, ENVIRONMENT, STATUS = "command.txt", "environment.json", "status.json"
SCORES = "test"  # folder of the test set's scores, once there are some
PACKAGES = ("torch", "fairseq", "fairseq-fixed", "powernorm-fairseq", "numpy", "omegaconf", "hydra-core", "sacrebleu")
VARIABLES = re.compile(
    r"(CUDA|NCCL|GLOO|SLURM|OMP|MKL|MALLOC|POWERNORM|TORCH|PYTORCH|PYTHON|MASTER)_"
    r"|((NODE_|LOCAL_)?RANK|WORLD_SIZE|NNODES|LD_PRELOAD)$"
)
PRECISIONS = ("fp32", "fp16", "bf16")
HALF = {"--fp16": "fp16", "--memory-efficient-fp16": "fp16", "--bf16": "bf16", "--memory-efficient-bf16": "bf16"}
# For glibc: memory that was freed stays in the process, so that a large tensor does not ask the system each time.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
SECRETS = re.compile(r"TOKEN|JWT|KEY|SECRET|PASS", re.IGNORECASE)


ABOUT = """
Trains with the recipe of an experiment, or goes on with a training that was stopped: the same command, as often as
needed. It runs on all GPUs it sees, on a CPU where there is none, and as a part of a larger training under srun,
torchrun, or with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set. An update has the recipe's number of tokens on
any number of processes, or a sentence says how many: gradients are accumulated, or batches divided.
"""
MORE = """
SIGUSR1, SIGTERM, SIGHUP and Ctrl-C stop training after the update it is at, with a checkpoint and exit status 75;
Ctrl-C a second time stops at once. Flags after -- go to fairseq-train as they are, and win over the recipe; --no-NAME
takes a switch of the recipe back.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=ABOUT, epilog=MORE)
    recipes.add_recipe_arguments(parser)
    parser.add_argument("--nproc", type=int, metavar="N", help="processes on this machine; by default one for each GPU")
    parser.add_argument("--precision", choices=PRECISIONS, metavar="P", help="{} (default: fp32, as the authors' "
                        "scripts)".format(", ".join(PRECISIONS)))  # fmt: skip
    parser.add_argument("--tensorboard", action="store_true", help="write curves to DIR/tensorboard")
    parser.add_argument("--save-minutes", type=float, default=15, metavar="M", help="save so long after the last "
                        "checkpoint, also within an epoch (default: 15; 0: only as the recipe says)")  # fmt: skip
    minutes = os.environ.get("POWERNORM_HANG_MINUTES") or "30"
    parser.add_argument("--hang-minutes", type=float, default=minutes, metavar="M", help="end a training that has "
                        "made no progress for so long (default: POWERNORM_HANG_MINUTES, or 30; 0: never)")  # fmt: skip
    parser.add_argument("--restart", action="store_true", help="start anew; what is there moves to DIR/before-N")
    parser.add_argument("--dry-run", action="store_true", help="check everything and print the calls of fairseq-train")
    return parser


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; what follows ``--`` becomes ``extra``."""
    own, extra = recipes.split_flags(argv)
    args = build_parser().parse_args(own)
    recipes.check_names(args)
    if args.nproc is not None and args.nproc < 1:
        raise UserError("--nproc {} is too few; give at least 1".format(args.nproc))
    args.extra = recipes.parse_flags(extra)
    for name in ("save_minutes", "hang_minutes"):
        if not 0 <= getattr(args, name) < float("inf"):
            flag = "--" + name.replace("_", "-")
            raise UserError("{} {} is no number of minutes".format(flag, getattr(args, name)))
    half = [flag for flag in HALF if flag in args.extra]
    if half and args.precision not in (None, HALF[half[0]]):
        raise UserError("--precision {} and {} after -- contradict each other".format(args.precision, half[0]))
    args.precision = args.precision or (HALF[half[0]] if half else "fp32")
    ours = [flag for flag in ("--save-dir", "--seed", "--user-dir", "--encoder-norm", "--norm") if flag in args.extra]
    if ours:
        raise UserError("{} cannot come after --; train sets it itself".format(ours[0]))
    args.argv = list(argv)
    args.data = os.environ.get("POWERNORM_DATA") or args.data  # a copy on this machine's own disk
    args.save_dir = args.save_dir.absolute()
    args.data = ":".join(str(Path(part).absolute()) for part in args.data.split(":"))
    return args


def all_flags(args: argparse.Namespace, place: Place) -> recipes.Flags:
    """What fairseq-train is told on every rank: the recipe, this command's own flags, and the user's."""
    divided = not {"--max-tokens", "--update-freq"} & set(args.extra)  # the user did not divide it
    before = checks.began_with(args.save_dir) if divided and not args.restart else None
    began = (before or {}).get("batch", {}).get("tokens")
    flags = recipes.recipe(args.preset, args.norm, place.world, began)
    flags["--seed"] = [str(args.seed)]
    flags["--save-dir"] = [str(args.save_dir)]
    if args.tensorboard:
        flags["--tensorboard-logdir"] = [str(args.save_dir / "tensorboard")]
    if args.precision != "fp32" and not any(flag in args.extra for flag in HALF):
        flags["--" + args.precision] = []
    return recipes.merge(args.preset, args.norm, flags, args.extra)


def warnings(args: argparse.Namespace, place: Place, flags: recipes.Flags) -> List[str]:
    """What of the recipe cannot be kept on so many processes."""
    usual = recipes.usual_processes(args.preset)
    tokens = int(recipes.recipe(args.preset, args.norm)["--max-tokens"][0])
    return batches.warnings(flags, tokens, usual, place.world, args.extra)


def commands(args: argparse.Namespace, place: Place, flags: recipes.Flags) -> List[List[str]]:
    """One call of fairseq-train for each process here."""
    start = [recipes.program("fairseq-train"), args.data, "--user-dir", str(PACKAGE)]
    flags = {flag: values for flag, values in flags.items() if flag != "--cpu"}  # rank_flags says it
    return [[*start, *recipes.to_words(flags), *place.rank_flags(index)] for index in range(place.local)]


def environment(place: Place) -> Dict[str, Any]:
    """What a result may depend on besides the command."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": "{} ({})".format(platform.python_version(), sys.executable),
        "packages": {name: found for name, found in ((name, _version(name)) for name in PACKAGES) if found},
        "git_revision": _git_revision(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": _output(["nvidia-smi", "-L"]).splitlines() if place.gpus else [],
        "processes": {"all": place.world, "here": place.local, "first_rank": place.first, "meet_at": place.address},
        "variables": {
            name: content
            for name, content in sorted(variables(place).items())
            if VARIABLES.match(name) and not SECRETS.search(name)
        },
    }


def _version(package: str) -> Optional[str]:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Its name, as Linux knows it."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def _git_revision() -> Optional[str]:
    """The commit, with ``+changes`` if files differ from it."""
    revision = _output(["git", "-C", str(PACKAGE), "rev-parse", "--verify", "HEAD"]).strip()
    changes = _output(["git", "-C", str(PACKAGE), "status", "--porcelain"]).strip()
    return (revision + ("+changes" if changes else "")) or None


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def finished_before(args: argparse.Namespace, flags: recipes.Flags) -> bool:
    """Whether the folder holds the end of this very training; one with other flags (more updates, say) goes on."""
    status = files.read_json(args.save_dir / STATUS)
    return status.get("state") == "finished" and status["flags"] == length(flags)


def length(flags: recipes.Flags) -> recipes.Flags:
    """The flags that say how long a training is."""
    return {flag: flags[flag] for flag in ("--max-update", "--max-epoch", "--patience") if flag in flags}


def child_environment(place: Place, save_minutes: float) -> Dict[str, str]:
    """The environment of fairseq-train, unless the user set it: cores divided, and on a CPU freed memory kept."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(os.environ.get("SLURM_CPUS_PER_TASK") or cores) // place.local
    ours = {"OMP_NUM_THREADS": str(max(1, threads)), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    ours["POWERNORM_SAVE_MINUTES"] = str(save_minutes)
    return {**ours, **variables(place)}


def variables(place: Place) -> Dict[str, str]:
    """The variables of this process, and on a CPU those of the allocator, unless they are set."""
    return {**({} if place.gpus else ALLOCATOR), **os.environ}


def record(
    args: argparse.Namespace,
    place: Place,
    calls: Sequence[Sequence[str]],
    experiment: Dict[str, Any],
    sentences: Sequence[str],
) -> None:
    """Writes beside the log what is being run, where, and by whom."""
    own = ["powernorm", "train", *args.argv]
    lines = ["# in {}".format(os.getcwd())] + [" ".join(map(shlex.quote, call)) for call in ([own, *calls])]
    files.write(args.save_dir / COMMAND, "\n".join(lines) + "\n")
    files.write(args.save_dir / ENVIRONMENT, environment(place))
    files.write(args.save_dir / checks.EXPERIMENT, experiment)
    with open(str(args.save_dir / ranks.LOG), "a", encoding="utf-8") as log:
        log.write("train: {} {}\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), lines[1]))
        log.writelines("train: {}\n".format(sentence) for sentence in sentences)


def mend(folder: Path) -> None:
    """Lets training go on from a whole checkpoint; the import takes seconds, so it is left out where there is none."""
    if next(folder.glob("checkpoint*.pt*"), None) is not None:
        from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import mend_last_checkpoint

        mend_last_checkpoint(folder, say)


def run(args: argparse.Namespace) -> int:
    """Checks, records and trains; returns the exit status."""
    signals = [] if args.dry_run else ranks.note_signals()
    gpus = 0 if "--cpu" in args.extra else ranks.count_gpus()
    if args.dry_run and os.environ.get("POWERNORM_DRY_RUN_GPUS"):  # for a machine that has others
        gpus = int(os.environ["POWERNORM_DRY_RUN_GPUS"])
    place = ranks.find_place(args.nproc, gpus, os.environ, str(args.save_dir))
    if args.restart and int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:
        args.restart = False
        say("--restart was done when the job began; it goes on")
    flags = all_flags(args, place)
    checks.check_precision(args.precision, gpus)
    checks.check_backend(flags)
    checks.data_files(args.data, flags)
    checks.check_dictionaries(args.data, flags)
    calls = commands(args, place, flags)
    experiment = checks.describe(args.preset, args.norm, args.seed, args.data, flags, args.extra)
    experiment.update(batch=batches.describe(flags, place.world), precision=args.precision)
    sentences = warnings(args, place, flags)
    if place.first == 0:
        if not args.restart:
            checks.check_save_dir(args.save_dir, experiment)
        checks.check_disk(args.save_dir, args.data, flags)
        for sentence in sentences:
            say(sentence)
    if args.dry_run:
        print("\n".join(" ".join(map(shlex.quote, call)) for call in calls))
        return 0
    if finished_before(args, flags) and not args.restart:
        say("{} is finished".format(args.save_dir))
        return 0
    args.save_dir.mkdir(parents=True, exist_ok=True)
    processes = ranks.Ranks(args.save_dir, place.first, signals, 60 * args.hang_minutes)
    env = child_environment(place, args.save_minutes)
    if place.first != 0:
        return processes.run(calls, env)
    held = checks.lock(args.save_dir)
    make_room(args, experiment)
    status = {"state": "running", "flags": length(flags), "host": socket.gethostname(), "pid": os.getpid()}
    status["peak_memory"] = peak = files.read_json(args.save_dir / STATUS).get("peak_memory")
    try:
        record(args, place, calls, experiment, sentences)
        mend(args.save_dir)
        files.write(args.save_dir / STATUS, status)
        code = processes.run(calls, env)
        status["state"] = "stopped" if code == STOPPED else "finished"
    except UserError as error:
        status.update(state="failed", reason=str(error))
        raise
    finally:
        status["peak_memory"] = max(peak or 0, ranks.peak_memory())
        files.write(args.save_dir / STATUS, status)
        held.close()
    say("{}; the same command goes on".format(status["state"]) if code else "finished: {}".format(args.save_dir))
    return code


def make_room(args: argparse.Namespace, experiment: Dict[str, Any]) -> None:
    """Moves aside what is in the way: all with --restart, else the records of another try that never saved."""
    file = args.save_dir / checks.EXPERIMENT
    if not args.restart:
        if checks.has_checkpoint(args.save_dir) or not file.exists():
            return
        if files.read_json(file) == experiment:
            return
    aside = checks.set_aside(args.save_dir)
    if aside is not None:
        say("what was in {} is in {} now".format(args.save_dir, aside))


def main(argv: Arguments = None) -> int:
    """Trains as the command line says; returns the exit status: 75 if training was asked to stop, and did."""
    return run_main("train", lambda words: run(parse_args(words)), argv)
