"""Layer-scale, as a function of autograd and TorchScript."""

import torch
from torch import Tensor


def layer_scale(x: Tensor, groups: int, eps: float) -> Tensor:
    """Divides each row of ``x`` (N x C) by the quadratic mean of its features, over each of ``groups`` slices."""
    sliced = x.view(x.shape[0], groups, x.shape[1] // groups)  # N x G x C/G
    return (sliced * torch.rsqrt(sliced.square().mean(2, keepdim=True) + eps)).view(x.shape)
