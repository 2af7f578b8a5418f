"""The passes in plain torch operations: the readable version, for every device and type, that all others equal."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels.rows import Moments, Rows


class EagerRows(Rows):
    """Passes in plain torch; see :class:`~powernorm_fairseq.norms.kernels.rows.Rows`.

    What was made here is changed in place: a pass over memory costs more than the arithmetic in it.
    """

    _scaled: Optional[Tensor] = None
    _keep: Optional[Tensor] = None
    _room: Optional[Tensor] = None  # memory that a pass is done with, for the output of the next

    def _blank(self, rows: Tensor, own: bool = False) -> Tensor:
        """``rows`` in the type of statistics, zero at padding whatever stands there; in place if ``own``."""
        rows = rows.to(self.dtype)
        if self.padding is None:
            return rows
        integer = torch.int64 if rows.dtype == torch.float64 else torch.int32
        if self._keep is None:
            self._keep = (~self.padding).to(integer).neg_().unsqueeze(1)  # all bits set, or none
        bits = rows.view(integer)  # masked_fill takes much longer
        return (bits.bitwise_and_(self._keep) if own else bits & self._keep).view(rows.dtype)

    def _slices(self, rows: Tensor) -> Tensor:
        return rows.view(rows.shape[0], self.groups, rows.shape[1] // self.groups)  # N x G x C/G

    def _s(self) -> Tensor:
        """The rows after layer-scale, zero at padding: a plain column sum is the sum over the real tokens."""
        if self._scaled is None and self.groups == 0:
            self._scaled = self._blank(self.x)
        elif self._scaled is None:
            sliced = self._slices(self.x.to(self.dtype).contiguous())
            if self.scales is None:
                power = torch.linalg.vector_norm(sliced, dim=2).square_() / sliced.shape[2]
                self.scales = torch.rsqrt(power + self.eps)  # N x G
            self._scaled = self._blank((sliced * self.scales.unsqueeze(2)).view(self.x.shape), own=True)
        return self._scaled

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``, needed or not."""
        self._room = self._s().square()
        return self._room.sum(0)

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations."""
        mean = self._s().sum(0) / self.count().clamp(min=1)
        return Moments(mean, self._blank(self._s() - mean, own=True).square_().sum(0))

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        room, self._room = self._room, None
        return self._blank(torch.addcmul(shift, self._s(), scale, out=room), own=True).to(self.x.dtype)

    def backward_sums(self, dy: Tensor, centre: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        dy = self._blank(dy)
        return (dy * (self._s() if centre is None else self._s() - centre)).sum(0), dy.sum(0)

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        """dL/dx."""
        return self._backward(self._blank(dy) * a, b, c, None)

    def backward_and_sums(
        self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        blank = self._blank(dy)
        products = blank * self._s()
        sums = products.sum(0), blank.sum(0)
        scaled = blank * a if blank is dy else blank.mul_(a)
        return (self._backward(scaled, b, c, products), *sums)

    def _backward(self, ds: Tensor, b: Tensor, c: Optional[Tensor], room: Optional[Tensor]) -> Tensor:
        """``ds``, which has a * dy, plus b * s + c, and from there to dL/dx; ``room`` may be overwritten."""
        s = self._s()
        ds.addcmul_(s, b)
        if c is not None:
            ds = self._blank(ds.add_(c), own=True)
        if self.groups > 0:  # s = x * scales: the part of ds along s would change the quadratic mean, which is fixed
            along = self._slices(torch.mul(ds, s, out=room)).mean(2, keepdim=True)
            scales = self._blank(self.scales).unsqueeze(2)
            self._slices(ds).addcmul_(self._slices(s), along, value=-1).mul_(scales)
        return ds.to(self.x.dtype)
