"""One training step of a batch norm, and the autograd function around all of them."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from powernorm_fairseq.norms.kernels import Rows, statistics_type
from powernorm_fairseq.norms.sync import Pool


def mean(total: Tensor, count: Tensor) -> Tensor:
    """A sum divided by ``count``; zero where there is nothing to measure."""
    return total / count.clamp(min=1)


def all_finite(value: Tensor) -> Tensor:
    """Whether all of ``value`` is finite, as a tensor: its largest magnitude is, and NaN is above everything."""
    return torch.linalg.vector_norm(value, float("inf")) < float("inf")


def move_if(buffer: Tensor, value: Tensor, moves: Tensor) -> None:
    """Writes ``value`` into ``buffer`` where ``moves``, a tensor: the decision needs no synchronisation."""
    buffer.copy_(torch.where(moves, value.to(buffer.dtype), buffer))


class Step:
    """A forward, what it leaves for the backward, and the backward. Each norm has its own.

    Args:
        norm: the layer.
        x: N x C, its input.
        padding: N, true at padding, or None.
        pool: the processes that the batch is spread over.
        counts: whether the step may move statistics.
        old: the buffers that the forward depends on, as they were before it, if it is done for the second time; then
            it moves nothing.
    """

    count: Tensor  # number of real tokens in all of the pool
    new: Dict[str, Tensor]  # what the forward makes of the buffers it moves

    def __init__(
        self,
        norm: Any,
        x: Tensor,
        padding: Optional[Tensor],
        pool: Pool,
        counts: bool,
        old: Optional[Dict[str, Tensor]],
    ) -> None:
        self.norm = norm
        self.padding = padding
        self.pool = pool
        self.counts = counts
        self.moves = counts and old is None
        if old is None:
            dtype = statistics_type(x)
            old = {name: norm._buffers[name].to(dtype, copy=True) for name in norm.forward_buffers}
        self.old = old

    def run(
        self, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]
    ) -> Tuple[Tensor, Tuple[Optional[Tensor], ...]]:
        """The output, and what the backward needs: the input, little else."""
        rows = self.norm.rows(x, self.padding)
        gamma = x.new_ones(x.shape[1], dtype=rows.dtype) if weight is None else weight.to(rows.dtype).contiguous()
        beta = x.new_zeros(x.shape[1], dtype=rows.dtype) if bias is None else bias.to(rows.dtype).contiguous()
        y = self.forward(rows, gamma, beta)
        if self.moves:
            self.move()
        self.parameter_types = [None if parameter is None else parameter.dtype for parameter in (weight, bias)]
        return y, (gamma, *rows.saved())

    def run_backward(self, dy: Tensor, gamma: Tensor, *saved: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        """Gradients of input, weight and bias."""
        dx, *grads = self.backward(self.norm.rows(*saved), dy, gamma)
        types = self.parameter_types
        return (dx, *(None if dtype is None else grad.to(dtype) for grad, dtype in zip(grads, types)))

    def forward(self, rows: Rows, gamma: Tensor, beta: Tensor) -> Tensor:
        """The output; sets ``count`` and ``new``."""
        raise NotImplementedError

    def backward(self, rows: Rows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Gradients of the input, of ``gamma`` and of ``beta``."""
        raise NotImplementedError

    def move(self) -> None:
        """Writes what the forward made of the buffers, if there was a real token and all is finite."""
        moves = self.count > 0
        for value in self.new.values():
            moves = moves & all_finite(value)
        for name, value in self.new.items():
            move_if(self.norm._buffers[name], value, moves)
        self.norm.num_updates.add_(moves.to(self.norm.num_updates.dtype))


class Normalise(Function):
    """The autograd function around all steps, generic or fused."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], step: Any) -> Tensor:
        """The step's forward."""
        y, saved = step.run(x, weight, bias)
        ctx.step = step
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
        """The step's backward."""
        if torch.is_grad_enabled():  # create_graph=True
            return _run_backward_once(ctx, dy)
        return _run_backward(ctx, dy)


def _run_backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
    return (*ctx.step.run_backward(dy, *ctx.saved_tensors), None)


_run_backward_once = once_differentiable(_run_backward)  # what it wraps around costs time
