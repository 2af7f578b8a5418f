"""Which implementation does the work of a batch norm: plain torch, fused C++ for CPUs, or fused Triton for GPUs.

``POWERNORM_KERNEL`` chooses for all norms that ``build_norm(..., kernel=...)`` says nothing to: ``auto`` takes the
fastest that serves the input, ``eager`` is plain torch, ``cpp`` or ``triton`` that one; input that the one chosen does
not serve, as float64, goes to plain torch. :func:`describe` says what is in use. Where there is no GPU,
``TRITON_INTERPRET=1`` lets ``triton`` run on a CPU, slowly, to test it.
"""

import importlib.util
import os
from functools import lru_cache
from typing import List, Optional, Type, Union

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels import cpp
from powernorm_fairseq.norms.kernels.chunked import CHUNK, ChunkedRows
from powernorm_fairseq.norms.kernels.eager import EagerRows
from powernorm_fairseq.norms.kernels.rows import Moments, Rows, statistics_type
from powernorm_fairseq.norms.settings import check_choice

__all__ = [
    "KERNELS",
    "VARIABLE",
    "Moments",
    "Rows",
    "available",
    "choose_kernel",
    "describe",
    "rows_type",
    "statistics_type",
    "unusable",
]

KERNELS = ("auto", "eager", "cpp", "triton")
VARIABLE = "POWERNORM_KERNEL"
MIN_TRITON = (3, 2)  # that of torch 2.6


def unusable(kernel: str) -> Optional[str]:
    """Why ``kernel`` cannot be used here; None if it can."""
    if kernel == "triton":
        return triton_unusable()
    return cpp.UNUSABLE if kernel == "cpp" else None


@lru_cache(maxsize=None)
def triton_unusable() -> Optional[str]:
    """The same for triton, which is not imported unless there is a use for it."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available() and not _interprets_triton():
        return "there is no CUDA device; TRITON_INTERPRET=1 runs it in the interpreter"
    import triton

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < MIN_TRITON:
        return f"triton {triton.__version__} is too old; {'.'.join(map(str, MIN_TRITON))} or later will do"
    return None


def _interprets_triton() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _triton_serves(device: Union[str, torch.device], kernel: str) -> bool:
    """Whether input on ``device`` goes to triton; on a CPU only if that is what was asked for."""
    kind = torch.device(device).type
    return kind == "cuda" or (kind == "cpu" and kernel == "triton" and _interprets_triton())


def choose_kernel(kernel: Optional[str] = None) -> str:
    """What a norm is to use: ``kernel``, or what ``POWERNORM_KERNEL`` says; an error if that cannot be used here."""
    setting = "kernel" if kernel is not None else VARIABLE
    kernel = os.environ.get(VARIABLE, "auto") if kernel is None else kernel
    check_choice(setting, kernel, KERNELS)
    reason = unusable(kernel)
    if reason is not None:
        raise ValueError(f"{setting}={kernel!r} cannot be used: {reason}; choose from {', '.join(available())}")
    return kernel


def available(device: Union[str, torch.device] = "cpu") -> List[str]:
    """The implementations that serve float32 input on ``device``, the one that ``auto`` takes first."""
    kinds = {"cpu": ["cpp", "eager"], "cuda": ["triton", "eager"]}.get(torch.device(device).type, ["eager"])
    if "triton" not in kinds and _triton_serves(device, "triton"):
        kinds = [*kinds, "triton"]
    return [kernel for kernel in kinds if unusable(kernel) is None]


def describe() -> str:
    """What norms use on a CPU, and why not the fused operators if they do not."""
    kernel = choose_kernel()
    kernel = available()[0] if kernel == "auto" else kernel
    reason = unusable("cpp") if kernel == "eager" else None
    return kernel if reason is None else f"{kernel} ({reason})"


def rows_type(kernel: str, x: Tensor) -> Type[Rows]:
    """The implementation for the input ``x``: the one place where a name becomes code."""
    if kernel in ("auto", "cpp") and x.device.type == "cpu" and cpp.UNUSABLE is None and x.dtype in cpp.TYPES:
        return cpp.CppRows
    if kernel in ("auto", "triton") and _triton_serves(x.device, kernel) and unusable("triton") is None:
        from powernorm_fairseq.norms.kernels import triton_rows  # not before it is needed: it imports triton

        if x.dtype in triton_rows.TYPES:
            return triton_rows.TritonRows
    return ChunkedRows if x.device.type == "cpu" and x.numel() > CHUNK else EagerRows
