"""Quadratic means over a window of mini-batches: MABN, with the weight centralisation that belongs to it, and UN."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.context import Call
from powernorm_fairseq.norms.functional import MaybeTensor, mean, times_gamma
from powernorm_fairseq.norms.sync import Pool

FIRST_STEPS = 1000  # of UN; at least so many have r = 1
LARGEST_R = 5.0
_SHORT, _LONG = "weight", "parametrizations.weight.original"  # its name in a checkpoint, and in a centralised layer


class WindowedNorm(BatchStatisticsNorm):
    """What both have in common: settings, and statistics of each of the latest mini-batches."""

    _usual: Dict[str, Any] = {}  # the settings where nothing else is said

    def __init__(
        self,
        num_features: int,
        *,
        momentum: Optional[float] = None,
        warmup_updates: int = 0,
        window: Optional[int] = None,
        **common: Any,
    ) -> None:
        super().__init__(num_features, **common)
        given = {name: value for name, value in (("momentum", momentum), ("window", window)) if value is not None}
        self._set(warmup_updates=warmup_updates, **{**self._usual, **given})
        for name in self._statistics:
            if name.endswith("window"):
                self._buffers[name] = self._buffers[name].repeat(self.window, 1)


class MovingAverageBatchNorm(WindowedNorm):
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

    _usual = {"momentum": 0.02, "window": 16}
    _statistics = {"running_chi2": 1.0, "psi2_window": 0.0, "grad_window": 0.0}
    _backward_statistics = ("grad_window",)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """No mean, and the squared divisor that evaluation uses."""
        return None, self._buffers["running_chi2"]

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state: List[Any] = [call.state[name] for name in ("running_chi2", "psi2_window", "num_updates")]
        state += [self._buffers["grad_window"], call.loss_scale]
        return ops.WindowNorm.call(*self._inputs(x, call, pool), *state, self.momentum, self.warmup_updates)

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum, self.warmup_updates = 1 / batches, batches


class Centralised(nn.Module):
    """W minus its mean over the inputs, as a parametrisation: the parameter itself stays as it is."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer uses."""
        return weight - weight.mean(1, keepdim=True)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The parameter for a weight that is assigned."""
        return weight


def centralise_weight(linear: nn.Linear) -> None:
    """Makes a linear layer use its weight minus the mean over the inputs.

    MABN normalises by second moments alone; centred weights in front of it keep the mean of its input near zero
    (`Yan et al., 2020 <https://arxiv.org/abs/2001.06838>`_, section 4.3). In a ``state_dict`` the parameter is called
    ``weight`` as before.
    """
    if type(linear) is not nn.Linear:
        raise TypeError(f"only a torch.nn.Linear can be centralised, not a {type(linear).__name__}")
    parametrize.register_parametrization(linear, "weight", Centralised())
    if not hasattr(linear, "__deepcopy__"):  # torch < 2.0 refuses to copy what is parametrised
        del type(linear).__getstate__
    linear._register_state_dict_hook(_shorten)
    linear._register_load_state_dict_pre_hook(_lengthen)


def _shorten(module: nn.Module, state: Dict[str, Any], prefix: str, metadata: Any) -> None:
    if prefix + _LONG in state:
        state[prefix + _SHORT] = state.pop(prefix + _LONG)


def _lengthen(state: Dict[str, Any], prefix: str, *others: Any) -> None:
    if prefix + _SHORT in state:
        state[prefix + _LONG] = state.pop(prefix + _SHORT)


class UnifiedNorm(WindowedNorm):
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

    _usual = {"momentum": 0.1, "window": 4}
    _statistics = {"running_psi2": 1.0, "psi2_window": 1.0, "grad_window": 0.0, "grad_mean": 0.0}
    _backward_statistics = ("grad_window", "grad_mean")

    def __init__(self, num_features: int, *, outliers: bool = False, **common: Any) -> None:
        super().__init__(num_features, **common)
        self._set(outliers=outliers)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """No mean, and the squared divisor that evaluation uses."""
        return None, self._buffers["running_psi2"]

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state: List[Any] = [call.state[name] for name in ("running_psi2", "psi2_window", "num_updates")]
        state += [self._buffers["grad_window"], self._buffers["grad_mean"], call.loss_scale]
        settings = self.momentum, self.warmup_updates, self.outliers
        return _Unified.call(*self._inputs(x, call, pool), *state, *settings)

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum, self.warmup_updates = 1 / batches, batches + 1


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


class _Unified(ops.NormFunction):
    """UN. As with PN, a second backward repeats the first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, how: ops.How,
        running_psi2: Tensor, psi2_window: Tensor, num_updates: Tensor,
        grad_window: Tensor, grad_mean: Tensor, loss_scale: MaybeTensor,
        momentum: float, warmup: int, outliers: bool,
    ) -> Tensor:
        """See :func:`divisor`."""
        operators, rows, eps = ops.operators(how.kernel), (x, padding, *how.rows), how.eps
        state, fused = (running_psi2, psi2_window, num_updates), how.kernel == "cpp" and not ops.compiling()
        sums: Any = how.statistics(x, padding, None)
        if fused:
            y, columns, scales = torch.ops.powernorm.unified_forward.default(
                *rows, gamma, beta, momentum, warmup, FIRST_STEPS, outliers, *state, sums, how.moves
            )
            saved: Tuple[Tensor, ...] = (columns,)
        else:
            sums = operators["statistics"](*rows, False) if sums is None else sums
            count = sums[-1:]
            by = divisor(mean(sums[:-1], count), *state, eps, warmup, outliers)
            given, saved = torch.cat([by.s * count, count]), (by.rstd, by.r, by.own, by.outlier, by.slot, count)
            if how.moves:
                new = [torch.lerp(running_psi2.to(by.s.dtype), by.s, momentum), by.window]
                ops.move([running_psi2, psi2_window], new, count, num_updates)
            settings = (momentum, False, 0, -1, None, running_psi2, num_updates)
            y, _, scales = operators["batch_forward"](*rows, gamma, beta, *settings, given, False)
        ctx.save_for_backward(x, gamma, padding, scales, *saved)
        ctx.how, ctx.types, ctx.momentum = how, ops.types_of(gamma, beta), momentum
        ctx.state, ctx.loss_scale, ctx.used = (grad_window, grad_mean), loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the class."""
        ops.refuse_twice("UN")
        x, gamma, padding, scales, *saved = ctx.saved_tensors
        how, dy, width = ctx.how, dy.contiguous(), x.shape[-1]
        operators = ops.operators(how.kernel)
        state, moves = ops.NormFunction.backward_state(ctx)
        if not ops.compiling():
            ctx.used = [value.clone() for value in state]
        totals: Any = how.gradient_sums(dy, x, padding, None)
        if len(saved) == 1:
            settings = (ctx.loss_scale, *saved, scales, totals, *state, ctx.momentum, moves)
            found = torch.ops.powernorm.unified_backward.default(dy, x, padding, *how.rows, gamma, *settings)
            return ops.NormFunction.gradients(ctx, *found)
        sums = operators["gradient_sums"](dy, x, padding, *how.rows, None)
        totals = sums if totals is None else totals
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
            dy, x, padding, *how.rows, g, 0.0, None, torch.cat([rstd, rstd, count]), scales, new_e * scale, False
        )
        return ops.NormFunction.gradients(ctx, dx, sums[:width] * rstd * r, sums[width:])
