"""The steps of BN, PN-V and PN as one C++ operator for each direction (``kernels/operators.cpp``).

They do what ``batch_norm.BatchStep`` and ``power_norm._PowerStep`` say, where nothing has to happen in between: in one
process, on input that the C++ kernels serve.
"""

from typing import Any, Dict, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels import rows_type
from powernorm_fairseq.norms.kernels.cpp import CppRows, empty, ops
from powernorm_fairseq.norms.step import loss_scale
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Step


def serves(norm: Any, x: Tensor, pool: Pool) -> bool:
    """Whether these steps can do the work of ``norm`` on ``x``."""
    fused = rows_type(norm.kernel, x) is CppRows and not pool.spans_processes
    return fused and norm.num_updates.dtype == torch.float32


class _FusedStep(Step):
    """The operators read and move the buffers themselves."""

    def remember(self, x: Tensor) -> Dict[str, Tensor]:
        """Room for what the operator of the forward writes there of the buffers, if it depends on any."""
        return {}

    def move(self) -> None:
        """Nothing: the operator of the forward has done it."""


class FusedBatchStep(_FusedStep):
    """BN and PN-V."""

    def forward(self, rows: CppRows, gamma: Tensor, beta: Tensor) -> Tensor:
        """The output; moves the running statistics."""
        norm, (mean, power) = self.norm, self.norm._running_statistics()
        self.centred = mean is not None
        new_weight = norm.momentum if self.centred else 1 - norm.alpha_fwd
        spread_over_all = self.centred and norm.recipe == "release"
        y, self.columns = torch.empty_like(rows.x), empty(2 * rows.x.shape[1] + 2)
        settings = (gamma, beta, self.centred, spread_over_all, new_weight, mean, power, norm.num_updates, self.moves)
        ops.batch_forward(rows.x, rows.padding, rows.scales, rows.eps, *settings, y, self.columns)
        return y

    def backward(self, rows: CppRows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The lemmas."""
        dx, grads = torch.empty_like(rows.x), empty(2, rows.x.shape[1])
        settings = (gamma, self.centred, self.columns)
        ops.batch_backward(dy.contiguous(), rows.x, rows.padding, rows.scales, rows.eps, *settings, dx, grads)
        return (dx, *grads.unbind())


class FusedPowerStep(_FusedStep):
    """PN, Algorithm 2."""

    def remember(self, x: Tensor) -> Dict[str, Tensor]:
        """psi^2 and the number of updates."""
        return {"before": empty(x.shape[1] + 1)}

    def forward(self, rows: CppRows, gamma: Tensor, beta: Tensor) -> Tensor:
        """The output; moves psi^2."""
        norm = self.norm
        y, self.columns = torch.empty_like(rows.x), empty(2 * rows.x.shape[1] + 1)
        settings = (gamma, beta, norm.alpha_fwd, norm.warmup_updates, norm.running_psi2, norm.num_updates)
        flags = (self.old["before"], self.again, self.moves)
        ops.power_forward(rows.x, rows.padding, rows.scales, rows.eps, *settings, *flags, y, self.columns)
        return y

    def backward(self, rows: CppRows, dy: Tensor, gamma: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The gradients; moves nu."""
        norm = self.norm
        dx, grads = torch.empty_like(rows.x), empty(2, rows.x.shape[1])
        settings = (gamma, norm.alpha_bwd, float(loss_scale()), self.columns, norm.nu, self.counts)
        ops.power_backward(dy.contiguous(), rows.x, rows.padding, rows.scales, rows.eps, *settings, dx, grads)
        return (dx, *grads.unbind())
