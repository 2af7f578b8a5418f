"""Moving-average batch normalisation: second moments over a window of mini-batches."""

from typing import Any, Optional, Tuple, Type

import torch
from torch import Tensor

from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.kernels import Rows
from powernorm_fairseq.norms.settings import check_at_least, check_fraction
from powernorm_fairseq.norms.step import loss_scale
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Step, all_finite, mean, move_if

R_MAX = 5.0


class _MovingAverageStep(Step):
    """z = s / chi, y = gamma * r * z + beta; the backward takes the mean of G * z over the window."""

    def forward(self, rows: Rows, gamma: Tensor, beta: Tensor) -> Tensor:
        """The formulas of :class:`MovingAverageBatchNorm`, in their order."""
        norm, old = self.norm, self.old
        t = old["num_updates"] + 1
        squares, self.count = self.pool.total(rows.square_sums(), rows.count())
        batch_psi2 = mean(squares, self.count)
        window = torch.arange(norm.window, device=squares.device)
        self.slot = (window == (t - 1) % norm.window).unsqueeze(1)  # m x 1
        psi2_window = torch.where(self.slot, batch_psi2, old["psi2_window"])
        self.own = t <= max(norm.warmup_updates, norm.window)
        chi2 = torch.where(self.own, batch_psi2, psi2_window.mean(0))
        self.chi = torch.sqrt(chi2 + norm.eps)
        r = (self.chi / torch.sqrt(old["running_chi2"] + norm.eps)).clamp(1 / R_MAX, R_MAX)
        self.r = torch.where(t <= norm.warmup_updates, torch.ones_like(r), r)
        running_chi2 = (1 - norm.momentum) * old["running_chi2"] + norm.momentum * chi2
        self.new = {"running_chi2": running_chi2, "psi2_window": psi2_window}
        return rows.affine(gamma * self.r / self.chi, beta)

    def backward(self, rows: Rows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """(G - z * mean) / chi."""
        buffer, scale = self.norm.grad_window, loss_scale()
        products, total = rows.backward_sums(dy, None)
        (all_products,) = self.pool.total(products)
        g = gamma * self.r
        batch_mean = mean(g * all_products / self.chi, self.count)
        window = torch.where(self.slot, batch_mean / scale, buffer.to(batch_mean.dtype))
        used_mean = torch.where(self.own, batch_mean, window.mean(0) * scale)
        dx = rows.backward(dy, g / self.chi, -used_mean / self.chi.square(), None)
        if self.counts:
            move_if(buffer, window, all_finite(batch_mean) & (self.count > 0))
        return dx, products * self.r / self.chi, total


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
        groups, layer_scale, sync, process_group, kernel: see
            :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        momentum: weight of the *new* value in the running mean:
            ``running_chi2 = (1 - momentum) * running_chi2 + momentum * chi2``. Default: 0.02
        warmup_updates: batches normalised by their own statistics with :math:`r = 1`. Default: 0
        window: number :math:`m` of mini-batches. Default: 16

    Example: ``MovingAverageBatchNorm(512, warmup_updates=8000)(x, padding_mask)``
    """

    forward_buffers = ("num_updates", "running_chi2", "psi2_window")

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
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group, kernel)
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

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        return _MovingAverageStep

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, momentum={self.momentum}, warmup_updates={self.warmup_updates}, "
            f"window={self.window}"
        )
