"""PN as the authors' release computes it, where that differs from the paper.

The input gradient is divided by the batch's psi, also after the warm-up; padding takes part in Gamma and Lambda, with
zeros for what is not finite there; and in the warm-up the running step comes on top of the plain average. The functions
have the form of those in :mod:`.functional`.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms import functional
from powernorm_fairseq.norms.functional import Forward, MaybeTensor, Tokens, affine, mean, times_gamma, tokens_of


def _all_positions(x: Tensor, padding: MaybeTensor, groups: int, eps: float) -> Tokens:
    """Every row, padding included."""
    if padding is not None:
        x = torch.where(padding.unsqueeze(-1), torch.nan_to_num(x, 0.0, 0.0, 0.0), x)
    return tokens_of(x, None, groups, eps)


def released_statistics(x: Tensor, padding: MaybeTensor, groups: int, eps: float, centred: bool = False) -> Tensor:
    """Sum of s^2 and number of tokens; then the same of all positions."""
    real = functional.statistics(x, padding, groups, eps, False)
    rows = _all_positions(x, padding, groups, eps)
    return torch.cat([real, rows.s.square().sum(0), rows.count.view(1)])


def released_power_forward(
    x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, beta: MaybeTensor,
    alpha: float, warmup: int, running_psi2: Tensor, num_updates: Tensor, given: Optional[Tensor],
) -> Forward:
    """Algorithm 2, forward, with both steps of psi^2 in the warm-up."""
    if given is None:
        given = released_statistics(x, padding, groups, eps)
    width = x.shape[-1]
    squares, count, all_squares, all_count = given.split([width, 1, width, 1])
    batch_psi2, old_psi2, t = mean(squares, count), running_psi2.to(squares.dtype), num_updates + 1
    psi = torch.sqrt(torch.where(t <= warmup, batch_psi2, old_psi2) + eps)
    tokens = tokens_of(x, padding, groups, eps)
    y = functional.output(affine(tokens.s / psi, gamma, beta), tokens, x)
    average = torch.where(t < warmup, torch.lerp(old_psi2, batch_psi2, 1 / t.to(psi.dtype)), old_psi2)
    new_psi2 = torch.lerp(average, batch_psi2, 1 - alpha)
    columns = torch.cat([1 / psi, mean(all_squares, all_count), all_count, torch.rsqrt(batch_psi2 + eps), count])
    return y, columns, tokens.scales, [new_psi2], count


def released_power_backward(
    dy: Tensor, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor, alpha: float,
    loss_scale: MaybeTensor, columns: Tensor, scales: Tensor, nu: Tensor,
) -> Tuple[Tensor, Tensor, List[Tensor], Tensor]:
    """Algorithm 2, backward, over all positions and with the batch's psi."""
    width, rows = x.shape[-1], _all_positions(x, padding, groups, eps)
    rstd, _, _, batch_rstd, count = columns.split([width, width, 1, width, 1])
    dy = tokens_of(dy, None).s
    x_hat, scaled_nu = rows.s * rstd, nu.to(rstd.dtype) if loss_scale is None else nu * loss_scale
    dx = (times_gamma(dy, gamma) - scaled_nu * x_hat) * batch_rstd
    of_gamma = (dy * x_hat).sum(0)
    new_nu = functional.next_nu(nu, gamma, of_gamma, columns, alpha, loss_scale)
    dx = functional.output(functional.layer_scale_backward(dx, rows), rows, x)
    return dx, torch.stack([of_gamma, dy.sum(0), nu.to(rstd.dtype)]), [new_nu], count
