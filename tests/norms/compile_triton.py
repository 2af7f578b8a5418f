"""Compiles every Triton kernel for two kinds of GPU, without needing one, and prints what became of it as JSON lines.

Pointers and sizes are declared as Triton's runtime would: tensors start at multiples of 16 bytes, and a size that 16
divides is known to be so.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from powernorm_fairseq.norms.kernels import triton_kernels as tk

CAPABILITIES = (80, 90)
INTEGERS = ["rows", "block_rows", "columns", "groups", "width", "inner", "outer_stride", "inner_stride"]
INTEGERS += ["blocks", "warmup", "first_size", "second_size"]
FLOATS = ["eps", "share", "unit", "weight"]
NUMBERS = {**dict.fromkeys(INTEGERS, "i32"), **dict.fromkeys(FLOATS, "fp32")}
POINTERS = {"padding": "*u8", "num_updates": "*i64"}
ROWS_IN, ROWS_OUT = ("x", "dy"), ("y", "dx")  # in the type of the input
DIVISIBLE = ("columns", "width", "first_size")
PN_FORWARD = {"centre": None, "num_updates": None, "means": None, "SCALES": "computed"}
PN_BACKWARD = {"centre": None, "offset": None, "means": None, "SCALES": "known"}
LN_FORWARD = {"centre": None, "power": None, "num_updates": None, "squares": None, "counts": None, "SCALES": "computed"}
LN_BACKWARD = {"centre": None, "rstd": None, "slope": None, "offset": None, "loss_scale": None, "SCALES": "known"}
REDUCE = {"BLOCKS": tk.BLOCKS, "COLUMNS": tk.COLUMNS}
OF_NU = ("gamma", "saved", "nu", "loss_scale", "new")
# What is compiled, the constants, and the columns and groups of a batch.
VARIANTS = [
    ("pn forward, heads", tk.forward_kernel, PN_FORWARD, (1024, 16)),
    ("pn forward, layer", tk.forward_kernel, PN_FORWARD, (1024, 1)),
    ("pn forward, layer, wide", tk.forward_kernel, PN_FORWARD, (4096, 1)),
    ("pn forward, no mask", tk.forward_kernel, {**PN_FORWARD, "padding": None, "counts": None}, (512, 4)),
    ("pn warm-up", tk.forward_kernel, {**PN_FORWARD, "num_updates": "", "power": None, "y": None}, (512, 1)),
    ("evaluation", tk.forward_kernel, {**PN_FORWARD, "squares": None, "counts": None, "scales": None}, (512, 4)),
    ("bn forward", tk.forward_kernel, {**LN_FORWARD, "centre": "", "means": None, "SCALES": "none"}, (1024, 0)),
    ("ln forward", tk.forward_kernel, LN_FORWARD, (1024, 1)),
    ("moments", tk.moments_kernel, {"means": None, "scales": None, "SCALES": "none"}, (1024, 0)),
    ("moments, layer", tk.moments_kernel, {"means": None, "SCALES": "computed"}, (1024, 1)),
    ("pn backward, heads", tk.gradient_kernel, PN_BACKWARD, (1024, 16)),
    ("pn backward, layer", tk.gradient_kernel, PN_BACKWARD, (1024, 1)),
    ("pn backward, layer, wide", tk.gradient_kernel, PN_BACKWARD, (4096, 1)),
    ("bn backward", tk.gradient_kernel, {"loss_scale": None, "sums": None, "SCALES": "none", "means": None}, (1024, 0)),
    ("ln backward", tk.gradient_kernel, LN_BACKWARD, (1024, 1)),
    ("pn columns", tk.power_columns_kernel, {"chosen": None, **REDUCE}, None),
    ("pn columns, no mask", tk.power_columns_kernel, {"chosen": None, "counts": None, **REDUCE}, None),
    ("pn columns, warm-up", tk.power_columns_kernel, {"used": None, "saved": None, "new": None, **REDUCE}, None),
    ("pn columns, backward", tk.gradient_columns_kernel, REDUCE, None),
    ("columns, backward", tk.gradient_columns_kernel, {**dict.fromkeys(OF_NU), "rstd": None, **REDUCE}, None),
    ("move", tk.move_kernel, {"CHUNK": tk.CHUNK}, None),
    ("move one", tk.move_kernel, {"second": None, "new_second": None, "num_updates": None, "CHUNK": tk.CHUNK}, None),
]


def compile_one(kernel, constants, batch, rows_type, capability):
    """The kernel in machine code."""
    constants = {name: value for name, value in constants.items() if value != ""}
    options = {}
    if batch is not None:
        grid = tk.grid_of(4096, *batch, processors=108)
        constants.update(TILE_ROWS=grid.tile_rows, TILE_COLUMNS=grid.tile_columns)
        options = {"num_warps": grid.warps}
        if constants["SCALES"] == "none":
            constants["scales"] = None
    signature, attributes = {}, {}
    for position, name in enumerate(kernel.arg_names):
        kind = NUMBERS.get(name) or POINTERS.get(name) or ("*" + rows_type if name in ROWS_IN + ROWS_OUT else "*fp32")
        signature[name] = "constexpr" if name in constants else kind
        if name not in constants and (kind.startswith("*") or name in DIVISIBLE):
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def facts_of(compiled):
    """Registers, memory for what does not fit them, and accesses to global memory of 16 bytes and of 2 to 8."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.check_output([str(tool), "--dump-resource-usage", str(cubin)], universal_newlines=True)
    names = {"REG": "registers", "STACK": "stack", "LOCAL": "local"}
    facts = {names[name]: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    facts.update(wide_loads=0, narrow_loads=0, wide_stores=0, narrow_stores=0)
    for kind, parts, bits in re.findall(r"\b(ld|st)\.global[\w.:]*?(?:\.v(\d))?\.b(\d+) ", compiled.asm["ptx"]):
        size = int(parts or 1) * int(bits) // 8
        if size > 1:  # a byte is a mask's
            facts[("wide_" if size >= 16 else "narrow_") + {"ld": "loads", "st": "stores"}[kind]] += 1
    return facts


def needed(kernel, constants, batch, rows_type):
    """How many accesses of 16 bytes a thread needs to read the rows of a tile, and how many to write them."""
    if batch is None:
        return {"rows_in": 0, "rows_out": 0}
    grid = tk.grid_of(4096, *batch, processors=108)
    size = {"fp32": 4, "bf16": 2}[rows_type]
    each = grid.tile_rows * grid.tile_columns * size // (16 * 32 * grid.warps)
    there = [name for name in kernel.arg_names if constants.get(name, "") is not None]
    return {
        "rows_in": each * sum(name in ROWS_IN for name in there),
        "rows_out": each * sum(name in ROWS_OUT for name in there),
    }


def main():
    """Compiles the variants."""
    for name, kernel, constants, batch in VARIANTS:
        for rows_type in ("fp32", "bf16") if batch else ("fp32",):
            for capability in CAPABILITIES:
                facts = facts_of(compile_one(kernel, constants, batch, rows_type, capability))
                facts.update(needed(kernel, constants, batch, rows_type))
                names = {"name": name, "kernel": kernel.__name__, "type": rows_type, "sm": capability}
                print(json.dumps({**names, **facts}))


if __name__ == "__main__":
    main()
