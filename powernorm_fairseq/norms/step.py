"""What a norm has to know of the training step it is part of, and cannot see from its input."""

from contextlib import contextmanager
from typing import Iterator, Union

import torch
from torch import Tensor
from torch.autograd import Variable


class _Step:
    """The step that is under way; one for the process, because CUDA runs the backward in a thread of its own."""

    loss_scale: Union[float, Tensor] = 1.0
    counts: bool = True


_step = _Step()
_current_graph_task = getattr(torch._C, "_current_graph_task_id", None)


@contextmanager
def training_step(loss_scale: Union[float, Tensor] = 1.0, counts: bool = True) -> Iterator[None]:
    """Tells the norms about the forward and backward that run inside this context.

    Args:
        loss_scale: factor by which the loss is multiplied before the backward (``--fp16``, ``GradScaler``). The
            backward averages of PN and MABN are kept in units of the unscaled loss, so the factor may change from
            step to step. A tensor is read on its own device, without a synchronisation.
        counts: false for a batch that stands in for missing data; running statistics do not move then.

    Example: ``with training_step(scaler.get_scale()): scaler.scale(loss_of(model)).backward()``
    """
    before = _step.loss_scale, _step.counts
    _step.loss_scale, _step.counts = loss_scale, counts
    try:
        yield
    finally:
        _step.loss_scale, _step.counts = before


def loss_scale() -> Union[float, Tensor]:
    """The factor on the loss in the step that is under way."""
    return _step.loss_scale


def step_counts() -> bool:
    """Whether the batch that is under way may move running statistics."""
    return _step.counts


def in_backward() -> bool:
    """Whether autograd is running a backward in this thread.

    A training forward inside a backward is activation checkpointing at work: the same batch for the second time.
    """
    if _current_graph_task is not None:
        return _current_graph_task() != -1
    try:  # torch < 2.1: only a running backward takes a callback
        Variable._execution_engine.queue_callback(lambda: None)
    except RuntimeError:
        return False
    return True
