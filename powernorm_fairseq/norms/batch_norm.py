"""Batch normalisation over the real tokens of a batch (Algorithm 1 of the paper)."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.functional import count_positions, count_tokens, mean, normalise_by_batch
from powernorm_fairseq.norms.settings import RECIPES, check_choice, check_fraction
from powernorm_fairseq.norms.sync import Pool

DEFAULT_MOMENTUM = {"paper": 0.1, "release": 0.05}


class Moments(NamedTuple):
    """Mean and variance of each column, and what their sums were divided by."""

    mean: Tensor
    var: Tensor
    count: Tensor
    spread_count: Tensor


def batch_moments(
    x: Tensor, padding: Optional[Tensor], pool: Pool, origin: Tensor, count_padding: bool = False
) -> Moments:
    """Moments of the real tokens of a batch that is spread over the processes of ``pool``.

    Each process measures deviations from its own mean, and the means as distances from ``origin``, which all have in
    common: squares of large means never have to cancel, as they would in the mean of squares.

    Args:
        x: N x C, zero at padding.
        padding: N x 1, or none at all.
        pool: the processes.
        origin: a point near the mean, for each column.
        count_padding: divide the squared deviations by the number of all positions.
    """
    count, positions = count_tokens(x, padding), count_positions(x)
    own_mean = mean(x.sum(0), count)
    deviation = x - own_mean
    if padding is not None:
        deviation = deviation.masked_fill(padding, 0.0)
    squares = deviation.square().sum(0)
    if pool.spans_processes:
        distance = own_mean - origin
        first, second, count, positions = pool.total(
            count * distance, squares + count * distance.square(), count, positions
        )
        distance = mean(first, count)
        own_mean, squares = origin + distance, (second - count * distance.square()).clamp(min=0)
    spread_count = positions if count_padding else count
    return Moments(own_mean, mean(squares, spread_count), count, spread_count)


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
        groups, layer_scale, sync, process_group: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        momentum: weight of the *new* batch in the running statistics, as in torch:
            ``running = (1 - momentum) * running + momentum * batch``. Default: 0.1; 0.05 in the release recipe
        recipe: ``paper``, or ``release``: there padded positions, filled with the mean of the real ones, stay in the
            count, so the variance is smaller by the share of padding.

    Example: ``BatchNorm(512)(x, padding_mask)``
    """

    _released_names = {"num_batches_tracked": "num_updates"}

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
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, sync, process_group)
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

    def _normalise_batch(
        self, x: Tensor, padding: Optional[Tensor], pool: Pool, old: Dict[str, Tensor], counts: bool
    ) -> Tuple[Tensor, Tensor, Dict[str, Tensor]]:
        with torch.no_grad():
            batch = batch_moments(x, padding, pool, old["running_mean"], count_padding=self.recipe == "release")
            std = torch.sqrt(batch.var + self.eps)
        x_hat = normalise_by_batch(x, batch.mean, std, batch.count, pool, batch.spread_count, padding)
        return x_hat, batch.count, self._running(old, batch)

    def _running(self, old: Dict[str, Tensor], batch: Moments) -> Dict[str, Tensor]:
        """Running statistics after a batch."""
        return {
            "running_mean": (1 - self.momentum) * old["running_mean"] + self.momentum * batch.mean,
            "running_var": (1 - self.momentum) * old["running_var"] + self.momentum * batch.var,
        }

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, momentum={self.momentum}, recipe={self.recipe!r}"
