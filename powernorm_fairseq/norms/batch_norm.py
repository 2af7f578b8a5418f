"""Batch normalisation over the real tokens of a batch (Algorithm 1 of the paper), and batch renormalisation."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.replay import Call
from powernorm_fairseq.norms.settings import RECIPES, check_at_least, check_choice, check_fraction
from powernorm_fairseq.norms.sync import Pool

DEFAULT_MOMENTUM = {"paper": 0.1, "release": 0.05}


class BatchNorm(BatchStatisticsNorm):
    r"""Zero mean and unit variance for each feature over the batch's real tokens.

    `Ioffe and Szegedy, 2015 <https://arxiv.org/abs/1502.03167>`_; Algorithm 1 of the PowerNorm paper.

    .. math:: y = \gamma \, (x - \mu_B) / \sqrt{\sigma_B^2 + \epsilon} + \beta

    Both variances, of the batch and running, are the biased ones (``nn.BatchNorm1d`` keeps the unbiased one). In
    evaluation the running :math:`\mu, \sigma^2` take the place of the batch's.

    Args:
        num_features: size :math:`C` of the last dimension.
        momentum: weight of the *new* batch in the running statistics, as in torch:
            ``running = (1 - momentum) * running + momentum * batch``. Default: 0.1; 0.05 in the release recipe
        recipe: ``paper``, or ``release``: there padded positions, filled with the mean of the real ones, stay in the
            count, so the variance is smaller by the share of padding.
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``BatchNorm(512)(x, padding_mask)``
    """

    _released_names = {"num_batches_tracked": "num_updates"}
    running_mean: Tensor
    running_var: Tensor
    _statistics = {"running_mean": 0.0, "running_var": 1.0}
    warmup_updates, rise_updates = 0, -1  # BRN's

    def __init__(
        self, num_features: int, *, momentum: Optional[float] = None, recipe: str = "paper", **common: Any
    ) -> None:
        super().__init__(num_features, **common)
        check_choice("recipe", recipe, RECIPES)
        self.momentum = DEFAULT_MOMENTUM[recipe] if momentum is None else momentum
        check_fraction("momentum", self.momentum)
        self.recipe = recipe

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """Mean and variance that evaluation uses."""
        return self._buffers["running_mean"], self._buffers["running_var"]

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state, (weight, bias) = call.state, self._affine()
        return ops.BatchNorm.call(
            x, weight, bias, call.padding, state["running_mean"], state["running_var"], state["num_updates"],
            ops.implementation(self.kernel, x, weight, bias, state["running_var"]), pool, call.moves,
            self.scale_groups, self._eps,
            self.momentum, self.recipe == "release", self.warmup_updates, self.rise_updates,
        )

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum = 1 / batches

    def _settings(self) -> Dict[str, Any]:
        return {**super()._settings(), "momentum": self.momentum, "recipe": self.recipe}


class BatchRenorm(BatchNorm):
    r"""BN whose output is corrected towards what evaluation would give: BRN.

    `Ioffe, 2017 <https://arxiv.org/abs/1702.03275>`_.

    .. math::
        y = \gamma \Big(\frac{x - \mu_B}{\sigma_B} r + d\Big) + \beta, \quad
        r = \mathrm{clip}(\sigma_B / \sigma, 1/r_{max}, r_{max}), \quad
        d = \mathrm{clip}((\mu_B - \mu) / \sigma, -d_{max}, d_{max})

    No gradient flows through :math:`r` and :math:`d`. The limits :math:`(r_{max}, d_{max})` are (1, 0) during the
    warm-up, which makes it BN, and then rise linearly to (3, 5). Evaluation is BN's.

    Args:
        num_features: size :math:`C` of the last dimension.
        momentum: weight of the *new* batch in the running statistics. Default: 0.1
        warmup_updates: batches during which the limits are (1, 0). Default: 0
        rise_updates: batches after that in which the limits rise. Default: as many as ``warmup_updates``
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``BatchRenorm(512, warmup_updates=8000)(x, padding_mask)``
    """

    def __init__(
        self,
        num_features: int,
        *,
        momentum: Optional[float] = None,
        warmup_updates: int = 0,
        rise_updates: Optional[int] = None,
        **common: Any,
    ) -> None:
        super().__init__(num_features, momentum=momentum, **common)
        check_at_least("warmup_updates", warmup_updates, 0)
        self.warmup_updates = warmup_updates
        self.rise_updates = warmup_updates if rise_updates is None else rise_updates
        check_at_least("rise_updates", self.rise_updates, 0)

    def _settings(self) -> Dict[str, Any]:
        own = {"warmup_updates": self.warmup_updates, "rise_updates": self.rise_updates}
        return {**super()._settings(), **own}
