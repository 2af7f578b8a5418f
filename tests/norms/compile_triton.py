"""Compiles the Triton kernels for two kinds of GPU, without needing one, and prints what became of each as JSON lines.

The operators are called as norms call them, but what they would launch is compiled instead, specialised as Triton's
runtime would do it: a tensor that starts at a multiple of 16 bytes, and a size that 16 divides, are known to be so.
"""

import json
import re
import subprocess
import tempfile
from multiprocessing import Pool
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from powernorm_fairseq.norms.kernels import triton_kernels as tk
from powernorm_fairseq.norms.kernels.triton_ops import OPERATORS

CAPABILITIES = (80, 90)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8", torch.int64: "i64"}
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
ROWS_IN, ROWS_OUT = ("x", "dy"), ("y", "dx")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
# Columns, groups, type, whether there is a mask, whether there are parameters, which norms. The first have to be fast.
FAST = [
    (1024, 16, FP32, True, True, ["pn"]),
    (1024, 16, BF16, True, True, ["pn"]),
    (1024, 1, FP32, True, True, ["pn", "others"]),
    (1024, 1, BF16, True, True, ["pn"]),
    (1024, 0, FP32, True, True, ["pn"]),
    (4096, 1, FP32, True, True, ["pn"]),
]
ODD = [
    (6, 2, FP16, False, True, ["pn", "others"]),
    (5, 0, FP16, True, False, ["pn", "others"]),
    (1, 1, FP16, True, False, ["pn"]),
]


def specialise(kernel, values):
    """The types, constants and known divisors that the runtime would compile for."""
    types, constants, divisible = {}, {}, {}
    for param, value in zip(kernel.params, values):
        types[param.name] = "constexpr"
        free = param.do_not_specialize
        if isinstance(value, torch.Tensor):
            types[param.name] = "*" + TYPES[value.dtype]
            known = value.data_ptr() % 16 == 0
        elif param.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not free):
            constants[param.name], known = value, False
        else:
            types[param.name] = "fp32" if isinstance(value, float) else "i32"
            known = isinstance(value, int) and value % 16 == 0 and not free
        if known:
            divisible[(param.num,)] = [["tt.divisibility", 16]]
    return types, constants, divisible


def launches(columns, groups, dtype, masked, affine, norms):
    """What the operators of some norms launch on a batch: kernel, specialisation, number of warps."""
    found, launch = [], tk.launch

    def record(kernel, grid, device_of, *args, **options):
        values = [*args, *(options[name] for name in kernel.arg_names[len(args) :])]
        found.append((kernel.__name__, *specialise(kernel, values), options.get("num_warps", 4)))

    tk.launch = record
    try:
        _call_operators(columns, groups, dtype, masked, affine, norms)
    finally:
        tk.launch = launch
    return found


def _call_operators(columns, groups, dtype, masked, affine, norms):
    x, dy = torch.zeros(2, 4, 2, columns, dtype=dtype)
    padding = torch.zeros(4, 2, dtype=torch.bool) if masked else None
    gamma, beta = torch.ones(2, columns, dtype=dtype) if affine else (None, None)
    mean, power, nu = (torch.ones(columns) for _ in range(3))
    updates, scale, window = torch.tensor(3), torch.tensor(1.0) if affine else None, torch.ones(2, columns)
    rows = (x, padding, groups, 1e-5)
    if "pn" in norms:
        for warmup in (0, 5):
            state = (0.9, warmup, power, updates, None, True)
            _, saved, scales = OPERATORS["power_forward"](*rows, gamma, beta, *state)
        OPERATORS["power_backward"](dy, *rows, gamma, 0.9, scale, saved, scales, nu, True)
        OPERATORS["evaluate"](*rows, gamma, beta, None, power)
        OPERATORS["evaluate_backward"](dy, *rows, gamma, None, power)
    if "others" in norms:
        for centre in (None, mean):
            state = (0.1, False, 0, -1, centre, power, updates, None, True)
            _, saved, scales = OPERATORS["batch_forward"](*rows, gamma, beta, *state)
            OPERATORS["batch_backward"](dy, *rows, gamma, centre is not None, saved, scales, None)
            OPERATORS["evaluate_backward"](dy, *rows, gamma, centre, None)
            OPERATORS["statistics"](*rows, centre is not None)
            OPERATORS["gradient_sums"](dy, *rows, centre)
        state = (0.1, 2, power, window, updates, None, True)
        _, saved, scales = OPERATORS["window_forward"](*rows, gamma, beta, *state)
        OPERATORS["window_backward"](dy, *rows, gamma, scale, saved, scales, None, window, True)
        for centred in (False, True) if groups else ():
            _, saved = OPERATORS["token_forward"](*rows, gamma, beta, centred)
            OPERATORS["token_backward"](dy, *rows, gamma, centred, saved)


def variants():
    """Everything that is to be compiled, once each: a kind of GPU, a batch, and what :func:`launches` has found."""
    found = [(capability, case, one) for case in FAST for one in launches(*case) for capability in CAPABILITIES]
    found += [(CAPABILITIES[0], case, one) for case in ODD for one in launches(*case)]
    return list({str((capability, one)): (capability, case, one) for capability, case, one in found}.values())


def compile_one(variant):
    """Facts of one variant in machine code."""
    capability, case, (name, types, constants, divisible, warps) = variant
    source = ASTSource(fn=getattr(tk, name), signature=types, constexprs=constants, attrs=divisible)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    facts = {"kernel": name, "sm": capability, "fast": case in FAST, "columns": case[0], "groups": case[1]}
    facts["type"] = types.get("x", "*fp32")[1:]
    facts["given"] = " ".join(param for param, kind in types.items() if kind.startswith("*"))
    facts.update(needed(types, constants, warps), **accesses(compiled.asm["ptx"]), **resources(compiled.asm["cubin"]))
    return facts


def needed(types, constants, warps):
    """How many accesses of 16 bytes a thread needs to read the rows of a tile, and how many to write them."""
    if "x" not in types:
        return {"rows_in": 0, "rows_out": 0}
    tile = constants["TILE_ROWS"] * constants["TILE_COLUMNS"] * SIZES[types["x"][1:]]
    each = tile // (16 * 32 * warps)
    there = [name for name, kind in types.items() if kind.startswith("*")]
    return {"rows_in": each * sum(n in ROWS_IN for n in there), "rows_out": each * sum(n in ROWS_OUT for n in there)}


def accesses(ptx):
    """Accesses to global memory of 16 bytes, and those of 2 to 8; a byte is a mask's."""
    found = {"wide_loads": 0, "narrow_loads": 0, "wide_stores": 0, "narrow_stores": 0}
    for kind, parts, bits in re.findall(r"\b(ld|st)\.global[\w.:]*?(?:\.v(\d))?\.b(\d+) ", ptx):
        size = int(parts or 1) * int(bits) // 8
        if size > 1:
            found[("wide_" if size >= 16 else "narrow_") + {"ld": "loads", "st": "stores"}[kind]] += 1
    return found


def resources(cubin):
    """Registers of a thread, and its memory for what does not fit them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.check_output([str(tool), "--dump-resource-usage", str(path)], universal_newlines=True)
    names = {"REG": "registers", "STACK": "stack", "LOCAL": "local"}
    return {names[name]: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}


def main():
    """Compiles all, on two processors."""
    torch.set_num_threads(1)
    with Pool(2) as pool:
        for facts in pool.imap(compile_one, variants(), chunksize=4):
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
