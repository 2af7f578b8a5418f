r"""The label-smoothed loss of a linear output layer, without the N x V numbers that it is defined with.

With logits z = x W' of N tokens over V words, p = softmax(z) and the smoothing s = epsilon / (V - 1) of each word,

.. math:: L = \sum_n -(1 - \epsilon - s) \log p_{n,target} - s \sum_v \log p_{nv}, \quad
   dL/dz = p - s - (1 - \epsilon - s) \, onehot(target)

Loss and gradients are computed together, some hundred tokens at a time: the logits of a chunk turn into their gradient
in place and meet x and W while they are in the processor's cache. Nothing of size N x V is ever stored.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 5_000_000  # logits at a time: 500 tokens with 10,000 words


def linear_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    ignore_index: int,
    dtype: Optional[torch.dtype] = None,
    chunk: int = CHUNK,
) -> Tuple[Tensor, Tensor]:
    """fairseq's ``label_smoothed_nll_loss`` of ``log_softmax(features @ weight.t())``.

    Args:
        features: N x C.
        weight: of the output layer, V x C.
        target: N word numbers.
        epsilon: label smoothing.
        ignore_index: the target of positions that do not count.
        dtype: what matrices are multiplied in; by default that of ``features``.
        chunk: logits at a time; changes speed and memory alone.

    Returns:
        The sums of loss and negative log-likelihood; the second has no gradient.
    """
    return _LinearLoss.apply(features, weight, target, epsilon, ignore_index, dtype or features.dtype, chunk)


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        target: Tensor,
        epsilon: float,
        ignore_index: int,
        dtype: torch.dtype,
        chunk: int,
    ) -> Tuple[Tensor, Tensor]:
        wide = torch.promote_types(features.dtype, torch.float32)  # float64 stays float64
        words = len(weight)
        smoothing = epsilon / (words - 1)
        need_features, need_weight = ctx.needs_input_grad[:2]
        grad_features = torch.empty_like(features) if need_features else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if need_weight else None
        loss, nll = (torch.zeros((), dtype=wide, device=features.device) for _ in range(2))
        narrow, rows = weight.to(dtype), max(1, chunk // words)
        buffer: Optional[Tensor] = None
        for start in range(0, len(features), rows):
            x, wanted = features[start : start + rows].to(dtype), target[start : start + rows, None]
            ignored = wanted.eq(ignore_index)
            if buffer is None or len(buffer) != len(x):
                buffer = torch.empty(len(x), words, dtype=dtype, device=x.device)
            lprobs = torch.log_softmax(torch.mm(x, narrow.t(), out=buffer), -1, dtype=wide)
            wanted_nll = -lprobs.gather(1, wanted).masked_fill_(ignored, 0.0).sum()
            nll += wanted_nll
            loss += (1 - epsilon - smoothing) * wanted_nll
            if smoothing:
                loss -= smoothing * lprobs.sum(1, keepdim=True).masked_fill_(ignored, 0.0).sum()
            if not (need_features or need_weight):
                continue
            grad = lprobs.exp_().sub_(smoothing)
            grad.scatter_add_(1, wanted, grad.new_full((len(x), 1), epsilon + smoothing - 1))
            grad = buffer.copy_(grad.masked_fill_(ignored, 0.0))
            if grad_features is not None:
                grad_features[start : start + rows] = grad @ narrow
            if grad_weight is not None:
                if dtype == wide:
                    grad_weight.addmm_(grad.t(), x)
                else:
                    grad_weight += grad.t() @ x
        ctx.save_for_backward(grad_features, grad_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> Tuple[Optional[Tensor], ...]:
        grads = (None if grad is None else grad * grad_loss for grad in ctx.saved_tensors)
        return (*grads, None, None, None, None, None)
