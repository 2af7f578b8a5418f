"""Moving-average batch normalisation: second moments over a window of mini-batches."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from powernorm_fairseq.norms.base import BatchStatisticsNorm, move_if
from powernorm_fairseq.norms.functional import count_tokens, mean
from powernorm_fairseq.norms.settings import check_at_least, check_fraction
from powernorm_fairseq.norms.step import loss_scale
from powernorm_fairseq.norms.sync import Pool

R_MAX = 5.0


class _MovingAverageNormalise(Function):
    """z = x / chi, returned as r * z; the backward takes the mean of G * z over the window."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        chi: Tensor,
        r: Tensor,
        count: Tensor,
        window: Tensor,
        slot: Tensor,
        own: Tensor,
        moves: bool,
        pool: Pool,
    ) -> Tensor:
        z = x / chi
        ctx.save_for_backward(z, chi, r, count, slot, own)
        ctx.window = window  # the buffer itself: read and moved by the backward
        ctx.moves, ctx.pool = moves, pool
        return r * z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tuple[Optional[Tensor], ...]:
        z, chi, r, count, slot, own = ctx.saved_tensors
        scale = loss_scale()
        g = r * grad_output
        (products,) = ctx.pool.total((g * z).sum(0))
        batch_mean = mean(products, count)
        window = torch.where(slot, batch_mean / scale, ctx.window.to(batch_mean.dtype))
        used_mean = torch.where(own, batch_mean, window.mean(0) * scale)
        grad_x = (g - z * used_mean) / chi
        if ctx.moves:
            move_if(ctx.window, window, torch.isfinite(batch_mean).all() & (count > 0))
        return grad_x, None, None, None, None, None, None, None, None


class MovingAverageBatchNorm(BatchStatisticsNorm):
    r"""Quadratic mean of each feature over the last ``window`` mini-batches: MABN.

    `Yan et al., 2020 <https://arxiv.org/abs/2001.06838>`_.

    .. math::
        \chi^2 = \text{mean of the } m \text{ latest } \psi_B^2, \quad z = x / \sqrt{\chi^2 + \epsilon}, \quad
        y = \gamma r z + \beta, \quad
        r = \mathrm{clip}\Big(\frac{\sqrt{\chi^2 + \epsilon}}{\sqrt{\text{running} + \epsilon}}, \frac15, 5\Big)

    .. math::
        \frac{\partial L}{\partial x} = \frac{G - z \cdot \text{mean of the } m \text{ latest } \mathrm{mean}_B(G z)}
        {\sqrt{\chi^2 + \epsilon}}, \qquad G = r \gamma \frac{\partial L}{\partial y}

    During the warm-up and the first ``window`` steps the batch's own means are used; during the warm-up :math:`r = 1`.
    Evaluation divides by the running value. The weight centralisation that belongs to MABN is a property of the layers
    in front of the norm: :func:`powernorm_fairseq.norms.centralise_weight`.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added inside every square root. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        momentum: weight of the *new* value in the running mean:
            ``running_chi2 = (1 - momentum) * running_chi2 + momentum * chi2``. Default: 0.02
        warmup_updates: batches normalised by their own statistics with :math:`r = 1`. Default: 0
        window: number :math:`m` of mini-batches. Default: 16

    Example: ``MovingAverageBatchNorm(512, warmup_updates=8000)(x, padding_mask)``
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        momentum: Optional[float] = None,
        warmup_updates: int = 0,
        window: int = 16,
        sync: bool = False,
        process_group: Optional[Any] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group)
        self.momentum = 0.02 if momentum is None else momentum
        check_fraction("momentum", self.momentum)
        check_at_least("warmup_updates", warmup_updates, 0)
        check_at_least("window", window, 1)
        self.warmup_updates = warmup_updates
        self.window = window
        self.register_buffer("running_chi2", torch.ones(num_features))
        self.register_buffer("psi2_window", torch.zeros(window, num_features))
        self.register_buffer("grad_window", torch.zeros(window, num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.running_chi2.fill_(1)
        self.psi2_window.zero_()
        self.grad_window.zero_()

    def _running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        return None, self.running_chi2

    def _normalise_batch(
        self, x: Tensor, padding: Optional[Tensor], pool: Pool, old: Dict[str, Tensor], counts: bool
    ) -> Tuple[Tensor, Tensor, Dict[str, Tensor]]:
        t = old["num_updates"] + 1
        squares, count = pool.total(x.detach().square().sum(0), count_tokens(x, padding))
        batch_psi2 = mean(squares, count)
        slot = (torch.arange(self.window, device=x.device) == (t - 1) % self.window).unsqueeze(1)  # m x 1
        psi2_window = torch.where(slot, batch_psi2, old["psi2_window"].to(batch_psi2.dtype))
        own = t <= max(self.warmup_updates, self.window)
        chi2 = torch.where(own, batch_psi2, psi2_window.mean(0))
        chi = torch.sqrt(chi2 + self.eps)
        r = (chi / torch.sqrt(old["running_chi2"] + self.eps)).clamp(1 / R_MAX, R_MAX)
        r = torch.where(t <= self.warmup_updates, torch.ones_like(r), r)
        output = _MovingAverageNormalise.apply(x, chi, r, count, self.grad_window, slot, own, counts, pool)
        running_chi2 = (1 - self.momentum) * old["running_chi2"] + self.momentum * chi2
        return output, count, {"running_chi2": running_chi2, "psi2_window": psi2_window}

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, momentum={self.momentum}, warmup_updates={self.warmup_updates}, "
            f"window={self.window}"
        )
