"""ScaleNorm: each token gets the same length."""

from typing import Any, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.context import Call
from powernorm_fairseq.norms.functional import MaybeTensor


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
        self._make("weight", 1, num_features**0.5, self.weight)  # the length of numbers of size one

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        eps, g = self._eps, self._affine()[0]

        def plain(x: Tensor, padding: MaybeTensor, g: MaybeTensor) -> Tensor:
            return scale_norm(x, padding, eps, g)

        def forward(x: Tensor, padding: MaybeTensor, g: MaybeTensor) -> Tuple[Tensor, None]:
            return torch.ops.powernorm.scale_forward.default(x, padding, eps, float(_length(x, g))), None

        def backward(dy: Tensor, x: Tensor, padding: MaybeTensor, saved: None, g: MaybeTensor) -> Any:
            return torch.ops.powernorm.scale_backward.default(dy, x, padding, eps, float(_length(x, g)))

        is_served = ops.implementation(self.kernel, x, g, None) == "cpp"
        return ops.fused(is_served, plain, forward, backward, x, call.padding, g)


def scale_norm(x: Tensor, padding: MaybeTensor, eps: float, g: MaybeTensor) -> Tensor:
    """The formula."""
    tokens = functional.tokens_of(x, padding)
    squares = tokens.s.square().sum(1, keepdim=True)
    length = squares.clamp(min=eps * eps).sqrt()  # clamped before the root, whose slope at 0 is infinite
    return functional.output(tokens.s / length * _length(x, g), tokens, x)


def _length(x: Tensor, g: MaybeTensor) -> Any:
    return x.shape[-1] ** 0.5 if g is None else g.to(functional.statistics_type(x.dtype))
