"""The passes as fused C++ operators for CPUs (``passes.cpp``), which the build of the package compiles if it can."""

from pathlib import Path
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels.rows import Moments, Rows

TYPES = (torch.float32, torch.bfloat16)


def load_library() -> Optional[str]:
    """Loads the compiled operators; returns the reason if they cannot be used."""
    files = sorted(Path(__file__).parent.glob("_rows*.so"))
    if not files:
        return "the C++ operators were not compiled when the package was installed"
    try:
        torch.ops.load_library(str(files[0]))
    except OSError as error:
        return f"the C++ operators do not fit this torch: {error.__cause__ or error}"
    return None


UNUSABLE = load_library()
ops = torch.ops.powernorm


def operator(name: str) -> Any:
    """An operator without the search for its overload at every call; None where there is none."""
    return None if UNUSABLE is not None else getattr(ops, name).default


def empty(*shape: int) -> Tensor:
    """Room for columns."""
    return torch.empty(shape, dtype=torch.float32)


class CppRows(Rows):
    """Passes in C++; see :class:`~powernorm_fairseq.norms.kernels.rows.Rows`."""

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], groups: int, eps: float, scales: Optional[Tensor] = None
    ) -> None:
        super().__init__(x.contiguous(), None if padding is None else padding.contiguous(), groups, eps, scales)
        self._scales_known = scales is not None
        if groups > 0 and scales is None:
            self.scales = empty(x.shape[0], groups)

    def _call(self) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], bool, float]:
        """The first arguments of the operators of a forward; the scales are known from then on."""
        known, self._scales_known = self._scales_known, True
        return self.x, self.padding, self.scales, known, self.eps

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``, needed or not."""
        sums = empty(self.x.shape[1])
        ops.square_sums(*self._call(), sums)
        return sums

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations."""
        moments = Moments(empty(self.x.shape[1]), empty(self.x.shape[1]))
        ops.moments(*self._call(), *moments)
        return moments

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        y = torch.empty_like(self.x)
        ops.affine(*self._call(), scale, shift.contiguous(), y, None)
        return y

    def affine_and_square_sums(self, scale: Tensor, shift: Tensor) -> Tuple[Tensor, Tensor]:
        """Both at once."""
        y, sums = torch.empty_like(self.x), empty(self.x.shape[1])
        ops.affine(*self._call(), scale, shift.contiguous(), y, sums)
        return y, sums

    def backward_sums(self, dy: Tensor, centre: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        sums = empty(2, self.x.shape[1])
        ops.backward_sums(dy.contiguous(), self.x, self.padding, self.scales, self.eps, centre, sums)
        return sums[0], sums[1]

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        """dL/dx."""
        dx = torch.empty_like(self.x)
        ops.backward(dy.contiguous(), self.x, self.padding, self.scales, self.eps, a, b, c, dx, None)
        return dx

    def backward_and_sums(
        self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        dx, sums = torch.empty_like(self.x), empty(2, self.x.shape[1])
        ops.backward(dy.contiguous(), self.x, self.padding, self.scales, self.eps, a, b, c, dx, sums)
        return dx, sums[0], sums[1]
