"""What the norms have in common: the call with a padding mask, affine parameters, running statistics."""

import inspect
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms import functional, ops
from powernorm_fairseq.norms.context import Call, announced_padding, begin_call, loss_scale, step_counts
from powernorm_fairseq.norms.kernels import choose_kernel
from powernorm_fairseq.norms.settings import check_groups, check_settings
from powernorm_fairseq.norms.sync import Pool, pool_of


class Epsilon(float):
    """A number that equals nothing, itself included.

    ``nn.TransformerEncoderLayer`` compares the ``eps`` of its two norms, and where they are equal it evaluates both as
    LayerNorm, whatever they are. This keeps it from doing so. ``float(norm.eps)`` is an ordinary number.
    """

    def __eq__(self, other: Any) -> bool:
        return False

    def __ne__(self, other: Any) -> bool:
        return True

    __hash__ = float.__hash__


class Norm(nn.Module):
    """A normalisation of the last dimension that leaves padding out.

    Padded positions come out as zero and receive a zero gradient, and nothing that stands there, NaN included, reaches
    a real token, a parameter or a statistic.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps: added inside every square root. Default: 1e-5
        affine: learn a factor ``weight`` and an offset ``bias`` for each feature. Default: True
        bias: whether there is an offset, if ``affine``. Default: True
        kernel: ``auto``, ``eager``, ``cpp`` or ``triton``, see :mod:`powernorm_fairseq.norms.kernels`; None for what
            the environment variable ``POWERNORM_KERNEL`` says. Default: None
        device, dtype: of the parameters; statistics are float32 or wider.

    Shape: input and output :math:`(*, C)`; ``padding_mask`` the same without :math:`C`, true at padding. Where none is
    given, that of :func:`powernorm_fairseq.norms.padding` is used, if there is one.
    """

    weight: Optional[nn.Parameter]
    bias: Optional[nn.Parameter]
    if TYPE_CHECKING:  # the settings, which _set makes attributes

        def __getattr__(self, name: str) -> Any:
            """Any setting, parameter or buffer."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        kernel: Optional[str] = None,
        device: Optional[Any] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self._set(num_features=num_features, eps=eps, affine=affine, kernel=choose_kernel(kernel))
        self._starts: Dict[str, float] = {}  # of the parameters
        like = torch.empty(0, device=device, dtype=dtype)
        self._make("weight", num_features, 1.0, like if affine else None)
        self._make("bias", num_features, 0.0, like if affine and bias else None)

    def _make(self, name: str, size: int, start: float, like: Optional[Tensor]) -> None:
        """Makes a parameter that starts as ``start`` throughout; None if there is nothing that it could be like."""
        self._starts[name] = start
        self.register_parameter(name, None if like is None else nn.Parameter(like.new_full((size,), start)))

    def _set(self, **settings: Any) -> None:
        """Checks settings and keeps each as an attribute."""
        check_settings(settings)
        for name, value in settings.items():
            setattr(self, name, value)

    @classmethod
    def options(cls) -> List[str]:
        """The names of all settings, beside the width: what the constructors of the class and its bases take."""
        found: List[str] = []
        for kind in cls.__mro__:
            parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
            found += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in found]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
        return [option for option in found if option not in ("self", "num_features")]

    @property
    def eps(self) -> float:
        """Added inside every square root; see :class:`Epsilon`."""
        return self._epsilon

    @eps.setter
    def eps(self, value: float) -> None:
        self._eps, self._epsilon = float(value), Epsilon(value)

    def reset_parameters(self) -> None:
        """Sets every parameter to where it starts: factors to one, offsets to zero."""
        for name, start in self._starts.items():
            parameter = getattr(self, name)
            if parameter is not None:
                nn.init.constant_(parameter, start)

    def forward_state(self) -> Dict[str, Tensor]:
        """The running statistics that a forward depends on and moves."""
        return {}

    def forward(self, x: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Normalises ``x``; see the class for shapes."""
        if torch.jit.is_scripting():
            raise RuntimeError("the norms cannot be scripted; use torch.export, or torch.jit.trace in evaluation mode")
        announced = padding_mask is None
        if announced:
            padding_mask = announced_padding(x)
        self._check_input(x, padding_mask)
        if ops.compiling():
            counts, state = step_counts(), self.forward_state()
            if state:
                torch.ops.powernorm.outside_backward(state["num_updates"])
            call = Call(padding_mask, state, loss_scale(), counts, counts)
        else:
            call = begin_call(self, x, padding_mask, announced and padding_mask is not None)
        return self._normalise(x, call)

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        raise NotImplementedError

    def _affine(self) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """``weight`` and ``bias``; plain parameters without nn.Module's look-up, which makes and catches an error."""
        own = self._parameters
        weight = own["weight"] if "weight" in own else self.weight  # parametrised, pruned, sharded
        return weight, own["bias"] if "bias" in own else self.bias

    def _implementation(self, x: Tensor, statistics: Optional[Tensor] = None) -> str:
        """What serves ``x``: ``cpp``, ``triton`` or ``plain``."""
        return ops.implementation(self.kernel, x, *self._affine(), statistics)

    def _check_input(self, x: Tensor, padding_mask: Optional[Tensor]) -> None:
        if x.is_nested:
            raise ValueError("the input is nested; build nn.TransformerEncoder with enable_nested_tensor=False")
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
        hidden = ("device", "dtype", "process_group")
        values = {name: getattr(self, name) for name in self.options() if name not in hidden and hasattr(self, name)}
        values["bias"] = self.bias is not None
        return ", ".join([str(self.num_features), *(f"{name}={value!r}" for name, value in values.items())])


class BatchStatisticsNorm(Norm):
    """A norm whose statistics run over the real tokens of a batch.

    In training each call sees a batch and moves the running statistics once; in evaluation the running statistics
    normalise and nothing moves. What is not a step of its own moves nothing either: the second forward of activation
    checkpointing, a stand-in batch (see :func:`powernorm_fairseq.norms.training_step`), a batch without a real token,
    and one whose statistics are not finite.

    Statistics are float32 or wider whatever the type of the model and its input, and stay so after ``.half()``.

    Args:
        num_features: size :math:`C` of the last dimension.
        eps, affine, bias, kernel, device, dtype: see :class:`Norm`.
        groups: into how many slices ``layer_scale="head"`` cuts the width; it must divide the width. Default: 1
        layer_scale: divide each token by the quadratic mean of its features first: over the whole ``layer``, over each
            attention ``head`` (the ``groups``), or not at all (``none``). Default: ``none``
        sync: in training, take statistics over the tokens of all processes of ``process_group``, in the forward and in
            the backward, as if they were one batch. Without torch.distributed it changes nothing. Default: False
        process_group: the processes that ``sync`` spans; None for all.
    """

    num_updates: Tensor
    _buffers: Dict[str, Tensor]  # type: ignore[assignment]  # none of them is None
    # Names of this class's own buffers in the checkpoints of the authors' release -> ours.
    _released_names: Dict[str, str] = {}
    # The running statistics, and the number that each is filled with at the start.
    _statistics: Dict[str, float] = {}
    # Those that the backward moves.
    _backward_statistics: Tuple[str, ...] = ()

    def __init__(
        self,
        num_features: int,
        *,
        groups: int = 1,
        layer_scale: str = "none",
        sync: bool = False,
        process_group: Optional[Any] = None,
        **common: Any,
    ) -> None:
        super().__init__(num_features, **common)
        check_groups(groups, num_features)
        self._set(groups=groups, layer_scale=layer_scale, sync=sync, process_group=process_group)
        self.scale_groups = {"none": 0, "layer": 1, "head": groups}[layer_scale]
        self._pool: Optional[Pool] = None
        wide = functional.statistics_type(common.get("dtype") or torch.float32)
        device = common.get("device")
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64, device=device))
        for name, start in self._statistics.items():
            self.register_buffer(name, torch.full((num_features,), start, dtype=wide, device=device))

    def forward_state(self) -> Dict[str, Tensor]:
        """The running statistics that a training forward depends on and moves."""
        if not self.training:
            return {}
        buffers, late = self._buffers, self._backward_statistics
        return {name: buffer for name, buffer in buffers.items() if name not in late}

    def running_statistics(self) -> Tuple[Optional[Tensor], Tensor]:
        """Mean (if the norm centres) and squared divisor that evaluation uses."""
        raise NotImplementedError

    def linear_map(self) -> Tuple[Tensor, Tensor]:
        """Factor and offset of each feature, in float64, that evaluation applies behind the layer-scale."""
        mean, power = self.running_statistics()
        scale = (power.double() + self._eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight.double()
        offset = torch.zeros_like(scale) if self.bias is None else self.bias.double()
        return scale, offset if mean is None else offset - scale * mean.double()

    def _normalise(self, x: Tensor, call: Call) -> Tensor:
        self._settle()
        if not self.training:
            return self._evaluate(x, call.padding)
        pool = self._pool = pool_of(self.process_group) if self.sync else None
        if pool is None or call.counts:
            return self._train(x.contiguous(), call, pool)
        # A stand-in batch: the other processes wait in the collectives, and may have tokens; take part without any.
        call = call._replace(padding=None, counts=True, moves=True)
        empty = x.reshape(-1, self.num_features)[:0]
        return torch.zeros_like(x) + self._train(empty, call, pool).sum()

    def _evaluate(self, x: Tensor, padding: Optional[Tensor]) -> Tensor:
        (centre, power), (weight, bias) = self.running_statistics(), self._affine()
        kernel = ops.implementation(self.kernel, x, weight, bias, power)
        return ops.exact("evaluate", kernel, x, padding, self.scale_groups, self._eps, weight, bias, centre, power)

    def _train(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tensor:
        """A training forward on ``x``."""
        raise NotImplementedError

    def _inputs(self, x: Tensor, call: Call, pool: Optional[Pool]) -> Tuple[Any, ...]:
        """What the autograd functions of :mod:`.ops` begin with."""
        weight, bias = self._affine()
        kernel = ops.implementation(self.kernel, x, weight, bias, self.running_statistics()[1])
        how = ops.How(kernel, pool, call.moves, call.counts, self.scale_groups, self._eps)
        return x, weight, bias, call.padding, how

    def average_over(self, batches: int) -> None:
        """Makes running statistics the plain average of that many batches, the one to come included."""
        raise NotImplementedError

    def reset_running_stats(self) -> None:
        """Forgets every batch seen so far."""
        self.num_updates.zero_()
        for name, start in self._statistics.items():
            getattr(self, name).fill_(start)

    def reset_parameters(self) -> None:
        """Sets every parameter to where it starts, and forgets every batch."""
        super().reset_parameters()
        self.reset_running_stats()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "BatchStatisticsNorm":
        self._settle()
        before = dict(self._buffers)
        super()._apply(fn, *args, **kwargs)
        for name, buffer in before.items():
            if self._buffers[name].dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = buffer.to(self._buffers[name].device)
        return self

    def _settle(self) -> None:
        """Waits for sums over other processes that are under way."""
        if self._pool is not None:
            self._pool.settle()

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._settle()
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *others: Any) -> None:
        self._settle()
        for released, ours in self._released_names.items():
            if prefix + released in state_dict:
                value, shape = state_dict[prefix + released], self._buffers[ours].shape
                if value.numel() != shape.numel():
                    others[-1].append(  # torch's list of errors
                        f"{prefix + released} has the width {value.numel()}, but this norm has {shape.numel()}."
                    )
                    value = value.new_zeros(shape)
                del state_dict[prefix + released]
                state_dict[prefix + ours] = self._from_release(released, value).reshape(shape)
        for name, buffer in self._buffers.items():  # load_state_dict(assign=True) would take over any type
            loaded = state_dict.get(prefix + name)
            if isinstance(loaded, Tensor) and loaded.dtype != buffer.dtype:
                state_dict[prefix + name] = loaded.to(buffer.dtype)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _from_release(self, name: str, value: Tensor) -> Tensor:
        """The released buffer ``name`` in this norm's units."""
        return value

    def __getstate__(self) -> Dict[str, Any]:
        self._settle()
        return {**self.__dict__, "_pool": None}
