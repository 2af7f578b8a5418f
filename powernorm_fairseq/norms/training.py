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
        self.again = old is not None
        self.moves = counts and not self.again
        self.old = self.remember(x) if old is None else old

    def remember(self, x: Tensor) -> Dict[str, Tensor]:
        """The buffers that the forward depends on, in the type of statistics of ``x``."""
        dtype = statistics_type(x)
        return {name: self.norm._buffers[name].to(dtype, copy=True) for name in self.norm.forward_buffers}

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
            moves = moves & torch.isfinite(value).all()
        for name, value in self.new.items():
            move_if(self.norm._buffers[name], value, moves)
        self.norm.num_updates.add_(moves.to(self.norm.num_updates.dtype))


class Normalise(Function):
    """Runs a :class:`Step` on rows of any implementation; keeps the input alone, and the scales of its slices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], step: Step) -> Tensor:
        """The step's forward, with parameters in the type of statistics."""
        rows = step.norm.rows(x, step.padding)
        gamma = x.new_ones(x.shape[1], dtype=rows.dtype) if weight is None else weight.to(rows.dtype).contiguous()
        beta = x.new_zeros(x.shape[1], dtype=rows.dtype) if bias is None else bias.to(rows.dtype).contiguous()
        y = step.forward(rows, gamma, beta)
        if step.moves:
            step.move()
        ctx.step = step
        ctx.parameter_types = [None if parameter is None else parameter.dtype for parameter in (weight, bias)]
        ctx.save_for_backward(gamma, *rows.saved())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
        """The step's backward."""
        gamma, *saved = ctx.saved_tensors
        dx, *grads = ctx.step.backward(ctx.step.norm.rows(*saved), dy, gamma)
        of_parameters = (None if dtype is None else grad.to(dtype) for grad, dtype in zip(grads, ctx.parameter_types))
        return (dx, *of_parameters, None)
