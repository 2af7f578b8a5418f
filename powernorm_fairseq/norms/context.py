"""What a norm has to know of a call and cannot see from its input: the padding, the training step, a call it repeats.

Activation checkpointing repeats a forward inside the backward, where the running statistics have moved on, and where
neither the padding nor the loss scale of the step is announced. So a forward that may be repeated leaves a record of
what it began with, and its repetition starts from there and moves nothing.
"""

import inspect
import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn
from torch.autograd import Variable

MOST_RECORDS = 64  # forwards of one norm that wait for their repetition
SAMPLE = 256  # numbers of its input that a call is recognised by

_graph_task = getattr(torch._C, "_current_graph_task_id", None)
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class _Announced(threading.local):
    """What this thread has announced. It is read in forwards alone: a GPU's backward has its own thread."""

    mask: Optional[Tensor] = None
    loss_scale: Optional[Tensor] = None
    on_device: Dict[str, Tensor] = {}  # copies of the loss scale
    counts: bool = True


_announced = _Announced()


@contextmanager
def _announce(**values: Any) -> Iterator[None]:
    before = {name: getattr(_announced, name) for name in values}
    try:
        for name, value in values.items():
            setattr(_announced, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(_announced, name, value)


# ---------------------------------------------------------------- padding


def padding(mask: Optional[Tensor], batch_first: bool = True) -> ContextManager[None]:
    """Inside this context, every norm of this package that is called without a mask uses this one.

    Args:
        mask: B x T, true at padding; None for no padding.
        batch_first: whether the norms see B x T x C, or T x B x C.

    Example: ``with padding(tokens == pad): model(tokens)``
    """
    return _announce(mask=mask if mask is None or batch_first else mask.t())


def announced_padding(x: Tensor) -> Optional[Tensor]:
    """The mask for the input ``x``, if there is one."""
    mask = _announced.mask
    if mask is not None and mask.shape != x.shape[:-1]:
        raise ValueError(
            f"an input of shape {tuple(x.shape)} does not go with the padding of shape {tuple(mask.shape)} that is "
            "announced; check batch_first, or call this norm with a mask of its own"
        )
    return mask


def pass_padding(
    model: nn.Module, argument: str, marks_padding: bool = True, batch_first: bool = True
) -> Callable[[], None]:
    """Makes every call of ``model`` announce the mask that it gets as ``argument`` to the norms inside.

    Args:
        model: any model; torch >= 2.0 is needed.
        argument: the parameter of ``model.forward`` that is the mask, B x T. A call without it has no padding.
        marks_padding: whether the mask is true at padding; false for one that is true (or 1) at tokens, as the
            ``attention_mask`` of Hugging Face is.
        batch_first: whether the norms see B x T x C, or T x B x C.

    Returns:
        A function that undoes it.
    """
    signature = inspect.signature(model.forward)
    if argument not in signature.parameters:
        raise ValueError(f"argument={argument!r} is not known; choose from {', '.join(signature.parameters)}")
    contexts: List[Any] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        mask = signature.bind_partial(*args, **kwargs).arguments.get(argument)
        if mask is not None:
            mask = mask.bool() if marks_padding else mask == 0
        contexts.append(padding(mask, batch_first))
        contexts[-1].__enter__()

    def after(module: nn.Module, args: Any, output: Any) -> None:
        contexts.pop().__exit__(None, None, None)

    handles = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, always_call=True),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


# ---------------------------------------------------------------- the training step


def training_step(loss_scale: Union[float, Tensor, Any] = 1.0, counts: bool = True) -> ContextManager[None]:
    """Tells the norms about the forward and backward that run inside this context, in this thread.

    Args:
        loss_scale: factor by which the loss is multiplied before the backward: a number, a tensor, or the
            ``GradScaler`` that does it. The backward averages of PN and MABN are kept in units of the unscaled loss,
            so the factor may change from step to step. A tensor is read on its own device, and nothing waits for it.
        counts: false for a batch that stands in for missing data; running statistics do not move then.

    Example: ``with training_step(scaler): scaler.scale(loss_of(model)).backward()``
    """
    if hasattr(loss_scale, "get_scale"):
        scaler: Any = loss_scale
        tensor = getattr(scaler, "_scale", None) if scaler.is_enabled() else None
        loss_scale = scaler.get_scale() if tensor is None else tensor  # get_scale() would wait for the GPU
    if not isinstance(loss_scale, Tensor):
        loss_scale = None if loss_scale == 1.0 else torch.tensor(float(loss_scale))
    return _announce(loss_scale=loss_scale, counts=counts, on_device={})


def loss_scale(device: Optional[torch.device] = None) -> Optional[Tensor]:
    """The factor on the loss in the step that is under way, on ``device``; None for 1."""
    scale = _announced.loss_scale
    if scale is None or device is None or scale.device == device:
        return scale
    if str(device) not in _announced.on_device:
        _announced.on_device[str(device)] = scale.to(device)
    return _announced.on_device[str(device)]


def check_scale(of_forward: Optional[Tensor]) -> None:
    """Refuses a loss scale that was announced for a backward, but not for its forward, which took note of it."""
    scale = _announced.loss_scale
    if scale is not None and (of_forward is None or not torch.equal(scale, of_forward.to(scale.device))):
        raise RuntimeError("training_step(loss_scale=...) began after the forward; it has to hold forward and backward")


def step_counts() -> bool:
    """Whether the batch that is under way may move running statistics."""
    return _announced.counts


# ---------------------------------------------------------------- calls, and their repetition


class Call(NamedTuple):
    """What a norm's forward works with, beside its input."""

    padding: Optional[Tensor]
    state: Dict[str, Tensor]  # the running statistics that a forward depends on
    loss_scale: Optional[Tensor]
    counts: bool  # whether the backward may move statistics
    moves: bool  # whether the forward may
    notes: Any = None  # a dictionary: what the first forward leaves for its repetition


class Record:
    """A call that may be repeated."""

    def __init__(self, x: Tensor, call: Call) -> None:
        self.sample = _sample(x)
        self.call = call._replace(state={name: value.clone() for name, value in call.state.items()}, moves=False)
        self.repeated = False

    def repeat(self, device: torch.device) -> Call:
        """The call once more."""
        self.repeated = True
        scale, padding = self.call.loss_scale, self.call.padding
        return self.call._replace(
            state={name: value.to(device) for name, value in self.call.state.items()},
            padding=None if padding is None else padding.to(device),
            loss_scale=None if scale is None else scale.to(device),
        )

    def same_state(self, other: "Record") -> bool:
        """Whether repeating either gives the same."""
        return all(torch.equal(value, other.call.state[name]) for name, value in self.call.state.items())


_records: "weakref.WeakKeyDictionary[Any, List[Record]]" = weakref.WeakKeyDictionary()


def begin_call(norm: Any, x: Tensor, padding: Optional[Tensor], announced: bool) -> Call:
    """What the forward of ``norm`` that begins now works with.

    Args:
        norm: the layer; ``norm.forward_state()`` are the statistics that its forward depends on.
        x: its input.
        padding: its padding mask.
        announced: whether the mask came from a context, which a repetition does not see.
    """
    if in_backward() and norm in _records:
        return _find(norm, x).repeat(x.device)
    counts, state = step_counts(), norm.forward_state()
    call = Call(padding, state, loss_scale(x.device) if state else None, counts, counts, {})
    if (state or announced) and _may_be_repeated():
        waiting = [record for record in _records.get(norm, []) if not record.repeated]
        _records[norm] = [*waiting[1 - MOST_RECORDS :], Record(x, call)]
    return call


def in_backward() -> bool:
    """Whether autograd is running a backward in this thread."""
    if _graph_task is not None:
        return _graph_task() != -1
    try:  # torch < 2.1: only a running backward takes a callback
        Variable._execution_engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True


def _may_be_repeated() -> bool:
    """Checkpointing runs its first forward without gradients, or with hooks on what is saved."""
    return not torch.is_grad_enabled() or _saving_hooks is None or _saving_hooks(True) is not None


def _sample(x: Tensor) -> Tensor:
    flat = x.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)].nan_to_num()


def _find(norm: Any, x: Tensor) -> Record:
    """The record of the call that is repeated with the input ``x``."""
    records = _records[norm]
    if len(records) > 1:
        sample = _sample(x)
        records = [record for record in records if record.sample.to(x.device).equal(sample)]
    if records and all(record.same_state(records[0]) for record in records):
        return records[0]
    name = type(norm).__name__
    raise RuntimeError(
        f"activation checkpointing repeats one of several calls of a {name}, and it cannot be told which: "
        + ("they had the same input" if records else f"its input is not that of any of the latest {MOST_RECORDS}")
        + "; use a norm of its own for each call, or leave it out of the checkpointing"
    )
