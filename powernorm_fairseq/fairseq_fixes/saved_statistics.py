"""Processes that measure running statistics on their own batches lose them when a training is stopped and goes on.

fairseq has the first process write its own, for all. And it offers nothing before but the gathering of the optimizer's
state, which ``--no-save-optimizer-state`` leaves out. Mended where the checkpoint is written: its model has the mean of
the statistics of all processes, and beside it lie those of each, from which as many processes go on. Saving changes
nothing for the processes that save.
"""

from typing import Any, Dict, List

from powernorm_fairseq.around import around

_KEY = "statistics_of_processes"


def install() -> None:
    """Makes checkpoints hold the statistics of all processes; models without such norms are left alone."""
    import torch
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    from powernorm_fairseq.models.steps import agree_on_statistics, own_statistics

    @around(checkpoint_utils, "save_checkpoint")
    def save_checkpoint(fairseq_save: Any, cfg: Any, trainer: Any, *args: Any) -> Any:
        alone = cfg.no_save or trainer.data_parallel_world_size == 1
        own = [] if alone else own_statistics(trainer.get_model())
        if not own:
            return fairseq_save(cfg, trainer, *args)
        before = torch.cat([buffer.detach().reshape(-1).double() for buffer in own])  # exact for all they hold
        found = [torch.empty_like(before) for _ in range(trainer.data_parallel_world_size)]
        torch.distributed.all_gather(found, before, group=trainer.data_parallel_process_group)
        trainer.statistics_of_processes = [each.cpu() for each in found]
        agree_on_statistics(trainer.get_model())
        try:
            return fairseq_save(cfg, trainer, *args)
        finally:
            _restore(own, before)
            trainer.statistics_of_processes = None  # fairseq's crash.pt has other ones

    @around(Trainer, "save_checkpoint")
    def write(fairseq_write: Any, self: Any, filename: str, extra_state: Dict[str, Any]) -> Any:
        found = getattr(self, _KEY, None)
        return fairseq_write(self, filename, extra_state if found is None else {**extra_state, _KEY: found})

    @around(checkpoint_utils, "load_checkpoint")
    def load_checkpoint(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        found = (extra_state or {}).get(_KEY, [])
        if trainer.get_num_updates() > 0 and len(found) == trainer.data_parallel_world_size:
            _restore(own_statistics(trainer.get_model()), found[trainer.data_parallel_rank])
        return extra_state, epoch_itr


def _restore(buffers: List[Any], flat: Any) -> None:
    """Puts the content of all buffers, one after the other in ``flat``, back into them."""
    parts = flat.split([buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts):
        buffer.detach().copy_(part.view(buffer.shape))
