"""Power normalisation: PN-V (quadratic mean of the batch) and PN (Algorithm 2 of the paper)."""

from typing import Any, Optional, Tuple

from torch import Tensor

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.context import Call
from powernorm_fairseq.norms.sync import Pool


class PowerNormV(BatchStatisticsNorm):
    r"""Unit quadratic mean for each feature over the batch's real tokens.

    PN-V of `Shen et al., 2020 <https://arxiv.org/abs/2003.07845>`_.

    .. math:: y = \gamma \, x / \sqrt{\psi_B^2 + \epsilon} + \beta, \qquad \psi_B^2 = \mathrm{mean}_B(x^2)

    In evaluation the running :math:`\psi^2` takes the place of :math:`\psi_B^2`. The gradient is exact.

    Args:
        num_features: size :math:`C` of the last dimension.
        alpha_fwd: weight of the *old* value in the running :math:`\psi^2`:
            ``running_psi2 = alpha_fwd * running_psi2 + (1 - alpha_fwd) * batch_psi2``. Default: 0.9
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``PowerNormV(512)(x, padding_mask)``
    """

    _statistics = {"running_psi2": 1.0}

    def __init__(self, num_features: int, *, alpha_fwd: float = 0.9, **common: Any) -> None:
        super().__init__(num_features, **common)
        self._set(alpha_fwd=alpha_fwd)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """No mean, and the squared divisor that evaluation uses."""
        return None, self._buffers["running_psi2"]

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state = None, call.state["running_psi2"], call.state["num_updates"]
        return ops.BatchNorm.call(*self._inputs(x, call, pool), *state, 1 - self.alpha_fwd, False, 0, -1)

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.alpha_fwd = 1 - 1 / batches


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

    A forward moves :math:`\psi^2` once, and the first backward through it :math:`\nu`: a second backward of the same
    graph repeats the first gradient and moves nothing.

    Args:
        num_features: size :math:`C` of the last dimension.
        alpha_fwd: weight of the *old* value in :math:`\psi^2`. Default: 0.9
        alpha_bwd: weight of the *old* value in :math:`\nu`, as in the formula. Default: 0.9
        warmup_updates: batches normalised by their own :math:`\psi_B`. Default: 0
        recipe: ``paper``, or ``release`` for what the authors' code does: the input gradient is divided by
            :math:`\psi_B`, padding takes part in :math:`\Gamma` and :math:`\Lambda` (values that are not finite count
            as zero), and in the warm-up the running step comes on top of the plain average.
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``PowerNorm(512, groups=8, layer_scale="head", warmup_updates=8000)(x, padding_mask)``
    """

    _released_names = {"running_phi": "running_psi2", "ema_gz": "nu", "iters": "num_updates"}
    _statistics = {"running_psi2": 1.0, "nu": 0.0}
    _backward_statistics = ("nu",)

    def __init__(
        self,
        num_features: int,
        *,
        alpha_bwd: float = 0.9,
        warmup_updates: int = 0,
        recipe: str = "paper",
        **common: Any,
    ) -> None:
        super().__init__(num_features, **common)
        self._set(alpha_bwd=alpha_bwd, warmup_updates=warmup_updates, recipe=recipe)
        self._warm_batches: Optional[int] = None  # at least so many are left of the warm-up; None: not known

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        *inputs, how = self._inputs(x, call, pool)
        state = call.state["running_psi2"], call.state["num_updates"], self._buffers["nu"], call.loss_scale
        settings = self.alpha_fwd, self.alpha_bwd, self._warmup(call, how.kernel, pool), self.recipe
        if self.recipe == "release":
            how = how._replace(kernel="plain")
        return ops.PowerNorm.call(*inputs, how, *state, *settings)

    def _warmup(self, call: Call, kernel: str, pool: Optional[Pool]) -> int:
        """The length of the warm-up; 0 once it is known to be over, which saves work on a GPU and in a pool.

        The number of updates lives on the device. It is read when the warm-up can be over at the earliest, so that
        hardly a step waits for it.
        """
        if (kernel != "triton" and pool is None) or ops.compiling() or self.recipe == "release":
            return self.warmup_updates
        if self._warm_batches is None or self._warm_batches == 1:
            self._warm_batches = max(0, self.warmup_updates - int(call.state["num_updates"]))
        elif self._warm_batches > 1:
            self._warm_batches -= 1
        return self.warmup_updates if self._warm_batches > 0 else 0

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self._warm_batches = None

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._warm_batches = None

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.warmup_updates, self._warm_batches = batches, None

    def _from_release(self, name: str, value: Tensor) -> Tensor:
        return value * (1 - self.alpha_bwd) if name == "ema_gz" else value
