#!/usr/bin/env python3
"""What `--norm-stats` adds to a training step, and how large its file gets.

Forward and backward on random tokens with padding, without an optimizer, in four ways in turns: without recording, and
with it at an update that has no hooks, at one where the probes only keep averages, and at a recorded one. The table has
the processor's time on one thread: the median without recording, and with the median of what each way adds in its turn;
and the ratio that follows for a whole training.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.sync import build
from powernorm_fairseq.diagnostics.storage import FILE
from powernorm_fairseq.diagnostics.training import Recorder

KINDS = ("plain", "no hooks", "averages", "record")


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
    random.seed(1)  # each turn has its own order
    model = build(args.arch, norm).train()
    tokens = torch.randint(4, 1000, (args.sentences, args.length))
    lengths = torch.randint(args.length // 2, args.length + 1, (args.sentences,))
    tokens[torch.arange(args.length) >= lengths.unsqueeze(1)] = 1  # padding
    recorder = Recorder(folder, interval=1000)
    times: Dict[str, List[float]] = {kind: [] for kind in KINDS}
    for turn in range(args.steps + 1):
        updates = {"no hooks": 1000 * turn + 1, "averages": 1000 * turn + 999, "record": 1000 * (turn + 1)}
        for kind in random.sample(KINDS, len(KINDS)):
            if kind == "plain" and recorder.probes is not None:
                recorder.probes.detach()
            start = time.process_time()
            if kind != "plain":
                recorder.begin_step(model, updates[kind], stands_in=False)
            loss = step(model, tokens, lengths)
            if kind != "plain":
                recorder.end_step(loss, tokens.numel(), scaled=False)
            if turn > 0:  # the first turn warms up
                times[kind].append(time.process_time() - start)
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
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--norms", default="bn,pnv,pn", help="norms to measure")
    parser.add_argument("--arch", default="powernorm_tiny", help="the model")
    parser.add_argument("--sentences", type=int, default=32, help="sentences in the batch")
    parser.add_argument("--length", type=int, default=25, help="tokens in the longest sentence")
    parser.add_argument("--interval", type=int, default=50, help="updates between two records")
    parser.add_argument("--steps", type=int, default=40, help="steps of each kind")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints the table."""
    args = build_parser().parse_args(argv)
    torch.set_num_threads(1)
    columns = [*(f"{kind}, ms" for kind in KINDS), f"ratio at interval {args.interval}", "bytes a record"]
    print(f"| norm | {' | '.join(columns)} |")
    print("|" + " --- |" * (len(KINDS) + 3))
    for norm in args.norms.split(","):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(args, norm, Path(folder))
        shown = " | ".join(f"{1e3 * row[kind]:.1f}" for kind in KINDS)
        print(f"| {norm} | {shown} | {row['ratio']:.4f} | {row['bytes']:.0f} ({row['norms']} norms) |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
