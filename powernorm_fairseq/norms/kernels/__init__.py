"""Which implementations of the norms can be used here: plain torch, C++ for CPUs, Triton for GPUs.

``POWERNORM_KERNEL`` chooses for all norms that ``build_norm(..., kernel=...)`` says nothing to: ``auto`` takes the
fastest that serves the input, ``eager`` is plain torch, ``cpp`` or ``triton`` that one; input that the one chosen does
not serve, as float64, goes to plain torch. :func:`describe` says what is in use. Where there is no GPU,
``TRITON_INTERPRET=1`` lets ``triton`` run on a CPU, slowly, to test it.
"""

import importlib.util
import os
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from powernorm_fairseq.norms.settings import check_choice

KERNELS = ("auto", "eager", "cpp", "triton")
VARIABLE = "POWERNORM_KERNEL"
MIN_TRITON = (3, 2)  # that of torch 2.6
CPP_TYPES = (torch.float32, torch.bfloat16)
TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)
NOTHING: Tuple[str, Tuple[torch.dtype, ...]] = ("plain", ())
_found: Dict[Tuple[str, str], Tuple[str, Tuple[torch.dtype, ...]]] = {}


@lru_cache(maxsize=None)
def unusable(kernel: str) -> Optional[str]:
    """Why ``kernel`` cannot be used here; None if it can."""
    if kernel == "cpp":
        return _load_cpp()
    return _find_triton() if kernel == "triton" else None


def _load_cpp() -> Optional[str]:
    library = Path(__file__).with_name("_rows" + EXTENSION_SUFFIXES[0])  # a tree may serve several Pythons
    if not library.exists():
        note = library.with_suffix(".txt")  # see build.py
        reason = note.read_text().strip() if note.exists() else "this copy of the package was not built by pip"
        return f"the C++ operators were not compiled: {reason}"
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        return f"the C++ operators do not fit this torch: {error.__cause__ or error}"
    return None


def _find_triton() -> Optional[str]:
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


def serving(kernel: str, device: str) -> Tuple[str, Tuple[torch.dtype, ...]]:
    """What serves input on a kind of device where a norm's setting is ``kernel``, and which types it takes."""
    if (kernel, device) not in _found:  # :func:`choose_kernel` has looked: torch.compile cannot read how
        _found[kernel, device] = _find(kernel, device)
    return _found[kernel, device]


def _find(kernel: str, device: str) -> Tuple[str, Tuple[torch.dtype, ...]]:
    if device == "cpu" and kernel in ("auto", "cpp") and unusable("cpp") is None:
        return "cpp", CPP_TYPES
    on_triton = device == "cuda" or (device == "cpu" and kernel == "triton" and _interprets_triton())
    if on_triton and kernel in ("auto", "triton") and unusable("triton") is None:
        return "triton", TRITON_TYPES
    return NOTHING


@lru_cache(maxsize=None)
def triton_operators() -> Dict[str, Any]:
    """The operators in Triton; importing them imports triton."""
    from powernorm_fairseq.norms.kernels import triton_ops

    return triton_ops.OPERATORS


def choose_kernel(kernel: Optional[str] = None) -> str:
    """What a norm is to use: ``kernel``, or what ``POWERNORM_KERNEL`` says; an error if that cannot be used here."""
    setting = "kernel" if kernel is not None else VARIABLE
    kernel = os.environ.get(VARIABLE, "auto") if kernel is None else kernel
    check_choice(setting, kernel, KERNELS)
    reason = unusable(kernel)
    if reason is not None:
        raise ValueError(f"{setting}={kernel!r} cannot be used: {reason}; choose from {', '.join(available())}")
    for device in ("cpu", "cuda"):
        serving(kernel, device)
    return kernel


def available(device: Union[str, torch.device] = "cpu") -> List[str]:
    """The implementations that serve float32 input on ``device``, the one that ``auto`` takes first."""
    kind = torch.device(device).type
    return [kernel for kernel in ("cpp", "triton") if serving(kernel, kind) is not NOTHING] + ["eager"]


def describe() -> str:
    """What norms use on a CPU, and why not the fused operators if they do not."""
    kernel = choose_kernel()
    kernel = available()[0] if kernel == "auto" else kernel
    reason = unusable("cpp") if kernel == "eager" else None
    return kernel if reason is None else f"{kernel} ({reason})"
