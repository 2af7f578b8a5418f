"""The passes as fused Triton kernels for GPUs. Importing this imports triton: the package does so when it is needed.

A program works on one slice of the columns and one block of rows, tile by tile. With layer-scale a slice is one of its
``groups``, so that a row's quadratic mean stays inside a program; without, it is as wide as suits a tile. Column sums
are written by block and added up afterwards: the order is fixed, and so are the results. Blocks depend on shapes alone,
and no value travels to the host.
"""

from typing import Any, Optional, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from powernorm_fairseq.norms.kernels.rows import Moments, Rows

TYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE = 2048  # elements, unless a slice is wider
SLICE = 128  # columns, without layer-scale
MAX_BLOCKS = 128


@triton.jit
def _block(rows, block_rows):
    """The rows of this program: the first, and the one after the last."""
    begin = tl.program_id(0) * block_rows
    return begin, tl.minimum(begin + block_rows, rows)


@triton.jit
def _slice(columns, width, TILE_COLUMNS: tl.constexpr):
    """The columns of this program, and which of them are inside its slice; a tile is a power of two wide."""
    offset = tl.arange(0, TILE_COLUMNS)
    column = tl.program_id(1) * width + offset
    return column, (offset < width) & (column < columns)


@triton.jit
def _is_real(row, end, padding):
    """Which rows are there and are no padding."""
    real = row < end
    if padding is not None:
        real = real & (tl.load(padding + row, mask=real, other=1) == 0)
    return real


@triton.jit
def _load(rows, at, mask):
    """A tile in float32; zero at padding and outside the slice."""
    return tl.load(rows + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _scale(x, row, end, real, scales, groups, width, eps, SCALES_KNOWN: tl.constexpr):
    """The factors that layer-scale puts on the rows of a tile: read if known, or else computed and written."""
    at = row.to(tl.int64) * groups + tl.program_id(1)
    if SCALES_KNOWN:
        factor = tl.load(scales + at, mask=real, other=0.0)
    else:
        factor = 1.0 / tl.sqrt(tl.sum(x * x, 1) / width + eps)
        tl.store(scales + at, factor, mask=row < end)
    return factor[:, None]


@triton.jit(do_not_specialize=["rows", "block_rows"])
def forward_kernel(
    x, scale, shift, needed, y, sums, padding, scales, rows, block_rows, columns, groups, width, eps,
    SCALES_KNOWN: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """``y = s * scale + shift`` and, by block, ``sums = sum of s * s``; each unless it is None.

    A ``needed`` that holds zero leaves all rows out.
    """
    begin, end = _block(rows, block_rows)
    if needed is not None:
        end = tl.where(tl.load(needed) != 0, end, begin)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    if y is not None:
        factor = tl.load(scale + column, mask=inside, other=0.0)[None, :]
        offset = tl.load(shift + column, mask=inside, other=0.0)[None, :]
    squares = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding)
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        s = _load(x, at, real[:, None] & inside[None, :])
        if scales is not None:
            s *= _scale(s, row, end, real, scales, groups, width, eps, SCALES_KNOWN)
        if y is not None:
            value = tl.where(real[:, None], s * factor + offset, 0.0)
            tl.store(y + at, value, mask=(row < end)[:, None] & inside[None, :])
        if sums is not None:
            squares += s * s
    if sums is not None:
        tl.store(sums + tl.program_id(0) * columns + column, tl.sum(squares, 0), mask=inside)


@triton.jit(do_not_specialize=["rows", "block_rows"])
def moments_kernel(
    x, origin, mean, squares, count, padding, scales, rows, block_rows, columns, groups, width, eps,
    SCALES_KNOWN: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """By block: an ``origin``, the mean of ``s - origin``, the sum of the squared deviations, the number of real rows.

    The origin is the mean of the first tile that has a real row: what is left after it is small, and so are its errors.
    """
    begin, end = _block(rows, block_rows)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    zero = tl.zeros([TILE_COLUMNS], tl.float32)
    all_mean = tl.zeros([TILE_COLUMNS], tl.float32)
    all_squares = tl.zeros([TILE_COLUMNS], tl.float32)
    all_count = begin * 0.0
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding)
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        s = _load(x, at, real[:, None] & inside[None, :])
        if scales is not None:
            s *= _scale(s, row, end, real, scales, groups, width, eps, SCALES_KNOWN)
        own_count = tl.sum(real.to(tl.float32), 0)
        some = tl.maximum(own_count, 1.0)
        zero = tl.where(all_count == 0.0, tl.sum(s, 0) / some, zero)
        s = tl.where(real[:, None], s - zero[None, :], 0.0)
        own_mean = tl.sum(s, 0) / some
        deviation = tl.where(real[:, None], s - own_mean[None, :], 0.0)
        # The tile's own moments, then both parts together (Chan et al., 1979).
        share = own_count / tl.maximum(all_count + own_count, 1.0)
        distance = own_mean - all_mean
        all_squares += tl.sum(deviation * deviation, 0) + distance * distance * all_count * share
        all_mean += distance * share
        all_count += own_count
    at = tl.program_id(0) * columns + column
    tl.store(origin + at, zero, mask=inside)
    tl.store(mean + at, all_mean, mask=inside)
    tl.store(squares + at, all_squares, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(count + tl.program_id(0), all_count)


@triton.jit(do_not_specialize=["rows", "block_rows"])
def backward_kernel(
    x, dy, a, b, c, centre, dx, sums, padding, scales, rows, block_rows, columns, groups, width, eps,
    SCALES_KNOWN: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """``dx`` from ``dL/ds = dy * a + s * b + c``, and by block ``sums`` of ``dy * (s - centre)`` and ``dy``.

    Each unless it is None; a ``c`` or a ``centre`` of None is zero.
    """
    begin, end = _block(rows, block_rows)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    if dx is not None:
        of_dy = tl.load(a + column, mask=inside, other=0.0)[None, :]
        of_s = tl.load(b + column, mask=inside, other=0.0)[None, :]
        if c is not None:
            constant = tl.load(c + column, mask=inside, other=0.0)[None, :]
    if centre is not None:
        middle = tl.load(centre + column, mask=inside, other=0.0)[None, :]
    products = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding)
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        used = real[:, None] & inside[None, :]
        s = _load(x, at, used)
        if scales is not None:
            factor = _scale(s, row, end, real, scales, groups, width, eps, SCALES_KNOWN)
            s *= factor
        grad = _load(dy, at, used)
        if dx is not None:
            ds = grad * of_dy + s * of_s
            if c is not None:
                ds += constant
            if scales is not None:  # the part of ds along s changes the quadratic mean, which is fixed
                along = tl.sum(ds * s, 1) / width
                ds = (ds - s * along[:, None]) * factor
            ds = tl.where(real[:, None], ds, 0.0)
            tl.store(dx + at, ds, mask=(row < end)[:, None] & inside[None, :])
        if sums is not None:
            if centre is not None:
                products += grad * (s - middle)
            else:
                products += grad * s
            total += grad
    if sums is not None:
        at = tl.program_id(0) * columns + column
        tl.store(sums + at, tl.sum(products, 0), mask=inside)
        tl.store(sums + tl.num_programs(0) * columns + at, tl.sum(total, 0), mask=inside)


class TritonRows(Rows):
    """Passes in Triton; see :class:`~powernorm_fairseq.norms.kernels.rows.Rows`."""

    skips_unneeded = True

    def __init__(
        self, x: Tensor, padding: Optional[Tensor], groups: int, eps: float, scales: Optional[Tensor] = None
    ) -> None:
        super().__init__(x.contiguous(), None if padding is None else padding.contiguous(), groups, eps, scales)
        self._scales_known = scales is not None
        if groups > 0 and scales is None:
            self.scales = self._new(x.shape[0], groups)
        rows, columns = x.shape
        self.width = columns // groups if groups > 0 else min(SLICE, columns)
        self.tile_columns = triton.next_power_of_2(self.width)
        self.tile_rows = max(1, TILE // self.tile_columns)
        tiles = triton.cdiv(rows, self.tile_rows)
        self.block_rows = max(1, triton.cdiv(tiles, MAX_BLOCKS)) * self.tile_rows
        self.blocks = triton.cdiv(rows, self.block_rows)

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.x.device)

    def _launch(self, kernel: Any, inputs: Sequence[Optional[Tensor]], outputs: Sequence[Optional[Tensor]]) -> None:
        """Runs a kernel over all rows, if there are any; the scales are known from then on."""
        if self.blocks == 0:
            return
        columns = self.x.shape[1]
        with torch.cuda.device_of(self.x):
            kernel[self.blocks, triton.cdiv(columns, self.width)](
                self.x,
                *(None if tensor is None else tensor.contiguous() for tensor in inputs),
                *outputs,
                padding=None if self.padding is None else self.padding.view(torch.uint8),
                scales=self.scales,
                rows=self.x.shape[0],
                block_rows=self.block_rows,
                columns=columns,
                groups=self.groups,
                width=self.width,
                eps=self.eps,
                SCALES_KNOWN=self._scales_known,
                TILE_ROWS=self.tile_rows,
                TILE_COLUMNS=self.tile_columns,
                num_warps=min(16, max(4, self.tile_columns // 512)),
            )
        self._scales_known = True

    def square_sums(self, needed: Optional[Tensor] = None) -> Tensor:
        """Sum of ``s * s``; zero, and the rows are not read, where ``needed`` is false."""
        sums, scales_known = self._new(self.blocks, self.x.shape[1]), self._scales_known
        self._launch(forward_kernel, [None, None, None if needed is None else needed.view(torch.uint8)], [None, sums])
        self._scales_known = scales_known or needed is None
        return sums.sum(0)

    def moments(self) -> Moments:
        """Mean of ``s`` and sum of the squared deviations."""
        origins, means, squares = self._new(3, self.blocks, self.x.shape[1])
        counts = self._new(self.blocks, 1)
        self._launch(moments_kernel, [], [origins, means, squares, counts])
        total = counts.sum().clamp(min=1)
        origin = (counts * origins).sum(0) / total
        means = means + (origins - origin)  # all from the same origin
        mean = (counts * means).sum(0) / total
        return Moments(origin + mean, (squares + counts * (means - mean).square()).sum(0))

    def affine(self, scale: Tensor, shift: Tensor) -> Tensor:
        """``s * scale + shift``."""
        y = torch.empty_like(self.x)
        self._launch(forward_kernel, [scale, shift, None], [y, None])
        return y

    def affine_and_square_sums(self, scale: Tensor, shift: Tensor) -> Tuple[Tensor, Tensor]:
        """Both at once."""
        y, sums = torch.empty_like(self.x), self._new(self.blocks, self.x.shape[1])
        self._launch(forward_kernel, [scale, shift, None], [y, sums])
        return y, sums.sum(0)

    def backward_sums(self, dy: Tensor, centre: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Sums of ``dy * (s - centre)`` and of ``dy``."""
        sums = self._new(2, self.blocks, self.x.shape[1])
        self._launch(backward_kernel, [dy, None, None, None, centre], [None, sums])
        products, total = sums.sum(1)
        return products, total

    def backward(self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]) -> Tensor:
        """dL/dx."""
        dx = torch.empty_like(self.x)
        self._launch(backward_kernel, [dy, a, b, c, None], [dx, None])
        return dx

    def backward_and_sums(
        self, dy: Tensor, a: Tensor, b: Tensor, c: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """dL/dx, and the sums of ``dy * s`` and of ``dy``."""
        dx, sums = torch.empty_like(self.x), self._new(2, self.blocks, self.x.shape[1])
        self._launch(backward_kernel, [dy, a, b, c, None], [dx, sums])
        products, total = sums.sum(1)
        return dx, products, total
