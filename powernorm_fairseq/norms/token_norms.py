"""Norms of each token by itself: LayerNorm, RMSNorm, GroupNorm. They have no state and padding reaches nobody."""

import torch
import torch.nn.functional as F
from torch import Tensor

from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.settings import check_groups


class LayerNorm(Norm):
    r"""Zero mean and unit variance for each token (`Ba et al., 2016 <https://arxiv.org/abs/1607.06450>`_).

    .. math:: y = \gamma \, (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + \epsilon} + \beta

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to the variance. Default: 1e-5
        affine: learn :math:`\gamma` and :math:`\beta`. Default: True

    Example: ``LayerNorm(512)(x, padding_mask)``
    """

    def _transform(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return F.layer_norm(x, [self.num_features], None, None, self.eps)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, [self.num_features], weight, bias, self.eps)


class RMSNorm(Norm):
    r"""Unit quadratic mean for each token (`Zhang and Sennrich, 2019 <https://arxiv.org/abs/1910.07467>`_).

    .. math:: y = \gamma \, x / \sqrt{\mathrm{mean}(x^2) + \epsilon}

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to the mean of the squares. Default: 1e-5
        affine: learn :math:`\gamma`; as in the original there is no offset. Default: True

    Example: ``RMSNorm(512)(x, padding_mask)``
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, eps, affine)
        self.register_parameter("bias", None)

    def _transform(self, x: Tensor) -> Tensor:
        return self._affine(x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps))


class GroupNorm(Norm):
    r"""Zero mean and unit variance for each slice of a token (`Wu and He, 2018 <https://arxiv.org/abs/1803.08494>`_).

    The width is cut into ``groups`` slices; the paper takes one for each attention head. One group is LayerNorm.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added to the variance. Default: 1e-5
        affine: learn a factor and an offset for each feature. Default: True
        groups: number of slices; it must divide the width. Default: 1

    Example: ``GroupNorm(512, groups=8)(x, padding_mask)``
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True, groups: int = 1) -> None:
        super().__init__(num_features, eps, affine)
        check_groups(groups, num_features)
        self.groups = groups

    def _transform(self, x: Tensor) -> Tensor:
        width = self.num_features // self.groups
        sliced = F.layer_norm(x.view(x.shape[0], self.groups, width), [width], None, None, self.eps)
        return self._affine(sliced.view(x.shape))

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{super().extra_repr()}, groups={self.groups}"
