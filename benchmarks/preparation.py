#!/usr/bin/env python3
"""Measures data preparation: seconds of each stage, CPU time and peak memory, against the plain way.

The plain way is what one writes first: one process, sacremoses for normalising and tokenising line by line, subword-nmt
for learning and applying BPE, fairseq-preprocess. Both do the same steps on the same text, from raw text to fairseq's
data: normalise punctuation, tokenise, clean, lower-case, learn and apply joint BPE, binarise. Every run is a process of
its own; its memory is the sum over all its processes, shared pages counted once (PSS, Linux only). The result is a
Markdown table, with ranges where there are several runs, and JSON with ``--json``.
"""

import argparse
import io
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from data_prep.demo_corpus import write_corpus
from data_prep.errors import DataPrepError, run_main
from data_prep.pairs import clean_pair
from data_prep.parallel import default_workers
from data_prep.pipeline import Options, Pipeline
from data_prep.readers import open_lines
from data_prep.recipes import Steps, text

LANGS = ("de", "en")
STEPS = Steps(normalize=True, clean=(1, 175, 1.5), lower_last=True)
SPLITS = ("train", "valid", "test")
STAGES = ("tok", "codes", "bpe", "bin")
TITLES = {"tok": "normalise, tokenise, clean", "codes": "learn BPE", "bpe": "apply BPE", "bin": "binarise"}


def copy_text(paths: Sequence[Path], folder: Path, limit: Optional[int]) -> None:
    """Copies the user's text, plain or compressed, as ``train.de`` and ``train.en``; one file serves for both."""
    for path, lang in zip((paths * 2)[:2] if len(paths) == 1 else paths, LANGS):
        with open_lines(path) as source, open(str(folder / f"train.{lang}"), "wb") as target:
            for number, line in enumerate(source):
                if limit is not None and number >= limit:
                    break
                target.write(line)


def run_ours(folder: Path, workers: int, bpe_tokens: int) -> Dict[str, float]:
    """Runs the pipeline; returns the seconds of each stage."""
    files = {split: [(folder / f"{split}.de", folder / f"{split}.en")] for split in SPLITS}
    with tempfile.TemporaryDirectory(dir=str(folder)) as out:
        options = Options(out=Path(out) / "o", workers=workers, bpe_tokens=bpe_tokens, lenient=True)
        pipeline = Pipeline(text(files, LANGS, STEPS), options)
        pipeline.run()
        return {**pipeline.seconds, "output": sum(1 for _ in open(str(Path(out) / "o/bpe/train.en"), "rb"))}


def run_plain(folder: Path, bpe_tokens: int) -> Dict[str, float]:
    """Runs the plain way; returns the seconds of each stage."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from subword_nmt import apply_bpe, learn_bpe

    learn_bpe.tqdm = lambda steps: steps
    tools = [(MosesPunctNormalizer(lang), MosesTokenizer(lang)) for lang in LANGS]
    clock = [time.perf_counter()]
    kept: Dict[str, List[List[str]]] = {split: [[], []] for split in SPLITS}
    for split in SPLITS:
        with open(str(folder / f"{split}.de"), encoding="utf-8", newline="\n") as german:
            with open(str(folder / f"{split}.en"), encoding="utf-8", newline="\n") as english:
                for pair in zip(german, english):
                    sides = [
                        tokenizer.tokenize(normalizer.normalize(line), return_str=True)
                        for line, (normalizer, tokenizer) in zip(pair, tools)
                    ]
                    clean = clean_pair(sides[0], sides[1], *STEPS.clean)
                    if clean:
                        for side, lines in zip(clean, kept[split]):
                            lines.append(side.lower())
    clock.append(time.perf_counter())
    codes = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("\n".join(kept["train"][0] + kept["train"][1]) + "\n"), codes, bpe_tokens)
    clock.append(time.perf_counter())
    codes.seek(0)
    bpe = apply_bpe.BPE(codes)
    with tempfile.TemporaryDirectory(dir=str(folder)) as out:
        command = [sys.executable, "-m", "fairseq_cli.preprocess", "--destdir", out + "/bin", "--joined-dictionary"]
        command += ["--source-lang", LANGS[0], "--target-lang", LANGS[1]]
        for split, sides in kept.items():
            command += [f"--{split}pref", f"{out}/{split}"]
            for lang, lines in zip(LANGS, sides):
                with open(f"{out}/{split}.{lang}", "w", encoding="utf-8", newline="\n") as stream:
                    stream.writelines(bpe.process_line(line) + "\n" for line in lines)
        clock.append(time.perf_counter())
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        clock.append(time.perf_counter())
    seconds = dict(zip(STAGES, (after - before for before, after in zip(clock, clock[1:]))))
    return {**seconds, "output": len(kept["train"][0])}


def _memory(process: int) -> int:
    """Returns the memory of a process and its children, in bytes."""
    total = 0
    try:
        with open(f"/proc/{process}/smaps_rollup") as stream:
            total += sum(int(line.split()[1]) * 1024 for line in stream if line.startswith("Pss:"))
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children") as stream:
                total += sum(_memory(int(child)) for child in stream.read().split())
    except OSError:
        pass  # it has ended, or this is not Linux
    return total


def measure(kind: str, folder: Path, workers: int, bpe_tokens: int) -> Dict[str, Any]:
    """Runs one kind in a process of its own.

    Args:
        kind: ``ours`` or ``plain``.
        folder: with the text.
        workers: of ours.
        bpe_tokens: merges.
    Returns: kind, workers, seconds of each stage, peak memory in bytes.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--workers", str(workers)]
    command += ["--bpe-tokens", str(bpe_tokens), "--text", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], _memory(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise DataPrepError(f"the run of {kind} failed")
    result = json.loads(out.decode().splitlines()[-1])
    pairs, cpu = result.pop("output"), result.pop("cpu")
    facts = {"kind": kind, "workers": workers, "seconds": result, "cpu_seconds": cpu}
    return {**facts, "peak_bytes": peak[0], "pairs_kept": pairs}


def table(pairs: int, runs: List[Dict[str, Any]]) -> str:
    """Returns the results as Markdown; of several runs of a kind, the range."""
    kinds: Dict[str, List[Dict[str, Any]]] = {}
    for run in runs:
        workers = f"ours, {run['workers']} worker{'s'[: run['workers'] > 1]}"
        kinds.setdefault("plain" if run["kind"] == "plain" else workers, []).append(run)

    def span(values: Sequence[float], form: str) -> str:
        low, high = format(min(values), form), format(max(values), form)
        return low if low == high else f"{low} to {high}"

    def row(title: str, value: Callable[[Dict[str, Any]], float], form: str) -> str:
        return f"| {title} | " + " | ".join(span([value(run) for run in own], form) for own in kinds.values()) + " |"

    def whole(run: Dict[str, Any]) -> float:
        return sum(run["seconds"][stage] for stage in STAGES)

    lines = [f"| {pairs:,} pairs | " + " | ".join(kinds) + " |", "| --- |" + " ---: |" * len(kinds)]
    lines += [row(TITLES[stage] + ", s", lambda run, stage=stage: run["seconds"][stage], ".1f") for stage in STAGES]
    lines += [row("whole, s", whole, ".1f"), row("CPU time, s", lambda run: run["cpu_seconds"], ".1f")]
    if "plain" in kinds:
        for title, value in (("wall time", whole), ("CPU time", lambda run: run["cpu_seconds"])):
            # run by run, since what else the machine does changes from one to the next
            ratios = [
                span([value(plain) / value(run) for plain, run in zip(kinds["plain"], own)], ".1f")
                for own in kinds.values()
            ]
            lines.append(f"| times the plain way, {title} | " + " | ".join(ratios) + " |")
    return "\n".join([*lines, row("peak memory, MiB", lambda run: run["peak_bytes"] / 2**20, ",.0f")])


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Measure data preparation against sacremoses, subword-nmt and fairseq-preprocess."
    )
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="German and English file, line by line, or one file for both; .gz allowed (default: made-up text)",
    )
    parser.add_argument("--pairs", type=int, metavar="N", help="lines to use (default: all; 20000 of made-up text)")
    parser.add_argument("--bpe-tokens", type=int, default=10_000, metavar="N", help="merges (default: %(default)s)")
    parser.add_argument(
        "--workers",
        type=int,
        default=default_workers(),
        metavar="N",
        help="processes (default: all cores, %(default)s)",
    )
    parser.add_argument("--no-plain", action="store_true", help="leave the plain way out")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--child", choices=("ours", "plain"), help=argparse.SUPPRESS)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    if args.child:
        folder = args.text[0]
        result = (
            run_plain(folder, args.bpe_tokens)
            if args.child == "plain"
            else run_ours(folder, args.workers, args.bpe_tokens)
        )
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        result["cpu"] = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        print(json.dumps(result))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.text:
            copy_text(args.text, folder, args.pairs)
        else:
            write_corpus(folder, {"train": args.pairs or 20_000}, seed=1)
        for split, lang in itertools.product(SPLITS[1:], LANGS):
            (folder / f"{split}.{lang}").write_text("Ende.\n")
        with open(str(folder / "train.de"), "rb") as stream:
            pairs = sum(1 for _ in stream)
        settings: List[Tuple[str, int]] = [] if args.no_plain else [("plain", 1)]
        settings += [("ours", workers) for workers in sorted({1, args.workers})]
        runs = []
        for kind, workers in settings * args.repeat:
            print(f"running {kind} with {workers}", file=sys.stderr)
            runs.append(measure(kind, folder, workers, args.bpe_tokens))
    print(table(pairs, runs))
    if args.json:
        facts = {"pairs": pairs, "bpe_tokens": args.bpe_tokens, "python": platform.python_version()}
        facts["cores"] = os.cpu_count()
        args.json.write_text(json.dumps({**facts, "runs": runs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
