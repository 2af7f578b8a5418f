"""ScaleNorm: each token gets the same length."""

from typing import Any, Tuple

import torch
from torch import Tensor, jit, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.replay import Call


class ScaleNorm(Norm):
    r"""One learnt length for all tokens (`Nguyen and Salazar, 2019 <https://arxiv.org/abs/1910.05895>`_).

    .. math:: y = g \, x / \max(\lVert x \rVert, \epsilon)

    Args:
        num_features: size :math:`C` of the last dimension.
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`. The factor ``weight`` is the one number :math:`g`,
            :math:`\sqrt C` at the start and fixed without ``affine``; there is no offset.

    Example: ``ScaleNorm(512)(x, padding_mask)``
    """

    def __init__(self, num_features: int, **common: Any) -> None:
        super().__init__(num_features, **{**common, "bias": False})
        if self.weight is not None:
            self.weight = nn.Parameter(self.weight.new_empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the length to that of numbers of size one."""
        if self.weight is not None:
            nn.init.constant_(self.weight, self.num_features**0.5)

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        g, padding = self._affine()[0], call.padding
        if ops.implementation(self.kernel, x, g, None) != "cpp" or ops.compiling() or jit.is_tracing():
            return scale_norm(x, padding, self._eps, g)
        padding = None if padding is None else padding.contiguous()
        return _Scale.call(x.contiguous(), g, None, padding, self._eps)


def scale_norm(x: Tensor, padding: MaybeTensor, eps: float, g: MaybeTensor) -> Tensor:
    """The formula."""
    tokens = functional.tokens_of(x, padding)
    squares = tokens.s.square().sum(1, keepdim=True)
    length = squares.clamp(min=eps * eps).sqrt()  # clamped before the root, whose slope at 0 is infinite
    return functional.output(tokens.s / length * _length(x, g), tokens, x)


def _length(x: Tensor, g: MaybeTensor) -> Any:
    return x.shape[-1] ** 0.5 if g is None else g.to(functional.statistics_type(x.dtype))


class _Scale(ops._Norm):
    """The same in C++."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: MaybeTensor, beta: None, padding: MaybeTensor, eps: float) -> Tensor:
        """See :func:`scale_norm`."""
        ctx.save_for_backward(x, g, padding)
        ctx.eps, ctx.length = eps, float(_length(x, g))
        return torch.ops.powernorm.scale_forward.default(x, padding, eps, ctx.length)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, g, padding = ctx.saved_tensors
        if ops._twice():
            return ops._Norm.differentiable(ctx, lambda x, g, _: scale_norm(x, padding, ctx.eps, g), dy, x, g, None)
        dx, of_g = torch.ops.powernorm.scale_backward.default(dy.contiguous(), x, padding, ctx.eps, ctx.length)
        return dx, None if g is None else of_g.to(g.dtype), None, None, None
