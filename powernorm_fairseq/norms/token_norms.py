"""Norms of each token by itself: LayerNorm, RMSNorm, GroupNorm. They have no state, and padding reaches nobody."""

from typing import Any, Dict

import torch.nn.functional as F
from torch import Tensor, jit

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.replay import Call
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
        (weight, bias), rows = self._affine(), (self.groups, self._eps)
        if call.padding is None and self.groups == 1 and self._centred and (weight is None or weight.dtype == x.dtype):
            return F.layer_norm(x, (self.num_features,), weight, bias, self._eps)  # torch's own, without padding
        kernel = ops.implementation(self.kernel, x, weight, bias)
        if kernel == "plain" or ops.compiling() or jit.is_tracing():
            return functional.token_norm(x, call.padding, *rows, weight, bias, self._centred)
        return ops.TokenNorm.call(x.contiguous(), weight, bias, call.padding, kernel, *rows, self._centred)


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
        self.groups = groups

    def _settings(self) -> Dict[str, Any]:
        return {"groups": self.groups, **super()._settings()}
