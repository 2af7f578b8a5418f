#!/usr/bin/env python3
"""What `--sync-norm` adds to a training step: measured here over gloo on the CPU, estimated for clusters of GPUs.

Each number of processes trains the same model on random tokens, with statistics of its own and with synchronised ones,
turn by turn in the same processes; the table has medians and their ratio. The estimate is a model of latency and
bytes, not a measurement.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY

from benchmarks import interleave
from powernorm_fairseq.models.transformer import PowerNormTransformer
from powernorm_fairseq.norms import BatchStatisticsNorm

GPUS = (8, 32, 128, 512, 1024)
# Columns that an all-reduce has in the forward and in the backward.
VECTORS = {"bn": (2, 2), "brn": (2, 2), "rbn": (2, 2), "prepbn": (2, 2), "pnv": (1, 1), "mabn": (1, 1), "un": (1, 1)}
VECTORS["pn"] = (1, 2)
ESTIMATE = (
    ("--latency-inside", 5.0, "us a hop inside a node"),
    ("--latency", 15.0, "us a hop between nodes"),
    ("--bandwidth-inside", 100.0, "GB/s inside a node"),
    ("--bandwidth", 10.0, "GB/s between nodes"),
    ("--gpus-per-node", 8.0, "GPUs in a node"),
)


class Task:
    """As much of a fairseq task as a model asks for."""

    def __init__(self) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(1000):
            self.source_dictionary.add_symbol(f"w{number}")

    def train_step(self, *args: Any) -> None:
        """Never called."""

    def begin_valid_epoch(self, *args: Any) -> None:
        """Never called."""

    def reduce_metrics(self, *args: Any) -> None:
        """Never called."""


def build(arch: str, norm: str) -> PowerNormTransformer:
    """The model of an architecture on a made-up dictionary."""
    args = argparse.Namespace(encoder_norm=norm, share_all_embeddings=True, warmup_updates=0, dropout=0.0)
    ARCH_CONFIG_REGISTRY[arch](args)
    return PowerNormTransformer.build_model(args, Task())


def step(model: torch.nn.Module, tokens: torch.Tensor, sync: bool) -> Dict[str, float]:
    """Seconds of one forward and backward."""
    for module in model.modules():
        if isinstance(module, BatchStatisticsNorm):
            module.sync = sync
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    output, _ = model(tokens, torch.full((tokens.shape[0],), tokens.shape[1]), tokens)
    output.sum().backward()
    elapsed = time.perf_counter() - start
    model.zero_grad()
    return {"step": elapsed}


def work(args: argparse.Namespace, norm: str, size: int, store: str, rank: int, queue: Any) -> None:
    """One process: steps with and without synchronisation, turn by turn."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = build(args.arch, norm).train()
    tokens = torch.randint(4, 1000, (args.sentences, args.length))
    runners = {sync: partial(step, model, tokens, sync) for sync in (False, True)}
    times = interleave.interleave(runners, args.rounds, args.warmup_rounds)  # in the same order in all processes
    if rank == 0:
        queue.put([statistics.median(times[sync]["step"]) for sync in (False, True)])
    if size > 1:
        dist.destroy_process_group()


def measure(args: argparse.Namespace, norm: str, size: int) -> Dict[str, Any]:
    """Medians of a step with ``size`` processes, with and without synchronisation."""
    with tempfile.TemporaryDirectory() as folder:
        own, synced = interleave.in_processes(work, size, args, norm, size, os.path.join(folder, "store"))
    return {"norm": norm, "processes": size, "own_ms": 1e3 * own, "sync_ms": 1e3 * synced, "ratio": synced / own}


def collectives(norm: str, layers: int, width: int) -> List[int]:
    """Bytes of each all-reduce of a step: one for each norm and direction, float32."""
    return [4 * (count * width + 2) for _ in range(2 * layers + 1) for count in VECTORS[norm]]


def estimate_ms(sizes: Sequence[int], gpus: int, args: argparse.Namespace) -> float:
    """Time of these all-reduces on a tree of ``gpus``: hops times latency, and twice the bytes over the bandwidth."""
    inside = min(gpus, args.gpus_per_node)
    nodes = math.ceil(gpus / args.gpus_per_node)
    hops = 2 * math.ceil(math.log2(inside)) * args.latency_inside + 2 * math.ceil(math.log2(nodes)) * args.latency
    bandwidth = args.bandwidth_inside if nodes == 1 else args.bandwidth
    return sum(1e-3 * hops + 1e3 * 2 * size / (bandwidth * 1e9) for size in sizes)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=15)
    norms = interleave.choices(list(VECTORS), "norm with statistics of a batch")
    parser.add_argument("--norms", type=norms, default=["bn", "pnv", "pn"], metavar="A,B", help="default: bn,pnv,pn")
    parser.add_argument("--processes", type=interleave.numbers, metavar="N,N", help="default: 1,2,4")
    parser.add_argument("--arch", default="powernorm_tiny", help="the model (default: %(default)s)")
    for name, value, what in ESTIMATE:
        parser.add_argument(name, type=float, default=value, help=f"estimate: {what} (default: %(default)g)")
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all norms and numbers of processes, and the estimates."""
    args.processes = args.processes or ([1] if args.quick else [1, 2, 4])
    args.sentences, args.length = (4, 8) if args.quick else (64, 25)
    facts: Dict[str, Any] = {name: getattr(args, name[2:].replace("-", "_")) for name, _, _ in ESTIMATE}
    facts.update(measured=[], estimate=[])
    for norm in args.norms:
        for size in args.processes:
            print(f"{norm}, {size} processes ...", file=sys.stderr, flush=True)
            facts["measured"].append(measure(args, norm, size))
        sizes = collectives(norm, layers=6, width=1024)
        times = [estimate_ms(sizes, count, args) for count in GPUS]
        facts["estimate"].append({"norm": norm, "all_reduces": len(sizes), "bytes": sum(sizes), "ms": times})
    return facts


def markdown(facts: Dict[str, Any]) -> str:
    """Both tables."""
    measured = [
        [row["norm"], str(row["processes"]), f"{row['own_ms']:.1f}", f"{row['sync_ms']:.1f}", f"{row['ratio']:.2f}"]
        for row in facts["measured"]
    ]
    estimate = [
        [row["norm"], str(row["all_reduces"]), f"{row['bytes'] / 1e3:.0f}", *(f"{time:.2f}" for time in row["ms"])]
        for row in facts["estimate"]
    ]
    given = ", ".join(f"{facts[name]:g} {what}" for name, _, what in ESTIMATE)
    return "\n\n".join(
        [
            interleave.describe(facts["machine"]),
            "Measured: one forward and backward, gloo on the CPU, one thread for each process.",
            interleave.table(["norm", "processes", "own statistics, ms", "synchronised, ms", "ratio"], measured),
            "Estimate, not measured: what a step of the `big` encoder (6 layers, width 1024) spends in all-reduces, "
            f"from {given}.",
            interleave.table(["norm", "all-reduces", "KB", *(f"{count} GPUs, ms" for count in GPUS)], estimate),
        ]
    )


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures, estimates and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    sys.exit(main())
