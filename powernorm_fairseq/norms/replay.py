"""Activation checkpointing: its second forward repeats the first, with the statistics that the first one began with.

The second forward runs inside the backward, where the running statistics have moved on, and where neither the padding
nor the loss scale of the step is announced. So a forward that may be repeated leaves a record of what it began with.
"""

import weakref
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import Variable

from powernorm_fairseq.norms.training_step import loss_scale, step_counts

MOST_RECORDS = 64  # forwards of one norm that wait for their repetition
SAMPLE = 256  # numbers of its input that a call is recognised by

_graph_task = getattr(torch._C, "_current_graph_task_id", None)
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


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
