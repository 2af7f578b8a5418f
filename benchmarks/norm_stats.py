#!/usr/bin/env python3
"""What `--norm-stats` adds to a training step, and how large its file gets.

Forward and backward on random tokens with padding, without an optimizer, in four ways in turns: without recording, and
with it at an update that has no hooks, at one where the probes only keep averages, and at a recorded one. The table has
the processor's time on one thread: the median without recording, and with the median of what each way adds in its turn;
and the ratio that follows for a whole training.
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks import interleave
from benchmarks.sync import build
from powernorm_fairseq.diagnostics.storage import FILE
from powernorm_fairseq.diagnostics.training import Recorder
from powernorm_fairseq.norms import norm_names

KINDS = ("plain", "no hooks", "averages", "record")
UPDATES = {"no hooks": 1, "averages": 999, "record": 1000}  # of an interval of 1000
SENTENCES, LENGTH = 32, 25  # in the batch; tokens in the longest


def step(model: torch.nn.Module, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """One forward and backward."""
    output, _ = model(tokens, lengths, tokens)
    loss = output.square().sum()
    loss.backward()
    model.zero_grad()
    return loss


def measure(args: argparse.Namespace, norm: str, folder: Path) -> Dict[str, float]:
    """Seconds of each kind of step, the ratio, and the mean size of a record in bytes."""
    torch.manual_seed(1)
    model = build(args.arch, norm).train()
    tokens = torch.randint(4, 1000, (SENTENCES, LENGTH))
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (SENTENCES,))
    tokens[torch.arange(LENGTH) >= lengths.unsqueeze(1)] = 1  # padding
    recorder = Recorder(folder, interval=1000)
    turns = {kind: 0 for kind in KINDS}

    def run(kind: str) -> Dict[str, float]:
        if kind == "plain" and recorder.probes is not None:
            recorder.probes.detach()
        start = time.process_time()
        if kind != "plain":
            recorder.begin_step(model, 1000 * turns[kind] + UPDATES[kind], stands_in=False)
        loss = step(model, tokens, lengths)
        if kind != "plain":
            recorder.end_step(loss, tokens.numel(), scaled=False)
        turns[kind] += 1
        return {"step": time.process_time() - start}

    found = interleave.interleave({kind: partial(run, kind) for kind in KINDS}, args.rounds, args.warmup_rounds)
    times = {kind: own["step"] for kind, own in found.items()}
    plain = statistics.median(times["plain"])
    added = {
        kind: statistics.median(one - other for one, other in zip(taken, times["plain"]))
        for kind, taken in times.items()
    }
    window = min(recorder.window, args.interval - 1)
    seconds = (args.interval - 1 - window) * added["no hooks"] + window * added["averages"] + added["record"]
    lines = [line for line in (folder / FILE).read_bytes().splitlines() if b'"vectors"' not in line][1:]
    return {
        **{kind: plain + more for kind, more in added.items()},
        "ratio": 1 + seconds / args.interval / plain,
        "bytes": statistics.mean(len(line) + 1 for line in lines),
        "norms": len(recorder.probes.probes),
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=40)
    norms = interleave.choices(norm_names(), "norm")
    parser.add_argument("--norms", type=norms, default=["bn", "pnv", "pn"], metavar="A,B", help="default: bn,pnv,pn")
    parser.add_argument("--arch", default="powernorm_tiny", help="the model (default: %(default)s)")
    every = "updates between two records (default: %(default)s)"
    parser.add_argument("--interval", type=interleave.number, default=50, help=every)
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all norms."""
    torch.set_num_threads(1)
    results = []
    for norm in args.norms:
        with tempfile.TemporaryDirectory() as folder:
            results.append({"norm": norm, **measure(args, norm, Path(folder))})
    return {"interval": args.interval, "results": results}


def markdown(facts: Dict[str, Any]) -> str:
    """The table."""
    header = ["norm", *(f"{kind}, ms" for kind in KINDS), f"ratio at interval {facts['interval']}", "bytes a record"]
    rows = [
        [row["norm"], *(f"{1e3 * row[kind]:.1f}" for kind in KINDS), f"{row['ratio']:.4f}",
         f"{row['bytes']:.0f} ({row['norms']} norms)"]
        for row in facts["results"]
    ]  # fmt: skip
    return interleave.describe(facts["machine"]) + "\n\n" + interleave.table(header, rows)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    sys.exit(main())
