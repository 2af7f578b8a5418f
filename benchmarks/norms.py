#!/usr/bin/env python3
"""The time and memory of every norm in every implementation, beside torch's own norms, as ratios.

All candidates of one shape run turn by turn in one process, in changing order. A ratio is that of two medians; the
range behind it has the quartiles of the ratios within each round. Our norms get T x B x C and the padding mask as
fairseq's encoder hands it on (a transposed view); torch's get the same rows without a mask. "Saved" is what autograd
keeps for the backward, as distinct storages, parameters aside. The program starts itself again with a fixed allocator.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from benchmarks import interleave
from powernorm_fairseq.norms import build_norm, norm_names, norm_options
from powernorm_fairseq.norms.kernels import available

LAYER_NORM, BATCH_NORM, RMS_NORM = "nn.LayerNorm", "nn.BatchNorm1d", "nn.RMSNorm"
# The layer-scale that a norm usually has in a model; bn and pnv are measured without as well, like nn.BatchNorm1d.
LAYER_SCALES = {
    "bn": ("none", "layer"),
    "brn": ("layer",),
    "mabn": ("layer",),
    "pnv": ("none", "head"),
    "pn": ("head",),
}
DTYPES = ("float32", "bfloat16")
PARTS = ("forward", "backward", "training", "inference")
SHAPES, QUICK_SHAPES = "4096x512/4,4096x1024/16,3500x128/4", "60x16/4"


class Shape(NamedTuple):
    """A batch: ``positions`` x ``width``, of which some are padding, for so many heads."""

    positions: int
    width: int
    groups: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From text like 4096x512/4."""
        try:
            positions, rest = text.split("x")
            shape = cls(int(positions), *map(int, rest.split("/")))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is no shape; write one like 4096x512/4") from None
        if shape.positions % shape.length:
            raise argparse.ArgumentTypeError(f"{text!r}: the positions must be a multiple of {shape.length}")
        return shape

    @property
    def length(self) -> int:
        """Tokens in the longest sentence."""
        return 32 if self.positions % 32 == 0 else 20

    def __str__(self) -> str:
        return f"{self.positions}x{self.width}/{self.groups}"


def parse_shapes(text: str) -> List[Shape]:
    """Shapes with commas between."""
    return [Shape.parse(part) for part in text.split(",")]


class Candidate(NamedTuple):
    """A norm, how it is computed, and what it is called with."""

    name: str
    layer_scale: str
    kernel: str
    module: nn.Module
    inputs: Tuple[Any, ...]

    @property
    def label(self) -> str:
        """Unique among the candidates of a shape."""
        return f"{self.name} {self.layer_scale} {self.kernel}"


def padding_mask(length: int, sentences: int) -> Tensor:
    """T x B, a transposed view; sentences end together, as fairseq pads sources, and have 70 to 100 % of the length."""
    shortest = max(1, round(0.7 * length))
    lengths = torch.randint(shortest, length + 1, (sentences,))
    lengths[0] = length
    return (torch.arange(length) < (length - lengths).unsqueeze(1)).t()


def _padding_share(shape: Shape) -> float:
    torch.manual_seed(1)
    return round(padding_mask(shape.length, shape.positions // shape.length).float().mean().item(), 3)


def candidates(shape: Shape, dtype: torch.dtype, norms: Sequence[str], device: str) -> List[Candidate]:
    """Torch's norms and ours, on one batch; the reference comes first."""
    torch.manual_seed(1)
    mask = padding_mask(shape.length, shape.positions // shape.length).to(device)
    x = (2 * torch.randn(*mask.shape, shape.width)).to(device=device, dtype=dtype).requires_grad_()
    rows = x.detach().view(-1, shape.width).requires_grad_()
    torchs = {LAYER_NORM: nn.LayerNorm, RMS_NORM: getattr(nn, "RMSNorm", None), BATCH_NORM: nn.BatchNorm1d}
    found = [Candidate(name, "", "torch", kind(shape.width), (rows,)) for name, kind in torchs.items() if kind]
    for name in norms:
        for layer_scale in LAYER_SCALES.get(name, ("none",)):
            for kernel in available(device) if "kernel" in norm_options(name) else ["eager"]:
                options = {"kernel": kernel} if "kernel" in norm_options(name) else {}
                norm = build_norm(name, shape.width, groups=shape.groups, layer_scale=layer_scale, **options)
                found.append(Candidate(name, layer_scale, kernel, norm, (x, mask)))
    for candidate in found:
        candidate.module.to(device=device, dtype=dtype)
    return found


def runner(candidate: Candidate, now: Callable[[], float]) -> Callable[[], Dict[str, float]]:
    """A function that trains the candidate for one step and evaluates it once, and returns the seconds of each part."""
    module, inputs = candidate.module, candidate.inputs
    wanted = [inputs[0], *module.parameters()]
    gradient = torch.randn_like(inputs[0])

    def run() -> Dict[str, float]:
        module.train()
        start = now()
        output = module(*inputs)
        between = now()
        gradients = torch.autograd.grad(output, wanted, gradient)
        end = now()
        del output, gradients
        module.eval()
        with torch.no_grad():
            before = now()
            module(*inputs)
            after = now()
        return {
            "forward": between - start,
            "backward": end - between,
            "training": end - start,
            "inference": after - before,
        }

    return run


def saved_bytes(candidate: Candidate) -> int:
    """Bytes that autograd keeps between forward and backward: saved tensors, and tensors on the nodes of its graph."""
    kept: Dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    candidate.module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = candidate.module(*candidate.inputs)
    seen: Set[Any] = set()
    nodes = [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for tensor in _tensors(getattr(node, "__dict__", {}), set()):
            keep(tensor)
        nodes += [following for following, _ in node.next_functions]
    for own in (*candidate.module.parameters(), *candidate.module.buffers()):
        kept.pop(own.data_ptr(), None)
    return sum(kept.values())


def _tensors(value: Any, seen: Set[int]) -> List[Tensor]:
    """The tensors in a value, in its parts and in the attributes of plain objects; a module keeps its own anyway."""
    if id(value) in seen or isinstance(value, (nn.Module, type)):
        return []
    seen.add(id(value))
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = list((value if isinstance(value, dict) else getattr(value, "__dict__", {})).values())
    return [tensor for part in parts for tensor in _tensors(part, seen)]


def measure(shape: Shape, dtype: str, threads: int, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """All candidates of one shape and type on so many threads: one row of facts for each."""
    torch.set_num_threads(threads)
    found = candidates(shape, getattr(torch, dtype), args.norms, args.device)
    now = interleave.stopwatch(args.device)
    runners = {candidate.label: runner(candidate, now) for candidate in found}
    times = interleave.interleave(runners, args.rounds, args.warmup_rounds)
    saved = {candidate.label: saved_bytes(candidate) for candidate in found}
    labels = {candidate.name: candidate.label for candidate in found if candidate.kernel == "torch"}
    rows = []
    for candidate in found:
        own = times[candidate.label]
        rows.append(
            {
                "shape": str(shape),
                "dtype": dtype,
                "threads": threads,
                "norm": candidate.name,
                "layer_scale": candidate.layer_scale,
                "kernel": candidate.kernel,
                "ms": {part: 1e3 * statistics.median(own[part]) for part in PARTS},
                "ratios": {
                    name: {part: list(interleave.compare(own[part], times[labels[name]][part])) for part in PARTS}
                    for name in (LAYER_NORM, BATCH_NORM)
                },
                "saved_bytes": saved[candidate.label],
                "saved_ratio": saved[candidate.label] / saved[labels[LAYER_NORM]],
            }
        )
    return rows


def goals(facts: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The project's goals for the norms alone: float32, all threads."""
    threads = max(facts["threads"])
    fused = next((kernel for kernel in facts["kernels"] if kernel != "eager"), None)

    def at(norm: str, scale: str, kernel: Optional[str], of: Callable[[Any], float], widths: Any) -> Dict[str, Any]:
        """Where -> what was measured for a norm."""
        rows = [row for row in facts["results"] if row["dtype"] == "float32" and row["threads"] == threads]
        rows = [row for row in rows if widths(Shape.parse(row["shape"]).width)]
        found: Dict[str, Any] = {}
        for where in sorted({row["shape"] for row in rows}):
            mine = [r for r in rows if (r["shape"], r["norm"], r["layer_scale"]) == (where, norm, scale)]
            found[f"{norm} {where}"] = next((of(row) for row in mine if row["kernel"] == kernel), None)
        return found

    def time_to(reference: str, part: str) -> Callable[[Any], float]:
        return lambda row: row["ratios"][reference][part][0]

    def every(width: int) -> bool:
        return True

    training, inference = time_to(LAYER_NORM, "training"), time_to(LAYER_NORM, "inference")
    beside_bn = time_to(BATCH_NORM, "training")
    wide = at("pn", "head", fused, training, lambda width: width >= 512)
    narrow = at("pn", "head", fused, training, lambda width: width < 512)
    batch = {**at("bn", "none", fused, beside_bn, every), **at("pnv", "none", fused, beside_bn, every)}
    best = fused or "eager"
    found = [
        interleave.goal(f"training, fused pn to {LAYER_NORM}, width 512 and more", 1.0, wide),
        interleave.goal(f"training, fused pn to {LAYER_NORM}, smaller width", 1.1, narrow),
        interleave.goal(f"training, fused bn and pnv without layer-scale to {BATCH_NORM}", 1.15, batch),
        interleave.goal(f"training, eager pn to {LAYER_NORM}", 5.0, at("pn", "head", "eager", training, every)),
        interleave.goal(
            f"saved, {best} pn to {LAYER_NORM}", 1.1, at("pn", "head", best, lambda row: row["saved_ratio"], every)
        ),
        interleave.goal(f"inference, {best} pn to {LAYER_NORM}", 1.0, at("pn", "head", best, inference, every)),
    ]
    return [entry for entry in found if entry["measured"]]


def markdown(facts: Dict[str, Any]) -> str:
    """Everything as Markdown: the goals, and a table for each shape and type."""
    parts = [interleave.describe(facts["machine"]), interleave.goals_table(facts["goals"])]
    for dtype in facts["dtypes"]:
        for shape in facts["shapes"]:
            rows = [row for row in facts["results"] if (row["shape"], row["dtype"]) == (shape, dtype)]
            padding = 100 * facts["padding"][shape]
            parts += [f"**{shape}, {dtype}, {padding:.0f} % padding**", _table(rows, facts["threads"])]
    return "\n\n".join(parts)


def _table(rows: List[Dict[str, Any]], threads: Sequence[int]) -> str:
    """Candidates as rows, for each number of threads the ratios to nn.LayerNorm; its own row also has milliseconds."""
    header = ["norm", "layer-scale", "kernel"]
    for count in threads:
        header += [f"forward, {count} thr.", "backward", "both", "inference"]
    lines = []
    for first in (row for row in rows if row["threads"] == threads[0]):
        line = [first["norm"], first["layer_scale"] or "-", first["kernel"]]
        for count in threads:
            same = ("norm", "layer_scale", "kernel")
            row = next(r for r in rows if r["threads"] == count and all(r[key] == first[key] for key in same))
            if row["norm"] == LAYER_NORM:
                line += ["{:.2f} ms".format(row["ms"][part]) for part in PARTS]
                continue
            ratios = {part: row["ratios"][LAYER_NORM][part] for part in PARTS}
            line += ["{:.2f}".format(ratios[part][0]) for part in PARTS]
            line[-2] = "{:.2f} ({:.2f}-{:.2f})".format(*ratios["training"])
        megabytes = first["saved_bytes"] / 2**20
        line.append(f"{megabytes:.1f} MiB" if first["norm"] == LAYER_NORM else f"{first['saved_ratio']:.2f}")
        lines.append(line)
    return interleave.table([*header, "saved"], lines, text_columns=3)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=40, warmup=5)
    norms, dtypes = interleave.choices(norm_names(), "norm"), interleave.choices(DTYPES, "type")
    parser.add_argument("--norms", type=norms, default=norm_names(), metavar="A,B", help="default: all")
    parser.add_argument("--dtypes", type=dtypes, default=list(DTYPES), metavar="T,T", help="default: all")
    parser.add_argument("--shapes", type=parse_shapes, metavar="S,S", help=f"positions x width / heads ({SHAPES})")
    parser.add_argument("--threads", type=interleave.numbers, metavar="N,N", help="default: 1 and the number of cores")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all shapes, types and numbers of threads."""
    args.shapes = args.shapes or parse_shapes(QUICK_SHAPES if args.quick else SHAPES)
    args.threads = args.threads or ([1] if args.quick else sorted({1, interleave.cores()}))
    facts: Dict[str, Any] = {
        "kernels": available(args.device),
        "shapes": [str(shape) for shape in args.shapes],
        "dtypes": args.dtypes,
        "threads": args.threads,
        "rounds": args.rounds,
        "padding": {str(shape): _padding_share(shape) for shape in args.shapes},
        "results": [],
    }
    for dtype in args.dtypes:
        for shape in args.shapes:
            for threads in args.threads:
                print(f"{shape}, {dtype}, {threads} threads ...", file=sys.stderr, flush=True)
                facts["results"] += measure(shape, dtype, threads, args)
    facts["goals"] = goals(facts)
    return facts


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    interleave.fix_allocator()
    sys.exit(main())
