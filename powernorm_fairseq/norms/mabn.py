"""Moving-average batch normalisation: second moments over a window of mini-batches."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.replay import Call
from powernorm_fairseq.norms.settings import check_at_least, check_fraction
from powernorm_fairseq.norms.sync import Pool


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
        momentum: weight of the *new* value in the running mean:
            ``running_chi2 = (1 - momentum) * running_chi2 + momentum * chi2``. Default: 0.02
        warmup_updates: batches normalised by their own statistics with :math:`r = 1`. Default: 0
        window: number :math:`m` of mini-batches. Default: 16
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``MovingAverageBatchNorm(512, warmup_updates=8000)(x, padding_mask)``
    """

    window: int
    _statistics = {"running_chi2": 1.0, "psi2_window": 0.0, "grad_window": 0.0}
    _backward_statistics = ("grad_window",)

    def __init__(
        self,
        num_features: int,
        *,
        momentum: Optional[float] = None,
        warmup_updates: int = 0,
        window: int = 16,
        **common: Any,
    ) -> None:
        check_at_least("window", window, 1)
        self.__dict__["window"] = window  # the shape of a statistic, which the base makes
        super().__init__(num_features, **common)
        self.momentum = 0.02 if momentum is None else momentum
        check_fraction("momentum", self.momentum)
        check_at_least("warmup_updates", warmup_updates, 0)
        self.warmup_updates = warmup_updates

    def _shape(self, name: str) -> Tuple[int, ...]:
        return (self.window, self.num_features) if name.endswith("window") else (self.num_features,)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """No mean, and the squared divisor that evaluation uses."""
        return None, self._buffers["running_chi2"]

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state, (weight, bias) = call.state, self._affine()
        return ops.WindowNorm.call(
            x, weight, bias, call.padding, state["running_chi2"], state["psi2_window"], state["num_updates"],
            self._buffers["grad_window"], call.loss_scale,
            ops.implementation(self.kernel, x, weight, bias, state["running_chi2"]), pool, call.moves, call.counts,
            self.scale_groups, self._eps, self.momentum, self.warmup_updates,
        )

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum, self.warmup_updates = 1 / batches, batches

    def _settings(self) -> Dict[str, Any]:
        own = {"momentum": self.momentum, "warmup_updates": self.warmup_updates, "window": self.window}
        return {**super()._settings(), **own}
