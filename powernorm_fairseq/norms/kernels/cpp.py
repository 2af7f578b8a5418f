"""The passes as fused C++ operators for CPUs (``rows.cpp``), which the build of the package compiles if it can."""

from pathlib import Path
from typing import Optional, Tuple

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
_ops = torch.ops.powernorm


class CppRows(Rows):
    """Passes in C++; see :class:`~powernorm_fairseq.norms.kernels.rows.Rows`."""

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], groups: int, eps: float, scales: Optional[Tensor] = None
    ) -> None:
        super().__init__(x.contiguous(), padding, groups, eps, scales)
        self._scales_known = scales is not None
        if groups > 0 and scales is None:
            self.scales = torch.empty(x.shape[0], groups, dtype=torch.float32)

    def _columns(self) -> Tensor:
        return torch.empty(self.x.shape[1], dtype=torch.float32)

    def _call(self) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], bool, float]:
        """The first arguments of the operators of a forward; the scales are known from then on."""
        known, self._scales_known = self._scales_known, True
        return self.x, self.padding, self.scales, known, self.eps

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``, needed or not."""
        sums = self._columns()
        _ops.square_sums(*self._call(), sums)
        return sums

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations."""
        moments = Moments(self._columns(), self._columns())
        _ops.moments(*self._call(), *moments)
        return moments

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        y = torch.empty_like(self.x)
        _ops.affine(*self._call(), scale, shift, y, None)
        return y

    def affine_and_square_sums(self, scale: Tensor, shift: Tensor) -> Tuple[Tensor, Tensor]:
        """Both at once."""
        y, sums = torch.empty_like(self.x), self._columns()
        _ops.affine(*self._call(), scale, shift, y, sums)
        return y, sums

    def backward_sums(self, dy: Tensor, centre: Tensor) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        sums = torch.empty(2, self.x.shape[1], dtype=torch.float32)
        _ops.backward_sums(dy.contiguous(), self.x, self.padding, self.scales, self.eps, centre, sums)
        return sums[0], sums[1]

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """dL/dx."""
        dx = torch.empty_like(self.x)
        _ops.backward(dy.contiguous(), self.x, self.padding, self.scales, self.eps, a, b, c, dx, None)
        return dx

    def backward_and_sums(self, dy: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        dx, sums = torch.empty_like(self.x), torch.empty(2, self.x.shape[1], dtype=torch.float32)
        _ops.backward(dy.contiguous(), self.x, self.padding, self.scales, self.eps, a, b, c, dx, sums)
        return dx, sums[0], sums[1]

    def power_norm_forward(
        self, gamma: Tensor, beta: Tensor, alpha: float, warmup: int, psi2: Tensor, num_updates: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Algorithm 2: the output, and ``columns`` and ``scalars`` as ``rows.cpp`` describes them."""
        y, columns = torch.empty_like(self.x), torch.empty(3, self.x.shape[1], dtype=torch.float32)
        scalars = torch.empty(2, dtype=torch.float32)
        settings = (gamma, beta, alpha, warmup, psi2, num_updates)
        _ops.power_norm_forward(self.x, self.padding, self.scales, self.eps, *settings, y, columns, scalars)
        return y, columns, scalars

    def power_norm_backward(
        self,
        dy: Tensor,
        gamma: Tensor,
        alpha: float,
        loss_scale: float,
        columns: Tensor,
        scalars: Tensor,
        nu: Tensor,
        moves: bool,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Algorithm 2: gradients of input, gamma and beta; moves ``nu``."""
        dx, grads = torch.empty_like(self.x), torch.empty(2, self.x.shape[1], dtype=torch.float32)
        rows = (dy.contiguous(), self.x, self.padding, self.scales, self.eps)
        _ops.power_norm_backward(*rows, gamma, alpha, loss_scale, columns, scalars, nu, moves, dx, grads)
        return dx, grads[0], grads[1]
