"""Which implementation does the work of a batch norm: plain torch, fused C++ for CPUs, or fused Triton for GPUs.

``POWERNORM_KERNEL`` chooses for all norms that ``build_norm(..., kernel=...)`` says nothing to: ``auto`` takes the
fastest that serves the input, ``eager`` is plain torch, ``cpp`` or ``triton`` that one; input that the one chosen does
not serve, as float64, goes to plain torch. :func:`describe` says what is in use.
"""

import os
from typing import List, Optional, Type, Union

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels import cpp
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


def unusable(kernel: str) -> Optional[str]:
    """Why ``kernel`` cannot be used here; None if it can."""
    return cpp.UNUSABLE if kernel == "cpp" else None


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
    fused = {"cpu": "cpp", "cuda": "triton"}.get(torch.device(device).type)
    return [kernel for kernel in (fused, "eager") if kernel is not None and unusable(kernel) is None]


def describe() -> str:
    """What norms use on a CPU, and why not the fused operators if they do not."""
    kernel = choose_kernel()
    kernel = available()[0] if kernel == "auto" else kernel
    reason = unusable("cpp") if kernel == "eager" else None
    return kernel if reason is None else f"{kernel} ({reason})"


def rows_type(kernel: str, x: Tensor) -> Type[Rows]:
    """The implementation for the input ``x``: the one place where a name becomes code."""
    if kernel in ("auto", "cpp") and cpp.UNUSABLE is None and x.device.type == "cpu" and x.dtype in cpp.TYPES:
        return cpp.CppRows
    return EagerRows
