"""Processes that measure running statistics on their own batches lose them when a training is stopped and goes on.

fairseq has the first process write its own, for all. And it offers nothing before but the gathering of the optimizer's
state, which ``--no-save-optimizer-state`` leaves out. Mended where the checkpoint is written: its model has the mean of
the statistics of all processes, and beside it lie those of each, from which as many processes go on. Saving changes
nothing for the processes that save.
"""

import functools
from typing import Any, Dict, List

_KEY = "statistics_of_processes"


def install() -> None:
    """Makes checkpoints hold the statistics of all processes; models without such norms are left alone."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    from powernorm_fairseq.models.steps import agree_on_statistics

    fairseq_save, fairseq_write = checkpoint_utils.save_checkpoint, Trainer.save_checkpoint
    fairseq_load = checkpoint_utils.load_checkpoint

    @functools.wraps(fairseq_save)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        own = [] if cfg.no_save or trainer.data_parallel_world_size == 1 else _statistics(trainer)
        if not own:
            return fairseq_save(cfg, trainer, epoch_itr, val_loss)
        before = [buffer.clone() for buffer in own]
        trainer.statistics_of_processes = _gather(trainer, own)
        agree_on_statistics(trainer.get_model())
        try:
            return fairseq_save(cfg, trainer, epoch_itr, val_loss)
        finally:
            _restore(own, before)
            trainer.statistics_of_processes = None  # fairseq's crash.pt has other ones

    @functools.wraps(fairseq_write)
    def write(self: Any, filename: str, extra_state: Dict[str, Any]) -> Any:
        found = getattr(self, _KEY, None)
        return fairseq_write(self, filename, extra_state if found is None else {**extra_state, _KEY: found})

    @functools.wraps(fairseq_load)
    def load_checkpoint(cfg: Any, trainer: Any, **more: Any) -> Any:
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        found = (extra_state or {}).get(_KEY, [])
        if trainer.get_num_updates() > 0 and len(found) == trainer.data_parallel_world_size:
            own, flat = _statistics(trainer), found[trainer.data_parallel_rank]
            sizes = [buffer.numel() for buffer in own]
            _restore(own, [part.view(buffer.shape) for part, buffer in zip(flat.split(sizes), own)])
        return extra_state, epoch_itr

    checkpoint_utils.save_checkpoint, checkpoint_utils.load_checkpoint = save_checkpoint, load_checkpoint
    Trainer.save_checkpoint = write


def _statistics(trainer: Any) -> List[Any]:
    """The buffers in which processes may differ."""
    from powernorm_fairseq.norms import BatchStatisticsNorm

    norms = [module for module in trainer.get_model().modules() if isinstance(module, BatchStatisticsNorm)]
    return [buffer for norm in norms if not norm.sync for buffer in norm.buffers()]


def _gather(trainer: Any, own: List[Any]) -> List[Any]:
    """The content of the buffers of each process, one tensor for each."""
    import torch

    flat = torch.cat([buffer.detach().reshape(-1).to(torch.float64) for buffer in own])  # exact for all they hold
    found = [torch.empty_like(flat) for _ in range(trainer.data_parallel_world_size)]
    torch.distributed.all_gather(found, flat, group=trainer.data_parallel_process_group)
    return [each.cpu() for each in found]


def _restore(buffers: List[Any], values: List[Any]) -> None:
    import torch

    with torch.no_grad():
        for buffer, value in zip(buffers, values):
            buffer.copy_(value)
