"""Batch normalisation over the real tokens of a batch (Algorithm 1 of the paper), BRN and RBN."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.context import Call, in_backward
from powernorm_fairseq.norms.functional import MaybeTensor, mean
from powernorm_fairseq.norms.sync import Pool

MOST_PENALTIES = 64  # that wait for a loss
AS_BN = (False, 0, -1)  # the settings of ops.BatchNorm behind the momentum


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
    _statistics = {"running_mean": 0.0, "running_var": 1.0}
    _momentum = {"paper": 0.1, "release": 0.05}
    warmup_updates, rise_updates = 0, -1  # BRN's

    def __init__(
        self, num_features: int, *, momentum: Optional[float] = None, recipe: str = "paper", **common: Any
    ) -> None:
        super().__init__(num_features, **common)
        self._set(recipe=recipe)
        self._set(momentum=self._momentum[recipe] if momentum is None else momentum)

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """Mean and variance that evaluation uses."""
        return self._buffers["running_mean"], self._buffers["running_var"]

    def _inputs(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tuple[Any, ...]:
        state = [call.state[name] for name in ("running_mean", "running_var", "num_updates")]
        return (*super()._inputs(x, call, pool), *state, self.momentum, self.recipe == "release")

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        return ops.BatchNorm.call(*self._inputs(x, call, pool), self.warmup_updates, self.rise_updates)

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.momentum = 1 / batches


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
        self, num_features: int, *, warmup_updates: int = 0, rise_updates: Optional[int] = None, **common: Any
    ) -> None:
        super().__init__(num_features, **common)
        rise_updates = warmup_updates if rise_updates is None else rise_updates
        self._set(warmup_updates=warmup_updates, rise_updates=rise_updates)


class RegularisedBatchNorm(BatchNorm):
    r"""BN that is penalised where a batch's statistics leave the running ones: RBN.

    `Wang et al., 2022 <https://arxiv.org/abs/2210.05153>`_. The output is BN's. In training each call leaves a penalty,
    which belongs to the loss: :func:`take_penalty` collects those of a model.

    .. math:: \lambda_\mu \sum_c (\mu_c - \mu_{B,c})^2 + \lambda_\sigma \sum_c |\sigma_c^2 - \sigma_{B,c}^2|

    The running values are constants in it; the gradient flows through the batch's own.

    Args:
        num_features: size :math:`C` of the last dimension.
        penalty_mean: :math:`\lambda_\mu`; 60 for a post-norm model. Default: 0.1
        penalty_var: :math:`\lambda_\sigma`; 0 for a post-norm model. Default: 0.01
        momentum: weight of the *new* batch in the running statistics. Default: 0.05
        recipe: ``paper``, or ``release`` for what the authors' code does: running values move before the penalty is
            taken, and the variance is raised to ``eps`` where it is smaller, instead of adding ``eps``.
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``y = RegularisedBatchNorm(512)(x, padding_mask)``, and ``loss = loss_of(y) + take_penalty(model)``
    """

    _momentum = {"paper": 0.05, "release": 0.05}

    def __init__(
        self, num_features: int, *, penalty_mean: float = 0.1, penalty_var: float = 0.01, **common: Any
    ) -> None:
        super().__init__(num_features, **common)
        self._set(penalty_mean=penalty_mean, penalty_var=penalty_var)
        self._penalties: List[Tensor] = []

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        y, penalty = _Regularised.call(*self._inputs(x, call, pool), self.penalty_mean, self.penalty_var)
        if ops.compiling():
            if torch.is_grad_enabled():
                self._penalties.append(penalty)
            return y
        if in_backward():  # activation checkpointing repeats the call
            first = call.notes.get("penalty")
            return y if first is None else _Attach.apply(y, penalty, first)
        if not torch.is_grad_enabled():  # perhaps its first forward: the gradient of this leaf waits for the second
            call.notes["penalty"] = penalty.requires_grad_()
            del self._penalties[: -MOST_PENALTIES + 1]
        elif len(self._penalties) >= MOST_PENALTIES:
            raise RuntimeError(
                f"the penalties of {MOST_PENALTIES} calls of an rbn were never added to a loss; add take_penalty(model)"
            )
        self._penalties.append(penalty)
        return y

    def take_penalty(self) -> Optional[Tensor]:
        """The penalty of all training calls since it was last taken; None if there was no call."""
        taken, self._penalties = self._penalties, []
        return sum(taken[1:], taken[0]) if taken else None

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "_penalties": []}


def take_penalty(model: nn.Module) -> Optional[Tensor]:
    """The penalties of all RBN in a model since they were last taken, for the loss; None if there is none."""
    norms = [module for module in model.modules() if isinstance(module, RegularisedBatchNorm)]
    found = [penalty for penalty in (norm.take_penalty() for norm in norms) if penalty is not None]
    return sum(found[1:], found[0]) if found else None


def penalty_of(
    centre: Tensor, variance: Tensor, count: Tensor, running: Sequence[Tensor], weights: Tuple[float, float],
    kept: float = 1.0,
) -> Tuple[Tensor, Tensor]:
    """The penalty, and its gradients: columns that add to dL/ds, and columns that add to it times (s - centre).

    ``kept`` is the share of the gap that is left when the running values have moved first.
    """
    gaps = [(own - old.to(own.dtype)) * kept for own, old in zip((centre, variance), running)]
    real = (count > 0).to(centre.dtype)
    of_mean, of_var = (weight * real for weight in weights)  # a batch without a token has no statistics
    penalty = (of_mean * gaps[0].square()).sum() + (of_var * gaps[1].abs()).sum()
    return penalty, mean(torch.cat([2 * of_mean * gaps[0], 2 * of_var * gaps[1].sign()]), count)


class _Regularised(ops.NormFunction):
    """BN's output, and the penalty."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, how: ops.How,
        running_mean: Tensor, running_var: Tensor, num_updates: Tensor,
        momentum: float, released: bool, penalty_mean: float, penalty_var: float,
    ) -> Tuple[Tensor, Tensor]:
        """See :func:`.functional.batch_forward` and :func:`penalty_of`."""
        width, eps, small, weights = x.shape[-1], how.eps, None, (penalty_mean, penalty_var)
        rows, state = (x, padding, *how.rows), (running_mean, running_var, num_updates)
        given: Any = how.statistics(x, padding, running_mean)
        ctx.fused = how.kernel == "cpp" and not released and not ops.compiling()
        if ctx.fused:
            y, columns, scales, penalty, extra, *before = torch.ops.powernorm.regularised_forward.default(
                *rows, gamma, beta, momentum, *state, given, how.moves, *weights
            )
        else:
            operators, before = ops.operators(how.kernel), [running_mean.clone(), running_var.clone()]
            if released:
                given = operators["statistics"](*rows, True) if given is None else given
                centre, squares, count, _ = given.split([width, width, 1, 1])
                variance = mean(squares, count)
                small = variance < eps  # the operator adds eps again
                given = torch.cat([centre, (variance.clamp(min=eps) - eps) * count, count, count])
            settings = (momentum, *AS_BN, *state, given, how.moves and not released)
            y, columns, scales = operators["batch_forward"](*rows, gamma, beta, *settings)
            if not released:
                penalty, extra = penalty_of(*_measured(columns, width, eps), before, weights)
            else:
                penalty, extra = penalty_of(centre, variance, count, before, weights, 1 - momentum)
                if how.moves:
                    new = [torch.lerp(old.to(own.dtype), own, momentum) for old, own in zip(before, (centre, variance))]
                    ops.move([running_mean, running_var], new, count, num_updates)
        ctx.save_for_backward(x, gamma, beta, padding, columns, scales, extra, small, *before)
        ctx.how, ctx.types = how, ops.types_of(gamma, beta)
        ctx.settings, ctx.weights, ctx.released = (momentum, *AS_BN, *before, num_updates, None), weights, released
        return y, penalty

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dpenalty: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.batch_backward`."""
        x, gamma, beta, padding, columns, scales, extra, small, *before = ctx.saved_tensors
        how, width, operators = ctx.how, x.shape[-1], ops.operators(ctx.how.kernel)
        given: Any = None
        if how.pool is not None or ctx.released:
            ops.refuse_twice("RBN in the release recipe, or over several processes,")

        def again(x: Tensor, *affine: MaybeTensor) -> Tuple[Tensor, Tensor]:
            settings: Any = (*how.rows, *affine, *ctx.settings)
            y, columns, *_ = functional.batch_forward(x, padding, *settings)
            return y, penalty_of(*_measured(columns, width, how.eps), before, ctx.weights)[0]

        if ops.twice():
            return ops.NormFunction.differentiable(ctx, again, (dy, dpenalty), x, gamma, beta)
        dy = dy.contiguous()
        if ctx.fused and how.pool is None:
            found = torch.ops.powernorm.regularised_backward.default(
                dy, x, padding, *how.rows, gamma, columns, scales, extra, dpenalty
            )
            return ops.NormFunction.gradients(ctx, *found)
        dpenalty = dpenalty.view(1)
        if how.pool is not None or ctx.released:
            given = operators["gradient_sums"](dy, x, padding, *how.rows, columns[:width])
        if how.pool is not None:  # each process has put the penalty of all tokens on its loss
            given, dpenalty = how.pool.total(torch.cat([given, dpenalty.to(given.dtype)])).split([2 * width, 1])
        if small is not None:  # a variance that is raised to eps is constant
            given = torch.cat([given[:width].masked_fill(small, 0.0), given[width:]])
        settings = (gamma, True, columns, scales, given, extra * dpenalty)
        return ops.NormFunction.gradients(ctx, *operators["batch_backward"](dy, x, padding, *how.rows, *settings))


def _measured(columns: Tensor, width: int, eps: float) -> Tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of tokens from what :func:`.functional.batch_forward` leaves for its backward."""
    centre, rstd, _, count, _ = columns.split([width, width, 2 * width, 1, 1])
    return centre, rstd.square().reciprocal() - eps, count


class _Attach(torch.autograd.Function):
    """``y`` as it is; its backward also runs that of the penalty, with the gradient that came to ``first``.

    Reentrant checkpointing runs its first forward without gradients, so the penalty on the loss is a leaf. autograd
    serves leaves before all else, so its gradient is there when the second forward's backward runs.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, penalty: Tensor, first: Tensor) -> Tensor:
        """Nothing but the output."""
        ctx.first = first
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the class."""
        return dy, ctx.first.grad, None
