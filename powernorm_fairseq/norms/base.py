"""What the norms have in common: the call with a padding mask, affine parameters, running statistics."""

from typing import Any, Dict, List, Optional, Tuple, Type

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, fused
from powernorm_fairseq.norms.kernels import Rows, choose_kernel, rows_type
from powernorm_fairseq.norms.settings import LAYER_SCALES, check_at_least, check_choice, check_groups, check_positive
from powernorm_fairseq.norms.step import in_backward, step_counts
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training import Normalise, Step

# Signatures here say Optional[Tensor], not Tensor | None: TorchScript reads them on Python 3.8 as well.


class Norm(nn.Module):
    """A normalisation of the last dimension that leaves padding out.

    Padded positions come out as zero and receive a zero gradient, and nothing that stands there, NaN included, reaches
    a real token, a parameter or a statistic.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added inside every square root. Default: 1e-5
        affine: learn a factor ``weight`` and an offset ``bias`` for each feature. Default: True

    Shape: input and output :math:`(*, C)`; ``padding_mask`` the same without :math:`C`, true at padding.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        check_at_least("num_features", num_features, 1)
        check_positive("eps", eps)
        self.num_features = num_features
        self.eps = eps
        self.affine = affine
        self.register_parameter("weight", nn.Parameter(torch.ones(num_features)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_features)) if affine else None)

    def reset_parameters(self) -> None:
        """Sets the factors to one and the offsets to zero."""
        if self.affine:
            nn.init.ones_(self.weight)
            if self.bias is not None:
                nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Normalises ``x``; see the class for shapes."""
        return self._in_plain_torch(x, padding_mask)

    def _in_plain_torch(self, x: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """The whole norm in operations that autograd and TorchScript know."""
        if not torch.jit.is_scripting():
            self._check_input(x, padding_mask)
        rows = x.reshape(-1, self.num_features)
        if rows.dtype == torch.float16 or rows.dtype == torch.bfloat16:
            rows = rows.float()  # squares overflow in fp16
        if padding_mask is None:
            return self._transform(rows).to(x.dtype).view(x.shape)
        padding = padding_mask.reshape(-1, 1)
        rows = self._transform(rows.masked_fill(padding, 0.0))
        return rows.masked_fill(padding, 0.0).to(x.dtype).view(x.shape)

    def _transform(self, x: Tensor) -> Tensor:
        """Normalises the rows of ``x`` (N x C, zero at padding)."""
        raise NotImplementedError

    def _affine(self, x_hat: Tensor) -> Tensor:
        if self.weight is None:
            return x_hat
        if self.bias is None:
            return x_hat * self.weight.to(x_hat.dtype)
        return torch.addcmul(self.bias.to(x_hat.dtype), x_hat, self.weight.to(x_hat.dtype))

    def _check_input(self, x: Tensor, padding_mask: Optional[Tensor]) -> None:
        if x.dim() == 0 or x.shape[-1] != self.num_features:
            raise ValueError(f"input of shape {tuple(x.shape)}: the last dimension must be {self.num_features}")
        if not x.is_floating_point():
            raise ValueError(f"input of type {x.dtype}: it must be a floating-point type")
        if padding_mask is None:
            return
        if padding_mask.dtype != torch.bool:
            raise ValueError(f"padding_mask of type {padding_mask.dtype}: it must be torch.bool, true at padding")
        if padding_mask.shape != x.shape[:-1]:
            raise ValueError(
                f"padding_mask of shape {tuple(padding_mask.shape)}: for an input of shape {tuple(x.shape)} "
                f"it must be {tuple(x.shape[:-1])}"
            )

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"


class BatchStatisticsNorm(Norm):
    """A norm whose statistics run over the real tokens of a batch.

    In training each call sees a batch and moves the running statistics once; in evaluation the running statistics
    normalise and nothing moves. What is not a step of its own moves nothing either: the second forward of activation
    checkpointing, a stand-in batch (see :func:`powernorm_fairseq.norms.training_step`), a batch without a real token,
    and one whose statistics are not finite.

    Statistics are float32 or wider whatever the type of the model and its input, and stay so after ``.half()``.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added inside every square root. Default: 1e-5
        affine: learn a factor and an offset for each feature. Default: True
        groups: into how many slices ``layer_scale="head"`` cuts the width; it must divide the width. Default: 1
        layer_scale: divide each token by the quadratic mean of its features first: over the whole ``layer``, over each
            attention ``head`` (the ``groups``), or not at all (``none``). Default: ``none``
        sync: in training, take statistics over the tokens of all processes of ``process_group``, in the forward and in
            the backward, as if they were one batch. Without torch.distributed it changes nothing. Default: False
        process_group: the processes that ``sync`` spans; None for all.
        kernel: ``auto``, ``eager``, ``cpp`` or ``triton``, see :mod:`powernorm_fairseq.norms.kernels`; None for what
            the environment variable ``POWERNORM_KERNEL`` says. Default: None
    """

    # Names of this class's own buffers in the checkpoints of the authors' release -> ours.
    _released_names: Dict[str, str] = {}
    # The buffers that a training forward depends on and moves.
    forward_buffers: Tuple[str, ...] = ("num_updates",)
    # Class of ``fused`` that does a whole training step at once, where the input allows it; None if there is none.
    fused_step = None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 1,
        layer_scale: str = "none",
        sync: bool = False,
        process_group: Optional[Any] = None,
        kernel: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, eps, affine)
        check_groups(groups, num_features)
        check_choice("layer_scale", layer_scale, LAYER_SCALES)
        self.groups = groups
        self.layer_scale = layer_scale
        self.scale_groups = {"none": 0, "layer": 1, "head": groups}[layer_scale]
        self.sync = sync
        self.process_group = process_group
        self.kernel = choose_kernel(kernel)
        # A float, not an integer: fairseq's --ema multiplies every entry of the state by its decay.
        self.register_buffer("num_updates", torch.zeros(()))
        self._before_forward: Dict[str, Tensor] = {}

    def forward(self, x: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Normalises ``x``; see the class for shapes."""
        if torch.jit.is_scripting():
            return self._in_plain_torch(x, padding_mask)
        else:  # TorchScript does not look in here
            return self._forward(x, padding_mask)

    @torch.jit.unused
    def _forward(self, x: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        training = self.training
        if not training and torch.is_grad_enabled():  # a gradient through fixed statistics is autograd's work
            return self._in_plain_torch(x, padding_mask)
        if fused.serves(self, x, padding_mask):
            if not training:
                return fused.evaluate(self, x, padding_mask)
            if self.fused_step is not None and not (self.sync and Pool(True, self.process_group).spans_processes):
                step = self.fused_step(self, padding_mask)
                return Normalise.apply(x.contiguous(), self._parameters["weight"], self._parameters["bias"], step)
        self._check_input(x, padding_mask)
        rows = x.reshape(-1, self.num_features)
        padding = None if padding_mask is None else padding_mask.reshape(-1)
        y = self._train(rows, padding) if self.training else self._evaluate(rows, padding)
        return y.view(x.shape)

    def _transform(self, x: Tensor) -> Tensor:
        if self.scale_groups > 0:
            x = functional.layer_scale(x, self.scale_groups, self.eps)
        mean, power = self._running_statistics()
        scale = torch.rsqrt(power.to(x.dtype) + self.eps)
        if self.weight is not None:
            scale = scale * self.weight.to(x.dtype)
        if mean is not None:
            x = x - mean.to(x.dtype)
        if self.bias is None:
            return x * scale
        return torch.addcmul(self.bias.to(x.dtype), x, scale)

    @torch.jit.unused
    def _evaluate(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        rows = self.rows(x, padding)
        mean, power = self._running_statistics()
        scale = torch.rsqrt(power.to(rows.dtype) + self.eps)
        if self.weight is not None:
            scale = scale * self.weight.to(rows.dtype)
        shift = torch.zeros_like(scale) if self.bias is None else self.bias.to(rows.dtype)
        return rows.affine(scale, shift if mean is None else torch.addcmul(shift, mean.to(rows.dtype), scale, value=-1))

    @torch.jit.unused
    def rows(self, x: Tensor, padding: Optional[Tensor], scales: Optional[Tensor] = None) -> Rows:
        """The input ``x`` (N x C) as rows of the implementation that serves it."""
        return rows_type(self.kernel, x)(x, padding, self.scale_groups, self.eps, scales)

    def _running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """Mean (if the norm centres) and squared divisor that evaluation uses."""
        raise NotImplementedError

    @torch.jit.unused
    def _step_type(self, x: Tensor, pool: Pool) -> Type[Step]:
        """What a training step on ``x`` does."""
        raise NotImplementedError

    @torch.jit.unused
    def _train(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        pool = Pool(self.sync, self.process_group)
        counts = step_counts()
        if not counts and pool.spans_processes:
            # The other processes wait in the collectives, and may have tokens: take part without any.
            return torch.zeros_like(x) + self._take_step(x[:0], None, pool, True).sum()
        return self._take_step(x, padding, pool, counts)

    @torch.jit.unused
    def _take_step(self, x: Tensor, padding: Optional[Tensor], pool: Pool, counts: bool) -> Tensor:
        old = self._before_forward if in_backward() else None
        step = self._step_type(x, pool)(self, x, padding, pool, counts, old)
        self.__dict__["_before_forward"] = step.old
        return Normalise.apply(x, self.weight, self.bias, step)

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        self.num_updates.zero_()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "BatchStatisticsNorm":
        before = dict(self._buffers)
        super()._apply(fn, *args, **kwargs)
        for name, buffer in before.items():
            if self._buffers[name].dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = buffer.to(self._buffers[name].device)
        self._before_forward = {}
        return self

    def _load_from_state_dict(
        self,
        state_dict: Dict[str, Tensor],
        prefix: str,
        local_metadata: Dict[str, Any],
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        for released, ours in self._released_names.items():
            if prefix + released in state_dict:
                value = self._from_release(released, state_dict.pop(prefix + released))
                state_dict[prefix + ours] = value.reshape(self._buffers[ours].shape)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _from_release(self, name: str, value: Tensor) -> Tensor:
        """The released buffer ``name`` in this norm's units."""
        return value

    def extra_repr(self) -> str:
        """Every setting, for ``print(model)``."""
        return (
            f"{super().extra_repr()}, groups={self.groups}, layer_scale={self.layer_scale!r}, sync={self.sync}, "
            f"kernel={self.kernel!r}"
        )
