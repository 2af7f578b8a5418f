"""The rows of a batch and the few passes over them that every batch norm is made of."""

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean of each column, and the sum of the squared deviations from it."""

    mean: Tensor
    squares: Tensor


def statistics_type(x: Tensor) -> torch.dtype:
    """The type of statistics of ``x``: float32 or wider."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Rows:
    r"""The positions of a batch as N rows of C columns; each implementation ("kernel") is a subclass.

    Below, ``s`` is a row after layer-scale: each of ``groups`` slices divided by its quadratic mean. Sums run over the
    real tokens alone, what stands at padding is never used, and what a pass returns for padding is zero. Inputs may be
    half precision; all that has C elements is float32, or float64 for a float64 input.

    Args:
        x: N x C.
        padding: N, true at padding, or None.
        groups: slices of the layer-scale; 0 for none.
        eps: added to the mean of the squares of a slice.
        scales: N x groups, the factors of the layer-scale, if an earlier pass has computed them.
    """

    skips_unneeded = False  # whether a pass that turns out not to be ``needed`` costs next to nothing

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], groups: int, eps: float, scales: Optional[Tensor] = None
    ) -> None:
        self.x = x
        self.dtype = statistics_type(x)
        self.padding = padding
        self.groups = groups
        self.eps = eps
        self.scales = scales

    def saved(self) -> List[Optional[Tensor]]:
        """What a backward needs to make these rows again."""
        return [self.x, self.padding, self.scales]

    def positions(self) -> Tensor:
        """Number of rows, padding included, as a tensor that never leaves its device."""
        return torch.full((), self.x.shape[0], dtype=self.dtype, device=self.x.device)

    def count(self) -> Tensor:
        """Number of real tokens, as a tensor that never leaves its device."""
        if self.padding is None:
            return self.positions()
        return (~self.padding).sum().to(self.dtype)

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``; where ``needed``, one truth value, is false it may be zero instead."""
        raise NotImplementedError

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations, without cancellation; zeros where no token is real."""
        raise NotImplementedError

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``, in the type of ``x``."""
        raise NotImplementedError

    def affine_and_square_sums(self, scale: Tensor, shift: Tensor) -> Tuple[Tensor, Tensor]:
        """Both; a kernel may do them in one pass."""
        return self.affine(scale, shift), self.square_sums()

    def backward_sums(self, dy: Tensor, centre: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``; no centre is a centre of zero."""
        raise NotImplementedError

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        r"""dL/dx where :math:`\partial L / \partial s = a \, dy + b \, s + c`; no c is a c of zero."""
        raise NotImplementedError

    def backward_and_sums(
        self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """The same, with the sums of ``dy * s`` and of ``dy``."""
        raise NotImplementedError
