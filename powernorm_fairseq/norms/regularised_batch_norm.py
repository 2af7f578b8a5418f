"""Regularised batch normalisation: BN and a penalty on the distance of a batch's statistics from the running ones."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.batch_norm import BatchNorm
from powernorm_fairseq.norms.functional import MaybeTensor, mean
from powernorm_fairseq.norms.replay import Call, in_backward
from powernorm_fairseq.norms.settings import check_at_least
from powernorm_fairseq.norms.sync import Pool

MOST_PENALTIES = 64  # that wait for a loss
AS_BN = (False, 0, -1)  # the settings of ops.BatchNorm behind the momentum


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

    def __init__(
        self, num_features: int, *, penalty_mean: float = 0.1, penalty_var: float = 0.01,
        momentum: Optional[float] = None, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_features, momentum=0.05 if momentum is None else momentum, **common)
        check_at_least("penalty_mean", penalty_mean, 0)
        check_at_least("penalty_var", penalty_var, 0)
        self.penalty_mean = penalty_mean
        self.penalty_var = penalty_var
        self._penalties: List[Tensor] = []

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state, (weight, bias) = call.state, self._affine()
        y, penalty = _Regularised.call(
            x, weight, bias, call.padding,
            state["running_mean"], state["running_var"], state["num_updates"],
            ops.implementation(self.kernel, x, weight, bias, state["running_var"]), pool, call.moves,
            self.scale_groups, self._eps, self.momentum, self.recipe == "release",
            (self.penalty_mean, self.penalty_var),
        )
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

    def _settings(self) -> Dict[str, Any]:
        return {**super()._settings(), "penalty_mean": self.penalty_mean, "penalty_var": self.penalty_var}


def take_penalty(model: nn.Module) -> Optional[Tensor]:
    """The penalties of all RBN in a model since they were last taken, for the loss; None if there is none."""
    norms = [module for module in model.modules() if isinstance(module, RegularisedBatchNorm)]
    found = [penalty for penalty in (norm.take_penalty() for norm in norms) if penalty is not None]
    return sum(found[1:], found[0]) if found else None


def penalty_of(
    centre: Tensor, variance: Tensor, count: Tensor, running: Sequence[Tensor], weights: Tuple[float, float],
    kept: float,
) -> Tuple[Tensor, Tensor]:
    """The penalty, and its gradients: columns that add to dL/ds, and columns that add to it times (s - centre).

    ``kept`` is the share of the gap that is left when the running values have moved first.
    """
    gaps = [(own - old.to(own.dtype)) * kept for own, old in zip((centre, variance), running)]
    real = (count > 0).to(centre.dtype)
    of_mean, of_var = (weight * real for weight in weights)  # a batch without a token has no statistics
    penalty = (of_mean * gaps[0].square()).sum() + (of_var * gaps[1].abs()).sum()
    return penalty, mean(torch.cat([2 * of_mean * gaps[0], 2 * of_var * gaps[1].sign()]), count)


class _Regularised(ops._Norm):
    """BN's output, and the penalty."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor,
        running_mean: Tensor, running_var: Tensor, num_updates: Tensor,
        kernel: str, pool: Optional[Pool], moves: bool, groups: int, eps: float,
        momentum: float, released: bool, weights: Tuple[float, float],
    ) -> Tuple[Tensor, Tensor]:
        """See :func:`.functional.batch_forward` and :func:`penalty_of`."""
        given: Any = None
        operators, width = ops.operators(kernel), x.shape[-1]
        rows, state = (x, padding, groups, eps), (running_mean, running_var, num_updates)
        before, small = (running_mean.clone(), running_var.clone()), None
        if pool is not None or released:
            given = operators["statistics"](*rows, True)
            given = given if pool is None else pool.statistics(given, running_mean)
        if released:
            centre, squares, count, _ = given.split([width, width, 1, 1])
            variance = mean(squares, count)
            small = variance < eps  # the operator adds eps again
            given = torch.cat([centre, (variance.clamp(min=eps) - eps) * count, count, count])
        y, columns, scales = operators["batch_forward"](
            *rows, gamma, beta, momentum, *AS_BN, *state, given, moves and not released
        )
        if released:
            if moves:
                new = [torch.lerp(old.to(own.dtype), own, momentum) for old, own in zip(before, (centre, variance))]
                ops.move([running_mean, running_var], new, count, num_updates)
        if kernel == "cpp" and not released and not ops.compiling():
            found, extra = torch.ops.powernorm.penalty_columns.default(columns, *before, eps, *weights)
            penalty = found.view(())
        else:
            if not released:
                centre, rstd, _, count, _ = columns.split([width, width, 2 * width, 1, 1])
                variance = rstd.square().reciprocal() - eps
            penalty, extra = penalty_of(centre, variance, count, before, weights, 1 - momentum if released else 1.0)
        ctx.save_for_backward(x, gamma, beta, padding, columns, scales, extra, small, *before)
        ctx.kernel, ctx.pool, ctx.rows, ctx.types = kernel, pool, (groups, eps), ops._types(gamma, beta)
        ctx.settings, ctx.released = (momentum, weights), released
        return y, penalty

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dpenalty: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.batch_backward`."""
        x, gamma, beta, padding, columns, scales, extra, small, *before = ctx.saved_tensors
        width, (momentum, weights) = x.shape[-1], ctx.settings
        if ctx.pool is not None or ctx.released:
            ops._refuse_twice("RBN in the release recipe, or over several processes,")

        def again(x: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tuple[Tensor, Tensor]:
            settings: Any = (*ctx.rows, gamma, beta, momentum, *AS_BN, *before, count_nothing(x), None)
            y, columns, _, _, count = functional.batch_forward(x, padding, *settings)
            variance = columns[width : 2 * width].square().reciprocal() - ctx.rows[1]
            return y, penalty_of(columns[:width], variance, count, before, weights, 1.0)[0]

        if ops._twice():
            return ops._Norm.differentiable(ctx, again, (dy, dpenalty), x, gamma, beta)
        given: Any = None
        operators, dy, dpenalty = ops.operators(ctx.kernel), dy.contiguous(), dpenalty.view(1)
        if ctx.pool is not None or ctx.released:
            given = operators["gradient_sums"](dy, x, padding, *ctx.rows, columns[:width])
        if ctx.pool is not None:  # each process has put the penalty of all tokens on its loss
            given, dpenalty = ctx.pool.total(torch.cat([given, dpenalty.to(given.dtype)])).split([2 * width, 1])
        if ctx.released:  # a variance that is raised to eps is constant
            given = torch.cat([given[:width].masked_fill(small, 0.0), given[width:]])
        return ops._Norm.gradients(
            ctx,
            operators["batch_backward"](
                dy, x, padding, *ctx.rows, gamma, True, columns, scales, given, extra * dpenalty
            ),
        )


def count_nothing(x: Tensor) -> Tensor:
    """A number of updates for a forward that depends on none."""
    return torch.zeros((), dtype=torch.int64, device=x.device)


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
