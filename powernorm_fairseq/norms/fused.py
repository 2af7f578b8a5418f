"""The steps of BN, PN-V and PN as one C++ operator for each direction (``kernels/operators.cpp``).

They do what ``batch_norm.BatchStep`` and ``power_norm._PowerStep`` say, where nothing has to happen in between: in one
process, on input that the C++ kernels serve. As little Python as can be: between two large matrices it is cold, and
takes as long as the arithmetic of a narrow layer.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from powernorm_fairseq.norms.kernels import cpp
from powernorm_fairseq.norms.step import in_backward, loss_scale, step_counts

Saved = Tuple[Optional[Tensor], ...]
_evaluate = cpp.operator("evaluate")
_batch_forward, _batch_backward = cpp.operator("batch_forward"), cpp.operator("batch_backward")
_power_forward, _power_backward = cpp.operator("power_forward"), cpp.operator("power_backward")


def serves(norm: Any, x: Tensor, padding: Optional[Tensor]) -> bool:
    """Whether these operators can do the work of ``norm`` on ``x``; bad input is left to the others."""
    weight, bias = norm._parameters["weight"], norm._parameters["bias"]  # norm.weight goes through Module.__getattr__
    return (
        cpp.UNUSABLE is None
        and norm.kernel in ("auto", "cpp")
        and x.is_cpu
        and x.dtype in cpp.TYPES
        and x.shape[-1:] == (norm.num_features,)
        and (padding is None or (padding.dtype == torch.bool and padding.shape == x.shape[:-1]))
        and weight is not None
        and weight.dtype in cpp.TYPES
        and weight.is_contiguous()
        and bias.is_contiguous()
        and norm._buffers["num_updates"].dtype == torch.float32
    )


def evaluate(norm: Any, x: Tensor, padding: Optional[Tensor]) -> Tensor:
    """The output of ``norm`` by its running statistics; no gradient flows."""
    mean, power = norm._running_statistics()
    settings = (norm.scale_groups, norm.eps, norm.weight, norm.bias)
    return _evaluate(x.contiguous(), padding, *settings, mean, power)


class FusedBatchStep:
    """BN and PN-V.

    Args:
        norm: the layer.
        padding: as the layer's.
    """

    def __init__(self, norm: Any, padding: Optional[Tensor]) -> None:
        self.norm = norm
        self.padding = padding
        self.counts = step_counts()
        # In activation checkpointing, what the same forward left: it moves nothing for the second time.
        self.old = norm._before_forward if in_backward() else None

    def run(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Saved]:
        """The output; moves the running statistics."""
        norm, (mean, power) = self.norm, self.norm._running_statistics()
        self.centred = mean is not None
        new_weight = norm.momentum if self.centred else 1 - norm.alpha_fwd
        settings = (norm.scale_groups, norm.eps, weight, bias, new_weight, self.centred and norm.recipe == "release")
        moves = self.counts and self.old is None
        state = (mean, power, norm._buffers["num_updates"], moves)
        y, work = _batch_forward(x, self.padding, *settings, *state)
        norm.__dict__["_before_forward"] = {}
        return y, (x, weight, self.padding, work)

    def run_backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, padding: Optional[Tensor], work: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """The lemmas."""
        groups = self.norm.scale_groups
        return _batch_backward(dy.contiguous(), x, padding, groups, weight, self.centred, work)


class FusedPowerStep(FusedBatchStep):
    """PN, Algorithm 2."""

    def run(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Tensor, Saved]:
        """The output; moves psi^2."""
        norm, buffers = self.norm, self.norm._buffers
        before = None if self.old is None else self.old["work"]
        settings = (norm.scale_groups, norm.eps, weight, bias, norm.alpha_fwd, norm.warmup_updates)
        state = (buffers["running_psi2"], buffers["num_updates"], before, self.counts and before is None)
        y, work = _power_forward(x, self.padding, *settings, *state)
        norm.__dict__["_before_forward"] = {"work": work}
        return y, (x, weight, self.padding, work)

    def run_backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, padding: Optional[Tensor], work: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """The gradients; moves nu."""
        norm = self.norm
        settings = (norm.scale_groups, weight, norm.alpha_bwd, float(loss_scale()))
        return _power_backward(dy.contiguous(), x, padding, *settings, work, norm._buffers["nu"], self.counts)
