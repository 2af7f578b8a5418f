r"""Multi-linear attention: the plain form, and an exact one that never builds the n x n x n tensor.

With q, k, v of width R at n positions and a linear layer W from the flattened n x n slice to C features,

.. math:: out_i = \sum_{j,k \le i} W_{:,jk} \sum_r q_{ir} k_{jr} v_{kr}

(the core is a factor of q). :func:`multilinear` computes it border by border. The positions are cut into blocks. What a
block [s, e) adds to the square of earlier positions is its *border*, the e² - s² cells (j, k) with s <= max(j, k) < e.
For each border, with kv its R x (e² - s²) products of keys and values:

- positions of the block see a part of the border: their slices, masked, meet the border's part of W;
- positions behind the block see all of it, so for them the border is folded into a state of R x C numbers,
  ``state += kv W``, and they read ``q state``.

Multiplications for each sequence, with blocks of m positions: n² R C for the states and about m n² (R + C) for the
slices, in place of n³ (R + C). The state pays for a cell that more than RC / (R + C) later positions use, 35 for R = 40
and C = 256. Numbers kept for the backward: n/m states of R x C, in place of n³ + n² R; the rest lives for one block.
Cumulative sums over single positions (m = 1) would keep n R C, more than n³ at n = 80.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 16  # measured: 8 to 32 take the same time to 20 %; the masked half of a block's slices grows with it


def naive_multilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """The definition, with all n x n x n numbers; arguments and result as :func:`multilinear`."""
    n, size = q.shape[2], round(weight.shape[1] ** 0.5)
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    slices = torch.einsum("bri,brj,brk->bijk", q, k, v) * (seen[:, :, None] & seen[:, None, :])
    corner = weight.view(-1, size, size)[:, :n, :n]
    return slices.flatten(2) @ corner.flatten(1).t()


def multilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, block: int = BLOCK) -> Tensor:
    """Causal multi-linear attention.

    Args:
        q: queries times the core, B x R x n.
        k: keys, B x R x n.
        v: values, B x R x n.
        weight: of the linear layer, C x N², N >= n; a shorter context uses its corner.
        block: positions that are taken together; changes speed and memory alone.

    Returns:
        B x n x C.
    """
    return _MultiLinear.apply(q, k, v, weight, block)


class _Border(NamedTuple):
    """Positions [start, end) and the cells that they add: row by row those with j in the block, then the others."""

    start: int
    end: int
    hidden: Tensor  # (end - start) x cells: true where max(j, k) is later than the position

    def products(self, k: Tensor, v: Tensor) -> Tensor:
        """Products of keys and values at the cells, B x R x cells."""
        s, e = self.start, self.end
        rows = (k[:, :, s:e, None] * v[:, :, None, :e]).flatten(2)
        columns = (k[:, :, :s, None] * v[:, :, None, s:e]).flatten(2)
        return torch.cat([rows, columns], 2)

    def add_product_gradients(self, grad: Tensor, k: Tensor, v: Tensor, grad_k: Tensor, grad_v: Tensor) -> None:
        """The backward of ``products``, added to the gradients of keys and values."""
        s, e = self.start, self.end
        rows, columns = grad.split([(e - s) * e, s * (e - s)], 2)
        for part, j, i in ((rows, slice(s, e), slice(0, e)), (columns, slice(0, s), slice(s, e))):
            part = part.view(*k.shape[:2], j.stop - j.start, i.stop - i.start)
            grad_k[:, :, j] += (part @ v[:, :, i, None]).squeeze(-1)
            grad_v[:, :, i] += (k[:, :, None, j] @ part).squeeze(-2)


@functools.lru_cache(maxsize=64)
def _borders(n: int, size: int, block: int, device: torch.device) -> Tuple[List[_Border], Tensor]:
    """The borders of n positions, and where their cells are among the size² of the weight."""
    borders, cells = [], []
    for start in range(0, n, block):
        end = min(start + block, n)
        inside, before, upto = (torch.arange(*ends, device=device) for ends in ((start, end), (start,), (end,)))
        j = torch.cat([inside.repeat_interleave(end), before.repeat_interleave(end - start)])
        k = torch.cat([upto.repeat(end - start), inside.repeat(start)])
        borders.append(_Border(start, end, torch.max(j, k) > inside[:, None]))
        cells.append(j * size + k)
    return borders, torch.cat(cells)


class _MultiLinear(torch.autograd.Function):
    """Keeps the states for the backward and computes products and slices again there: they are cheap and large."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, block: int) -> Tensor:
        batch, width, n = q.shape
        borders, cells = _borders(n, round(weight.shape[1] ** 0.5), block, q.device)
        parts = _parts(weight, borders, cells)
        state: Optional[Tensor] = None
        states, outputs = [], []
        for border, part in zip(borders, parts):
            query, products = q[:, :, border.start : border.end], border.products(k, v)
            slices = (query.transpose(1, 2) @ products).masked_fill_(border.hidden, 0.0)
            output = slices @ part
            if state is not None:
                output += query.transpose(1, 2) @ state
                states.append(state)
            outputs.append(output)
            if border.end < n:
                added = (products.flatten(0, 1) @ part).view(batch, width, -1)
                state = added if state is None else state + added
        ctx.save_for_backward(q, k, v, weight, *states)
        ctx.block = block
        return torch.cat(outputs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, weight, *states = ctx.saved_tensors
        n = q.shape[2]
        borders, cells = _borders(n, round(weight.shape[1] ** 0.5), ctx.block, q.device)
        parts = _parts(weight, borders, cells)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_parts, grad_state = [], None
        for border, part, state in reversed(list(zip(borders, parts, [None, *states]))):
            here = slice(border.start, border.end)
            query, products, grad_out = q[:, :, here], border.products(k, v), grad[:, here]
            slices = (query.transpose(1, 2) @ products).masked_fill_(border.hidden, 0.0)
            grad_slices = (grad_out @ part.t()).masked_fill_(border.hidden, 0.0)
            grad_part = slices.flatten(0, 1).t() @ grad_out.flatten(0, 1)
            grad_products = query @ grad_slices
            grad_query = products @ grad_slices.transpose(1, 2)
            if grad_state is not None:
                flat = grad_state.flatten(0, 1)
                grad_part += products.flatten(0, 1).t() @ flat
                grad_products += (flat @ part.t()).view_as(grad_products)
            border.add_product_gradients(grad_products, k, v, grad_k, grad_v)
            if state is not None:
                grad_query += state @ grad_out.transpose(1, 2)
                added = query @ grad_out
                grad_state = added if grad_state is None else grad_state + added
            grad_q[:, :, here] = grad_query
            grad_parts.append(grad_part)
        grad_weight = weight.new_zeros(weight.shape[1], weight.shape[0])
        grad_weight.index_copy_(0, cells, torch.cat(grad_parts[::-1]))
        return grad_q, grad_k, grad_v, grad_weight.t(), None


def _parts(weight: Tensor, borders: List[_Border], cells: Tensor) -> Tuple[Tensor, ...]:
    """The weight's columns for each border, cells x C."""
    return weight.t().index_select(0, cells).split([border.hidden.shape[1] for border in borders])
