"""The padding mask on its way to norms that a model calls with their input alone."""

import inspect
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional

from torch import Tensor, nn


class _Announced(threading.local):
    mask: Optional[Tensor] = None


_announced = _Announced()


@contextmanager
def padding(mask: Optional[Tensor], batch_first: bool = True) -> Iterator[None]:
    """Inside this context, every norm of this package that is called without a mask uses this one.

    Args:
        mask: B x T, true at padding; None for no padding.
        batch_first: whether the norms see B x T x C, or T x B x C.

    Example: ``with padding(tokens == pad): model(tokens)``
    """
    before = _announced.mask
    _announced.mask = mask if mask is None or batch_first else mask.t()
    try:
        yield
    finally:
        _announced.mask = before


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
