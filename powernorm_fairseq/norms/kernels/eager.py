"""The passes in plain torch operations: the readable version, for every device and type, that all others equal."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels.rows import Moments, Rows


class EagerRows(Rows):
    """Passes in plain torch; see :class:`~powernorm_fairseq.norms.kernels.rows.Rows`."""

    _scaled: Optional[Tensor] = None

    def _blank(self, rows: Tensor) -> Tensor:
        """``rows`` in the type of statistics, zero at padding."""
        rows = rows.to(self.dtype)
        return rows if self.padding is None else rows.masked_fill(self.padding.unsqueeze(1), 0.0)

    def _slices(self, rows: Tensor) -> Tensor:
        return rows.view(rows.shape[0], self.groups, rows.shape[1] // self.groups)  # N x G x C/G

    def _s(self) -> Tensor:
        """The rows after layer-scale, zero at padding: a plain column sum is the sum over the real tokens."""
        if self._scaled is None:
            rows = self._blank(self.x)
            if self.groups > 0:
                sliced = self._slices(rows)
                if self.scales is None:
                    power = torch.linalg.vector_norm(sliced, dim=2).square() / sliced.shape[2]
                    self.scales = torch.rsqrt(power + self.eps)  # N x G
                rows = (sliced * self.scales.unsqueeze(2)).view(rows.shape)
            self._scaled = rows
        return self._scaled

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``, needed or not."""
        return self._s().square().sum(0)

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations."""
        mean = self._s().sum(0) / self.count().clamp(min=1)
        deviation = self._s() - mean
        if self.padding is not None:
            deviation = deviation.masked_fill(self.padding.unsqueeze(1), 0.0)
        return Moments(mean, deviation.square().sum(0))

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        y = torch.addcmul(shift, self._s(), scale)
        if self.padding is not None:
            y.masked_fill_(self.padding.unsqueeze(1), 0.0)
        return y.to(self.x.dtype)

    def affine_and_square_sums(self, scale: Tensor, shift: Tensor) -> Tuple[Tensor, Tensor]:
        """Both at once."""
        return self.affine(scale, shift), self.square_sums()

    def backward_sums(self, dy: Tensor, centre: Tensor) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        dy = self._blank(dy)
        return (dy * (self._s() - centre)).sum(0), dy.sum(0)

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """dL/dx."""
        return self._backward(self._blank(dy), a, b, c)

    def backward_and_sums(self, dy: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        dy = self._blank(dy)
        return self._backward(dy, a, b, c), (dy * self._s()).sum(0), dy.sum(0)

    def _backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        s = self._s()
        ds = torch.addcmul(torch.addcmul(c, dy, a), s, b)
        if self.groups > 0:  # s = x * scales: the part of ds along s changes the quadratic mean, which is fixed
            sliced = self._slices(s)
            along = (self._slices(ds) * sliced).mean(2, keepdim=True)
            ds = ((self._slices(ds) - sliced * along) * self.scales.unsqueeze(2)).view(s.shape)
        if self.padding is not None:
            ds = ds.masked_fill(self.padding.unsqueeze(1), 0.0)
        return ds.to(self.x.dtype)
