"""The operators of ../ops.py in Triton, for GPUs. Importing this imports triton: the package does so when it is needed.

``../functional.py`` says what each operator computes. After its warm-up PN takes three launches forward and three
backward: the rows, the columns, and moving what runs. The other batch norms are those of ``functional.py`` themselves,
over the rows of :class:`Batch`: what they do with columns is left to torch. No value travels to the host.
"""

from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import triton
from torch import Tensor

from powernorm_fairseq.norms import functional, ops
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


def floats(tensor: Any, size: int, name: str) -> Any:
    """A tensor that has to be float32, without gaps, and of this size, if there is one."""
    if tensor is None:
        return None
    check(tensor.dtype == torch.float32, f"{name} must be float32")
    check(tensor.is_contiguous(), f"{name} must be contiguous")
    check(tensor.numel() == size, f"{name} has {tensor.numel()} elements; it must have {size}")
    return tensor


def counter(tensor: Tensor) -> Tensor:
    """The number of updates."""
    check(tensor.dtype == torch.int64 and tensor.numel() == 1, "num_updates must be one int64")
    return tensor


class Batch:
    """The rows of a batch as :class:`.functional.Tokens` has them, by passes of kernels over them.

    ``scales`` are those of an earlier pass, if there was one; ``keep`` keeps those of this one.
    """

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
        self.factors = None if scales is None or groups == 0 else floats(scales, self.rows * groups, "scales")
        if keep:
            self.factors = self.new(self.rows, groups) if groups > 0 else None

    def new(self, *shape: int) -> Tensor:
        """Room for statistics."""
        return torch.empty(shape, dtype=torch.float32, device=self.x.device)

    @property
    def scales(self) -> Tensor:
        """The factors of the layer-scale for the backward."""
        return self.new(0) if self.factors is None else self.factors

    def _pass(self, kernel: Any, *args: Any) -> None:
        """Runs a kernel over all rows, if there are any."""
        grid = self.grid
        if grid.blocks > 0:
            scales = "none" if self.groups == 0 else "known" if self.known else "computed"
            sizes = (self.rows, grid.block_rows, self.width, self.groups, grid.width)
            tile = (scales, grid.tile_rows, grid.tile_columns)
            rows = (self.padding, self.factors, self.means, *sizes, *self.strides, self.eps, *tile)
            tk.launch(kernel, (grid.blocks, grid.slices), self.x, self.x, *args, *rows, num_warps=grid.warps)

    def _columns(self, kernel: Any, *args: Any) -> None:
        """Runs a kernel over all columns."""
        tk.launch(kernel, (triton.cdiv(self.width, tk.COLUMNS),), self.x, *args, BLOCKS=tk.BLOCKS, COLUMNS=tk.COLUMNS)

    @property
    def share(self) -> float:
        """Squares are divided before they are added up: as a sum, those of large numbers overflow."""
        return 1 / max(1, self.rows)

    def normalised(self, centre: MaybeTensor, std: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
        """gamma * (s - centre) / std + beta."""
        return self.forward(centre, None, functional.times_gamma(1 / std, gamma), beta)[0]

    def gradient_sums(self, dy: Tensor, centre: MaybeTensor) -> Tuple[Tensor, ...]:
        """Sums of dy * (s - centre) and of dy."""
        return self.of_parameters(self.backward(dy, centre, None, None, dx=False)[1]).unbind()

    def gradient(
        self, dy: Tensor, centre: MaybeTensor, g: MaybeTensor, rstd: Tensor, slope: Tensor, offset: MaybeTensor = None
    ) -> Tensor:
        """The gradient of x from dL/ds = (g * dy - slope * (s - centre) * rstd - offset) * rstd."""
        return self.backward(dy, centre, g, rstd, slope, offset, sums=False)[0]

    def forward(
        self, centre: MaybeTensor, power: MaybeTensor, gamma: MaybeTensor, beta: MaybeTensor, squares: bool = False
    ) -> Tuple[Tensor, "Squares"]:
        """``gamma * (s - centre) / sqrt(power + eps) + beta``; and the squares, if they are asked for."""
        y, found = torch.empty_like(self.x), self._squares() if squares else Squares(None, None, 0, 0.0)
        columns = [floats(centre, self.width, "centre"), floats(power, self.width, "power")]
        columns += [column_of(gamma, self.width, "gamma"), column_of(beta, self.width, "beta")]
        self._pass(tk.forward_kernel, *columns, None, y, found.sums, found.counts, 0, self.share)
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
        self.known = self.factors is not None and num_updates is None
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
        self.known = self.factors is not None
        found, unit = self.new(2 * self.width + 1), float(max(1, self.rows))
        self._columns(tk.moments_columns_kernel, origins, means, squares, counts, found, blocks, self.width, unit)
        return found.split([self.width, self.width, 1])

    def backward(
        self, dy: Tensor, centre: MaybeTensor, gamma: MaybeTensor, rstd: MaybeTensor, slope: MaybeTensor = None,
        offset: MaybeTensor = None, loss_scale: MaybeTensor = None, dx: bool = True, sums: bool = True,
    ) -> Tuple[Any, Any]:  # None for what is not asked for
        """What :func:`gradient_kernel` computes."""
        right = dy.dtype == self.x.dtype and dy.is_contiguous() and dy.numel() == self.x.numel()
        check(right, "dy must be contiguous, and of the size and type of x")
        to = torch.empty_like(self.x) if dx else None
        found = self.new(2, self.grid.blocks, self.width) if sums else None
        gamma, centre = column_of(gamma, self.width, "gamma"), floats(centre, self.width, "centre")
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
        sizes[i] = buffer.numel()
        pairs[2 * i : 2 * i + 2] = [floats(tensor, sizes[i], "a statistic") for tensor in (buffer, value.contiguous())]
    updates = None if num_updates is None else counter(num_updates)
    tk.launch(tk.move_kernel, (1,), count, count, updates, *pairs, *sizes, tk.CHUNK)


# ---------------------------------------------------------------- operators


def evaluate(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    centre: MaybeTensor, power: MaybeTensor,
) -> Tensor:
    """See :func:`.functional.evaluate`."""
    batch = Batch(x, padding, groups, eps)
    return batch.forward(centre, power, gamma, beta)[0]


def evaluate_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor,
    centre: MaybeTensor, power: MaybeTensor,
) -> Three:
    """The gradients of :func:`evaluate`."""
    batch = Batch(x, padding, groups, eps)
    rstd = None if power is None else torch.rsqrt(floats(power, batch.width, "power") + eps)
    dx, sums = batch.backward(dy, centre, gamma, rstd)
    return (dx, *batch.of_parameters(sums, rstd))


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
    return y, saved, batch.scales


def power_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, alpha: float,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, nu: Tensor, moves: bool,
) -> Tuple[Tensor, Tensor]:
    """See :func:`.functional.power_backward`."""
    batch, width = Batch(x, padding, groups, eps, scales), x.shape[-1]
    saved, nu = floats(columns, 2 * width + 1, "columns"), floats(nu, width, "nu")
    loss_scale = floats(loss_scale, 1, "loss_scale")
    dx, sums = batch.backward(dy, None, gamma, saved, nu, loss_scale=loss_scale)
    found = batch.of_parameters(sums, saved, gamma, saved, nu, loss_scale, 1 - alpha)
    if moves:
        move([nu], [found[3]], saved[2 * width :])
    return dx, found[:3]


def token_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor, centred: bool
) -> Tuple[Tensor, Tensor]:
    """See :func:`.functional.token_norm`. Columns: means, if there are any, and 1 / std of each slice."""
    batch = Batch(x, padding, groups, eps)
    check(groups > 0, "there must be a group")
    columns = batch.new(2, batch.rows, groups)
    batch.means, batch.factors = columns[0] if centred else None, columns[1]
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
    dx, sums = batch.backward(dy, None, gamma, None)
    return (dx, *batch.of_parameters(sums))


OPERATORS: Dict[str, Any] = {
    function.__name__: function
    for function in (evaluate, evaluate_backward, power_forward, power_backward, token_forward, token_backward)
}
for _name in ("statistics", "gradient_sums", "batch_forward", "batch_backward", "window_forward", "window_backward"):
    _rows = partial(Batch, keep=True) if _name.endswith("_forward") else Batch
    OPERATORS[_name] = ops.operator(_name, partial(getattr(functional, _name), rows=_rows), move)
