#!/usr/bin/env python3
"""Time and memory of multi-linear attention: the definition, which builds n x n x n numbers, and the factorised form.

Both forms run turn by turn in this process, forward and backward, on the same random numbers; the table has medians and
their ratio. Memory is the peak of the process above what it held before the call (Linux).
"""

import argparse
import ctypes
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks import interleave
from powernorm_fairseq.models.multilinear import multilinear, naive_multilinear

WIDTH, FEATURES, TOKENS = 40, 256, 2560  # of queries, keys and values; of the output; in a batch


def memory(field: str) -> int:
    """A figure of the process in bytes: VmRSS is what it holds, VmHWM the most it held."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def reset_peak() -> None:
    """Gives free memory back to the system and makes the present memory the peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measure(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Dict[str, float]:
    """Seconds of processor time and peak bytes of one forward and backward."""
    for tensor in inputs:
        tensor.grad = None
    reset_peak()
    before, start = memory("VmRSS"), time.process_time()
    form(*inputs).sum().backward()
    return {"both": time.process_time() - start, "bytes": memory("VmHWM") - before}


def compare(n: int, args: argparse.Namespace) -> Dict[str, Any]:
    """Medians of both forms at one length, and their ratios."""
    generator = torch.Generator().manual_seed(n)
    batch = max(1, TOKENS // n)
    shapes = [(batch, WIDTH, n)] * 3 + [(FEATURES, n * n)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    forms = {"naive": partial(measure, naive_multilinear, inputs), "factorised": partial(measure, multilinear, inputs)}
    figures = interleave.interleave(forms, args.rounds, args.warmup_rounds)
    medians = {name: {key: statistics.median(own[key]) for key in own} for name, own in figures.items()}
    ratio = {key: value / medians["factorised"][key] for key, value in medians["naive"].items()}
    return {"n": n, "batch": batch, **medians, "ratio": ratio}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=5)
    parser.add_argument("--lengths", type=interleave.numbers, metavar="N,N", help="of the context (default: 32,80,160)")
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all lengths."""
    torch.set_num_threads(1)
    lengths = args.lengths or ([8] if args.quick else [32, 80, 160])
    return {"results": [compare(n, args) for n in lengths]}


def markdown(facts: Dict[str, Any]) -> str:
    """The table."""
    header = ["n", "batch", "forward + backward, naive", "factorised", "ratio"]
    rows = []
    for row in facts["results"]:
        line = [str(row["n"]), str(row["batch"])]
        for key, unit, form in (("both", 1e-3, "{:.0f} ms"), ("bytes", 2**20, "{:.0f} MiB")):
            line += [form.format(row[name][key] / unit) for name in ("naive", "factorised")]
            line.append(f"{row['ratio'][key]:.1f}")
        rows.append(line)
    table = interleave.table([*header, "peak memory, naive", "factorised", "ratio"], rows, text_columns=0)
    return interleave.describe(facts["machine"]) + "\n\n" + table


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    sys.exit(main())
