"""Norms of each token by itself, LayerNorm, RMSNorm and GroupNorm, and functions of single numbers in their place.

They have no state, and padding reaches nobody.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.context import Call
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.settings import check_groups


class LayerNorm(Norm):
    r"""Zero mean and unit variance for each token (`Ba et al., 2016 <https://arxiv.org/abs/1607.06450>`_).

    .. math:: y = \gamma \, (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + \epsilon} + \beta

    Args:
        num_features: size :math:`C` of the last dimension.
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`.

    Example: ``LayerNorm(512)(x, padding_mask)``
    """

    groups = 1
    _centred = True

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        weight, bias = self._affine()
        if call.padding is None and self.groups == 1 and self._centred and (weight is None or weight.dtype == x.dtype):
            return F.layer_norm(x, (self.num_features,), weight, bias, self._eps)  # torch's own, without padding
        kernel = ops.implementation(self.kernel, x, weight, bias)
        return ops.exact("token_norm", kernel, x, call.padding, self.groups, self._eps, weight, bias, self._centred)


class RMSNorm(LayerNorm):
    r"""Unit quadratic mean for each token (`Zhang and Sennrich, 2019 <https://arxiv.org/abs/1910.07467>`_).

    .. math:: y = \gamma \, x / \sqrt{\mathrm{mean}(x^2) + \epsilon}

    Args:
        num_features: size :math:`C` of the last dimension.
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`; as in the original there is no offset.

    Example: ``RMSNorm(512)(x, padding_mask)``
    """

    _centred = False

    def __init__(self, num_features: int, **common: Any) -> None:
        super().__init__(num_features, **{**common, "bias": False})


class GroupNorm(LayerNorm):
    r"""Zero mean and unit variance for each slice of a token (`Wu and He, 2018 <https://arxiv.org/abs/1803.08494>`_).

    The width is cut into ``groups`` slices; the paper takes one for each attention head. One group is LayerNorm.

    Args:
        num_features: size :math:`C` of the last dimension.
        groups: number of slices; it must divide the width. Default: 1
        **common: see :class:`~powernorm_fairseq.norms.base.Norm`.

    Example: ``GroupNorm(512, groups=8)(x, padding_mask)``
    """

    def __init__(self, num_features: int, *, groups: int = 1, **common: Any) -> None:
        super().__init__(num_features, **common)
        check_groups(groups, num_features)
        self._set(groups=groups)


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
        self._set(alpha_start=alpha_start)
        self._make("alpha", 1, alpha_start, self.weight)
        self._make("shift", 1, 0.0, self.weight if self._shifted else None)

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        start, erf = self.alpha_start, self._shifted
        weight, bias = self._affine()

        def plain(x: Tensor, padding: MaybeTensor, *parameters: MaybeTensor) -> Tensor:
            return squashed(x, padding, *parameters, start, erf)  # type: ignore[call-arg, arg-type]

        def forward(x: Tensor, padding: MaybeTensor, *parameters: MaybeTensor) -> Any:
            return torch.ops.powernorm.pointwise_forward.default(x, padding, *parameters, start, erf, follows)

        def backward(dy: Tensor, x: Tensor, padding: MaybeTensor, kept: Tensor, *parameters: MaybeTensor) -> Any:
            settings = (parameters[0], *parameters[2:], start, erf, kept)
            return torch.ops.powernorm.pointwise_backward.default(dy, x, padding, *settings)

        follows = torch.is_grad_enabled()
        is_served = ops.implementation(self.kernel, x, weight, bias) == "cpp"
        parameters = (weight, bias, self.alpha, self.shift)
        return ops.fused(is_served, plain, forward, backward, x, call.padding, *parameters)


def squashed(
    x: Tensor, padding: MaybeTensor, gamma: MaybeTensor, beta: MaybeTensor, alpha: MaybeTensor, shift: MaybeTensor,
    alpha_start: float, erf: bool,
) -> Tensor:
    """The formulas of DyT and, with ``erf``, of Derf."""
    tokens = functional.tokens_of(x, padding)
    u = tokens.s * (alpha_start if alpha is None else alpha.to(tokens.s.dtype))
    if shift is not None:
        u = u + shift.to(u.dtype)
    return functional.output(functional.affine(torch.erf(u) if erf else torch.tanh(u), gamma, beta), tokens, x)


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
