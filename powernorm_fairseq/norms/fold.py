"""Folding for inference: by running statistics a norm is linear, so the linear layers behind it can do its work."""

from typing import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from powernorm_fairseq.norms import ops
from powernorm_fairseq.norms.base import BatchStatisticsNorm


class FoldedNorm(nn.Module):
    """What remains of a folded norm: the layer-scale, which has no parameters, or nothing at all.

    It takes no mask, and padded positions come out finite instead of zero.

    Args:
        scale_groups: slices of the width that are scaled each by itself; 0 for no layer-scale.
        eps: added inside the square root.
        kernel: what computes it, see :mod:`powernorm_fairseq.norms.kernels`.
    """

    def __init__(self, scale_groups: int, eps: float, kernel: str = "auto") -> None:
        super().__init__()
        self.scale_groups = scale_groups
        self.eps = eps
        self.kernel = kernel
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        """Scales ``x``; the last dimension is the width."""
        if self.scale_groups == 0:
            return x
        kernel = ops.implementation(self.kernel, x, None, None)
        return ops.exact("evaluate", kernel, x, None, self.scale_groups, self.eps, None, None, None, None)

    def train(self, mode: bool = True) -> "FoldedNorm":
        """Refuses to train: the statistics are weights of other layers now."""
        if mode:
            raise RuntimeError("a model with folded norms cannot be trained; train the model that was folded")
        return super().train(False)

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"scale_groups={self.scale_groups}, eps={self.eps}, kernel={self.kernel!r}"


@torch.no_grad()
def fold_norm(norm: BatchStatisticsNorm, linears: Sequence[nn.Linear]) -> FoldedNorm:
    r"""Moves a norm, as evaluation applies it, into the linear layers that read its output.

    .. math:: W (s (x - \mu) + \beta) + b = (W \, \mathrm{diag}(s)) \, x + b + W (\beta - s \mu), \qquad
        s = \gamma / \sqrt{\psi^2 + \epsilon}

    :math:`\mu` is zero for norms that do not centre. The sums are taken in float64 and rounded once, to the type of
    the layer.

    Args:
        norm: the norm; it stays as it is.
        linears: all layers that read its output, and nothing else may read it: each an ``nn.Linear``, with or without a
            parametrisation of its weight, which becomes part of the weight. They get new weights and biases; tensors
            that they share with other layers stay as they are there.

    Returns:
        What stands in the norm's place: the layer-scale, if the norm has one.
    """
    for linear in linears:
        kind = parametrize.type_before_parametrizations(linear)
        if kind is not nn.Linear:
            raise TypeError(f"a norm can be folded into torch.nn.Linear alone, not into a {kind.__name__}")
    scale, offset = norm.linear_map()
    for linear in linears:
        if parametrize.is_parametrized(linear, "weight"):
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)
        weight = linear.weight.double()
        bias = torch.mv(weight, offset)
        if linear.bias is not None:
            bias = bias + linear.bias.double()
        dtype, trains = linear.weight.dtype, linear.weight.requires_grad
        linear.weight = nn.Parameter((weight * scale).to(dtype), requires_grad=trains)
        linear.bias = nn.Parameter(bias.to(dtype), requires_grad=trains)
    return FoldedNorm(norm.scale_groups, norm._eps, norm.kernel)
