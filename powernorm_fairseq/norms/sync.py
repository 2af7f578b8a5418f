"""Statistics over several processes: sums of all their tokens, or an average of what each has measured."""

from typing import Any, Iterable, List, Optional

import torch
import torch.distributed as dist
from torch import Tensor


class Pool:
    """The processes whose tokens a statistic is taken over: this one alone, or all of a process group.

    Every process of the group has to call :meth:`total` at the same places, one without a real token included: it
    contributes zeros. Token counts are summed with the statistics, so unequal shares are weighted as they should be.

    Args:
        sync: whether to look beyond this process at all.
        process_group: the processes; None for all.
    """

    def __init__(self, sync: bool, process_group: Optional[Any] = None) -> None:
        self.process_group = process_group
        initialised = sync and dist.is_available() and dist.is_initialized()
        self.spans_processes = initialised and dist.get_world_size(process_group) > 1

    def total(self, *sums: Tensor) -> List[Tensor]:
        """Each of these sums over all processes, by one all-reduce of one packed tensor."""
        if not self.spans_processes:
            return list(sums)
        packed = torch.cat([value.reshape(-1) for value in sums])
        dist.all_reduce(packed, group=self.process_group)
        parts = packed.split([value.numel() for value in sums])
        return [part.view(value.shape) for part, value in zip(parts, sums)]


@torch.no_grad()
def average_over_processes(statistics: Iterable[Tensor]) -> None:
    """Replaces each tensor by its mean over all processes, by one all-reduce; alone, it changes nothing.

    For running statistics that every process measured on its own batches: afterwards they are the same everywhere.
    """
    statistics = list(statistics)
    pool = Pool(sync=True)
    if not statistics or not pool.spans_processes:
        return
    for tensor, total in zip(statistics, pool.total(*statistics)):
        tensor.copy_(total / dist.get_world_size())
