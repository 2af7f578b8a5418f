"""Folding for inference: by running statistics a norm is linear, so the linear layers behind it can do its work."""

from typing import Sequence

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms.base import BatchStatisticsNorm
from powernorm_fairseq.norms.functional import layer_scale
from powernorm_fairseq.norms.kernels import rows_type


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
        rows = x.reshape(-1, x.shape[-1])
        if not torch.jit.is_scripting() and not torch.is_grad_enabled():
            return self._by_kernel(rows).view(x.shape)
        if rows.dtype == torch.float16 or rows.dtype == torch.bfloat16:
            rows = rows.float()  # squares overflow in fp16
        return layer_scale(rows, self.scale_groups, self.eps).to(x.dtype).view(x.shape)

    @torch.jit.unused
    def _by_kernel(self, x: Tensor) -> Tensor:
        rows = rows_type(self.kernel, x)(x, None, self.scale_groups, self.eps)
        width = x.shape[1]
        return rows.affine(x.new_ones(width, dtype=rows.dtype), x.new_zeros(width, dtype=rows.dtype))

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
        linears: all layers that read its output, and nothing else may read it. They get new weights and biases; tensors
            that they share with other layers stay as they are there.

    Returns:
        What stands in the norm's place: the layer-scale, if the norm has one.
    """
    mean, power = norm._running_statistics()
    scale = (power.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    offset = torch.zeros_like(scale) if norm.bias is None else norm.bias.double()
    if mean is not None:
        offset = offset - scale * mean.double()
    for linear in linears:
        weight = linear.weight.double()
        bias = torch.mv(weight, offset)
        if linear.bias is not None:
            bias = bias + linear.bias.double()
        dtype, trains = linear.weight.dtype, linear.weight.requires_grad
        linear.weight = nn.Parameter((weight * scale).to(dtype), requires_grad=trains)
        linear.bias = nn.Parameter(bias.to(dtype), requires_grad=trains)
    return FoldedNorm(norm.scale_groups, norm.eps, norm.kernel)
