"""The arithmetic that the norms share: stateless functions on rows of tokens.

Everywhere here ``x`` is N x C, one row for each position of the batch. Rows at padding are zero, in ``x`` and in every
gradient, so a plain column sum is the sum over the real tokens; ``count`` is the number of those, a tensor of one
element that never leaves its device. A :class:`~powernorm_fairseq.norms.sync.Pool` turns sums of this process into
sums of all.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from powernorm_fairseq.norms.sync import Pool


def count_tokens(x: Tensor, padding: Optional[Tensor]) -> Tensor:
    """Number of rows of ``x`` that are not padding (``padding``: N x 1, or none at all), as a tensor."""
    if padding is None:
        return count_positions(x)
    return (~padding).sum().to(x.dtype)


def count_positions(x: Tensor) -> Tensor:
    """Number of rows of ``x``, padding included, as a tensor."""
    return torch.full((), x.shape[0], dtype=x.dtype, device=x.device)


def mean(total: Tensor, count: Tensor) -> Tensor:
    """A sum divided by ``count``; zero where there is nothing to measure."""
    return total / count.clamp(min=1)


def layer_scale(x: Tensor, groups: int, eps: float) -> Tensor:
    """Divides each token by the quadratic mean of its features, taken over each of ``groups`` slices of the width."""
    sliced = x.view(x.shape[0], groups, x.shape[1] // groups)  # N x G x C/G
    return (sliced * torch.rsqrt(sliced.square().mean(2, keepdim=True) + eps)).view(x.shape)


class _NormaliseByBatch(Function):
    """x_hat = (x - centre) / std with the batch's own statistics, and its exact gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        centre: Optional[Tensor],
        std: Tensor,
        count: Tensor,
        spread_count: Tensor,
        padding: Optional[Tensor],
        pool: Pool,
    ) -> Tensor:
        x_hat = x / std if centre is None else (x - centre) / std
        if centre is not None and padding is not None:
            x_hat = x_hat.masked_fill(padding, 0.0)
        ctx.centred, ctx.pool = centre is not None, pool
        ctx.save_for_backward(x_hat, std, count, spread_count)
        return x_hat

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_hat: Tensor) -> Tuple[Optional[Tensor], ...]:
        x_hat, std, count, spread_count = ctx.saved_tensors
        sums = [(grad_x_hat * x_hat).sum(0)] + ([grad_x_hat.sum(0)] if ctx.centred else [])
        sums = ctx.pool.total(*sums)
        grad_x = grad_x_hat - mean(sums[0], spread_count) * x_hat
        if ctx.centred:
            grad_x = grad_x - mean(sums[1], count)
        return grad_x / std, None, None, None, None, None, None


def normalise_by_batch(
    x: Tensor,
    centre: Optional[Tensor],
    std: Tensor,
    count: Tensor,
    pool: Pool,
    spread_count: Optional[Tensor] = None,
    padding: Optional[Tensor] = None,
) -> Tensor:
    r"""Normalises ``x`` by statistics of this very batch, with the gradient of the paper's lemmas.

    .. math::
        \hat x = (x - \mu_B) / \sigma_B, \qquad \frac{\partial L}{\partial x_i} = \frac{1}{\sigma_B}
        \Big(G_i - \frac{1}{B}\sum_j G_j - \frac{\hat x_i}{B} \sum_j G_j \hat x_j\Big), \qquad
        G = \frac{\partial L}{\partial \hat x}

    That is the lemma on the gradient of BN; without ``centre`` the first sum is missing and it is the one of PN-V.

    Args:
        x: N x C.
        centre: mean of each column, or None to leave the columns where they are.
        std: what each column is divided by, computed from this batch.
        count: number of real tokens in all of ``pool``.
        pool: the processes that the batch is spread over.
        spread_count: what the sum of squares was divided by to get ``std``, if not ``count``.
        padding: N x 1, needed with ``centre``.
    """
    spread_count = count if spread_count is None else spread_count
    return _NormaliseByBatch.apply(x, centre, std, count, spread_count, padding, pool)
