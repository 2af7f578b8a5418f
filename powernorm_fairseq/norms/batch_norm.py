"""Batch normalisation over the real tokens of a batch (Algorithm 1 of the paper)."""

from typing import Any, Optional, Tuple, Type, Union

import torch
from torch import Tensor

from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.fused import FusedBatchStep
from powernorm_fairseq.norms.kernels import Moments, Rows
from powernorm_fairseq.norms.settings import RECIPES, check_choice, check_fraction
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Step, mean

DEFAULT_MOMENTUM = {"paper": 0.1, "release": 0.05}


class BatchStep(Step):
    r"""Normalises by statistics of this very batch, with the gradient of the paper's lemmas.

    .. math::
        \hat x = (x - \mu_B) / \sigma_B, \qquad \frac{\partial L}{\partial x_i} = \frac{1}{\sigma_B}
        \Big(G_i - \frac{1}{B}\sum_j G_j - \frac{\hat x_i}{B} \sum_j G_j \hat x_j\Big), \qquad
        G = \gamma \frac{\partial L}{\partial y}

    That is the lemma on the gradient of BN; without a centre and the first sum it is the one of PN-V.
    """

    def statistics(self, rows: Rows) -> Tuple[Optional[Tensor], Tensor]:
        """Centre, if any, and squared divisor; sets ``count``, ``new`` and ``spread_count``, what squares are over."""
        batch, self.count, self.spread_count = self._pooled_moments(rows)
        var = mean(batch.squares, self.spread_count)
        running_mean, running_var, new_weight = self.old["running_mean"], self.old["running_var"], self.norm.momentum
        self.new = {
            "running_mean": (1 - new_weight) * running_mean + new_weight * batch.mean,
            "running_var": (1 - new_weight) * running_var + new_weight * var,
        }
        return batch.mean, var

    def correction(self, centre: Optional[Tensor], std: Tensor) -> Tuple[Union[float, Tensor], Union[float, Tensor]]:
        """Factor and offset on x_hat that no gradient flows through."""
        return 1.0, 0.0

    def forward(self, rows: Rows, gamma: Tensor, beta: Tensor) -> Tensor:
        """(x - centre) / std, corrected, times gamma, plus beta."""
        self.centre, power = self.statistics(rows)
        self.std = torch.sqrt(power + self.norm.eps)
        self.factor, self.offset = self.correction(self.centre, self.std)
        scale = gamma * self.factor / self.std
        shift = beta + gamma * self.offset
        return rows.affine(scale, shift if self.centre is None else shift - self.centre * scale)

    def backward(self, rows: Rows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The lemma, as coefficients of dy, s and 1."""
        products, total = rows.backward_sums(dy, self.centre)  # sums of dy * (s - centre) and of dy
        of_gamma = products / self.std * self.factor + total * self.offset
        all_products, all_total = self.pool.total(products, total)
        g = gamma * self.factor
        slope = mean(g * all_products / self.std, self.spread_count) / self.std.square()
        constant = None
        if self.centre is not None:
            constant = self.centre * slope - mean(g * all_total, self.count) / self.std
        return rows.backward(dy, g / self.std, -slope, constant), of_gamma, total

    def _pooled_moments(self, rows: Rows) -> Tuple[Moments, Tensor, Tensor]:
        """Moments of the tokens of all processes, their number, and the number that squares are divided by.

        Each process measures deviations from its own mean, and the means as distances from an origin near them that all
        have in common, the running mean: squares of large means never have to cancel.
        """
        own, count, positions = rows.moments(), rows.count(), rows.positions()
        if self.pool.spans_processes:
            origin = self.old["running_mean"]
            distance = own.mean - origin
            first, second, count, positions = self.pool.total(
                count * distance, own.squares + count * distance.square(), count, positions
            )
            distance = mean(first, count)
            own = Moments(origin + distance, (second - count * distance.square()).clamp(min=0))
        return own, count, positions if self.norm.recipe == "release" else count


class BatchNorm(BatchStatisticsNorm):
    r"""Zero mean and unit variance for each feature over the batch's real tokens.

    `Ioffe and Szegedy, 2015 <https://arxiv.org/abs/1502.03167>`_; Algorithm 1 of the PowerNorm paper.

    .. math:: y = \gamma \, (x - \mu_B) / \sqrt{\sigma_B^2 + \epsilon} + \beta

    Both variances, of the batch and running, are the biased ones (``nn.BatchNorm1d`` keeps the unbiased one). In
    evaluation the running :math:`\mu, \sigma^2` take the place of the batch's.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to the variance. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group, kernel: see
            :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        momentum: weight of the *new* batch in the running statistics, as in torch:
            ``running = (1 - momentum) * running + momentum * batch``. Default: 0.1; 0.05 in the release recipe
        recipe: ``paper``, or ``release``: there padded positions, filled with the mean of the real ones, stay in the
            count, so the variance is smaller by the share of padding.

    Example: ``BatchNorm(512)(x, padding_mask)``
    """

    _released_names = {"num_batches_tracked": "num_updates"}
    forward_buffers = ("num_updates", "running_mean", "running_var")
    fused_step = FusedBatchStep

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        momentum: Optional[float] = None,
        recipe: str = "paper",
        sync: bool = False,
        process_group: Optional[Any] = None,
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group, kernel)
        check_choice("recipe", recipe, RECIPES)
        self.momentum = DEFAULT_MOMENTUM[recipe] if momentum is None else momentum
        check_fraction("momentum", self.momentum)
        self.recipe = recipe
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def _running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        return self.running_mean, self.running_var

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        return BatchStep

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, momentum={self.momentum}, recipe={self.recipe!r}"
