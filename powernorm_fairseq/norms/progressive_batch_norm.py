"""Progressive re-parameterised batch normalisation: LayerNorm that becomes BN in the course of the training."""

import warnings
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.batch_norm import BatchNorm
from powernorm_fairseq.norms.context import Call
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.sync import Pool


class ProgressiveBatchNorm(BatchNorm):
    r"""From LN to BN with a shortcut: PRepBN of SLAB (`Guo et al., 2024 <https://arxiv.org/abs/2405.11582>`_).

    .. math:: y = \lambda \, \mathrm{LN}(x) + (1 - \lambda) (\mathrm{BN}(x) + \eta x)

    :math:`\lambda` falls linearly from 1 at the first batch to 0 after ``updates`` of them. LN and BN have factors and
    offsets of their own. Evaluation uses the :math:`\lambda` that the training has reached, and BN's running
    statistics; once it is 0 the norm is linear and can be folded.

    Args:
        num_features: size :math:`C` of the last dimension.
        updates: batches in which :math:`\lambda` falls; it has no default that suits every training. It is part of the
            state: a checkpoint brings the number that it was trained with.
        eta_start: the number :math:`\eta`, one for the layer, at the start; fixed without ``affine``. Default: 1
        momentum: weight of the *new* batch in the running statistics. Default: 0.1
        recipe: ``paper``, or ``release``: there evaluation is BN's branch alone from the first step on.
        **common: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`.

    Example: ``ProgressiveBatchNorm(512, updates=80000)(x, padding_mask)``
    """

    fall_updates: Tensor
    ln_weight: Optional[nn.Parameter]
    ln_bias: Optional[nn.Parameter]
    eta: Optional[nn.Parameter]
    _momentum = {"paper": 0.1, "release": 0.1}

    def __init__(
        self, num_features: int, *, updates: Optional[int] = None, eta_start: float = 1.0, **common: Any
    ) -> None:
        super().__init__(num_features, **common)
        if updates is None:
            raise ValueError("updates is not given; prepbn needs the number of batches in which LN becomes BN")
        self._set(updates=updates, eta_start=eta_start)
        self.register_buffer("fall_updates", torch.tensor(updates, device=common.get("device")))
        self.fixed_share: Optional[float] = None  # while statistics are estimated anew
        self._make("ln_weight", num_features, 1.0, self.weight)
        self._make("ln_bias", num_features, 0.0, self.bias)
        self._make("eta", 1, eta_start, self.weight)

    def share_of_ln(self, num_updates: Optional[Tensor] = None) -> Tensor:
        """Lambda for the batch after so many; by default, after those seen."""
        seen = self.num_updates if num_updates is None else num_updates
        if self.fixed_share is not None:
            return self.running_var.new_full((), self.fixed_share)
        return (1 - seen.to(self.running_var.dtype) / self.fall_updates).clamp(min=0)

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        super().reset_running_stats()
        self.fall_updates.fill_(self.updates)

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        state, share = call.state, self.share_of_ln(call.state["num_updates"])
        running = (state["running_mean"], state["running_var"], state["num_updates"])
        parameters = (*self._affine(), self.ln_weight, self.ln_bias, self.eta)
        if self._fused(x, state["running_var"]):
            settings = (self._eps, self.momentum, self.eta_start, float(share))
            return _Mixed.call(x, *parameters, call.padding, *running, pool, call.moves, *settings, None)

        def batch_norm(s: Tensor, gamma: Tensor, beta: MaybeTensor) -> Tensor:
            kernel = ops.implementation(self.kernel, s, gamma, beta, state["running_var"])
            how = ops.How(kernel, pool, call.moves, call.counts, 0, self._eps)
            return ops.BatchNorm.call(s, gamma, beta, call.padding, how, *running, self.momentum, False, 0, -1)

        return self._mixed(x, call.padding, share, batch_norm, *parameters)

    def _evaluate(self, x: Tensor, padding: MaybeTensor) -> Tensor:
        share = self.share_of_ln()
        if self.recipe == "release":
            share = torch.zeros_like(share)
        parameters = (*self._affine(), self.ln_weight, self.ln_bias, self.eta)

        def batch_norm(s: Tensor, gamma: Tensor, beta: MaybeTensor) -> Tensor:
            return functional.evaluate(s, padding, 0, self._eps, gamma, beta, *self.running_statistics())

        def plain(x: Tensor, *parameters: MaybeTensor) -> Tensor:
            return self._mixed(x, padding, share, batch_norm, *parameters)

        if not self._fused(x, self.running_var):
            return plain(x, *parameters)
        running = (self.running_mean, self.running_var, self.num_updates)
        settings = (self._eps, self.momentum, self.eta_start, float(share))
        return _Mixed.call(x.contiguous(), *parameters, padding, *running, None, False, *settings, plain)

    def _fused(self, x: Tensor, statistics: Tensor) -> bool:
        """Whether C++ serves the input."""
        served = ops.implementation(self.kernel, x, *self._affine(), statistics) == "cpp"
        return served and self.scale_groups == 0 and not ops.takes_plain()

    def _mixed(
        self, x: Tensor, padding: MaybeTensor, share: Tensor, batch_norm: Any, weight: MaybeTensor, bias: MaybeTensor,
        ln_weight: MaybeTensor, ln_bias: MaybeTensor, eta: MaybeTensor,
    ) -> Tensor:  # fmt: skip
        """The formula; factors and offsets are multiplied by lambda, so that no tensor of tokens has to be."""
        s = x.to(functional.statistics_type(x.dtype))
        if self.scale_groups or padding is not None:
            s = functional.evaluate(s, padding, self.scale_groups, self._eps, None, None, None, None)
        share = share.to(s.dtype)
        ones = s.new_ones(self.num_features)

        def times(parameter: MaybeTensor, factor: Tensor, otherwise: MaybeTensor = None) -> MaybeTensor:
            parameter = otherwise if parameter is None else parameter.to(s.dtype)
            return None if parameter is None else parameter * factor

        y = batch_norm(s, times(weight, 1 - share, ones), times(bias, 1 - share))
        gamma, beta = times(ln_weight, share, ones), times(ln_bias, share)
        kernel = ops.implementation(self.kernel, s, gamma, beta)
        y = y + ops.exact("token_norm", kernel, s, padding, 1, self._eps, gamma, beta, True)
        eta = s.new_full((1,), self.eta_start) if eta is None else eta.to(s.dtype)
        y = torch.addcmul(y, s, (1 - share) * eta)
        if padding is not None:  # zero there already, but the gradient has to be kept from eta
            y = y.masked_fill(padding.unsqueeze(-1), 0.0)
        return y.to(x.dtype)

    def average_over(self, batches: int) -> None:
        """See the base."""
        self.fixed_share = float(self.share_of_ln())
        super().average_over(batches)

    def linear_map(self) -> Any:
        """See the base."""
        if self.recipe != "release" and float(self.share_of_ln()) > 0:
            raise ValueError(
                f"prepbn can be folded after updates={int(self.fall_updates)} batches, when nothing of LN is left; it "
                f"has seen {int(self.num_updates)}"
            )
        scale, offset = super().linear_map()
        return scale + (self.eta_start if self.eta is None else self.eta.double()), offset

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "fall_updates")
        if saved is not None and not saved.is_meta and int(saved) != self.updates:
            warnings.warn(
                f"{prefix[:-1]}: in the checkpoint LN becomes BN in {int(saved)} batches, and that is kept; "
                f"updates={self.updates} has no effect",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _Mixed(ops.NormFunction):
    """The same in C++: a sweep for the batch's statistics in training, and one for the rest."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, ln_gamma: MaybeTensor, ln_beta: MaybeTensor,
        eta: MaybeTensor, padding: MaybeTensor,
        running_mean: Tensor, running_var: Tensor, num_updates: Tensor, pool: Optional[Pool], moves: bool,
        eps: float, momentum: float, eta_start: float, share: float, evaluates: Optional[Callable[..., Tensor]],
    ) -> Tensor:
        """See :meth:`ProgressiveBatchNorm._mixed`, which ``evaluates`` is in evaluation mode."""
        given, trains = None, evaluates is None
        if pool is not None:
            given = pool.statistics(ops.FAST["statistics"](x, padding, 0, eps, True), running_mean)
        parameters, state = (gamma, beta, ln_gamma, ln_beta, eta), (running_mean, running_var, num_updates)
        y, *found = torch.ops.powernorm.mixed_forward.default(
            x, padding, eps, *parameters, eta_start, share, momentum, *state, given, trains, moves
        )
        ctx.save_for_backward(x, *parameters, padding, *found)
        ctx.pool, ctx.evaluates, ctx.settings = pool, evaluates, (eps, eta_start, share)
        ctx.types = ops.types_of(*parameters)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, *parameters, padding, columns, saved = ctx.saved_tensors
        if ctx.evaluates is None:
            ops.refuse_twice("PRepBN in C++ (kernel='eager' has it)")
        elif ops.twice():
            return ops.NormFunction.differentiable(ctx, ctx.evaluates, dy, x, *parameters)
        gamma, _, ln_gamma, _, eta = parameters
        (eps, eta_start, share), width, dy, given = ctx.settings, x.shape[-1], dy.contiguous(), None
        if ctx.pool is not None:
            given = ctx.pool.total(ops.FAST["gradient_sums"](dy, x, padding, 0, eps, columns[:width]))
        dx, found = torch.ops.powernorm.mixed_backward.default(
            dy, x, padding, eps, gamma, ln_gamma, eta, eta_start, share, columns, saved, given, ctx.evaluates is None
        )
        return ops.NormFunction.gradients(ctx, dx, *found.split([width, width, width, width, 1]))
