"""Functions of single numbers in the place of a norm: Dynamic Tanh and Dynamic erf. They have no statistics."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, jit, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.replay import Call
from powernorm_fairseq.norms.settings import check_positive


class DynamicTanh(Norm):
    r"""A learnt squashing of each number: DyT (`Zhu et al., 2025 <https://arxiv.org/abs/2503.10622>`_).

    .. math:: y = \gamma \tanh(\alpha x) + \beta

    Args:
        num_features: size :math:`C` of the last dimension.
        alpha_start: the number :math:`\alpha`, one for the layer, at the start of the training. Default: 0.5
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`. Without ``affine``, :math:`\alpha` is fixed.

    Example: ``DynamicTanh(512)(x, padding_mask)``
    """

    alpha: Optional[nn.Parameter]
    shift: Optional[nn.Parameter]
    _shifted = False

    def __init__(self, num_features: int, *, alpha_start: float = 0.5, **common: Any) -> None:
        super().__init__(num_features, **common)
        check_positive("alpha_start", alpha_start)
        self.alpha_start = alpha_start
        for name, is_there in (("alpha", self.affine), ("shift", self.affine and self._shifted)):
            number = torch.empty(1, device=common.get("device"), dtype=common.get("dtype"))
            self.register_parameter(name, nn.Parameter(number) if is_there else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets everything to where it starts."""
        super().reset_parameters()
        if self.alpha is not None:
            nn.init.constant_(self.alpha, self.alpha_start)
        if self.shift is not None:
            nn.init.zeros_(self.shift)

    @staticmethod
    def function(u: Tensor) -> Tensor:
        """What is applied to each number."""
        return torch.tanh(u)

    def plain(
        self, x: Tensor, padding: MaybeTensor, gamma: MaybeTensor, beta: MaybeTensor, alpha: MaybeTensor,
        shift: MaybeTensor,
    ) -> Tensor:  # fmt: skip
        """The formula."""
        tokens = functional.tokens_of(x, padding)
        u = tokens.s * (self.alpha_start if alpha is None else alpha.to(tokens.s.dtype))
        if shift is not None:
            u = u + shift.to(u.dtype)
        return functional.output(functional.affine(self.function(u), gamma, beta), tokens, x)

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        weight, bias = self._affine()
        parameters = (weight, bias, self.alpha, self.shift)
        if ops.implementation(self.kernel, x, weight, bias) != "cpp" or ops.compiling() or jit.is_tracing():
            return self.plain(x, call.padding, *parameters)
        padding = None if call.padding is None else call.padding.contiguous()
        return _Pointwise.call(x.contiguous(), *parameters, padding, self)

    def _settings(self) -> Dict[str, Any]:
        return {**super()._settings(), "alpha_start": self.alpha_start}


class DynamicErf(DynamicTanh):
    r"""A learnt squashing of each number: Derf (`Chen et al., 2025 <https://arxiv.org/abs/2512.10938>`_).

    .. math:: y = \gamma \, \mathrm{erf}(\alpha x + s) + \beta

    Args:
        num_features: size :math:`C` of the last dimension.
        alpha_start: the number :math:`\alpha`, one for the layer, at the start; :math:`s` starts at 0. Default: 0.5
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`. Without ``affine``, :math:`\alpha` and :math:`s` are
            fixed.

    Example: ``DynamicErf(512)(x, padding_mask)``
    """

    _shifted = True

    @staticmethod
    def function(u: Tensor) -> Tensor:
        """What is applied to each number."""
        return torch.erf(u)


class _Pointwise(ops._Norm):
    """Both in C++."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, alpha: MaybeTensor, shift: MaybeTensor,
        padding: MaybeTensor, norm: DynamicTanh,
    ) -> Tensor:
        """See :meth:`DynamicTanh.plain`."""
        ctx.save_for_backward(x, gamma, beta, alpha, shift, padding)
        ctx.norm, ctx.numbers = norm, _numbers(norm, alpha, shift)
        return torch.ops.powernorm.pointwise_forward.default(x, padding, gamma, beta, *ctx.numbers, norm._shifted)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, gamma, beta, alpha, shift, padding = ctx.saved_tensors
        parameters = (gamma, beta, alpha, shift)

        def again(x: Tensor, *parameters: MaybeTensor) -> Tensor:
            return ctx.norm.plain(x, padding, *parameters)

        if ops._twice():
            return ops._Norm.differentiable(ctx, again, dy, x, *parameters)[: len(ctx.needs_input_grad)]
        dx, of_gamma, of_beta, of_numbers = torch.ops.powernorm.pointwise_backward.default(
            dy.contiguous(), x, padding, gamma, *ctx.numbers, ctx.norm._shifted
        )
        found = (of_gamma, of_beta, of_numbers[:1], of_numbers[1:])
        grads = [None if own is None else grad.to(own.dtype) for own, grad in zip(parameters, found)]
        return (dx, *grads, None, None)


def _numbers(norm: DynamicTanh, alpha: Optional[Tensor], shift: Optional[Tensor]) -> Tuple[float, float]:
    return norm.alpha_start if alpha is None else float(alpha), 0.0 if shift is None else float(shift)
