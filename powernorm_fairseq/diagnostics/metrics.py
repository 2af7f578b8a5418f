r"""What the paper's figures show, as pure functions of a norm's input and of the gradient of its output.

Everywhere here ``x`` is N x C, one row for each position of a batch, as the norm really normalises it (after its layer
scale). Rows at padding are zero, in ``x`` and in gradients, so column sums are sums over the real tokens. A result is a
tensor on the device of ``x``; nothing waits for a GPU.
"""

from functools import cached_property
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

QUANTILES = {"min": 0.0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}


class BatchStatistics:
    """Statistics of the real rows of a batch, each computed when it is first asked for.

    Args:
        x: N x C, zero at padding.
        padding: N x 1, or None.
        positions: number of rows, padding included, if it has been taken out of ``x`` already.
        count_padding: divide the squared deviations by the number of all rows, as the released BN does.
    """

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], positions: Optional[int] = None, count_padding: bool = False
    ) -> None:
        self.x = x
        self.real = None if padding is None else (~padding).to(x.dtype)
        count = x.new_full((), x.shape[0]) if self.real is None else self.real.sum()
        self.count = count.clamp(min=1)
        self.positions = x.new_full((), max(x.shape[0] if positions is None else positions, 1))
        self.spread_count = self.positions if count_padding else self.count

    @cached_property
    def mean(self) -> Tensor:
        """mu_B."""
        return self.x.sum(0) / self.count

    @cached_property
    def deviation(self) -> Tensor:
        """Rows as distances from the mean, zero at padding."""
        return self.x - self.mean if self.real is None else torch.addcmul(self.x, self.real, self.mean, value=-1)

    @cached_property
    def var(self) -> Tensor:
        """sigma_B^2, biased."""
        return self.deviation.square().sum(0) / self.spread_count

    @cached_property
    def psi2(self) -> Tensor:
        """psi_B^2."""
        return self.x.square().sum(0) / self.count


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The paper's dist(a, b) = ||a - b|| / d."""
    return average_norm(a - b)


def average_norm(vector: Tensor) -> Tensor:
    """||v|| / d."""
    return vector.norm() / vector.numel()


def gradient_norms(batch: BatchStatistics, grad: Tensor, weight: Optional[Tensor], eps: float) -> Dict[str, Tensor]:
    r"""Average norms of the terms of the input's gradient that come from the batch's statistics.

    By the paper's equations for the gradients of BN and of PN-V, the part of :math:`\partial L / \partial x_i` that
    flows through each statistic is

    .. math::
        g_\mu = \frac{\gamma}{\sigma_B B} \sum_j \frac{\partial L}{\partial y_j}, \quad
        g_{\sigma^2, i} = \frac{\gamma}{\sigma_B B} \check x_i \sum_j \frac{\partial L}{\partial y_j} \check x_j, \quad
        g_{\psi^2, i} = \frac{\gamma}{\psi_B B} \hat x_i \sum_j \frac{\partial L}{\partial y_j} \hat x_j.

    The norm of a term is divided by d, as the paper's distances are; the last two differ from row to row, and the
    quadratic mean over the rows is taken.

    Args:
        batch: the norm's input.
        grad: gradient of the loss for the norm's output, N x C, zero at padding.
        weight: the norm's factors gamma, or None for ones.
        eps: added inside the square roots.

    Returns:
        ``g_mu``, ``g_var`` and ``g_psi2``.
    """
    gamma = 1.0 if weight is None else weight.to(grad.dtype)
    sigma, psi = torch.sqrt(batch.var + eps), torch.sqrt(batch.psi2 + eps)
    centred, plain = (grad * batch.deviation).sum(0) / sigma, (grad * batch.x).sum(0) / psi  # sums over j
    # quadratic means of the rows' own factors: 1 but for eps, and for padding that is counted
    spread = torch.sqrt(batch.var * batch.spread_count / batch.count) / sigma
    size = torch.sqrt(batch.psi2) / psi
    return {
        "g_mu": average_norm(gamma / sigma * grad.sum(0) / batch.count),
        "g_var": average_norm(gamma / sigma * spread * centred / batch.spread_count),
        "g_psi2": average_norm(gamma / psi * size * plain / batch.count),
    }


def backward_means(
    x: Tensor, grad: Tensor, count: Tensor, psi2: Tensor, weight: Optional[Tensor], eps: float
) -> Tuple[Tensor, Tensor]:
    """Gamma = mean(xhat^2) and Lambda = mean(G xhat) of PN's backward, for each column.

    Args:
        x: N x C.
        grad: gradient of the loss for the norm's output, N x C.
        count: number of rows that take part.
        psi2: squared divisor of the forward: xhat = x / sqrt(psi2 + eps).
        weight: the norm's factors gamma, or None for ones; G = gamma * grad.
        eps: added to ``psi2``.
    """
    psi2 = psi2 + eps
    products = (grad * x).sum(0) / torch.sqrt(psi2)
    if weight is not None:
        products = products * weight.to(products.dtype)
    return x.square().sum(0) / psi2 / count, products / count


def gamma_over_psi(weight: Optional[Tensor], psi2: Tensor, eps: float) -> Tensor:
    """|gamma| / psi_B for each column: not above 1 where the paper's Lemma 1 promises a smaller Lipschitz constant."""
    scale = torch.rsqrt(psi2 + eps)
    return scale if weight is None else weight.to(scale.dtype).abs() * scale


def quantiles(vector: Tensor) -> Dict[str, Tensor]:
    """Minimum, maximum and what lies between, by the names of :data:`QUANTILES`."""
    shares = torch.tensor(list(QUANTILES.values()), dtype=vector.dtype, device=vector.device)
    return dict(zip(QUANTILES, torch.quantile(vector, shares).unbind()))


def discrepancy_of_mean(mean: Tensor, batch: BatchStatistics, eps: float) -> Tensor:
    """Mean part of the training-inference discrepancy: mean of |mu - mu_B| / sigma_B over the columns."""
    return ((mean - batch.mean).abs() / torch.sqrt(batch.var + eps)).mean()


def discrepancy_of_divisor(running: Tensor, of_batch: Tensor, eps: float) -> Tensor:
    """Variance part of the training-inference discrepancy: mean of |sigma / sigma_B - 1| over the columns.

    Args:
        running: running variance (or quadratic mean, psi^2) that evaluation divides by the root of.
        of_batch: the same of the batch.
        eps: added inside the square roots.
    """
    return (torch.sqrt((running + eps) / (of_batch + eps)) - 1).abs().mean()


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values of a matrix, largest first, divided by the largest."""
    values = torch.linalg.svdvals(matrix.double())
    return values / values[0]
