"""The padding mask on its way to norms that fairseq calls with their input alone."""

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Tuple

from torch import Tensor, nn


class PaddingMask:
    """Adds the mask of the call that is under way to every call of the norms it is attached to."""

    def __init__(self) -> None:
        self.mask: Optional[Tensor] = None

    def attach(self, norm: nn.Module) -> None:
        """From now on ``norm(x)`` means ``norm(x, mask)``."""
        norm.register_forward_pre_hook(self)

    def __call__(self, norm: nn.Module, args: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """The pre-hook: the arguments of a norm's call with the mask behind them."""
        return (args[0], self.mask)

    @contextmanager
    def of(self, mask: Optional[Tensor]) -> Iterator[None]:
        """Inside, the mask is ``mask`` (B x T, true at padding, or None); the norms see it as T x B."""
        self.mask = None if mask is None else mask.t().contiguous()
        try:
            yield
        finally:
            self.mask = None
