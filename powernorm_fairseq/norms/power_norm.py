"""Power normalisation: PN-V (quadratic mean of the batch) and PN (Algorithm 2 of the paper)."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from powernorm_fairseq.norms.base import BatchStatisticsNorm, move_if
from powernorm_fairseq.norms.functional import count_positions, count_tokens, mean, normalise_by_batch
from powernorm_fairseq.norms.settings import RECIPES, check_at_least, check_choice, check_fraction
from powernorm_fairseq.norms.step import loss_scale
from powernorm_fairseq.norms.sync import Pool


class PowerNormV(BatchStatisticsNorm):
    r"""Unit quadratic mean for each feature over the batch's real tokens.

    PN-V of `Shen et al., 2020 <https://arxiv.org/abs/2003.07845>`_.

    .. math:: y = \gamma \, x / \sqrt{\psi_B^2 + \epsilon} + \beta, \qquad \psi_B^2 = \mathrm{mean}_B(x^2)

    In evaluation the running :math:`\psi^2` takes the place of :math:`\psi_B^2`. The gradient is exact.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to :math:`\psi_B^2`. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        alpha_fwd: weight of the *old* value in the running :math:`\psi^2`:
            ``running_psi2 = alpha_fwd * running_psi2 + (1 - alpha_fwd) * batch_psi2``. Default: 0.9

    Example: ``PowerNormV(512)(x, padding_mask)``
    """

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
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group)
        check_fraction("alpha_fwd", alpha_fwd)
        self.alpha_fwd = alpha_fwd
        self.register_buffer("running_psi2", torch.ones(num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.running_psi2.fill_(1)

    def _running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        return None, self.running_psi2

    def _normalise_batch(
        self, x: Tensor, padding: Optional[Tensor], pool: Pool, old: Dict[str, Tensor], counts: bool
    ) -> Tuple[Tensor, Tensor, Dict[str, Tensor]]:
        with torch.no_grad():
            squares, count = pool.total(x.square().sum(0), count_tokens(x, padding))
            batch_psi2 = mean(squares, count)
            running_psi2 = self.alpha_fwd * old["running_psi2"] + (1 - self.alpha_fwd) * batch_psi2
        x_hat = normalise_by_batch(x, None, torch.sqrt(batch_psi2 + self.eps), count, pool)
        return x_hat, count, {"running_psi2": running_psi2}

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, alpha_fwd={self.alpha_fwd}"


class _PowerNormalise(Function):
    """The normalisation of Algorithm 2 and its backward; ``gamma`` and ``beta`` follow outside.

    ``moves`` tells, on the device, whether the batch has a real token; None stops ``nu`` altogether.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        psi: Tensor,
        backward_psi: Tensor,
        backward_count: Tensor,
        nu: Tensor,
        alpha: float,
        moves: Optional[Tensor],
        pool: Pool,
    ) -> Tensor:
        x_hat = x / psi
        ctx.save_for_backward(x_hat, backward_psi, backward_count)
        ctx.nu, ctx.alpha = nu, alpha  # nu is the buffer itself: read and moved by the backward
        ctx.moves, ctx.pool = moves, pool
        return x_hat

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_hat: Tensor) -> Tuple[Optional[Tensor], ...]:
        x_hat, psi, count = ctx.saved_tensors
        nu, alpha, scale = ctx.nu, ctx.alpha, loss_scale()
        x_tilde = grad_x_hat - scale * nu * x_hat  # intermediate estimated gradient
        grad_x = x_tilde / psi  # gradient of x
        if ctx.moves is not None:
            squares, products = ctx.pool.total(x_hat.square().sum(0), (grad_x_hat * x_hat).sum(0))
            gamma = mean(squares, count)
            lambda_ = mean(products, count) / scale
            new_nu = nu * (1 - (1 - alpha) * gamma) + (1 - alpha) * lambda_
            move_if(nu, new_nu, ctx.moves & torch.isfinite(new_nu).all())
        return grad_x, None, None, None, None, None, None, None


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
        groups, layer_scale, sync, process_group: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        alpha_fwd: weight of the *old* value in :math:`\psi^2`. Default: 0.9
        alpha_bwd: weight of the *old* value in :math:`\nu`, as in the formula. Default: 0.9
        warmup_updates: batches normalised by their own :math:`\psi_B`. Default: 0
        recipe: ``paper``, or ``release`` for what the authors' code does: the input gradient is divided by
            :math:`\psi_B`, padding takes part in :math:`\Gamma` and :math:`\Lambda` (values that are not finite count
            as zero), and in the warm-up the running step comes on top of the plain average.

    Example: ``PowerNorm(512, groups=8, layer_scale="head", warmup_updates=8000)(x, padding_mask)``
    """

    _released_names = {"running_phi": "running_psi2", "ema_gz": "nu", "iters": "num_updates"}

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
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, alpha_fwd, sync, process_group)
        check_fraction("alpha_bwd", alpha_bwd)
        check_at_least("warmup_updates", warmup_updates, 0)
        check_choice("recipe", recipe, RECIPES)
        self.alpha_bwd = alpha_bwd
        self.warmup_updates = warmup_updates
        self.recipe = recipe
        self.register_buffer("nu", torch.zeros(num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.nu.zero_()

    def _blank(self, x: Tensor, padding: Tensor) -> Tensor:
        if self.recipe == "release":
            return torch.where(padding, torch.nan_to_num(x, 0.0, 0.0, 0.0), x)
        return x.masked_fill(padding, 0.0)

    def _normalise_batch(
        self, x: Tensor, padding: Optional[Tensor], pool: Pool, old: Dict[str, Tensor], counts: bool
    ) -> Tuple[Tensor, Tensor, Dict[str, Tensor]]:
        t = old["num_updates"] + 1
        squares = x.detach().square()
        if self.recipe == "release" and padding is not None:
            squares = squares.masked_fill(padding, 0.0)
        squares, count, positions = pool.total(squares.sum(0), count_tokens(x, padding), count_positions(x))
        batch_psi2 = mean(squares, count)  # mini-batch statistics
        psi2 = torch.where(t <= self.warmup_updates, batch_psi2, old["running_psi2"].to(batch_psi2.dtype))
        psi = torch.sqrt(psi2 + self.eps)
        backward_psi, backward_count = psi, count
        if self.recipe == "release":
            backward_psi, backward_count = torch.sqrt(batch_psi2 + self.eps), positions
        moves = count > 0 if counts else None
        x_hat = _PowerNormalise.apply(x, psi, backward_psi, backward_count, self.nu, self.alpha_bwd, moves, pool)
        return x_hat, count, {"running_psi2": self._next_psi2(old["running_psi2"], batch_psi2, t)}

    def _next_psi2(self, psi2: Tensor, batch_psi2: Tensor, t: Tensor) -> Tensor:
        """The running quadratic mean after step ``t``."""
        average = psi2 + (batch_psi2 - psi2) / t
        if self.recipe == "release":
            psi2 = torch.where(t < self.warmup_updates, average, psi2.to(average.dtype))
            return self.alpha_fwd * psi2 + (1 - self.alpha_fwd) * batch_psi2
        running = self.alpha_fwd * psi2 + (1 - self.alpha_fwd) * batch_psi2
        return torch.where(t <= self.warmup_updates, average, running)

    def _from_release(self, name: str, value: Tensor) -> Tensor:
        return value * (1 - self.alpha_bwd) if name == "ema_gz" else value

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, alpha_bwd={self.alpha_bwd}, warmup_updates={self.warmup_updates}, "
            f"recipe={self.recipe!r}"
        )
