"""Unified normalisation: quadratic means over a short window of mini-batches, with smoothed gradients."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.functional import MaybeTensor, mean, times_gamma
from powernorm_fairseq.norms.replay import Call
from powernorm_fairseq.norms.settings import check_at_least, check_fraction
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training_step import check_scale

FIRST_STEPS = 1000  # at least so many have r = 1
LARGEST_R = 5.0


class UnifiedNorm(BatchStatisticsNorm):
    r"""Geometric mean of the quadratic means of the last ``window`` mini-batches: UN.

    `Yang et al., 2022 <https://arxiv.org/abs/2208.01313>`_.

    .. math::
        s = \exp\big(\text{mean of the } M \text{ latest } \log \psi_B^2\big), \quad z = x / \sqrt{s + \epsilon}, \quad
        y = \gamma z + \beta, \quad \text{running} \leftarrow 0.9 \, \text{running} + 0.1 \, s

    .. math::
        \frac{\partial L}{\partial x} = \frac{G - e z}{\sqrt{s + \epsilon}}, \quad
        e \leftarrow 0.9 \, e + 0.1 \cdot \text{mean of the } M \text{ latest } \mathrm{mean}_B(G z), \quad
        G = r \gamma \frac{\partial L}{\partial y}, \quad
        r = \mathrm{clip}\Big(\frac{\sqrt{s + \epsilon}}{\sqrt{\text{running} + \epsilon}}, \frac15, 5\Big)

    The gradient takes the new :math:`e`, and :math:`r` the running value before the step. In the first ``window``
    steps, and before the step ``warmup_updates``, the batch's own means take the place of those over the window;
    :math:`r` is 1 in the first 1000 steps and in the warm-up. Evaluation divides by the running value.

    Args:
        num_features: size :math:`C` of the last dimension.
        momentum: weight of the *new* value in the running value and in :math:`e`. Default: 0.1
        warmup_updates: see above. Default: 0
        window: number :math:`M` of mini-batches. Default: 4
        outliers: after the warm-up, leave out a batch where, in any feature, the arithmetic mean of the window exceeds
            the geometric one by more than :math:`M` times the variance of all square roots in the window before: it is
            normalised by its own means with :math:`r = 1`, and the running value and :math:`e`, as they were before the
            step, take its places in the windows. Default: False
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``UnifiedNorm(512, warmup_updates=4000)(x, padding_mask)``
    """

    window: int
    running_psi2: Tensor
    grad_window: Tensor
    grad_mean: Tensor
    _statistics = {"running_psi2": 1.0, "psi2_window": 1.0, "grad_window": 0.0, "grad_mean": 0.0}
    _backward_statistics = ("grad_window", "grad_mean")

    def __init__(
        self, num_features: int, *, momentum: Optional[float] = None, warmup_updates: int = 0, window: int = 4,
        outliers: bool = False, **common: Any,
    ) -> None:  # fmt: skip
        check_at_least("window", window, 1)
        self.__dict__["window"] = window  # the shape of a statistic, which the base makes
        super().__init__(num_features, **common)
        self.momentum = 0.1 if momentum is None else momentum
        check_fraction("momentum", self.momentum)
        check_at_least("warmup_updates", warmup_updates, 0)
        self.warmup_updates = warmup_updates
        self.outliers = outliers

    def _shape(self, name: str) -> Tuple[int, ...]:
        return (self.window, self.num_features) if name.endswith("window") else (self.num_features,)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """No mean, and the squared divisor that evaluation uses."""
        return None, self.running_psi2

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state, (weight, bias), own = call.state, self._affine(), self._buffers
        return _Unified.call(
            x, weight, bias, call.padding, state["running_psi2"], state["psi2_window"], state["num_updates"],
            own["grad_window"], own["grad_mean"], call.loss_scale,
            ops.implementation(self.kernel, x, weight, bias, state["running_psi2"]), pool, call.moves, call.counts,
            self.scale_groups, self._eps, self.momentum, self.warmup_updates, self.outliers,
        )

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum, self.warmup_updates = 1 / batches, batches + 1

    def _settings(self) -> Dict[str, Any]:
        names = ("momentum", "warmup_updates", "window", "outliers")
        return {**super()._settings(), **{name: getattr(self, name) for name in names}}


class Divisor(NamedTuple):
    """What a step divides by: columns, and how the backward averages."""

    s: Tensor
    rstd: Tensor
    r: Tensor
    own: Tensor  # whether the batch's own means are used
    outlier: Tensor
    slot: Tensor  # M x 1, the batch's place in the windows
    window: Tensor


def divisor(
    psi2: Tensor, running: Tensor, window: Tensor, num_updates: Tensor, eps: float, warmup: int, outliers: bool
) -> Divisor:
    """From the batch's psi_B^2 and the state before the step."""
    size, t = window.shape[0], num_updates + 1
    running, window = running.to(psi2.dtype), window.to(psi2.dtype)
    slot = (torch.arange(size, device=psi2.device) == (t - 1) % size).unsqueeze(1)
    new_window = torch.where(slot, psi2, window)
    geometric = new_window.log().mean(0).exp()
    own = (t <= size) | (t < warmup)  # too few batches for a window
    outlier = torch.zeros_like(own)
    if outliers:
        spread = size * window.sqrt().var(unbiased=False)
        outlier = ~own & ((new_window.mean(0) - geometric) > spread).any()
        new_window = torch.where(slot & outlier, running, new_window)
        own = own | outlier
    s = torch.where(own, psi2, geometric)
    std = torch.sqrt(s + eps)
    r = (std / torch.sqrt(running + eps)).clamp(1 / LARGEST_R, LARGEST_R)
    r = torch.where(outlier | (t <= max(FIRST_STEPS, warmup)), torch.ones_like(r), r)
    return Divisor(s, 1 / std, r, own, outlier, slot, new_window)


class _Unified(ops._Norm):
    """UN. As with PN, a second backward repeats the first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor,
        running_psi2: Tensor, psi2_window: Tensor, num_updates: Tensor,
        grad_window: Tensor, grad_mean: Tensor, loss_scale: MaybeTensor,
        kernel: str, pool: Optional[Pool], moves: bool, counts: bool, groups: int, eps: float,
        momentum: float, warmup: int, outliers: bool,
    ) -> Tensor:
        """``counts``: whether the backward moves its averages."""
        operators, rows = ops.operators(kernel), (x, padding, groups, eps)
        state, fused = (running_psi2, psi2_window, num_updates), kernel == "cpp" and not ops.compiling()
        sums: Any = None
        if pool is not None or not fused:
            sums = operators["statistics"](*rows, False)
            sums = sums if pool is None else pool.total(sums)
        if fused:
            y, columns, scales = torch.ops.powernorm.unified_forward.default(
                *rows, gamma, beta, momentum, warmup, FIRST_STEPS, outliers, *state, sums, moves
            )
            saved: Tuple[Tensor, ...] = (columns,)
        else:
            count = sums[-1:]
            by = divisor(mean(sums[:-1], count), *state, eps, warmup, outliers)
            given, saved = torch.cat([by.s * count, count]), (by.rstd, by.r, by.own, by.outlier, by.slot, count)
            if moves:
                new = [torch.lerp(running_psi2.to(by.s.dtype), by.s, momentum), by.window]
                ops.move([running_psi2, psi2_window], new, count, num_updates)
            settings = (momentum, False, 0, -1, None, running_psi2, num_updates)
            y, _, scales = operators["batch_forward"](*rows, gamma, beta, *settings, given, False)
        ctx.save_for_backward(x, gamma, padding, scales, *saved)
        ctx.rows, ctx.counts, ctx.momentum = (groups, eps), counts, momentum
        ctx.kernel, ctx.pool, ctx.types = kernel, pool, ops._types(gamma, beta)
        ctx.state, ctx.loss_scale, ctx.used = (grad_window, grad_mean), loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the class."""
        ops._refuse_twice("UN")
        x, gamma, padding, scales, *saved = ctx.saved_tensors
        operators, dy, width = ops.operators(ctx.kernel), dy.contiguous(), x.shape[-1]
        moves, state = ctx.counts, ctx.state
        if not ops.compiling():
            check_scale(ctx.loss_scale)
            if ctx.used is not None:
                state, moves = ctx.used, False
            ctx.used = [value.clone() for value in state]
        totals: Any = None
        fused = len(saved) == 1
        if ctx.pool is not None or not fused:
            sums = operators["gradient_sums"](dy, x, padding, *ctx.rows, None)
            totals = sums if ctx.pool is None else ctx.pool.total(sums)
        if fused:
            settings = (ctx.loss_scale, *saved, scales, totals, *state, ctx.momentum, moves)
            found = torch.ops.powernorm.unified_backward.default(dy, x, padding, *ctx.rows, gamma, *settings)
            return ops._Norm.gradients(ctx, found)
        scale = 1.0 if ctx.loss_scale is None else ctx.loss_scale
        rstd, r, own, outlier, slot, count = saved
        window, e = (value.to(rstd.dtype) for value in state)
        g = times_gamma(r, gamma)
        q = mean(g * totals[:width] * rstd, count) / scale
        new_window = torch.where(slot, torch.where(outlier, e, q), window)
        new_e = torch.lerp(e, torch.where(own, q, new_window.mean(0)), ctx.momentum)
        if moves:
            ops.move(state, [new_window, new_e], count)
        dx, *_ = operators["power_backward"](  # (g dy - e z) / sqrt(s + eps)
            dy, x, padding, *ctx.rows, g, 0.0, None, torch.cat([rstd, rstd, count]), scales, new_e * scale, False
        )
        return ops._Norm.gradients(ctx, (dx, sums[:width] * rstd * r, sums[width:]))
