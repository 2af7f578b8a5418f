"""Statistics over several processes: sums of all their tokens, or an average of what each has measured."""

from typing import Any, Callable, Iterable, List, Optional

import torch
import torch.distributed as dist
from torch import Tensor


class Sums:
    """An all-reduce under way; ``then`` gets its result once."""

    def __init__(self, packed: Tensor, group: Optional[Any], then: Optional[Callable[[Tensor], None]]) -> None:
        self.packed, self.then = packed, then
        self.work = dist.all_reduce(packed, group=group, async_op=True)

    @torch.no_grad()
    def wait(self) -> Tensor:
        """The sums over all processes."""
        if self.work is not None:
            self.work.wait()
            self.work = None
            if self.then is not None:
                self.then(self.packed)
        return self.packed


class Pool:
    """The processes of a group, whose tokens statistics are taken over.

    All of them have to call at the same places, one without a real token included: it contributes zeros. Token counts
    are summed with the statistics, so unequal shares are weighted as they should be.
    """

    def __init__(self, process_group: Optional[Any] = None) -> None:
        self.process_group = process_group
        self.under_way: List[Sums] = []

    def total(self, packed: Tensor) -> Tensor:
        """``packed``, which stays as it is, added up over all processes."""
        return Sums(packed.clone(), self.process_group, None).wait()

    def statistics(self, own: Tensor, origin: Optional[Tensor]) -> Tensor:
        """The :func:`.functional.statistics` of all processes; centred ones if there is an ``origin``.

        Each process measures deviations from its own mean, and the means as distances from an origin near them that all
        have in common, the running mean: squares of large means never have to cancel.
        """
        if origin is None:
            return self.total(own)
        mean, squares, count, rows = own.split([origin.numel(), origin.numel(), 1, 1])
        distance = mean - origin
        parts = torch.cat([count * distance, squares + count * distance.square(), count, rows])
        first, second, count, rows = self.total(parts).split([origin.numel(), origin.numel(), 1, 1])
        distance = first / count.clamp(min=1)
        squares = (second - count * distance.square()).clamp(min=0)
        return torch.cat([origin + distance, squares, count, rows])

    def start(self, packed: Tensor, then: Optional[Callable[[Tensor], None]]) -> Sums:
        """Starts to add up ``packed`` and goes on; ``then`` gets the sums, at :meth:`settle` latest."""
        self.under_way.append(Sums(packed, self.process_group, then))
        return self.under_way[-1]

    def settle(self) -> None:
        """Waits for everything that was started."""
        while self.under_way:
            self.under_way.pop(0).wait()


def pool_of(process_group: Optional[Any] = None) -> Optional[Pool]:
    """The processes of the group; None if there is but one."""
    alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(process_group) == 1
    return None if alone else Pool(process_group)


@torch.no_grad()
def average_over_processes(statistics: Iterable[Tensor]) -> None:
    """Replaces each tensor by its mean over all processes, by one all-reduce; alone, it changes nothing.

    For running statistics that every process measured on its own batches: afterwards they are the same everywhere.
    Whole numbers are rounded down.
    """
    statistics, pool = list(statistics), pool_of()
    if not statistics or pool is None:
        return
    total = pool.total(torch.cat([tensor.reshape(-1).double() for tensor in statistics]))
    for tensor, part in zip(statistics, (total / dist.get_world_size()).split([t.numel() for t in statistics])):
        tensor.copy_(part.view(tensor.shape))
