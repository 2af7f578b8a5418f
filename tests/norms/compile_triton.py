"""Compiles every Triton kernel for two kinds of GPU, without needing one, and prints the names."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from powernorm_fairseq.norms.kernels import triton_rows

SIZES = {"rows": "i32", "block_rows": "i32", "columns": "i32", "groups": "i32", "width": "i32", "eps": "fp32"}
TYPES = {"x": "*bf16", "dy": "*bf16", "y": "*bf16", "dx": "*bf16", "padding": "*u8", "needed": "*u8", **SIZES}
VARIANTS = [
    (triton_rows.forward_kernel, 80, {"SCALES_KNOWN": False, "needed": None}),
    (triton_rows.forward_kernel, 90, {"SCALES_KNOWN": True, "scale": None, "shift": None, "y": None, "scales": None}),
    (triton_rows.moments_kernel, 80, {"SCALES_KNOWN": False, "padding": None}),
    (triton_rows.backward_kernel, 80, {"SCALES_KNOWN": True, "centre": None}),
    (triton_rows.backward_kernel, 90, {"SCALES_KNOWN": True, "a": None, "b": None, "c": None, "dx": None}),
]


def main() -> None:
    """Compiles the variants down to machine code."""
    names = []
    for kernel, capability, constants in VARIANTS:
        constants = {"TILE_ROWS": 16, "TILE_COLUMNS": 128, **constants}
        signature = {
            name: "constexpr" if name in constants else TYPES.get(name, "*fp32") for name in kernel.arg_names
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert compiled.asm["cubin"]
        names.append(kernel.__name__)
    print(*dict.fromkeys(names))


if __name__ == "__main__":
    main()
