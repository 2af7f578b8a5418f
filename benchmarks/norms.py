#!/usr/bin/env python3
"""The time and memory of every norm in every implementation, beside torch's own norms, as ratios.

All candidates of one shape run turn by turn in one process, in changing order; a turn is some steps in a row (--steps),
because a model calls its norms again and again, and counts as their median. A ratio is that of two medians over the
rounds; the range behind it has the quartiles of the ratios within each round. Our norms get T x B x C, with the padding
mask as fairseq's encoder hands it on (a transposed view) and without a mask; torch's get the same rows without a mask.
"Frozen" is a step in evaluation mode, with gradients. "Saved" is what autograd keeps for the backward, as distinct
storages, parameters aside. --encoder measures six encoder layers of torch with PN beside LN, eager and compiled. The
program starts itself again with a fixed allocator.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from benchmarks import bandwidth, interleave
from powernorm_fairseq.norms import build_norm, convert_norms, norm_names, take_penalty
from powernorm_fairseq.norms.kernels import KERNELS, available

LAYER_NORM, BATCH_NORM, RMS_NORM = "nn.LayerNorm", "nn.BatchNorm1d", "nn.RMSNorm"
# The layer-scale that a norm usually has in a model; bn and pnv are measured without as well, like nn.BatchNorm1d.
LAYER_SCALES = {
    "bn": ("none", "layer"),
    "brn": ("layer",),
    "mabn": ("layer",),
    "pnv": ("none", "head"),
    "pn": ("head",),
    "rbn": ("layer",),
}
DTYPES = ("float32", "bfloat16")
PARTS = ("forward", "backward", "training", "frozen", "inference")
SHAPES, QUICK_SHAPES = "4096x512/4,4096x1024/16,3500x128/4,4096x256/4", "60x16/4"


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

    def padding_mask(self) -> Tensor:
        """The same each time; see :func:`padding_mask`."""
        torch.manual_seed(1)
        return padding_mask(self.length, self.positions // self.length)

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
    def mask(self) -> str:
        """Whether it gets a padding mask."""
        return "yes" if len(self.inputs) > 1 else "no"

    @property
    def label(self) -> str:
        """Unique among the candidates of a shape."""
        return f"{self.name} {self.layer_scale} {self.kernel} {self.mask}"


def padding_mask(length: int, sentences: int) -> Tensor:
    """T x B, a transposed view; sentences end together, as fairseq pads sources, and have 70 to 100 % of the length."""
    shortest = max(1, round(0.7 * length))
    lengths = torch.randint(shortest, length + 1, (sentences,))
    lengths[0] = length
    return (torch.arange(length) < (length - lengths).unsqueeze(1)).t()


def candidates(
    shape: Shape, dtype: torch.dtype, norms: Sequence[str], kernels: Sequence[str], device: str
) -> List[Candidate]:
    """Torch's norms and ours, on one batch; the reference comes first."""
    mask = shape.padding_mask().to(device)
    x = (2 * torch.randn(*mask.shape, shape.width)).to(device=device, dtype=dtype).requires_grad_()
    rows = x.detach().view(-1, shape.width).requires_grad_()
    torchs = {LAYER_NORM: nn.LayerNorm, RMS_NORM: getattr(nn, "RMSNorm", None), BATCH_NORM: nn.BatchNorm1d}
    found = [Candidate(name, "", "torch", kind(shape.width), (rows,)) for name, kind in torchs.items() if kind]
    for name in norms:
        for layer_scale in LAYER_SCALES.get(name, ("none",)):
            for kernel in kernels:
                for inputs in ((x, mask), (x,)):
                    options = {"groups": shape.groups, "layer_scale": layer_scale, "kernel": kernel}
                    options["updates"] = 10**6  # prepbn: both of its parts for all of the measurement
                    found.append(Candidate(name, layer_scale, kernel, build_norm(name, shape.width, **options), inputs))
    for candidate in found:
        candidate.module.to(device=device, dtype=dtype)
    return found


def runner(candidate: Candidate, now: Callable[[], float], steps: int) -> Callable[[], Dict[str, float]]:
    """A function that does some steps of each part in a row and returns the median seconds of a step."""
    module, inputs = candidate.module, candidate.inputs
    wanted = [inputs[0], *module.parameters()]
    gradient = torch.randn_like(inputs[0])

    def train() -> Dict[str, float]:
        start = now()
        outputs, gradients = [module(*inputs)], [gradient]
        penalty = take_penalty(module)
        if penalty is not None:  # a part of the loss
            outputs, gradients = [*outputs, penalty], [gradient, torch.ones_like(penalty)]
        between = now()
        torch.autograd.grad(outputs, wanted, gradients)
        end = now()
        return {"forward": between - start, "backward": end - between, "training": end - start}

    def frozen() -> Dict[str, float]:
        start = now()
        torch.autograd.grad(module(*inputs), wanted, gradient)
        return {"frozen": now() - start}

    @torch.no_grad()
    def infer() -> Dict[str, float]:
        start = now()
        module(*inputs)
        return {"inference": now() - start}

    def run() -> Dict[str, float]:
        medians = {}
        for part, training in ((train, True), (frozen, False), (infer, False)):
            module.train(training)
            times = [part() for _ in range(steps)]
            medians.update({name: statistics.median(step[name] for step in times) for name in times[0]})
        return medians

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
    found = candidates(shape, getattr(torch, dtype), args.norms, args.kernels, args.device)
    now = interleave.stopwatch(args.device)
    runners = {candidate.label: runner(candidate, now, args.steps) for candidate in found}
    times = interleave.interleave(runners, args.rounds, args.warmup_rounds)
    saved = {candidate.label: saved_bytes(candidate) for candidate in found}
    reference, rows = found[0].label, []
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
                "mask": candidate.mask,
                "ms": {part: 1e3 * statistics.median(own[part]) for part in PARTS},
                "ratios": {part: list(interleave.compare(own[part], times[reference][part])) for part in PARTS},
                "saved_bytes": saved[candidate.label],
                "saved_ratio": saved[candidate.label] / saved[reference],
            }
        )
    return rows


def goals(facts: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The project's goals for the norms alone: float32, with and without a mask, every number of threads."""
    fused = next((kernel for kernel in facts["kernels"] if kernel != "eager"), "eager")
    rows = [row for row in facts["results"] if row["dtype"] == "float32" and row["kernel"] in (fused, "torch")]

    def to(
        norms: str, scale: str, *others: str, part: str = "training", widths: range = range(10**9)
    ) -> Dict[str, Optional[float]]:
        """Where -> the time of a norm over that of others, one after the other; each is a name and a layer-scale."""
        found: Dict[str, Optional[float]] = {}
        for row in rows:
            shape = Shape.parse(row["shape"])
            if row["norm"] not in norms.split() or row["layer_scale"] != scale or shape.width not in widths:
                continue
            same = [other for other in rows if (other["shape"], other["threads"]) == (row["shape"], row["threads"])]
            times = {
                f"{other['norm']} {other['layer_scale']}".strip(): other["ms"][part]
                for other in same
                if other["kernel"] == "torch" or other["mask"] == row["mask"]
            }
            if all(other in times for other in others):
                mask = "mask" if row["mask"] == "yes" else "no mask"
                where = f"{row['norm']} {shape.width}, {mask}, {row['threads']} thr."
                found[where] = row["ms"][part] / sum(times[other] for other in others)
        return found

    narrow, wide = range(512), range(512, 10**9)
    saved = {
        f"pn {Shape.parse(row['shape']).width}, mask: {row['mask']}": row["saved_ratio"]
        for row in rows
        if row["norm"] == "pn"
    }
    found = [
        (f"training, pn to {LAYER_NORM}, width 512 and more", 0.95, to("pn", "head", LAYER_NORM, widths=wide)),
        (f"training, pn to {LAYER_NORM}, smaller width", 1.05, to("pn", "head", LAYER_NORM, widths=narrow)),
        (f"inference, pn to {LAYER_NORM}", 0.8, to("pn", "head", LAYER_NORM, part="inference")),
        (f"evaluation mode with gradients, pn to {LAYER_NORM}", 1.1, to("pn", "head", LAYER_NORM, part="frozen")),
        (f"training, ln, rms, gn to {LAYER_NORM}", 1.2, to("ln rms gn", "none", LAYER_NORM)),
        (f"training, bn, pnv to {BATCH_NORM}", 1.0, to("bn pnv", "none", BATCH_NORM)),
        (f"training, brn and mabn to {BATCH_NORM}", 1.3, to("brn mabn", "layer", BATCH_NORM)),
        (f"training, dyt, derf, scalenorm to {LAYER_NORM}", 1.2, to("dyt derf scalenorm", "none", LAYER_NORM)),
        ("training, rbn to bn", 1.1, to("rbn", "layer", "bn layer")),
        ("training, un to mabn", 1.0, to("un", "none", "mabn layer")),
        (f"training, prepbn to {LAYER_NORM} and bn", 1.0, to("prepbn", "none", LAYER_NORM, "bn none")),
        (f"saved, pn to {LAYER_NORM}", 1.1, saved),
    ]
    if facts.get("encoder"):
        found.append(("compiled encoder with pn to ln", 1.05, {"width 512": facts["encoder"]["compiled"]["pn"][0]}))
    return [interleave.goal(*goal) for goal in found if goal[-1]]


def encoder_model(norm: str, width: int, heads: int) -> nn.Module:
    """Six pre-norm layers of torch's encoder with ``norm`` in the place of every LayerNorm."""
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 6, nn.LayerNorm(width), enable_nested_tensor=False)
    if norm != "ln":
        convert_norms(model, norm, groups=heads)
    return model


def measure_encoder(args: argparse.Namespace) -> Dict[str, Any]:
    """Training steps of a six-layer encoder, eager and compiled: the ratio of pn to ln."""
    torch.set_num_threads(max(args.threads))
    width, heads, size = (32, 2, (4, 8)) if args.quick else (512, 8, (32, 32))
    now, found = interleave.stopwatch(args.device), {}
    for kind in ("eager", "compiled"):
        runners = {}
        for norm in ("ln", "pn"):
            torch.manual_seed(1)
            model = encoder_model(norm, width, heads).to(args.device)
            call = torch.compile(model) if kind == "compiled" else model
            x = torch.randn(*size, width, device=args.device)

            def step(model: nn.Module = model, call: Any = call, x: Tensor = x) -> Dict[str, float]:
                model.zero_grad()
                start = now()
                call(x).square().mean().backward()
                return {"training": now() - start}

            runners[norm] = step
        times = interleave.interleave(runners, args.rounds, args.warmup_rounds)
        found[kind] = {"pn": list(interleave.compare(times["pn"]["training"], times["ln"]["training"]))}
    return found


def markdown(facts: Dict[str, Any]) -> str:
    """Everything as Markdown: the goals, and a table for each shape and type."""
    parts = [interleave.describe(facts["machine"]), interleave.goals_table(facts["goals"])]
    for kind, ratios in facts.get("encoder", {}).items():
        parts.append("Six encoder layers, {}: pn to ln {:.3f} ({:.3f}-{:.3f})".format(kind, *ratios["pn"]))
    for dtype in facts["dtypes"]:
        for shape in facts["shapes"]:
            rows = [row for row in facts["results"] if (row["shape"], row["dtype"]) == (shape, dtype)]
            padding = 100 * facts["padding"][shape]
            parts += [f"**{shape}, {dtype}, {padding:.0f} % padding**", _table(rows, facts["threads"])]
    parts += bandwidth.section(facts)
    return "\n\n".join(parts)


def _table(rows: List[Dict[str, Any]], threads: Sequence[int]) -> str:
    """Candidates as rows, for each number of threads the ratios to nn.LayerNorm; its own row also has milliseconds."""
    header = ["norm", "layer-scale", "kernel", "mask"]
    for count in threads:
        header += [f"forward, {count} thr.", "backward", "both", "frozen", "inference"]
    lines = []
    for first in (row for row in rows if row["threads"] == threads[0]):
        line = [first["norm"], first["layer_scale"] or "-", first["kernel"], first["mask"]]
        for count in threads:
            same = ("norm", "layer_scale", "kernel", "mask")
            row = next(r for r in rows if r["threads"] == count and all(r[key] == first[key] for key in same))
            if row["norm"] == LAYER_NORM:
                line += ["{:.2f} ms".format(row["ms"][part]) for part in PARTS]
                continue
            line += ["{:.2f}".format(row["ratios"][part][0]) for part in PARTS]
            line[-3] = "{:.2f} ({:.2f}-{:.2f})".format(*row["ratios"]["training"])
        megabytes = first["saved_bytes"] / 2**20
        line.append(f"{megabytes:.1f} MiB" if first["norm"] == LAYER_NORM else f"{first['saved_ratio']:.2f}")
        lines.append(line)
    return interleave.table([*header, "saved"], lines, text_columns=4)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=40, warmup=5)
    norms, dtypes = interleave.choices(norm_names(), "norm"), interleave.choices(DTYPES, "type")
    parser.add_argument("--norms", type=norms, default=norm_names(), metavar="A,B", help="default: all")
    parser.add_argument("--dtypes", type=dtypes, default=list(DTYPES), metavar="T,T", help="default: all")
    parser.add_argument("--shapes", type=parse_shapes, metavar="S,S", help=f"positions x width / heads ({SHAPES})")
    parser.add_argument("--threads", type=interleave.numbers, metavar="N,N", help="default: 1 and the number of cores")
    kernels = interleave.choices(KERNELS[1:], "kernel")
    parser.add_argument("--kernels", type=kernels, metavar="K,K", help="default: all that serve the device")
    parser.add_argument("--steps", type=interleave.number, default=5, help="steps in a row (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--encoder", action="store_true", help="also measure an encoder, compiled (some minutes)")
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all shapes, types and numbers of threads."""
    args.shapes = args.shapes or parse_shapes(QUICK_SHAPES if args.quick else SHAPES)
    args.kernels = args.kernels or available(args.device)
    args.threads = args.threads or ([1] if args.quick else sorted({1, interleave.cores()}))
    facts: Dict[str, Any] = {
        "kernels": args.kernels,
        "shapes": [str(shape) for shape in args.shapes],
        "dtypes": args.dtypes,
        "threads": args.threads,
        "rounds": args.rounds,
        "steps": args.steps,
        "peak": bandwidth.peak(args.device),
        "padding": {str(shape): round(shape.padding_mask().float().mean().item(), 3) for shape in args.shapes},
        "results": [],
    }
    for dtype in args.dtypes:
        for shape in args.shapes:
            for threads in args.threads:
                print(f"{shape}, {dtype}, {threads} threads ...", file=sys.stderr, flush=True)
                facts["results"] += measure(shape, dtype, threads, args)
    if args.encoder:
        print("encoder ...", file=sys.stderr, flush=True)
        facts["encoder"] = measure_encoder(args)
    facts["goals"] = goals(facts)
    return facts


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    interleave.fix_allocator()
    sys.exit(main())
