"""What the benchmarks share: a fixed allocator, measurements turn by turn, ratios, the machine, Markdown and JSON."""

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import torch

# Without this, glibc gives large blocks back to the system and asks for them again, and page faults swamp the timings.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "10000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}

Times = Dict[str, List[float]]  # what is measured -> seconds of each round


def fix_allocator() -> None:
    """Starts this program again with the settings of :data:`ALLOCATOR`, unless it has them."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        print("started again with " + _allocator(), file=sys.stderr, flush=True)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


def _allocator() -> str:
    return " ".join(f"{name}={value}" for name, value in ALLOCATOR.items())


def interleave(
    candidates: Dict[str, Callable[[], Dict[str, float]]], rounds: int, warmup: int, seed: int = 0
) -> Dict[str, Times]:
    """Measures all candidates in every round, in an order that changes from round to round.

    A candidate is a function that runs once and returns the seconds of each of its parts. Returns, for each name and
    part, the seconds of each round that counts.
    """
    order, generator = list(candidates), random.Random(seed)
    times: Dict[str, Times] = {name: {} for name in candidates}
    for turn in range(warmup + rounds):
        generator.shuffle(order)
        for name in order:
            for part, seconds in candidates[name]().items():
                if turn >= warmup:
                    times[name].setdefault(part, []).append(seconds)
    return times


class Ratio(NamedTuple):
    """Ratio of two medians, and the quartiles of the ratios within each round."""

    ratio: float
    low: float
    high: float


def compare(times: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How many times as long as ``reference`` the candidate takes."""
    pairs = sorted(mine / theirs for mine, theirs in zip(times, reference))
    low, _, high = statistics.quantiles(pairs, n=4, method="inclusive") if len(pairs) > 1 else pairs * 3
    return Ratio(statistics.median(times) / statistics.median(reference), low, high)


def stopwatch(device: str = "cpu") -> Callable[[], float]:
    """A clock; for a GPU it waits until the work given so far is done."""

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    return now


def in_processes(function: Callable[..., None], count: int, *arguments: Any) -> Any:
    """Calls ``function(*arguments, rank, queue)`` in so many fresh processes; returns what one put into the queue."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    processes = [context.Process(target=function, args=(*arguments, rank, queue)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"{Path(sys.argv[0]).stem}: a process failed; its message is above")
    return queue.get()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> Dict[str, Any]:
    """What the numbers depend on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "allocator": _allocator(),
    }


def describe(facts: Dict[str, Any]) -> str:
    """The machine as a sentence of Markdown."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores (load {facts['load']:g} at the start), torch {facts['torch']}, "
        f"Python {facts['python']}, `{facts['allocator']}`."
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A Markdown table; all but the first columns hold numbers."""
    rule = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def goal(what: str, limit: float, measured: Dict[str, Optional[float]]) -> Dict[str, Any]:
    """A goal of the project: in words, the highest ratio that meets it, and the ratio at each place, if known."""
    known = [value for value in measured.values() if value is not None]
    met = all(value <= limit for value in known) if known and len(known) == len(measured) else None
    return {"goal": what, "limit": limit, "measured": measured, "met": met}


def goals_table(goals: Sequence[Dict[str, Any]]) -> str:
    """Goal, measured, met."""
    rows = []
    for entry in goals:
        shown = [f"{ratio:.2f} ({where})" for where, ratio in entry["measured"].items() if ratio is not None]
        met = {None: "not measured", True: "yes", False: "no"}[entry["met"]]
        rows.append([f"{entry['goal']}: <= {entry['limit']:g}", ", ".join(shown) or "-", met])
    return table(["goal", "measured", "met"], rows, text_columns=3)


def choices(allowed: Sequence[str], what: str) -> Callable[[str], List[str]]:
    """The type of an argument that lists some of ``allowed``, with commas between."""

    def parse(text: str) -> List[str]:
        for name in text.split(","):
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is no {what}; choose from {', '.join(allowed)}")
        return text.split(",")

    return parse


def numbers(text: str) -> List[int]:
    """The type of an argument that lists numbers greater than zero, with commas between."""
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers greater than 0 with commas between")
    return [int(part) for part in text.split(",")]


def number(text: str) -> int:
    """The type of an argument that is a number greater than zero."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number greater than 0")
    return int(text)


def make_parser(description: Optional[str], rounds: int, warmup: int = 1) -> argparse.ArgumentParser:
    """The arguments that all benchmarks have; so many rounds count, and some before them do not."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=number, help=f"rounds that count (default: {rounds}; 3 with --quick)")
    parser.add_argument("--quick", action="store_true", help="a small problem and few rounds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there; a new file")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="print the tables of numbers written before")
    parser.set_defaults(usual_rounds=rounds, usual_warmup=warmup)
    return parser


def run(
    parser: argparse.ArgumentParser,
    argv: Optional[Sequence[str]],
    measure: Callable[[argparse.Namespace], Dict[str, Any]],
    markdown: Callable[[Dict[str, Any]], str],
) -> int:
    """A whole benchmark: measures, or reads what was measured before, and prints; returns the exit status."""
    args = parser.parse_args(argv)
    if args.json and args.json.exists():
        parser.error(f"--json: {args.json} exists; remove it or name another file")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {args.json.parent}")
    if args.from_json and not args.from_json.is_file():
        parser.error(f"--from-json: there is no file {args.from_json}")
    args.rounds = args.rounds or (3 if args.quick else args.usual_rounds)
    args.warmup_rounds = 1 if args.quick else args.usual_warmup
    if args.from_json:
        facts = json.loads(args.from_json.read_text())
    else:
        facts = {"machine": machine(), **measure(args)}
    print(markdown(facts))
    if args.json:
        aside = args.json.with_name(args.json.name + ".part")
        aside.write_text(json.dumps(facts, indent=1) + "\n")
        os.replace(str(aside), str(args.json))
    return 0
