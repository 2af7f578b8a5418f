"""Random batches with padding, and a training step of a norm on them."""

import torch

from powernorm_fairseq.norms import build_norm


def random_batch(seed, shape=(4, 5, 6), padded=True):
    """Input, dL/dY and padding mask in float64; the first position of the batch is always real."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 0.5
    dy = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape[:-1], generator=generator) < 0.4 if padded else torch.zeros(shape[:-1], dtype=torch.bool)
    mask.view(-1)[0] = False
    return x, dy, mask


def training_step(norm, x, dy, mask=None):
    """One forward and backward; returns Y and dL/dX and leaves the gradients of the parameters behind."""
    x = x.clone().requires_grad_()
    norm.train()
    norm.zero_grad()
    y = norm(x, mask)
    y.backward(dy)
    return y.detach(), x.grad


def random_affine(norm, seed=0):
    """Random factors and offsets instead of ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) + 0.3)
    return norm


def bare_norm(name, num_features, **options):
    """A norm without layer-scale, unless asked for."""
    return build_norm(name, num_features, **{"groups": 1, "layer_scale": "none", "updates": 5, **options})
