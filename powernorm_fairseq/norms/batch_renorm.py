"""Batch renormalisation: BN pulled towards its running statistics."""

from typing import Any, Optional, Tuple, Type

import torch
from torch import Tensor

from powernorm_fairseq.norms.batch_norm import BatchNorm, BatchStep
from powernorm_fairseq.norms.settings import check_at_least
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Step

R_MAX = 3.0
D_MAX = 5.0


class _RenormStep(BatchStep):
    """BN with r and d."""

    def correction(self, centre: Tensor, std: Tensor) -> Tuple[Tensor, Tensor]:
        """r and d."""
        running_std = torch.sqrt(self.old["running_var"] + self.norm.eps)
        r_max, d_max = self._limits(self.old["num_updates"] + 1)
        r = torch.minimum(torch.maximum(std / running_std, 1 / r_max), r_max)
        d = torch.minimum(torch.maximum((centre - self.old["running_mean"]) / running_std, -d_max), d_max)
        return r, d

    def _limits(self, t: Tensor) -> Tuple[Tensor, Tensor]:
        """(r_max, d_max) at step ``t``, which counts from 1."""
        risen = ((t - self.norm.warmup_updates) / max(self.norm.rise_updates, 1)).clamp(0, 1)
        return 1 + (R_MAX - 1) * risen, D_MAX * risen


class BatchRenorm(BatchNorm):
    r"""BN whose output is corrected towards what evaluation would give.

    `Ioffe, 2017 <https://arxiv.org/abs/1702.03275>`_.

    .. math::
        y = \gamma \Big(\frac{x - \mu_B}{\sigma_B} r + d\Big) + \beta, \quad
        r = \mathrm{clip}(\sigma_B / \sigma, 1/r_{max}, r_{max}), \quad
        d = \mathrm{clip}((\mu_B - \mu) / \sigma, -d_{max}, d_{max})

    No gradient flows through :math:`r` and :math:`d`. The limits :math:`(r_{max}, d_{max})` are (1, 0) during the
    warm-up, which makes it BN, and then rise linearly to (3, 5). Evaluation is BN's.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to the variance. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True
        groups, layer_scale, sync, process_group, kernel: see
            :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.
        momentum: weight of the *new* batch in the running statistics. Default: 0.1
        warmup_updates: batches during which the limits are (1, 0). Default: 0
        rise_updates: batches after that in which the limits rise. Default: as many as ``warmup_updates``

    Example: ``BatchRenorm(512, warmup_updates=8000)(x, padding_mask)``
    """

    fused_step = None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        momentum: Optional[float] = None,
        warmup_updates: int = 0,
        rise_updates: Optional[int] = None,
        sync: bool = False,
        process_group: Optional[Any] = None,
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine, groups, layer_scale, momentum, "paper", sync, process_group, kernel)
        check_at_least("warmup_updates", warmup_updates, 0)
        self.warmup_updates = warmup_updates
        self.rise_updates = warmup_updates if rise_updates is None else rise_updates
        check_at_least("rise_updates", self.rise_updates, 0)

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        return _RenormStep

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, warmup_updates={self.warmup_updates}, rise_updates={self.rise_updates}"
