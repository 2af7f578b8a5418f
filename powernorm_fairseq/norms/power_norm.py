"""Power normalisation: PN-V (quadratic mean of the batch) and PN (Algorithm 2 of the paper)."""

from typing import Any, Optional, Tuple, Type

import torch
from torch import Tensor

from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.batch_norm import BatchStep
from powernorm_fairseq.norms.fused import FusedBatchStep, FusedPowerStep
from powernorm_fairseq.norms.kernels import Rows, rows_type
from powernorm_fairseq.norms.settings import RECIPES, check_at_least, check_choice, check_fraction
from powernorm_fairseq.norms.step import loss_scale
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Step, all_finite, mean, move_if


class _QuadraticStep(BatchStep):
    """The batch's quadratic mean in place of its standard deviation, and no centre."""

    def statistics(self, rows: Rows) -> Tuple[Optional[Tensor], Tensor]:
        """psi_B^2."""
        squares, self.count = self.pool.total(rows.square_sums(), rows.count())
        self.spread_count = self.count
        psi2, alpha = mean(squares, self.count), self.norm.alpha_fwd
        self.new = {"running_psi2": alpha * self.old["running_psi2"] + (1 - alpha) * psi2}
        return None, psi2


class PowerNormV(BatchStatisticsNorm):
    r"""Unit quadratic mean for each feature over the batch's real tokens.

    PN-V of `Shen et al., 2020 <https://arxiv.org/abs/2003.07845>`_.

    .. math:: y = \gamma \, x / \sqrt{\psi_B^2 + \epsilon} + \beta, \qquad \psi_B^2 = \mathrm{mean}_B(x^2)

    In evaluation the running :math:`\psi^2` takes the place of :math:`\psi_B^2`. The gradient is exact.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to :math:`\psi_B^2`. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group, kernel: see
            :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        alpha_fwd: weight of the *old* value in the running :math:`\psi^2`:
            ``running_psi2 = alpha_fwd * running_psi2 + (1 - alpha_fwd) * batch_psi2``. Default: 0.9

    Example: ``PowerNormV(512)(x, padding_mask)``
    """

    forward_buffers = ("num_updates", "running_psi2")
    fused_step = FusedBatchStep

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        alpha_fwd: float = 0.9,
        sync: bool = False,
        process_group: Optional[Any] = None,
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group, kernel)
        check_fraction("alpha_fwd", alpha_fwd)
        self.alpha_fwd = alpha_fwd
        self.register_buffer("running_psi2", torch.ones(num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.running_psi2.fill_(1)

    def _running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        return None, self.running_psi2

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        return _QuadraticStep

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, alpha_fwd={self.alpha_fwd}"


class _PowerStep(Step):
    """Algorithm 2, line by line."""

    def __init__(self, norm: Any, x: Tensor, padding: Optional[Tensor], *more: Any) -> None:
        released = norm.recipe == "release"  # its rows are all positions; only psi_B leaves padding out
        super().__init__(norm, x, None if released else padding, *more)
        self.real_padding = padding

    def forward(self, rows: Rows, gamma: Tensor, beta: Tensor) -> Tensor:
        """Divides by the running psi of the step before; in the warm-up by that of the batch."""
        norm, old_psi2 = self.norm, self.old["running_psi2"]
        t = self.old["num_updates"] + 1
        batch_psi2 = self._measure(rows)  # mini-batch statistics
        psi2 = torch.where(t <= norm.warmup_updates, batch_psi2, old_psi2)
        self.psi = torch.sqrt(psi2 + norm.eps)
        self.backward_psi = torch.sqrt(batch_psi2 + norm.eps) if norm.recipe == "release" else self.psi
        self.new = {"running_psi2": self._next_psi2(old_psi2, batch_psi2, t)}  # update global statistics
        return rows.affine(gamma / self.psi, beta)  # normalise, scale and shift

    def backward(self, rows: Rows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The gradient with the running nu in place of the batch's mean; then moves nu."""
        nu, new_weight, scale = self.norm.nu, 1 - self.norm.alpha_bwd, loss_scale()
        # X~' = G - nu * X^, the intermediate estimated gradient, and dL/dX = X~' / psi, with G = gamma * dy
        of_dy = gamma / self.backward_psi
        of_s = -scale * nu.to(gamma.dtype) / (self.psi * self.backward_psi)
        dx, products, total = rows.backward_and_sums(dy, of_dy, of_s, None)
        of_gamma = products / self.psi
        if self.counts:
            (all_products,) = self.pool.total(products)
            big_gamma = self.backward_psi2 / self.psi.square()
            big_lambda = mean(gamma * all_products / self.psi, self.backward_count) / scale
            new_nu = nu * (1 - new_weight * big_gamma) + new_weight * big_lambda
            move_if(nu, new_nu, all_finite(new_nu) & (self.count > 0))
        return dx, of_gamma, total

    def _measure(self, rows: Rows) -> Tensor:
        """psi_B^2; sets the counts, and the mean square that Gamma of the backward is made of."""
        if self.norm.recipe == "paper":
            squares, self.count = self.pool.total(rows.square_sums(), rows.count())
            self.backward_psi2, self.backward_count = mean(squares, self.count), self.count
            return self.backward_psi2
        real = self.norm.rows(rows.x, self.real_padding)
        sums = real.square_sums(), real.count(), rows.square_sums(), rows.positions()
        squares, self.count, all_squares, self.backward_count = self.pool.total(*sums)
        self.backward_psi2 = mean(all_squares, self.backward_count)
        return mean(squares, self.count)

    def _next_psi2(self, psi2: Tensor, batch_psi2: Tensor, t: Tensor) -> Tensor:
        """The running quadratic mean after step ``t``."""
        new_weight, warmup = 1 - self.norm.alpha_fwd, self.norm.warmup_updates
        if self.norm.recipe == "release":
            psi2 = torch.where(t < warmup, torch.lerp(psi2, batch_psi2, 1 / t), psi2)
            return torch.lerp(psi2, batch_psi2, new_weight)
        # A share of 1 / t makes it the plain average of all batches so far.
        return torch.lerp(psi2, batch_psi2, torch.where(t <= warmup, 1 / t, torch.full_like(t, new_weight)))


class _OnePassPowerStep(_PowerStep):
    """The same, reading the rows once in a forward after the warm-up; of one process, and in the paper's recipe.

    The host does not know when the warm-up ends: that number lives on the device. It asks for psi_B first in any case.
    """

    def forward(self, rows: Rows, gamma: Tensor, beta: Tensor) -> Tensor:
        """Algorithm 2, forward."""
        norm, old_psi2 = self.norm, self.old["running_psi2"]
        t = self.old["num_updates"] + 1
        warm = t <= norm.warmup_updates
        self.count = self.backward_count = rows.count()
        psi2 = torch.where(warm, mean(rows.square_sums(needed=warm), self.count), old_psi2)
        self.psi = self.backward_psi = torch.sqrt(psi2 + norm.eps)
        y, squares = rows.affine_and_square_sums(gamma / self.psi, beta)  # normalise, scale and shift
        self.backward_psi2 = batch_psi2 = mean(squares, self.count)  # mini-batch statistics
        self.new = {"running_psi2": self._next_psi2(old_psi2, batch_psi2, t)}  # update global statistics
        return y


class PowerNorm(PowerNormV):
    r"""Unit quadratic mean for each feature by running statistics: PN, Algorithm 2.

    `Shen et al., 2020 <https://arxiv.org/abs/2003.07845>`_. The forward divides by the :math:`\psi` of the step before,
    then moves it; the backward is approximate, with a running mean :math:`\nu` in place of the batch's:

    .. math::
        \hat x = x / \sqrt{\psi^2 + \epsilon}, \quad y = \gamma \hat x + \beta, \quad
        \psi^2 \leftarrow \alpha_f \psi^2 + (1 - \alpha_f) \psi_B^2

    .. math::
        \frac{\partial L}{\partial x} = \frac{G - \nu \hat x}{\sqrt{\psi^2 + \epsilon}}, \quad
        \nu \leftarrow \nu (1 - (1 - \alpha_b) \Gamma) + (1 - \alpha_b) \Lambda, \quad
        \Gamma = \mathrm{mean}_B(\hat x^2), \; \Lambda = \mathrm{mean}_B(G \hat x), \;
        G = \gamma \frac{\partial L}{\partial y}

    While the step, counted from 1, is within ``warmup_updates``, the batch's :math:`\psi_B` takes the place of
    :math:`\psi`, and :math:`\psi^2` is the plain average of all :math:`\psi_B^2` so far. Evaluation divides by the
    running :math:`\psi`.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to :math:`\psi^2`. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group, kernel: see
            :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        alpha_fwd: weight of the *old* value in :math:`\psi^2`. Default: 0.9
        alpha_bwd: weight of the *old* value in :math:`\nu`, as in the formula. Default: 0.9
        warmup_updates: batches normalised by their own :math:`\psi_B`. Default: 0
        recipe: ``paper``, or ``release`` for what the authors' code does: the input gradient is divided by
            :math:`\psi_B`, padding takes part in :math:`\Gamma` and :math:`\Lambda` (values that are not finite count
            as zero), and in the warm-up the running step comes on top of the plain average.

    Example: ``PowerNorm(512, groups=8, layer_scale="head", warmup_updates=8000)(x, padding_mask)``
    """

    _released_names = {"running_phi": "running_psi2", "ema_gz": "nu", "iters": "num_updates"}
    fused_step = FusedPowerStep

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        alpha_fwd: float = 0.9,
        alpha_bwd: float = 0.9,
        warmup_updates: int = 0,
        recipe: str = "paper",
        sync: bool = False,
        process_group: Optional[Any] = None,
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, alpha_fwd, sync, process_group, kernel)
        check_fraction("alpha_bwd", alpha_bwd)
        check_at_least("warmup_updates", warmup_updates, 0)
        check_choice("recipe", recipe, RECIPES)
        self.alpha_bwd = alpha_bwd
        self.warmup_updates = warmup_updates
        self.recipe = recipe
        if recipe == "release":
            self.fused_step = None
        self.register_buffer("nu", torch.zeros(num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.nu.zero_()

    @torch.jit.unused
    def _take_step(self, x: Tensor, padding: Optional[Tensor], pool: Pool, counts: bool) -> Tensor:
        if self.recipe == "release" and padding is not None:  # padding counts, but not what is no number
            x = torch.where(padding.unsqueeze(-1), torch.nan_to_num(x, 0.0, 0.0, 0.0), x)
        return super()._take_step(x, padding, pool, counts)

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        if pool.spans_processes or self.recipe == "release":
            return _PowerStep
        return _OnePassPowerStep if rows_type(self.kernel, x).skips_unneeded else _PowerStep

    def _from_release(self, name: str, value: Tensor) -> Tensor:
        return value * (1 - self.alpha_bwd) if name == "ema_gz" else value

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, alpha_bwd={self.alpha_bwd}, warmup_updates={self.warmup_updates}, "
            f"recipe={self.recipe!r}"
        )
