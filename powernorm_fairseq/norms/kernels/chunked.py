"""The plain passes in chunks of rows that stay in a CPU's cache: what they make on the way never reaches memory."""

from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels.eager import EagerRows
from powernorm_fairseq.norms.kernels.rows import Moments, Rows

CHUNK = 2**19  # numbers in a chunk: two megabytes in float32; smaller ones cost more calls than they save memory


class ChunkedRows(Rows):
    """:class:`~powernorm_fairseq.norms.kernels.eager.EagerRows`, chunk by chunk; for large input on a CPU."""

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], groups: int, eps: float, scales: Optional[Tensor] = None
    ) -> None:
        super().__init__(x.contiguous(), padding, groups, eps, scales)
        size = max(1, CHUNK // x.shape[1])
        self._chunks = [slice(start, start + size) for start in range(0, x.shape[0], size)]

    def _each(self, work: Callable[[EagerRows, slice], Any]) -> List[Any]:
        """What ``work`` returns for every chunk; afterwards the scales are known."""
        results, scales = [], []
        for chunk in self._chunks:
            padding = None if self.padding is None else self.padding[chunk]
            known = None if self.scales is None else self.scales[chunk]
            rows = EagerRows(self.x[chunk], padding, self.groups, self.eps, known)
            results.append(work(rows, chunk))
            scales.append(rows.scales)
        if self.groups > 0 and self.scales is None:
            self.scales = torch.cat(scales)
        return results

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``, needed or not."""
        return sum(self._each(lambda rows, _: rows.square_sums()))

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations, chunks put together after Chan et al. (1979)."""
        parts = self._each(lambda rows, _: (*rows.moments(), rows.count()))
        mean, squares, count = parts[0]
        for own_mean, own_squares, own_count in parts[1:]:
            share = own_count / (count + own_count).clamp(min=1)
            distance = own_mean - mean
            squares = squares + own_squares + distance.square() * count * share
            mean, count = mean + distance * share, count + own_count
        return Moments(mean, squares)

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        y = torch.empty_like(self.x)
        self._each(lambda rows, chunk: y[chunk].copy_(rows.affine(scale, shift)))
        return y

    def backward_sums(self, dy: Tensor, centre: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        parts = self._each(lambda rows, chunk: rows.backward_sums(dy[chunk], centre))
        return sum(part[0] for part in parts), sum(part[1] for part in parts)

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        """dL/dx."""
        dx = torch.empty_like(self.x)
        self._each(lambda rows, chunk: dx[chunk].copy_(rows.backward(dy[chunk], a, b, c)))
        return dx

    def backward_and_sums(
        self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        dx = torch.empty_like(self.x)

        def work(rows: EagerRows, chunk: slice) -> Tuple[Tensor, Tensor]:
            own, products, total = rows.backward_and_sums(dy[chunk], a, b, c)
            dx[chunk].copy_(own)
            return products, total

        parts = self._each(work)
        return dx, sum(part[0] for part in parts), sum(part[1] for part in parts)
