#!/usr/bin/env python3
"""Time and memory of multi-linear attention: the definition, which builds n x n x n numbers, and the factorised form.

Both forms run turn by turn in this process, forward and backward, on the same random numbers; the table has medians and
their ratio. Memory is the peak of the process above what it held before the call (Linux).
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from powernorm_fairseq.models.multilinear import multilinear, naive_multilinear


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
    output = form(*inputs)
    middle = time.process_time()
    output.sum().backward()
    return {
        "forward": middle - start,
        "both": time.process_time() - start,
        "bytes": memory("VmHWM") - before,
    }


def compare(n: int, args: argparse.Namespace) -> Dict[str, Any]:
    """Medians of both forms at one length, and their ratios."""
    generator = torch.Generator().manual_seed(n)
    batch = max(1, args.tokens // n)
    shapes = [(batch, args.width, n)] * 3 + [(args.features, n * n)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    forms = {"naive": naive_multilinear, "factorised": multilinear}
    runs: Dict[str, List[Dict[str, float]]] = {name: [] for name in forms}
    for turn in range(args.turns + 1):
        for name, form in forms.items():
            figures = measure(form, inputs)
            if turn:  # the first is for warming up
                runs[name].append(figures)
    result: Dict[str, Any] = {"n": n, "batch": batch}
    for name, figures in runs.items():
        result[name] = {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
    result["ratio"] = {key: result["naive"][key] / result["factorised"][key] for key in ("forward", "both", "bytes")}
    return result


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 80, 160], metavar="N", help="of the context")
    parser.add_argument("--width", type=int, default=40, metavar="R", help="of queries, keys and values")
    parser.add_argument("--features", type=int, default=256, metavar="C", help="of the output")
    parser.add_argument("--tokens", type=int, default=2560, metavar="N", help="in a batch")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="measurements of each form")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of torch")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints a table; returns the exit status."""
    args = build_parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    results = []
    for n in args.lengths:
        print(f"n = {n}", file=sys.stderr, flush=True)
        results.append(compare(n, args))
    if args.json:
        print(json.dumps(results, indent=2))
        return 0
    print("| n | batch | forward + backward, naive | factorised | ratio | peak memory, naive | factorised | ratio |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for result in results:
        naive, ours, ratio = result["naive"], result["factorised"], result["ratio"]
        print(
            f"| {result['n']} | {result['batch']} | {naive['both'] * 1e3:.0f} ms | {ours['both'] * 1e3:.0f} ms "
            f"| {ratio['both']:.1f} | {naive['bytes'] / 2**20:.0f} MiB | {ours['bytes'] / 2**20:.0f} MiB "
            f"| {ratio['bytes']:.1f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
