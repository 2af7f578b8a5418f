r"""The norms as stateless functions of tensors, in plain torch.

This is the file to read: each algorithm stands here once, in the order of the paper, and every faster implementation
equals it. It also runs where nothing faster does, on any device and in any floating-point type.

Notation. ``x`` has the shape (..., C); a *token* is one row of it. ``padding`` (...) is true at padding: such rows
count in no sum, and come out as zero. ``s`` is a token after layer-scale. Statistics are float32, or float64 where the
input is. Vectors with C elements are called columns. A forward returns

- ``y``, the output, in the type of ``x``;
- ``columns`` and ``scales``, what the backward needs beside ``x``: some columns in one flat tensor, and the factors of
  the layer-scale (N x groups);
- the new values of the running statistics, and the number of tokens they are made from.

A backward returns the gradients of ``x``, ``gamma`` and ``beta``. ``given`` holds sums that were taken over several
processes, in the form of :func:`statistics` or :func:`gradient_sums`. ``rows`` makes the batch, :class:`Tokens` or what
passes over rows in another way: :mod:`.kernels.triton_ops` has the same algorithms over rows of its own.
"""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

MaybeTensor = Optional[Tensor]
Forward = Tuple[Tensor, Tensor, Tensor, List[Tensor], Tensor]
Gradients = Tuple[Tensor, Tensor, Tensor]


class Tokens(NamedTuple):
    """The rows of a batch, and all that a batch norm does with rows; the rest concerns columns."""

    x: Tensor
    s: Tensor  # N x C, after layer-scale; zero at padding
    scales: Tensor  # N x groups, the factors of the layer-scale
    padding: MaybeTensor  # N x 1
    count: Tensor  # type: ignore[assignment]  # number of real tokens; it never leaves its device

    @property
    def rows(self) -> int:
        """The number of all positions."""
        return self.s.shape[0]

    def quadratic_mean(self) -> Tuple[Tensor, Tensor]:
        """psi_B^2 and the number of tokens."""
        return mean_square(self.s, self.count), self.count.view(1)

    def moments(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the batch, and the number of tokens."""
        centre = mean(self.s.sum(0), self.count)
        deviations = self.s - centre
        if self.padding is not None:
            deviations = deviations.masked_fill(self.padding, 0.0)
        return centre, mean_square(deviations, self.count), self.count.view(1)

    def normalised(self, centre: MaybeTensor, std: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
        """gamma * (s - centre) / std + beta."""
        x_hat = (self.s if centre is None else self.s - centre) / std
        return output(affine(x_hat, gamma, beta), self, self.x)

    def gradient_sums(self, dy: Tensor, centre: MaybeTensor) -> Tuple[Tensor, Tensor]:
        """Sums of dy * (s - centre) and of dy."""
        s, dy = self.s if centre is None else self.s - centre, self._of(dy)
        return (dy * s).sum(0), dy.sum(0)

    def gradient(
        self, dy: Tensor, centre: MaybeTensor, g: MaybeTensor, rstd: Tensor, slope: Tensor, offset: MaybeTensor = None
    ) -> Tensor:
        """The gradient of x from dL/ds = (g * dy - slope * (s - centre) * rstd - offset) * rstd."""
        s = self.s if centre is None else self.s - centre
        ds = times_gamma(self._of(dy), g) - slope * s * rstd
        ds = (ds if offset is None else ds - offset) * rstd
        return output(layer_scale_backward(ds, self), self, self.x)

    def _of(self, dy: Tensor) -> Tensor:
        """A gradient as rows, zero at padding."""
        rows = dy.reshape(self.s.shape).to(self.s.dtype)
        return rows if self.padding is None else rows.masked_fill(self.padding, 0.0)


def statistics_type(dtype: torch.dtype) -> torch.dtype:
    """The type of statistics of input of type ``dtype``: float32 or wider."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def slices(rows: Tensor, groups: int) -> Tensor:
    """Rows (N x C) cut into ``groups`` slices each (N x groups x C / groups)."""
    return rows.reshape(rows.shape[0], groups, rows.shape[1] // groups)


def layer_scale(x: Tensor, groups: int, eps: float) -> Tuple[Tensor, Tensor]:
    """Divides each row of ``x`` (N x C) by the quadratic mean of its features, over each of ``groups`` slices.

    Returns the rows, and the factors (N x groups). No groups leave the rows as they are.
    """
    if groups == 0:
        return x, x.new_empty(0)
    sliced = slices(x, groups)  # N x G x C/G
    scales = torch.rsqrt(sliced.square().mean(2, keepdim=True) + eps)
    return (sliced * scales).flatten(1), scales.squeeze(2)


def layer_scale_backward(ds: Tensor, tokens: Tokens) -> Tensor:
    """The gradient of the input of layer-scale from that of its output."""
    if tokens.scales.numel() == 0:
        return ds
    groups = tokens.scales.shape[1]
    ds, s = slices(ds, groups), slices(tokens.s, groups)
    # The part of ds along s would change the quadratic mean, which is fixed.
    return ((ds - s * (ds * s).mean(2, keepdim=True)) * tokens.scales.unsqueeze(2)).flatten(1)


def tokens_of(
    x: Tensor, padding: MaybeTensor, groups: int = 0, eps: float = 0.0, scales: MaybeTensor = None
) -> Tokens:
    """The rows of ``x`` after layer-scale, blank at padding. The ``scales`` of an earlier pass are not needed here."""
    rows = x.reshape(-1, x.shape[-1]).to(statistics_type(x.dtype))
    if padding is None:
        count = torch.full((), rows.shape[0], dtype=rows.dtype, device=rows.device)
        return Tokens(x, *layer_scale(rows, groups, eps), None, count)
    padding = padding.reshape(-1, 1)
    rows = rows.masked_fill(padding, 0.0)
    return Tokens(x, *layer_scale(rows, groups, eps), padding, (~padding).sum().to(rows.dtype))


def output(rows: Tensor, tokens: Tokens, x: Tensor) -> Tensor:
    """``rows`` (N x C) in the shape and type of ``x``, zero at padding."""
    if tokens.padding is not None:
        rows = rows.masked_fill(tokens.padding, 0.0)
    return rows.to(x.dtype).view(x.shape)


def affine(x_hat: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
    """Scale and shift, where there is anything to scale and shift by."""
    if gamma is not None:
        x_hat = x_hat * gamma.to(x_hat.dtype)
    return x_hat if beta is None else x_hat + beta.to(x_hat.dtype)


def times_gamma(dy: Tensor, gamma: MaybeTensor) -> Tensor:
    """G = dL/dX^ = gamma * dL/dY."""
    return dy if gamma is None else dy * gamma.to(dy.dtype)


def mean(total: Tensor, count: Tensor) -> Tensor:
    """A sum divided by ``count``; zero where there is nothing to measure."""
    return total / count.clamp(min=1)


def mean_square(rows: Tensor, count: Tensor) -> Tensor:
    """Squares are divided before they are added up: as a sum, those of large numbers overflow."""
    return (rows.square() / count.clamp(min=1)).sum(0)


def statistics(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, centred: bool, rows: Any = tokens_of
) -> Tensor:
    """What the batch says, as one flat tensor that can be added up over processes.

    Sum of s^2 and number of tokens; or, ``centred``, mean, sum of the squared deviations from it, number of tokens,
    number of rows.
    """
    tokens = rows(x, padding, groups, eps)
    if not centred:
        psi2, count = tokens.quadratic_mean()
        return torch.cat([psi2 * count, count])
    centre, variance, count = tokens.moments()
    return torch.cat([centre, variance * count, count, torch.full_like(count, tokens.rows)])


def of_batch(tokens: Tokens, given: MaybeTensor) -> Tuple[Tensor, Tensor]:
    """psi_B^2 and the number of tokens: of these, or of those of all processes."""
    return tokens.quadratic_mean() if given is None else (mean(given[:-1], given[-1:]), given[-1:])


def gradient_sums(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, centre: MaybeTensor, rows: Any = tokens_of
) -> Tensor:
    """Sums of dy * (s - centre) and of dy, as one flat tensor."""
    return torch.cat(rows(x, padding, groups, eps).gradient_sums(dy, centre))


# ---------------------------------------------------------------- evaluation


def evaluate(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    centre: MaybeTensor, power: MaybeTensor,
) -> Tensor:
    """Any batch norm by its running statistics: (s - centre) / sqrt(power + eps), scaled and shifted.

    Without ``power`` nothing is divided.
    """
    tokens = tokens_of(x, padding, groups, eps)
    s = tokens.s if centre is None else tokens.s - centre.to(tokens.s.dtype)
    if power is not None:
        s = s * torch.rsqrt(power.to(s.dtype) + eps)
    return output(affine(s, gamma, beta), tokens, x)


# ---------------------------------------------------------------- Algorithm 1: BN, and PN-V


def batch_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    momentum: float, released: bool, warmup: int, rise: int,
    running_mean: MaybeTensor, running_power: Tensor, num_updates: Tensor, given: MaybeTensor, rows: Any = tokens_of,
) -> Forward:
    """BN (Algorithm 1, forward); PN-V without ``running_mean``; BRN where ``rise`` is not negative.

    ``released`` divides the squares by the number of all rows, padding included.
    """
    tokens = rows(x, padding, groups, eps)
    if running_mean is None:
        centre, (power, count) = None, of_batch(tokens, given)
        spread = count
    elif given is None:
        centre, power, count = tokens.moments()  # lines 1 and 2: the batch's mean and variance
        spread = torch.full_like(count, tokens.rows)
    else:
        centre, squares, count, spread = given.split([x.shape[-1], x.shape[-1], 1, 1])
        power = mean(squares, count)
    if released:
        power = power * count / spread.clamp(min=1)
    else:
        spread = count
    std = torch.sqrt(power + eps)
    r, d = torch.ones_like(std), torch.zeros_like(std)
    if rise >= 0:
        assert centre is not None and running_mean is not None  # BRN centres
        r, d = _renormalisation(centre, std, running_mean, running_power, num_updates + 1, warmup, rise, eps)
        gamma, beta = times_gamma(r, gamma), affine(d, gamma, beta)
    y = tokens.normalised(centre, std, gamma, beta)  # lines 3 and 4: normalise, then scale and shift
    new = [torch.lerp(running_power.to(power.dtype), power, momentum)]  # line 6: update the running variance
    if running_mean is not None and centre is not None:
        new.insert(0, torch.lerp(running_mean.to(power.dtype), centre, momentum))  # line 5: update the running mean
    columns = torch.cat([torch.zeros_like(std) if centre is None else centre, 1 / std, r, d, count, spread])
    return y, columns, tokens.scales, new, count


def batch_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, centred: bool,
    columns: Tensor, scales: Tensor, given: MaybeTensor, extra: MaybeTensor = None, rows: Any = tokens_of,
) -> Gradients:
    """The lemmas on the gradients of BN and, without ``centred``, of PN-V.

    ``extra`` adds a gradient of the batch's statistics: its first columns to dL/ds, its second times (s - centre).
    """
    tokens, width = rows(x, padding, groups, eps, scales), x.shape[-1]
    middle, rstd, r, d, count, spread = columns.split([width] * 4 + [1, 1])
    centre = middle if centred else None
    own_products, own_total = tokens.gradient_sums(dy, centre)
    products, total = (own_products, own_total) if given is None else given.split(width)
    g = times_gamma(r, gamma)
    slope = mean(g * products * rstd, spread)  # mean of G * X^
    offset = mean(g * total, count) if centred else None  # mean of G
    if extra is not None and offset is not None:
        slope, offset = slope - extra[width:] / rstd.square(), offset - extra[:width] / rstd
    dx = tokens.gradient(dy, centre, g, rstd, slope, offset)
    return dx, own_products * rstd * r + own_total * d, own_total


def _renormalisation(
    centre: Tensor, std: Tensor, running_mean: Tensor, running_var: Tensor, t: Tensor, warmup: int, rise: int,
    eps: float,
) -> Tuple[Tensor, Tensor]:
    """BRN's r and d at step ``t``, within limits that rise from (1, 0) after the warm-up to (3, 5)."""
    risen = ((t - warmup).to(std.dtype) / max(rise, 1)).clamp(0, 1)
    r_max, d_max = 1 + 2 * risen, 5 * risen
    running_std = torch.sqrt(running_var.to(std.dtype) + eps)
    r = torch.minimum(torch.maximum(std / running_std, 1 / r_max), r_max)
    d = torch.minimum(torch.maximum((centre - running_mean.to(std.dtype)) / running_std, -d_max), d_max)
    return r, d


# ---------------------------------------------------------------- Algorithm 2: PN


def power_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    alpha: float, warmup: int, running_psi2: Tensor, num_updates: Tensor, given: MaybeTensor,
) -> Forward:
    """PN (Algorithm 2, forward). In the warm-up the batch's psi takes the place of the running one."""
    tokens = tokens_of(x, padding, groups, eps)
    batch_psi2, count = of_batch(tokens, given)  # line 1: the batch's statistics
    old_psi2, t = running_psi2.to(batch_psi2.dtype), num_updates + 1
    psi = torch.sqrt(torch.where(t <= warmup, batch_psi2, old_psi2) + eps)
    x_hat = tokens.s / psi  # line 2: normalise by the psi of the step before
    y = affine(x_hat, gamma, beta)  # line 3: scale and shift
    t = t.to(psi.dtype)  # line 4: psi^2 is the plain average of the warm-up's batches, then a running one
    new_psi2 = torch.lerp(old_psi2, batch_psi2, torch.where(t <= warmup, 1 / t, torch.full_like(t, 1 - alpha)))
    return output(y, tokens, x), torch.cat([1 / psi, batch_psi2, count]), tokens.scales, [new_psi2], count


def power_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, alpha: float,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, nu: Tensor,
) -> Tuple[Tensor, Tensor, List[Tensor], Tensor]:
    """PN (Algorithm 2, backward): the gradient of X, then, as rows, those of gamma and beta and the nu that was used.

    The new nu comes behind them, and the number of tokens.
    """
    tokens, dy = tokens_of(x, padding, groups, eps), tokens_of(dy, padding).s
    rstd = columns[: x.shape[-1]]
    x_hat, scaled_nu = tokens.s * rstd, nu.to(rstd.dtype) if loss_scale is None else nu * loss_scale
    g = times_gamma(dy, gamma)  # line 1: the intermediate gradient
    estimate = g - scaled_nu * x_hat  # line 2: the intermediate estimated gradient
    dx = estimate * rstd  # line 3: the gradient of X
    of_gamma = (dy * x_hat).sum(0)
    new_nu = next_nu(nu, gamma, of_gamma, columns, alpha, loss_scale)  # line 4: update nu
    found = torch.stack([of_gamma, dy.sum(0), nu.to(rstd.dtype)])
    return output(layer_scale_backward(dx, tokens), tokens, x), found, [new_nu], columns[-1:]


def next_nu(
    nu: Tensor, gamma: MaybeTensor, of_gamma: Tensor, columns: Tensor, alpha: float, loss_scale: MaybeTensor
) -> Tensor:
    """nu (1 - (1 - alpha) Gamma) + (1 - alpha) Lambda, from the sums of all processes."""
    rstd, batch_psi2, count = columns[: 2 * nu.numel() + 1].split([nu.numel(), nu.numel(), 1])
    big_gamma = batch_psi2 * rstd.square()  # mean of X^ * X^
    big_lambda = mean(times_gamma(of_gamma, gamma), count)  # mean of G * X^
    if loss_scale is not None:
        big_lambda = big_lambda / loss_scale
    return nu.to(rstd.dtype) * (1 - (1 - alpha) * big_gamma) + (1 - alpha) * big_lambda


# ---------------------------------------------------------------- MABN


def window_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    momentum: float, warmup: int, running_chi2: Tensor, psi2_window: Tensor, num_updates: Tensor, given: MaybeTensor,
    rows: Any = tokens_of,
) -> Forward:
    """MABN: z = s / chi, y = gamma * r * z + beta, where chi^2 is the mean of the latest batches' psi_B^2."""
    tokens, window = rows(x, padding, groups, eps), psi2_window.shape[0]
    (batch_psi2, count), t = of_batch(tokens, given), num_updates + 1
    slot = (torch.arange(window, device=x.device) == (t - 1) % window).unsqueeze(1)  # m x 1
    new_window = torch.where(slot, batch_psi2, psi2_window.to(batch_psi2.dtype))
    own = t <= max(warmup, window)  # too few batches for a window
    chi2 = torch.where(own, batch_psi2, new_window.mean(0))
    chi, old = torch.sqrt(chi2 + eps), running_chi2.to(chi2.dtype)
    r = torch.where(t <= warmup, torch.ones_like(chi), (chi / torch.sqrt(old + eps)).clamp(1 / 5, 5))
    new_chi2 = torch.lerp(old, chi2, momentum)
    y = tokens.normalised(None, chi, times_gamma(r, gamma), beta)
    facts = torch.stack([own.to(chi.dtype), ((t - 1) % window).to(chi.dtype)])
    return y, torch.cat([1 / chi, r, facts, count]), tokens.scales, [new_chi2, new_window], count


def window_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, given: MaybeTensor, grad_window: Tensor,
    rows: Any = tokens_of,
) -> Tuple[Tensor, Tensor, Tensor, List[Tensor], Tensor]:
    """MABN: dL/dX = (G - z * mean of the latest batches' mean(G * z)) / chi with G = r * gamma * dy."""
    tokens, width = rows(x, padding, groups, eps, scales), x.shape[-1]
    rchi, r, own, slot, count = columns.split([width, width, 1, 1, 1])
    own_products, own_total = tokens.gradient_sums(dy, None)
    products = own_products if given is None else given[:width]
    g, scale = times_gamma(r, gamma), 1.0 if loss_scale is None else loss_scale
    batch_mean = mean(g * products * rchi, count)
    slots = torch.arange(grad_window.shape[0], device=x.device).unsqueeze(1)
    new_window = torch.where(slots == slot, batch_mean / scale, grad_window.to(rchi.dtype))
    used = torch.where(own > 0, batch_mean, new_window.mean(0) * scale)
    dx = tokens.gradient(dy, None, g, rchi, used)
    return dx, own_products * r * rchi, own_total, [new_window], count


# ---------------------------------------------------------------- LN, RMS, GN: norms of each token by itself


def token_norm(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor, centred: bool
) -> Tensor:
    """Unit variance, or unit quadratic mean without ``centred``, for each of ``groups`` slices of a token."""
    tokens = tokens_of(x, padding)
    sliced = slices(tokens.s, groups)  # N x G x C/G
    if centred:
        sliced = torch.nn.functional.layer_norm(sliced, sliced.shape[2:], None, None, eps)
    else:
        sliced = sliced * torch.rsqrt(sliced.square().mean(2, keepdim=True) + eps)
    return output(affine(sliced.flatten(1), gamma, beta), tokens, x)
