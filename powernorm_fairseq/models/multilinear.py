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
    n = q.shape[2]
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    slices = torch.einsum("bri,brj,brk->bijk", q, k, v) * (seen[:, :, None] & seen[:, None, :])
    return slices.flatten(2) @ _square(weight)[:, :n, :n].flatten(1).t()


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
        rows, columns = k[:, :, s:e, None] * v[:, :, None, :e], k[:, :, :s, None] * v[:, :, None, s:e]
        return torch.cat([rows.flatten(2), columns.flatten(2)], 2)

    def add_product_gradients(self, grad: Tensor, k: Tensor, v: Tensor, grad_k: Tensor, grad_v: Tensor) -> None:
        """The backward of ``products``, added to the gradients of keys and values."""
        s, e = self.start, self.end
        for part, j, i in zip(self._rectangles(grad), (slice(s, e), slice(0, s)), (slice(0, e), slice(s, e))):
            grad_k[:, :, j] += (part @ v[:, :, i, None]).squeeze(-1)
            grad_v[:, :, i] += (k[:, :, None, j] @ part).squeeze(-2)

    def weights(self, weight: Tensor) -> Tensor:
        """The weight at the cells, C x cells."""
        s, e = self.start, self.end
        square = _square(weight)
        return torch.cat([square[:, s:e, :e].flatten(1), square[:, :s, s:e].flatten(1)], 1)

    def put_weights(self, part: Tensor, weight: Tensor) -> None:
        """Writes ``part`` to the cells of ``weight``."""
        s, e = self.start, self.end
        square = _square(weight)
        square[:, s:e, :e], square[:, :s, s:e] = self._rectangles(part)

    def _rectangles(self, cells: Tensor) -> Tuple[Tensor, Tensor]:
        """Rows and columns of the border, from its cells in the last dimension."""
        s, e = self.start, self.end
        rows, columns = cells.split([(e - s) * e, s * (e - s)], -1)
        return rows.view(*cells.shape[:-1], e - s, e), columns.view(*cells.shape[:-1], s, e - s)


def _square(weight: Tensor) -> Tensor:
    """C x N² as C x N x N."""
    size = round(weight.shape[1] ** 0.5)
    return weight.view(-1, size, size)


@functools.lru_cache(maxsize=64)
def _borders(n: int, block: int, device: torch.device) -> List[_Border]:
    """The borders of n positions."""
    borders = []
    for start in range(0, n, block):
        end = min(start + block, n)
        inside, before, upto = (torch.arange(*ends, device=device) for ends in ((start, end), (start,), (end,)))
        rows, columns = torch.max(inside[:, None], upto), torch.max(before[:, None], inside)
        latest = torch.cat([rows.flatten(), columns.flatten()])
        borders.append(_Border(start, end, latest > inside[:, None]))
    return borders


class _MultiLinear(torch.autograd.Function):
    """Keeps the states for the backward and computes products and slices again there: they are cheap and large."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, block: int) -> Tensor:
        batch, width, n = q.shape
        state: Optional[Tensor] = None
        states, outputs = [], []
        for border in _borders(n, block, q.device):
            query, products, part = q[:, :, border.start : border.end], border.products(k, v), border.weights(weight)
            slices = (query.transpose(1, 2) @ products).masked_fill_(border.hidden, 0.0)
            output = slices @ part.t()
            if state is not None:
                output += query.transpose(1, 2) @ state
                states.append(state)
            outputs.append(output)
            if border.end < n:
                added = (products.flatten(0, 1) @ part.t()).view(batch, width, -1)
                state = added if state is None else state + added
        ctx.save_for_backward(q, k, v, weight, *states)
        ctx.block = block
        return torch.cat(outputs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, weight, *states = ctx.saved_tensors
        borders = _borders(q.shape[2], ctx.block, q.device)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_weight = torch.zeros_like(weight)
        grad_state: Optional[Tensor] = None
        for border, state in zip(reversed(borders), [*reversed(states), None]):
            here = slice(border.start, border.end)
            query, grad_out = q[:, :, here], grad[:, here]
            products, part = border.products(k, v), border.weights(weight)
            slices = (query.transpose(1, 2) @ products).masked_fill_(border.hidden, 0.0)
            grad_slices = (grad_out @ part).masked_fill_(border.hidden, 0.0)
            grad_part = grad_out.flatten(0, 1).t() @ slices.flatten(0, 1)
            grad_products = query @ grad_slices
            grad_query = products @ grad_slices.transpose(1, 2)
            if grad_state is not None:
                grad_part.addmm_(grad_state.flatten(0, 1).t(), products.flatten(0, 1))
                grad_products += grad_state @ part
            border.put_weights(grad_part, grad_weight)
            border.add_product_gradients(grad_products, k, v, grad_k, grad_v)
            if state is not None:
                grad_query += state @ grad_out.transpose(1, 2)
                added = query @ grad_out
                grad_state = added if grad_state is None else grad_state + added
            grad_q[:, :, here] = grad_query
        return grad_q, grad_k, grad_v, grad_weight, None
