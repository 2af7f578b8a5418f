r"""Multi-linear attention: the plain form, and an exact one that never builds the n x n x n tensor.

With q, k, v of width R at n positions and a linear layer W from the flattened n x n slice to C features,

.. math:: out_i = \sum_{j,k \le i} W_{:,jk} \sum_r q_{ir} k_{jr} v_{kr}

(the core is a factor of q). :func:`multilinear` cuts the positions into blocks. What a block [s, e) adds to the square
of earlier positions is its *border*, the e² - s² cells (j, k) with s <= max(j, k) < e: a rectangle of rows, j in the
block, and one of columns, k in the block and j before it.

- Positions of the block see a part of the border. They are taken a few at a time, as *strips* [a, b): the slices of a
  strip at the border's cells before b, ``(q k) v``, zero where they are hidden, meet those cells of W.
- Positions behind the block see all of the border, so for them it is folded into a state of R x C numbers,
  ``state += (k v) W``, and they read ``q state``.

The state pays for a cell that more than RC / (R + C) later positions use, 35 for R = 40 and C = 256: so blocks have 32
positions, and a context of 32 has no state at all. With strips of m positions, the slices of a block of 32 cost about
(1/3 + m / 64) of 32³ (R + C) multiplications; all states together cost n² R C. Numbers kept for the backward: a state
for each block behind the first, in place of n³ + n² R; the rest lives for one strip or one block.
"""

import functools
from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK, STRIP = 32, 8


def naive_multilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """The definition, with all n x n x n numbers; arguments and result as :func:`multilinear`."""
    n = q.shape[2]
    seen = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    slices = torch.einsum("bri,brj,brk->bijk", q, k, v) * (seen[:, :, None] & seen[:, None, :])
    return slices.flatten(2) @ _square(weight)[:, :n, :n].flatten(1).t()


def multilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, block: int = BLOCK, strip: int = STRIP) -> Tensor:
    """Causal multi-linear attention.

    Args:
        q: queries times the core, B x R x n.
        k: keys, B x R x n.
        v: values, B x R x n.
        weight: of the linear layer, C x N², N >= n; a shorter context uses its corner.
        block: positions behind which a state is made; changes speed and memory alone.
        strip: positions whose slices are made together; changes speed and memory alone.

    Returns:
        B x n x C.
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return _MultiLinear.apply(q, k, v, weight, block, strip)


def unmasked_multilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """All positions see all others, later ones too; arguments and result as :func:`multilinear`."""
    n = q.shape[2]
    products = (k[..., :, None] * v[..., None, :]).flatten(2)  # B x R x n²
    state = (products.flatten(0, 1) @ _square(weight)[:, :n, :n].flatten(1).t()).view(len(q), -1, len(weight))
    return q.transpose(1, 2) @ state


class _Cells(NamedTuple):
    """A rectangle of cells, and a strip of positions that see some of them."""

    at: slice  # the positions
    rows: slice  # j
    columns: slice  # k
    hidden: Optional[Tensor]  # positions x rows x columns: true where max(j, k) is later than the position

    def slices(self, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        """Products of queries and keys, B x (positions rows) x R, and the slices, B x positions x cells."""
        qk = (q[:, self.at, None] * k[:, None, self.rows]).flatten(1, 2)
        slices = qk @ v[:, self.columns].transpose(1, 2)
        return qk, self.mask(slices.view(len(q), self.at.stop - self.at.start, -1))

    def mask(self, slices: Tensor) -> Tensor:
        """Zero where a position does not see a cell, in place."""
        return slices if self.hidden is None else slices.masked_fill_(self.hidden, 0.0)

    def weights(self, weight: Tensor) -> Tensor:
        """The weight at the cells, C x cells."""
        return _square(weight)[:, self.rows, self.columns].flatten(1)

    def products(self, k: Tensor, v: Tensor) -> Tensor:
        """Products of keys and values at the cells, B x R x cells."""
        k, v = k[:, self.rows].transpose(1, 2), v[:, self.columns].transpose(1, 2)
        return (k[..., :, None] * v[..., None, :]).flatten(2)


class _Block(NamedTuple):
    """A block of positions: the two rectangles of its border, and its strips."""

    at: slice
    border: List[_Cells]
    strips: List[List[_Cells]]


def _rectangles(at: slice, start: int, end: int, device: torch.device) -> List[_Cells]:
    """The border of [start, end), and which of its cells are hidden from the positions ``at``."""
    found = []
    inside, before, upto = slice(start, end), slice(0, start), slice(0, end)
    for rows, columns in ((inside, upto), (before, inside)):
        if rows.stop > rows.start:
            i, j, k = (torch.arange(each.start, each.stop, device=device) for each in (at, rows, columns))
            hidden = torch.max(j[:, None], k).flatten() > i[:, None]
            found.append(_Cells(at, rows, columns, hidden if bool(hidden.any()) else None))
    return found


@functools.lru_cache(maxsize=64)
def _blocks(n: int, block: int, strip: int, device: torch.device) -> List[_Block]:
    """All blocks of n positions."""
    blocks = []
    for start in range(0, n, block):
        end = min(start + block, n)
        strips = [slice(a, min(a + strip, end)) for a in range(start, end, strip)]
        cells = [_rectangles(at, start, at.stop, device) for at in strips]
        blocks.append(_Block(slice(start, end), _rectangles(slice(end, n), start, end, device), cells))
    return blocks


def _square(weight: Tensor) -> Tensor:
    """C x N² as C x N x N."""
    size = round(weight.shape[1] ** 0.5)
    return weight.view(-1, size, size)


class _MultiLinear(torch.autograd.Function):
    """Keeps the states for the backward and computes products and slices again there: they are cheap and large."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, block: int, strip: int) -> Tensor:
        batch, n, width = q.shape
        output = q.new_empty(batch, n, len(weight))
        state: Optional[Tensor] = None
        states = []
        for here in _blocks(n, block, strip, q.device):
            for strip_cells in here.strips:
                output[:, strip_cells[0].at] = sum(
                    cells.slices(q, k, v)[1] @ cells.weights(weight).t() for cells in strip_cells
                )
            if state is not None:
                output[:, here.at] += q[:, here.at] @ state
                states.append(state)
            if here.at.stop < n:
                for cells in here.border:
                    added = (cells.products(k, v).flatten(0, 1) @ cells.weights(weight).t()).view(batch, width, -1)
                    state = added if state is None else state + added
        ctx.save_for_backward(q, k, v, weight, *states)
        ctx.sizes = block, strip
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, weight, *states = ctx.saved_tensors
        blocks = _blocks(q.shape[1], *ctx.sizes, q.device)
        grads = tuple(torch.zeros(tensor.shape, dtype=tensor.dtype, device=q.device) for tensor in (q, k, v, weight))
        grad_state: Optional[Tensor] = None
        for here, state in zip(reversed(blocks), [*reversed(states), None]):
            if grad_state is not None:
                for cells in here.border:
                    _state_gradients(cells, grad_state, k, v, weight, grads)
            for strip_cells in here.strips:
                for cells in strip_cells:
                    _slice_gradients(cells, grad[:, cells.at], q, k, v, weight, grads)
            if state is not None:
                grads[0][:, here.at] += grad[:, here.at] @ state.transpose(1, 2)
                added = q[:, here.at].transpose(1, 2) @ grad[:, here.at]
                grad_state = added if grad_state is None else grad_state + added
        return (*grads, None, None)


def _slice_gradients(
    cells: _Cells, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, grads: Tuple[Tensor, ...]
) -> None:
    """Adds what reaches q, k, v and the weight through the slices of a strip."""
    grad_q, grad_k, grad_v, grad_weight = grads
    qk, slices = cells.slices(q, k, v)
    grad_slices = cells.mask(grad @ cells.weights(weight)).view(len(q), -1, cells.columns.stop - cells.columns.start)
    flat = grad.flatten(0, 1).t() @ slices.flatten(0, 1)
    corner = _square(grad_weight)[:, cells.rows, cells.columns]
    corner += flat.view(corner.shape)
    grad_v[:, cells.columns] += grad_slices.transpose(1, 2) @ qk
    rows = cells.rows.stop - cells.rows.start
    grad_qk = (grad_slices @ v[:, cells.columns]).view(len(q), -1, rows, q.shape[2])
    grad_q[:, cells.at] += (grad_qk * k[:, None, cells.rows]).sum(2)
    grad_k[:, cells.rows] += (grad_qk * q[:, cells.at, None]).sum(1)


def _state_gradients(
    cells: _Cells, grad: Tensor, k: Tensor, v: Tensor, weight: Tensor, grads: Tuple[Tensor, ...]
) -> None:
    """Adds what reaches k, v and the weight through the state that a border is part of."""
    _, grad_k, grad_v, grad_weight = grads
    flat = grad.flatten(0, 1).t() @ cells.products(k, v).flatten(0, 1)
    corner = _square(grad_weight)[:, cells.rows, cells.columns]
    corner += flat.view(corner.shape)
    rows, columns = cells.rows.stop - cells.rows.start, cells.columns.stop - cells.columns.start
    grad_products = (grad @ cells.weights(weight)).view(len(k), -1, rows, columns)  # B x R x rows x columns
    grad_k[:, cells.rows] += torch.einsum("brjk,bkr->bjr", grad_products, v[:, cells.columns])
    grad_v[:, cells.columns] += torch.einsum("brjk,bjr->bkr", grad_products, k[:, cells.rows])
