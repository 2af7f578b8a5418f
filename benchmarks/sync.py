#!/usr/bin/env python3
"""What `--sync-norm` adds to a training step: measured here over gloo on the CPU, estimated for clusters of GPUs.

Each number of processes trains the same model on random tokens, with statistics of its own and with synchronised ones,
turn by turn in the same processes; the table has medians and their ratio. The estimate is a model of latency and
bytes, not a measurement.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY

from powernorm_fairseq.models.transformer import PowerNormTransformer
from powernorm_fairseq.norms import BatchStatisticsNorm


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


def step(model: torch.nn.Module, tokens: torch.Tensor, sync: bool) -> float:
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
    return elapsed


def work(args: argparse.Namespace, norm: str, rank: int, size: int, store: str, queue: Any) -> None:
    """One process: steps with and without synchronisation, turn by turn."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = build(args.arch, norm).train()
    tokens = torch.randint(4, 1000, (args.sentences, args.length))
    times: Dict[bool, List[float]] = {False: [], True: []}
    for turn in range(args.steps + 1):
        for sync in (False, True):
            elapsed = step(model, tokens, sync)
            if turn > 0:  # the first one warms up
                times[sync].append(elapsed)
    if rank == 0:
        queue.put((statistics.median(times[False]), statistics.median(times[True])))
    if size > 1:
        dist.destroy_process_group()


def measure(args: argparse.Namespace, norm: str, size: int) -> Dict[str, Any]:
    """Medians of a step with ``size`` processes, with and without synchronisation."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            context.Process(target=work, args=(args, norm, rank, size, store, queue)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("sync: a process failed; its message is above")
    own, synced = queue.get()
    return {"norm": norm, "processes": size, "own_ms": 1e3 * own, "sync_ms": 1e3 * synced, "ratio": synced / own}


def collectives(norm: str, layers: int, width: int) -> List[int]:
    """Bytes of each all-reduce of a step: one for each norm and direction, float32."""
    vectors = {"bn": (2, 2), "brn": (2, 2), "pnv": (1, 1), "mabn": (1, 1), "pn": (1, 2)}
    vectors = {**vectors, "rbn": (2, 2), "un": (1, 1), "prepbn": (2, 2)}[norm]
    return [4 * (count * width + 2) for _ in range(2 * layers + 1) for count in vectors]


def estimate_ms(sizes: Sequence[int], gpus: int, args: argparse.Namespace) -> float:
    """Time of these all-reduces on a tree of ``gpus``: hops times latency, and twice the bytes over the bandwidth."""
    inside = min(gpus, args.gpus_per_node)
    nodes = math.ceil(gpus / args.gpus_per_node)
    hops = 2 * math.ceil(math.log2(inside)) * args.latency_inside + 2 * math.ceil(math.log2(nodes)) * args.latency
    bandwidth = args.bandwidth_inside if nodes == 1 else args.bandwidth
    return sum(1e-3 * hops + 1e3 * 2 * size / (bandwidth * 1e9) for size in sizes)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--norms", default="bn,pnv,pn", help="norms to measure")
    parser.add_argument("--processes", default="1,2,4", help="numbers of processes to measure")
    parser.add_argument("--arch", default="powernorm_tiny", help="the model")
    parser.add_argument("--sentences", type=int, default=64, help="sentences in the batch of each process")
    parser.add_argument("--length", type=int, default=25, help="tokens in a sentence")
    parser.add_argument("--steps", type=int, default=15, help="steps of each kind")
    parser.add_argument("--latency-inside", type=float, default=5.0, help="estimate: us for a hop inside a node")
    parser.add_argument("--latency", type=float, default=15.0, help="estimate: us for a hop between nodes")
    parser.add_argument("--bandwidth-inside", type=float, default=100.0, help="estimate: GB/s inside a node")
    parser.add_argument("--bandwidth", type=float, default=10.0, help="estimate: GB/s between nodes")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="estimate: GPUs in a node")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures, estimates and prints both tables."""
    args = build_parser().parse_args(argv)
    norms = args.norms.split(",")
    measured = []
    print("Measured: one forward and backward, gloo on the CPU, one thread for each process.\n")
    print("| norm | processes | own statistics, ms | synchronised, ms | ratio |\n| --- | --- | --- | --- | --- |")
    for norm in norms:
        for size in map(int, args.processes.split(",")):
            row = measure(args, norm, size)
            measured.append(row)
            print(f"| {norm} | {size} | {row['own_ms']:.1f} | {row['sync_ms']:.1f} | {row['ratio']:.2f} |", flush=True)
    print(
        "\nEstimate, not measured: what a step of the `big` encoder (6 layers, width 1024) spends in all-reduces, "
        f"from {args.latency_inside:g} us a hop inside a node of {args.gpus_per_node} GPUs, {args.latency:g} us "
        f"between nodes, {args.bandwidth_inside:g} and {args.bandwidth:g} GB/s.\n"
    )
    gpus = [8, 32, 128, 512, 1024]
    print("| norm | all-reduces | KB | " + " | ".join(f"{count} GPUs, ms" for count in gpus) + " |")
    print("|" + " --- |" * (3 + len(gpus)))
    estimates = []
    for norm in norms:
        sizes = collectives(norm, layers=6, width=1024)
        times = [estimate_ms(sizes, count, args) for count in gpus]
        estimates.append({"norm": norm, "all_reduces": len(sizes), "bytes": sum(sizes), "ms": dict(zip(gpus, times))})
        print(f"| {norm} | {len(sizes)} | {sum(sizes) / 1e3:.0f} | " + " | ".join(f"{t:.2f}" for t in times) + " |")
    if args.json:
        args.json.write_text(json.dumps({"measured": measured, "estimate": estimates}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
