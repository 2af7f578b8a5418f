"""Triton kernels for the norms, and how a batch is cut for them.

Two kernels pass over rows and serve all norms, :func:`forward_kernel` and :func:`gradient_kernel`; means and variances
have :func:`moments_kernel`. A program works on one slice of the columns and one block of rows, tile by tile. With
layer-scale a slice is one of its ``groups``, so that a row's quadratic mean stays inside a program; without, it is as
wide as suits a tile. There are as many programs as keep the device's processors busy. Sums over rows are written by
block and added up afterwards: the order is fixed, and so are the results on a device.
"""

from functools import lru_cache
from typing import Any, NamedTuple, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # elements, unless a slice is wider: 16 for each thread of 4 warps
SLICE = 128  # columns, without layer-scale
PROGRAMS = 4  # for each processor
INTERPRETED_PROCESSORS = 4  # where there is no device
BLOCKS, COLUMNS = 32, 32  # the tile in which sums by block are added up
CHUNK = 1024  # elements of a running statistic that are moved at once


# ---------------------------------------------------------------- parts of kernels


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
def _column(values, column, inside, otherwise):
    """A column in float32 that goes with a tile; ``otherwise`` throughout if there is none."""
    if values is None:
        found = tl.full(column.shape, otherwise, tl.float32)
    else:
        found = tl.load(values + column, mask=inside, other=0.0).to(tl.float32)
    return found[None, :]


@triton.jit
def _is_real(row, end, padding, inner, outer_stride, inner_stride):
    """Which rows are there and are no padding. The mask may be a transposed view of two dimensions."""
    real = row < end
    if padding is not None:
        at = (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride
        real = real & (tl.load(padding + at, mask=real, other=1) == 0)
    return real


@triton.jit
def _scaled(x, row, end, real, inside, scales, means, groups, width, eps, SCALES: tl.constexpr):
    """A tile after layer-scale and the factors of its rows, read if ``SCALES`` are known and else computed and kept.

    With ``means`` the rows are centred first, which makes it the norm of LN.
    """
    at = row.to(tl.int64) * groups + tl.program_id(1)
    if means is not None:
        if SCALES == "known":
            mean = tl.load(means + at, mask=real, other=0.0)
        else:
            mean = tl.sum(x, 1) / width
            tl.store(means + at, mean, mask=row < end)
        x = tl.where(inside[None, :], x - mean[:, None], 0.0)
    if SCALES == "known":
        factor = tl.load(scales + at, mask=real, other=0.0)[:, None]
    else:
        kept = tl.rsqrt(tl.sum(x * x, 1) / width + eps)
        if scales is not None:
            tl.store(scales + at, kept, mask=row < end)
        factor = kept[:, None]
    return x * factor, factor


@triton.jit
def _add_up(partial, blocks, columns, column, inside, BLOCKS: tl.constexpr):
    """The sum of each column over all blocks."""
    total = tl.zeros([BLOCKS, column.shape[0]], tl.float32)
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        at = block[:, None] * columns + column[None, :]
        total += tl.load(partial + at, mask=(block < blocks)[:, None] & inside[None, :], other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _count(counts, blocks, rows, BLOCKS: tl.constexpr):
    """The number of tokens: of all blocks, or all rows."""
    if counts is None:
        count = tl.cast(rows, tl.float32)
    else:
        total = tl.zeros([BLOCKS], tl.float32)
        for first in range(0, blocks, BLOCKS):
            block = first + tl.arange(0, BLOCKS)
            total += tl.load(counts + block, mask=block < blocks, other=0.0)
        count = tl.sum(total, 0)
    return count


# ---------------------------------------------------------------- kernels over rows

_PER_CALL = ["rows", "block_rows", "inner", "outer_stride", "inner_stride", "warmup"]  # another value, the same code


@triton.jit(do_not_specialize=_PER_CALL)
def forward_kernel(
    x, centre, power, gamma, beta, num_updates, y, squares, counts, warmup, share,
    padding, scales, means, rows, block_rows, columns, groups, width, inner, outer_stride, inner_stride, eps,
    SCALES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """``y = gamma * (s - centre) / sqrt(power + eps) + beta``, and by block sums of ``s * s * share`` and tokens.

    Each unless it is None. With ``num_updates``, rows are left out once the warm-up is over.
    """
    begin, end = _block(rows, block_rows)
    if num_updates is not None:
        end = tl.where(tl.load(num_updates) < warmup, end, begin)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    if y is not None:
        middle = _column(centre, column, inside, 0.0)
        factor = _column(gamma, column, inside, 1.0)
        if power is not None:
            factor *= tl.rsqrt(_column(power, column, inside, 1.0) + eps)
        shift = _column(beta, column, inside, 0.0)
    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    count = tl.zeros([TILE_ROWS], tl.float32)
    at = tl.arange(0, TILE_ROWS)[:, None] * columns + column[None, :]
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding, inner, outer_stride, inner_stride)
        tile = tl.cast(first, tl.int64) * columns
        s = tl.load(x + tile + at, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if SCALES != "none":
            s, _ = _scaled(s, row, end, real, inside, scales, means, groups, width, eps, SCALES)
        if squares is not None:
            total += s * (s * share)
        if counts is not None:
            count += real.to(tl.float32)
        if y is not None:
            value = tl.where(real[:, None], (s - middle) * factor + shift, 0.0)
            tl.store(y + tile + at, value, mask=(row < end)[:, None] & inside[None, :])
    if squares is not None:
        tl.store(squares + tl.program_id(0) * columns + column, tl.sum(total, 0), mask=inside)
    if counts is not None:
        if tl.program_id(1) == 0:
            tl.store(counts + tl.program_id(0), tl.sum(count, 0))


@triton.jit(do_not_specialize=_PER_CALL)
def moments_kernel(
    x, origins, mean, squares, counts, share,
    padding, scales, means, rows, block_rows, columns, groups, width, inner, outer_stride, inner_stride, eps,
    SCALES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """By block: an origin, the mean of ``s - origin``, ``share`` of the squared deviations' sum, the number of tokens.

    The origin is the mean of the first tile that has a token: what is left after it is small, and so are its errors.
    """
    begin, end = _block(rows, block_rows)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    origin = tl.zeros([TILE_COLUMNS], tl.float32)
    all_mean = tl.zeros([TILE_COLUMNS], tl.float32)
    all_squares = tl.zeros([TILE_COLUMNS], tl.float32)
    all_count = begin * 0.0
    at = tl.arange(0, TILE_ROWS)[:, None] * columns + column[None, :]
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding, inner, outer_stride, inner_stride)
        tile = tl.cast(first, tl.int64) * columns
        s = tl.load(x + tile + at, mask=real[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if SCALES != "none":
            s, _ = _scaled(s, row, end, real, inside, scales, means, groups, width, eps, SCALES)
        own_count = tl.sum(real.to(tl.float32), 0)
        some = tl.maximum(own_count, 1.0)
        origin = tl.where(all_count == 0.0, tl.sum(s, 0) / some, origin)
        s = tl.where(real[:, None], s - origin[None, :], 0.0)
        own_mean = tl.sum(s, 0) / some
        deviation = tl.where(real[:, None], s - own_mean[None, :], 0.0)
        # The tile's own moments, then both parts together (Chan et al., 1979).
        part = own_count / tl.maximum(all_count + own_count, 1.0)
        distance = own_mean - all_mean
        between = distance * (distance * (share * all_count * part))
        all_squares += tl.sum(deviation * (deviation * share), 0) + between
        all_mean += distance * part
        all_count += own_count
    at = tl.program_id(0) * columns + column
    tl.store(origins + at, origin, mask=inside)
    tl.store(mean + at, all_mean, mask=inside)
    tl.store(squares + at, all_squares, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(counts + tl.program_id(0), all_count)


@triton.jit(do_not_specialize=_PER_CALL)
def gradient_kernel(
    x, dy, centre, gamma, rstd, slope, offset, loss_scale, dx, sums,
    padding, scales, means, rows, block_rows, columns, groups, width, inner, outer_stride, inner_stride, eps,
    SCALES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):
    """``dx`` from ``dL/ds = (gamma * dy - slope * (s - centre) * rstd - offset) * rstd``.

    And by block sums of ``dy * (s - centre)`` and of ``dy``; each unless it is None. The slope is in units of the
    ``loss_scale``, if there is one.
    """
    begin, end = _block(rows, block_rows)
    column, inside = _slice(columns, width, TILE_COLUMNS)
    middle = _column(centre, column, inside, 0.0)
    if dx is not None:
        one = _column(rstd, column, inside, 1.0)
        of_dy = _column(gamma, column, inside, 1.0) * one
        constant = _column(offset, column, inside, 0.0) * one
        of_s = _column(slope, column, inside, 0.0) * one * one
        if loss_scale is not None:
            of_s *= tl.load(loss_scale).to(tl.float32)
    products = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    at = tl.arange(0, TILE_ROWS)[:, None] * columns + column[None, :]
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        real = _is_real(row, end, padding, inner, outer_stride, inner_stride)
        tile = tl.cast(first, tl.int64) * columns
        used = real[:, None] & inside[None, :]
        s = tl.load(x + tile + at, mask=used, other=0.0).to(tl.float32)
        grad = tl.load(dy + tile + at, mask=used, other=0.0).to(tl.float32)
        if SCALES != "none":
            s, factor = _scaled(s, row, end, real, inside, scales, means, groups, width, eps, SCALES)
        deviation = s - middle
        if dx is not None:
            ds = grad * of_dy
            if slope is not None:
                ds -= deviation * of_s
            if offset is not None:
                ds -= constant
            if SCALES != "none":  # the part of ds along s changes the quadratic mean, which is fixed
                along = s * (tl.sum(ds * s, 1) / width)[:, None]
                if means is not None:
                    along += (tl.sum(ds, 1) / width)[:, None]
                ds = (ds - along) * factor
            ds = tl.where(real[:, None], ds, 0.0)
            tl.store(dx + tile + at, ds, mask=(row < end)[:, None] & inside[None, :])
        if sums is not None:
            products += grad * deviation
            total += grad
    if sums is not None:
        at = tl.program_id(0) * columns + column
        tl.store(sums + at, tl.sum(products, 0), mask=inside)
        tl.store(sums + tl.num_programs(0) * columns + at, tl.sum(total, 0), mask=inside)


# ---------------------------------------------------------------- kernels over columns


@triton.jit(do_not_specialize=["blocks", "rows", "warmup"])
def power_columns_kernel(
    squares, counts, psi2, num_updates, used, chosen, saved, new, blocks, rows, columns, warmup, unit, weight, eps,
    BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """Algorithm 2, forward, line 4, for :func:`forward_kernel` before and after it.

    Before: ``chosen`` is the squared psi to divide by, that of the batch or the running one. After: what the backward
    needs goes to ``saved``, and the ``new`` running psi. The squares have been divided by ``unit`` already.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    count = _count(counts, blocks, rows, BLOCKS)
    batch_psi2 = _add_up(squares, blocks, columns, column, inside, BLOCKS) * (unit / tl.maximum(count, 1.0))
    old_psi2 = tl.load(psi2 + column, mask=inside, other=0.0)
    t = tl.load(num_updates) + 1
    if chosen is not None:
        tl.store(chosen + column, tl.where(t <= warmup, batch_psi2, old_psi2), mask=inside)
    else:
        used_psi2 = tl.load(used + column, mask=inside, other=0.0)
        tl.store(saved + column, tl.rsqrt(used_psi2 + eps), mask=inside)
        tl.store(saved + columns + column, batch_psi2, mask=inside)
        if tl.program_id(0) == 0:
            tl.store(saved + 2 * columns, count)
        part = tl.where(t <= warmup, 1.0 / t.to(tl.float32), weight)
        tl.store(new + column, old_psi2 + (batch_psi2 - old_psi2) * part, mask=inside)


@triton.jit
def _average(first, second, third, counts, some, blocks, columns, column, inside, BLOCKS: tl.constexpr):
    """The average over tokens of ``first + second - third``, the first two by block."""
    total = tl.zeros([BLOCKS, column.shape[0]], tl.float32)
    for begin in range(0, blocks, BLOCKS):
        block = begin + tl.arange(0, BLOCKS)
        at, there = block[:, None] * columns + column[None, :], (block < blocks)[:, None] & inside[None, :]
        value = tl.load(first + at, mask=there, other=0.0)
        if second is not None:
            value += tl.load(second + at, mask=there, other=0.0) - third[None, :]
        total += value * (tl.load(counts + block, mask=block < blocks, other=0.0) / some)[:, None]
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["blocks"])
def moments_columns_kernel(
    origins, means, squares, counts, found, blocks, columns, unit, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean, variance and number of tokens from :func:`moments_kernel`'s: all blocks from one origin, then together."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    count = _count(counts, blocks, blocks, BLOCKS)
    some = tl.maximum(count, 1.0)
    origin = _average(origins, None, None, counts, some, blocks, columns, column, inside, BLOCKS)
    mean = _average(means, origins, origin, counts, some, blocks, columns, column, inside, BLOCKS)
    variance = tl.zeros([BLOCKS, COLUMNS], tl.float32)
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        at, there = block[:, None] * columns + column[None, :], (block < blocks)[:, None] & inside[None, :]
        own = tl.load(origins + at, mask=there, other=0.0) - origin[None, :]
        away = tl.load(means + at, mask=there, other=0.0) + own - mean[None, :]
        part = (tl.load(counts + block, mask=block < blocks, other=0.0) / some)[:, None]
        variance += tl.load(squares + at, mask=there, other=0.0) * (unit / some) + away * (away * part)
    tl.store(found + column, origin + mean, mask=inside)
    tl.store(found + columns + column, tl.sum(variance, 0), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(found + 2 * columns, count)


@triton.jit(do_not_specialize=["blocks"])
def gradient_columns_kernel(
    sums, rstd, gamma, saved, nu, loss_scale, found, blocks, columns, weight,
    BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """The gradients of gamma and beta from :func:`gradient_kernel`'s sums; nu and the new nu (Algorithm 2, line 4)."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    products = _add_up(sums, blocks, columns, column, inside, BLOCKS)
    if rstd is not None:
        products *= tl.load(rstd + column, mask=inside, other=0.0)
    total = _add_up(sums + blocks * columns, blocks, columns, column, inside, BLOCKS)
    tl.store(found + column, products, mask=inside)
    tl.store(found + columns + column, total, mask=inside)
    if nu is not None:
        inverse = tl.load(saved + column, mask=inside, other=0.0)
        big_gamma = tl.load(saved + columns + column, mask=inside, other=0.0) * inverse * inverse
        big_lambda = products / tl.maximum(tl.load(saved + 2 * columns), 1.0)
        if gamma is not None:
            big_lambda *= tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
        if loss_scale is not None:
            big_lambda /= tl.load(loss_scale).to(tl.float32)
        old = tl.load(nu + column, mask=inside, other=0.0)
        tl.store(found + 2 * columns + column, old, mask=inside)
        tl.store(found + 3 * columns + column, old * (1.0 - weight * big_gamma) + weight * big_lambda, mask=inside)


@triton.jit
def _finite(values, size, CHUNK: tl.constexpr):
    """How many of the values are not finite."""
    wrong = tl.zeros([CHUNK], tl.int32)
    for first in range(0, size, CHUNK):
        at = first + tl.arange(0, CHUNK)
        value = tl.load(values + at, mask=at < size, other=0.0)
        wrong += (~(tl.abs(value) < float("inf"))).to(tl.int32)
    return tl.sum(wrong, 0) == 0


@triton.jit
def _copy(source, target, size, CHUNK: tl.constexpr):
    for first in range(0, size, CHUNK):
        at = first + tl.arange(0, CHUNK)
        tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)


@triton.jit
def move_kernel(
    count, num_updates, first, new_first, second, new_second, first_size, second_size, CHUNK: tl.constexpr
):
    """Moves running statistics and counts the update, unless there was no token or a value is not finite."""
    moves = (tl.load(count) > 0.0) & _finite(new_first, first_size, CHUNK)
    if second is not None:
        moves = moves & _finite(new_second, second_size, CHUNK)
    if moves:
        _copy(new_first, first, first_size, CHUNK)
        if second is not None:
            _copy(new_second, second, second_size, CHUNK)
        if num_updates is not None:
            tl.store(num_updates, tl.load(num_updates) + 1)


# ---------------------------------------------------------------- launches


class Grid(NamedTuple):
    """How a batch is cut: each of ``blocks`` has ``block_rows`` rows, each of ``slices`` has ``width`` columns."""

    blocks: int
    block_rows: int
    slices: int
    width: int
    tile_rows: int
    tile_columns: int

    @property
    def warps(self) -> int:
        """16 elements for each thread, as long as a program may have so many."""
        return min(16, max(4, self.tile_columns // 256))


@lru_cache(maxsize=None)
def processors(device: torch.device) -> int:
    """How many processors a device has."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=1024)
def grid_of(rows: int, columns: int, groups: int, processors: int) -> Grid:
    """The grid for a batch: enough programs for all processors, as far as there are tiles for them."""
    width = columns // groups if groups > 0 else min(SLICE, columns)
    slices, tile_columns = triton.cdiv(columns, width), triton.next_power_of_2(width)
    tile_rows = max(1, TILE // tile_columns)
    blocks = max(1, PROGRAMS * processors // slices)
    block_rows = max(1, triton.cdiv(triton.cdiv(rows, tile_rows), blocks)) * tile_rows
    return Grid(triton.cdiv(rows, block_rows), block_rows, slices, width, tile_rows, tile_columns)


def launch(kernel: Any, grid: Tuple[int, ...], device_of: Tensor, *args: Any, **options: Any) -> None:
    """Runs a kernel on the device of a tensor: every launch goes through here."""
    with torch.cuda.device_of(device_of):
        kernel[grid](*args, **options)
