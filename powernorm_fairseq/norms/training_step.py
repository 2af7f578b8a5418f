"""What a norm has to know of the training step it is part of, and cannot see from its input."""

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Union

import torch
from torch import Tensor


class _Step(threading.local):
    """The step that this thread has under way. It is read in forwards alone: a GPU's backward has its own thread."""

    loss_scale: Optional[Tensor] = None
    counts: bool = True
    on_device: Dict[str, Tensor] = {}


_step = _Step()


@contextmanager
def training_step(loss_scale: Union[float, Tensor, Any] = 1.0, counts: bool = True) -> Iterator[None]:
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
    before = _step.loss_scale, _step.counts, _step.on_device
    _step.loss_scale, _step.counts, _step.on_device = loss_scale, counts, {}
    try:
        yield
    finally:
        _step.loss_scale, _step.counts, _step.on_device = before


def loss_scale(device: Optional[torch.device] = None) -> Optional[Tensor]:
    """The factor on the loss in the step that is under way, on ``device``; None for 1."""
    scale = _step.loss_scale
    if scale is None or device is None or scale.device == device:
        return scale
    if str(device) not in _step.on_device:
        _step.on_device[str(device)] = scale.to(device)
    return _step.on_device[str(device)]


def check_scale(of_forward: Optional[Tensor]) -> None:
    """Refuses a loss scale that was announced for a backward, but not for its forward, which took note of it."""
    scale = _step.loss_scale
    if scale is not None and (of_forward is None or not torch.equal(scale, of_forward.to(scale.device))):
        raise RuntimeError("training_step(loss_scale=...) began after the forward; it has to hold forward and backward")


def step_counts() -> bool:
    """Whether the batch that is under way may move running statistics."""
    return _step.counts
