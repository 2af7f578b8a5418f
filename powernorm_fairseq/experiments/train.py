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
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from powernorm_fairseq import files
from powernorm_fairseq.console import UserError, program
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
    args = recipes.parse_args(build_parser(), argv)
    recipes.check_names(args)
    if args.nproc is not None and args.nproc < 1:
        raise UserError(f"--nproc {args.nproc} is too few; give at least 1")
    args.extra = recipes.parse_flags(args.flags)
    for name in ("save_minutes", "hang_minutes"):
        if not 0 <= getattr(args, name) < float("inf"):
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} {getattr(args, name)} is no number of minutes")
    half = [flag for flag in HALF if flag in args.extra]
    if half and args.precision not in (None, HALF[half[0]]):
        raise UserError(f"--precision {args.precision} and {half[0]} after -- contradict each other")
    args.precision = args.precision or (HALF[half[0]] if half else "fp32")
    ours = [flag for flag in ("--save-dir", "--seed", "--user-dir", "--encoder-norm", "--norm") if flag in args.extra]
    if ours:
        raise UserError(f"{ours[0]} cannot come after --; train sets it itself")
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


def environment(place: Place) -> Dict[str, Any]:
    """What a result may depend on besides the command."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "packages": {name: version for name, version in map(_version, PACKAGES) if version},
        "git_revision": _git_revision(),
        "processor": _processor(),
        "cores": ranks.count_cores(),
        "gpus": _output(["nvidia-smi", "-L"]).splitlines() if place.gpus else [],
        "processes": {"all": place.world, "here": place.local, "first_rank": place.first, "meet_at": place.address},
        "variables": {
            name: content
            for name, content in sorted(variables(place).items())
            if VARIABLES.match(name) and not SECRETS.search(name)
        },
    }


def _version(package: str) -> Tuple[str, Optional[str]]:
    try:
        return package, metadata.version(package)
    except metadata.PackageNotFoundError:
        return package, None


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


def length(flags: recipes.Flags) -> recipes.Flags:
    """The flags that say how long a training is."""
    return {flag: flags[flag] for flag in ("--max-update", "--max-epoch", "--patience") if flag in flags}


def child_environment(place: Place, save_minutes: float) -> Dict[str, str]:
    """The environment of fairseq-train, unless the user set it: cores divided, and on a CPU freed memory kept."""
    threads = int(os.environ.get("SLURM_CPUS_PER_TASK") or ranks.count_cores()) // place.local
    ours = {"OMP_NUM_THREADS": str(max(1, threads)), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    return {**ours, "POWERNORM_SAVE_MINUTES": str(save_minutes), **variables(place)}


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
    lines = [f"# in {os.getcwd()}"] + [" ".join(map(shlex.quote, call)) for call in ([own, *calls])]
    files.write(args.save_dir / COMMAND, "\n".join(lines) + "\n")
    files.write(args.save_dir / ENVIRONMENT, environment(place))
    files.write(args.save_dir / checks.EXPERIMENT, experiment)
    with open(str(args.save_dir / ranks.LOG), "a", encoding="utf-8") as log:
        log.write("train: {} {}\n".format(time.strftime("%Y-%m-%d %H:%M:%S"), lines[1]))
        log.writelines(f"train: {sentence}\n" for sentence in sentences)


def mend(folder: Path) -> None:
    """Lets training go on from a whole checkpoint; the import takes seconds, so it is left out where there is none."""
    if next(folder.glob("checkpoint*.pt*"), None) is not None:
        from powernorm_fairseq.fairseq_fixes.damaged_checkpoint import mend_last_checkpoint

        mend_last_checkpoint(folder, say)


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
        say(f"what was in {args.save_dir} is in {aside} now")


@program("train")
def main(argv: Sequence[str]) -> int:
    """Checks, records and trains; returns the exit status: 75 if training was asked to stop, and did."""
    args = parse_args(argv)
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
    start = [recipes.program("fairseq-train"), args.data, "--user-dir", str(PACKAGE)]
    start += recipes.to_words({flag: values for flag, values in flags.items() if flag != "--cpu"})  # rank_flags says it
    calls = [[*start, *place.rank_flags(index)] for index in range(place.local)]
    experiment = checks.describe(args.preset, args.norm, args.seed, args.data, flags, args.extra)
    experiment.update(batch=batches.describe(flags, place.world), precision=args.precision)
    tokens = int(recipes.recipe(args.preset, args.norm)["--max-tokens"][0])
    sentences = batches.warnings(flags, tokens, recipes.usual_processes(args.preset), place.world, args.extra)
    if place.first == 0:
        if not args.restart:
            checks.check_save_dir(args.save_dir, experiment)
        checks.check_disk(args.save_dir, args.data, flags)
        for sentence in sentences:
            say(sentence)
    if args.dry_run:
        print("\n".join(" ".join(map(shlex.quote, call)) for call in calls))
        return 0
    before = files.read_json(args.save_dir / STATUS)
    if before.get("state") == "finished" and before["flags"] == length(flags) and not args.restart:
        say(f"{args.save_dir} is finished")  # with other flags, more updates say, it goes on
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
    say("{}; the same command goes on".format(status["state"]) if code else f"finished: {args.save_dir}")
    return code
