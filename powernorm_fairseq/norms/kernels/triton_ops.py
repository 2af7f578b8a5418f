"""The operators of ../ops.py in Triton, for GPUs. Importing this imports triton: the package does so when it is needed.

``../functional.py`` says what each operator computes. After its warm-up PN takes three launches forward and three
backward: the rows, the columns, and moving what runs. What the other norms do with columns is left to torch, by the
formulas of ``functional.py`` where they can be had without rows. No value travels to the host.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import triton
from torch import Tensor

from powernorm_fairseq.norms import functional
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.kernels import TRITON_TYPES
from powernorm_fairseq.norms.kernels import triton_kernels as tk

Three = Tuple[Tensor, Tensor, Tensor]


def check(condition: bool, message: str) -> None:
    """What the operators are given has to fit: kernels read whatever stands there."""
    if not condition:
        raise RuntimeError(message)


def column_of(tensor: MaybeTensor, width: int, name: str) -> MaybeTensor:
    """Factors or offsets that a kernel can read."""
    if tensor is None:
        return None
    check(tensor.dim() == 1 and tensor.numel() == width, f"{name} has {tensor.numel()} elements; the width is {width}")
    check(tensor.dtype in TRITON_TYPES, f"{name} must be float32, bfloat16 or float16")
    return tensor.contiguous()


def floats(tensor: Tensor, size: int, name: str) -> Tensor:
    """A tensor that has to be float32, without gaps, and of this size."""
    check(tensor.dtype == torch.float32, f"{name} must be float32")
    check(tensor.is_contiguous(), f"{name} must be contiguous")
    check(tensor.numel() == size, f"{name} has {tensor.numel()} elements; it must have {size}")
    return tensor


def counter(tensor: Tensor) -> Tensor:
    """The number of updates."""
    check(tensor.dtype == torch.int64 and tensor.numel() == 1, "num_updates must be one int64")
    return tensor


class Batch:
    """The rows of a batch, and the passes over them. ``scales`` are those of an earlier pass, if there was one."""

    means: MaybeTensor
    padding: MaybeTensor
    strides: Tuple[int, ...]

    def __init__(
        self, x: Tensor, padding: MaybeTensor, groups: int, eps: float, scales: MaybeTensor = None, keep: bool = False
    ) -> None:
        self.width = width = x.shape[-1] if x.dim() > 0 else 0
        check(x.dtype in TRITON_TYPES, "x must be float32, bfloat16 or float16")
        check(width > 0 and x.is_contiguous(), "x must be contiguous and have a width")
        check(groups >= 0 and (groups == 0 or width % groups == 0), "groups must divide the width")
        self.x, self.groups, self.eps, self.means = x, groups, eps, None
        self.rows = x.numel() // width
        self.grid = tk.grid_of(self.rows, width, groups, tk.processors(x.device))
        self.padding, self.strides = None, (1, 0, 0)
        if padding is not None:
            check(padding.dtype == torch.bool, "padding must be bool")
            check(padding.numel() == self.rows, f"padding has {padding.numel()} elements; there are {self.rows} tokens")
            padding = padding.view(torch.uint8) if padding.dim() == 2 else padding.reshape(1, -1).view(torch.uint8)
            self.padding, self.strides = padding, (max(1, padding.shape[1]), *padding.stride())
        self.known = groups > 0 and scales is not None
        self.scales = None if scales is None or groups == 0 else floats(scales, self.rows * groups, "scales")
        if keep:
            self.scales = self.new(self.rows, groups) if groups > 0 else None

    def new(self, *shape: int) -> Tensor:
        """Room for statistics."""
        return torch.empty(shape, dtype=torch.float32, device=self.x.device)

    def kept_scales(self) -> Tensor:
        """The factors of the layer-scale for the backward."""
        return self.new(0) if self.scales is None else self.scales

    def _pass(self, kernel: Any, *args: Any) -> None:
        """Runs a kernel over all rows, if there are any."""
        grid = self.grid
        if grid.blocks > 0:
            scales = "none" if self.groups == 0 else "known" if self.known else "computed"
            sizes = (self.rows, grid.block_rows, self.width, self.groups, grid.width)
            tile = (scales, grid.tile_rows, grid.tile_columns)
            rows = (self.padding, self.scales, self.means, *sizes, *self.strides, self.eps, *tile)
            tk.launch(kernel, (grid.blocks, grid.slices), self.x, self.x, *args, *rows, num_warps=grid.warps)

    def _columns(self, kernel: Any, *args: Any) -> None:
        """Runs a kernel over all columns."""
        tk.launch(kernel, (triton.cdiv(self.width, tk.COLUMNS),), self.x, *args, BLOCKS=tk.BLOCKS, COLUMNS=tk.COLUMNS)

    @property
    def share(self) -> float:
        """Squares are divided before they are added up: as a sum, those of large numbers overflow."""
        return 1 / max(1, self.rows)

    def forward(
        self, centre: MaybeTensor, power: MaybeTensor, gamma: MaybeTensor, beta: MaybeTensor, squares: bool = False
    ) -> Tuple[Tensor, "Squares"]:
        """``gamma * (s - centre) / sqrt(power + eps) + beta``; and the squares, if they are asked for."""
        y, found = torch.empty_like(self.x), self._squares() if squares else Squares(None, None, 0, 0.0)
        columns = [column_of(gamma, self.width, "gamma"), column_of(beta, self.width, "beta")]
        self._pass(tk.forward_kernel, centre, power, *columns, None, y, found.sums, found.counts, 0, self.share)
        return y, found

    def _squares(self) -> "Squares":
        blocks = self.grid.blocks
        counts = None if self.padding is None else self.new(blocks)
        return Squares(self.new(blocks, self.width), counts, blocks, float(max(1, self.rows)))

    def squares(self, num_updates: MaybeTensor = None, warmup: int = 0) -> "Squares":
        """Sums of squares; the rows are not read where ``num_updates`` says that the warm-up is over."""
        found = self._squares()
        nothing = (None, None, None, None)
        self._pass(tk.forward_kernel, *nothing, num_updates, None, found.sums, found.counts, warmup, self.share)
        self.known = self.scales is not None and num_updates is None
        return found

    def quadratic_mean(self) -> Tuple[Tensor, Tensor]:
        """psi_B^2 and the number of tokens."""
        found = self.squares()
        count = self._count(found.counts)
        return found.sums.sum(0) * (found.unit / count.clamp(min=1)), count

    def _count(self, counts: MaybeTensor) -> Tensor:
        return self.new(1).fill_(self.rows) if counts is None else counts.sum(0, keepdim=True)

    def moments(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the batch, and the number of tokens."""
        blocks = self.grid.blocks
        origins, means, squares = (self.new(blocks, self.width) for _ in range(3))
        counts = self.new(blocks)
        self._pass(tk.moments_kernel, origins, means, squares, counts, self.share)
        self.known = self.scales is not None
        found, unit = self.new(2 * self.width + 1), float(max(1, self.rows))
        self._columns(tk.moments_columns_kernel, origins, means, squares, counts, found, blocks, self.width, unit)
        return found.split([self.width, self.width, 1])

    def gradient(
        self, dy: Tensor, centre: MaybeTensor, gamma: MaybeTensor, rstd: MaybeTensor, slope: MaybeTensor = None,
        offset: MaybeTensor = None, loss_scale: MaybeTensor = None, dx: bool = True, sums: bool = True,
    ) -> Tuple[Any, Any]:  # None for what is not asked for
        """What :func:`gradient_kernel` computes."""
        right = dy.dtype == self.x.dtype and dy.is_contiguous() and dy.numel() == self.x.numel()
        check(right, "dy must be contiguous, and of the size and type of x")
        to = torch.empty_like(self.x) if dx else None
        found = self.new(2, self.grid.blocks, self.width) if sums else None
        gamma = column_of(gamma, self.width, "gamma")
        self._pass(tk.gradient_kernel, dy, centre, gamma, rstd, slope, offset, loss_scale, to, found)
        return to, found

    def of_parameters(
        self, sums: Tensor, rstd: MaybeTensor = None, gamma: MaybeTensor = None, saved: MaybeTensor = None,
        nu: MaybeTensor = None, loss_scale: MaybeTensor = None, weight: float = 0.0,
    ) -> Tensor:
        """What :func:`gradient_columns_kernel` computes, as rows: of gamma, of beta, and the old and the new nu."""
        found = self.new(2 if nu is None else 4, self.width)
        gamma = column_of(gamma, self.width, "gamma")
        columns = (sums, rstd, gamma, saved, nu, loss_scale, found)
        self._columns(tk.gradient_columns_kernel, *columns, self.grid.blocks, self.width, weight)
        return found

    def no_rows(self) -> Tensor:
        """A batch of this kind without rows: what :mod:`.functional` computes from it concerns columns alone."""
        return self.x.new_empty(0, self.width)


class Squares(NamedTuple):
    """Sums of squares by block."""

    sums: Any  # None if not asked for; blocks x C, each square divided by the unit
    counts: MaybeTensor  # tokens of each block; all rows if there is none
    blocks: int
    unit: float


def move(buffers: Sequence[Tensor], new: Sequence[Tensor], count: Tensor, num_updates: MaybeTensor = None) -> None:
    """Moves one or two running statistics; see :func:`move_kernel`."""
    pairs: List[Optional[Tensor]] = [None] * 4
    sizes = [0, 0]
    for i, (buffer, value) in enumerate(zip(buffers, new)):
        pairs[2 * i : 2 * i + 2], sizes[i] = (buffer, value), buffer.numel()
    tk.launch(tk.move_kernel, (1,), count, count, num_updates, *pairs, *sizes, tk.CHUNK)


# ---------------------------------------------------------------- operators


def statistics(x: Tensor, padding: MaybeTensor, groups: int, eps: float, centred: bool) -> Tensor:
    """See :func:`.functional.statistics`."""
    batch = Batch(x, padding, groups, eps)
    if not centred:
        psi2, count = batch.quadratic_mean()
        return torch.cat([psi2 * count, count])
    centre, variance, count = batch.moments()
    return torch.cat([centre, variance * count, count, torch.full_like(count, batch.rows)])


def gradient_sums(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, centre: MaybeTensor
) -> Tensor:
    """See :func:`.functional.gradient_sums`."""
    batch = Batch(x, padding, groups, eps)
    _, sums = batch.gradient(dy, _floats(centre, batch.width, "centre"), None, None, dx=False)
    return batch.of_parameters(sums).view(-1)


def _floats(tensor: MaybeTensor, size: int, name: str) -> MaybeTensor:
    return None if tensor is None else floats(tensor, size, name)


def evaluate(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    centre: MaybeTensor, power: MaybeTensor,
) -> Tensor:
    """See :func:`.functional.evaluate`."""
    batch = Batch(x, padding, groups, eps)
    centre, power = _floats(centre, batch.width, "centre"), _floats(power, batch.width, "power")
    return batch.forward(centre, power, gamma, beta)[0]


def evaluate_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor,
    centre: MaybeTensor, power: MaybeTensor,
) -> Three:
    """The gradients of :func:`evaluate`."""
    batch = Batch(x, padding, groups, eps)
    rstd = None if power is None else torch.rsqrt(floats(power, batch.width, "power") + eps)
    dx, sums = batch.gradient(dy, _floats(centre, batch.width, "centre"), gamma, rstd)
    return (dx, *batch.of_parameters(sums, rstd))


def batch_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    momentum: float, released: bool, warmup: int, rise: int,
    running_mean: MaybeTensor, running_power: Tensor, num_updates: Tensor, given: MaybeTensor, moves: bool,
) -> Three:
    """See :func:`.functional.batch_forward`."""
    batch, count = Batch(x, padding, groups, eps, keep=True), None
    width, centred = batch.width, running_mean is not None
    state = (_floats(running_mean, width, "running_mean"), floats(running_power, width, "running_power"))
    if given is None:  # means as if they were of one token: as sums, large squares overflow
        *means, count = batch.moments() if centred else batch.quadratic_mean()
        one, ratio = torch.ones_like(count), [batch.rows / count.clamp(min=1)] if centred else []
        given = torch.cat([*means, one, *ratio])
    settings = (momentum, released, warmup, rise)
    _, columns, _, new, all_count = functional.batch_forward(
        batch.no_rows(), None, groups, eps, None, None, *settings, *state, counter(num_updates), given
    )
    if count is not None:
        all_count = count
        columns[4 * width :].copy_(torch.cat([count, torch.full_like(count, batch.rows) if released else count]))
    centre, rstd, r, d, _ = columns.split([width] * 4 + [2])
    if rise >= 0:
        rstd, beta = rstd * r, functional.affine(d, gamma, beta)
    y, _ = batch.forward(centre if centred else None, None, functional.times_gamma(rstd, gamma), beta)
    if moves:
        move([buffer for buffer in state if buffer is not None], new, all_count, num_updates)
    return y, columns, batch.kept_scales()


def batch_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, centred: bool,
    columns: Tensor, scales: Tensor, given: MaybeTensor, extra: MaybeTensor = None,
) -> Three:
    """See :func:`.functional.batch_backward`."""
    batch, width = Batch(x, padding, groups, eps, scales), x.shape[-1]
    centre, rstd, r, d, count, spread = floats(columns, 4 * width + 2, "columns").split([width] * 4 + [1, 1])
    middle = centre if centred else None
    own, own_total = batch.of_parameters(batch.gradient(dy, middle, None, None, dx=False)[1])
    products, total = (own, own_total) if given is None else floats(given, 2 * width, "given").split(width)
    g = functional.times_gamma(r, gamma)
    slope = functional.mean(g * products * rstd, spread)  # mean of G * X^
    offset = functional.mean(g * total, count) if centred else None  # mean of G
    if extra is not None:
        slope, offset = slope - extra[width:] / rstd.square(), offset - extra[:width] / rstd
    dx, _ = batch.gradient(dy, middle, g, rstd, slope, offset, sums=False)
    return dx, own * rstd * r + own_total * d, own_total


def power_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    alpha: float, warmup: int, running_psi2: Tensor, num_updates: Tensor, given: MaybeTensor, moves: bool,
) -> Three:
    """See :func:`.functional.power_forward`. A ``warmup`` of 0 saves a pass."""
    batch = Batch(x, padding, groups, eps, keep=True)
    width, power, t = batch.width, floats(running_psi2, batch.width, "running_psi2"), counter(num_updates)
    squares = None
    if given is not None:
        given = floats(given, width + 1, "given")
        squares = Squares(given, given[width:], 1, 1.0)
    numbers = (batch.rows, width, warmup)
    if warmup > 0:
        found, power = squares or batch.squares(t, warmup), batch.new(width)
        columns: Tuple[Any, ...] = (*found[:2], running_psi2, t, None, power, None, None, found.blocks)
        batch._columns(tk.power_columns_kernel, *columns, *numbers, found.unit, 1 - alpha, eps)
    y, found = batch.forward(None, power, gamma, beta, squares is None)
    found, saved, new = squares or found, batch.new(2 * width + 1), batch.new(width)
    columns = (*found[:2], running_psi2, t, power, None, saved, new, found.blocks)
    batch._columns(tk.power_columns_kernel, *columns, *numbers, found.unit, 1 - alpha, eps)
    if moves:
        move([running_psi2], [new], saved[2 * width :], t)
    return y, saved, batch.kept_scales()


def power_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, alpha: float,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, nu: Tensor, moves: bool,
) -> Tuple[Tensor, Tensor]:
    """See :func:`.functional.power_backward`."""
    batch, width = Batch(x, padding, groups, eps, scales), x.shape[-1]
    saved, nu = floats(columns, 2 * width + 1, "columns"), floats(nu, width, "nu")
    loss_scale = _floats(loss_scale, 1, "loss_scale")
    dx, sums = batch.gradient(dy, None, gamma, saved, nu, loss_scale=loss_scale)
    found = batch.of_parameters(sums, saved, gamma, saved, nu, loss_scale, 1 - alpha)
    if moves:
        move([nu], [found[3]], saved[2 * width :])
    return dx, found[:3]


def window_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    momentum: float, warmup: int, running_chi2: Tensor, psi2_window: Tensor, num_updates: Tensor,
    given: MaybeTensor, moves: bool,
) -> Three:
    """See :func:`.functional.window_forward`."""
    batch, count = Batch(x, padding, groups, eps, keep=True), None
    width, size = batch.width, psi2_window.numel() // batch.width
    check(size > 0, "the window is empty")
    state = (floats(running_chi2, width, "running_chi2"), floats(psi2_window, size * width, "window"))
    if given is None:
        psi2, count = batch.quadratic_mean()
        given = torch.cat([psi2, torch.ones_like(count)])
    _, columns, _, new, all_count = functional.window_forward(
        batch.no_rows(), None, groups, eps, None, None, momentum, warmup, *state, counter(num_updates), given
    )
    if count is not None:
        all_count = count
        columns[2 * width + 2 :].copy_(count)
    y, _ = batch.forward(None, None, functional.times_gamma(columns[:width] * columns[width : 2 * width], gamma), beta)
    if moves:
        move(state, new, all_count, num_updates)
    return y, columns, batch.kept_scales()


def window_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, given: MaybeTensor, grad_window: Tensor, moves: bool,
) -> Three:
    """See :func:`.functional.window_backward`."""
    batch, width = Batch(x, padding, groups, eps, scales), x.shape[-1]
    size = grad_window.numel() // width
    rchi, r, own, _, count = floats(columns, 2 * width + 3, "columns").split([width, width, 1, 1, 1])
    own_sums = batch.of_parameters(batch.gradient(dy, None, None, None, dx=False)[1])
    (products, total), sums = own_sums, own_sums.view(-1) if given is None else floats(given, 2 * width, "given")
    empty, window = batch.no_rows(), floats(grad_window, size * width, "grad_window")
    *_, (new,), count = functional.window_backward(
        empty, empty, None, groups, eps, gamma, loss_scale, columns, scales, sums, window
    )
    g, scale = functional.times_gamma(r, gamma), 1.0 if loss_scale is None else loss_scale
    used = torch.where(own > 0, functional.mean(g * sums[:width] * rchi, count), new.mean(0) * scale)
    dx, _ = batch.gradient(dy, None, g, rchi, used, sums=False)
    if moves:
        move([window], [new], count)
    return dx, products * r * rchi, total


def token_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor, centred: bool
) -> Tuple[Tensor, Tensor]:
    """See :func:`.functional.token_norm`. Columns: means, if there are any, and 1 / std of each slice."""
    batch = Batch(x, padding, groups, eps)
    check(groups > 0, "there must be a group")
    columns = batch.new(2, batch.rows, groups)
    batch.means, batch.scales = columns[0] if centred else None, columns[1]
    return batch.forward(None, None, gamma, beta)[0], columns


def token_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, centred: bool,
    columns: Tensor,
) -> Three:
    """The gradients of :func:`token_forward`."""
    check(groups > 0, "there must be a group")
    means, scales = floats(columns, columns.numel(), "columns").view(2, -1)
    batch = Batch(x, padding, groups, eps, scales)
    batch.means = means if centred else None
    dx, sums = batch.gradient(dy, None, gamma, None)
    return (dx, *batch.of_parameters(sums))


OPERATORS: Dict[str, Any] = {
    function.__name__: function
    for function in (
        statistics, gradient_sums, evaluate, evaluate_backward, batch_forward, batch_backward, power_forward,
        power_backward, window_forward, window_backward, token_forward, token_backward,
    )
}
