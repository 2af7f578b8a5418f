#!/usr/bin/env python3
"""The time of the encoder at inference with each foldable norm, as trained and folded, as a ratio to the LN encoder.

All candidates encode the same padded batch turn by turn in one process, in changing order. A ratio is that of two
medians; the range behind it has the quartiles of the ratios within each round. The program starts itself again with a
fixed allocator.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from benchmarks import interleave
from benchmarks.norms import padding_mask
from benchmarks.sync import build
from powernorm_fairseq.models.fold import fold

REFERENCE, FOLDABLE = "ln", ("bn", "brn", "mabn", "pnv", "pn", "rbn", "un")
ARCHITECTURES = {"demo": "powernorm_tiny", "small": "powernorm_iwslt_de_en"}


def made_up_batch(positions: int) -> Tensor:
    """B x T tokens, some of them padding."""
    torch.manual_seed(1)
    padding = padding_mask(32, positions // 32).t()
    return torch.randint(4, 1000, padding.shape).masked_fill(padding, 1)


def runner(encoder: nn.Module, tokens: Tensor) -> Callable[[], Dict[str, float]]:
    """A function that encodes the batch once and returns the seconds."""
    now = interleave.stopwatch()

    def run() -> Dict[str, float]:
        with torch.no_grad():
            start = now()
            encoder(tokens)
            return {"inference": now() - start}

    return run


def measure(size: str, threads: int, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """All norms with the encoder of one size: a row of facts for each, as trained and folded."""
    torch.set_num_threads(threads)
    tokens = made_up_batch(args.positions)
    encoders = {(REFERENCE, False): build(ARCHITECTURES[size], REFERENCE).eval().encoder}
    for norm in args.norms:
        model = build(ARCHITECTURES[size], norm).eval()
        encoders[norm, False], encoders[norm, True] = model.encoder, fold(model).encoder
    runners = {key: runner(encoder, tokens) for key, encoder in encoders.items()}
    times = interleave.interleave(runners, args.rounds, args.warmup_rounds)
    own = {key: parts["inference"] for key, parts in times.items()}
    return [
        {
            "size": size,
            "threads": threads,
            "norm": norm,
            "folded": folded,
            "ms": 1e3 * statistics.median(own[norm, folded]),
            "ratio": list(interleave.compare(own[norm, folded], own[REFERENCE, False])),
        }
        for norm, folded in encoders
    ]


def markdown(facts: Dict[str, Any]) -> str:
    """Everything as Markdown: a table for each size."""
    parts = [interleave.describe(facts["machine"])]
    for size in facts["sizes"]:
        of_size = [row for row in facts["results"] if row["size"] == size]
        header = ["encoder norm"]
        for count in facts["threads"]:
            header += [f"as trained, {count} thr.", "folded"]
        rows = []
        for norm in [REFERENCE, *facts["norms"]]:
            line = [norm]
            for count in facts["threads"]:
                mine = [row for row in of_size if (row["norm"], row["threads"]) == (norm, count)]
                if norm == REFERENCE:
                    line += [f"{mine[0]['ms']:.1f} ms", "-"]
                else:
                    line += ["{:.3f} ({:.3f}-{:.3f})".format(*row["ratio"]) for row in mine]
            rows.append(line)
        parts += [f"**Encoder `{size}`, {facts['positions']} positions**", interleave.table(header, rows)]
    return "\n\n".join(parts)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=20, warmup=2)
    norms, sizes = interleave.choices(FOLDABLE, "norm to fold"), interleave.choices(list(ARCHITECTURES), "size")
    parser.add_argument("--norms", type=norms, default=list(FOLDABLE), metavar="A,B", help="default: all")
    parser.add_argument("--sizes", type=sizes, metavar="S,S", help="default: demo,small")
    parser.add_argument("--threads", type=interleave.numbers, metavar="N,N", help="default: 1 and the number of cores")
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all sizes, norms and numbers of threads."""
    args.sizes = args.sizes or (["demo"] if args.quick else list(ARCHITECTURES))
    args.threads = args.threads or ([1] if args.quick else sorted({1, interleave.cores()}))
    args.positions = 64 if args.quick else 4096
    names = ("sizes", "norms", "threads", "positions", "rounds")
    facts: Dict[str, Any] = {**{name: getattr(args, name) for name in names}, "results": []}
    for size in args.sizes:
        for threads in args.threads:
            print(f"{size}, {threads} threads ...", file=sys.stderr, flush=True)
            facts["results"] += measure(size, threads, args)
    return facts


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    interleave.fix_allocator()
    sys.exit(main())
