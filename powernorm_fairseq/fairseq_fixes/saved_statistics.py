"""Processes that measure running statistics on their own batches do not agree on them before one of them saves.

fairseq has the first process write its own, and offers nothing before but the gathering of the optimizer's state, which
``--no-save-optimizer-state`` leaves out. Mended where the checkpoint is written.
"""

import functools
from typing import Any


def install() -> None:
    """Gives all processes the mean of their statistics before a checkpoint; models without such norms stay alone."""
    from fairseq import checkpoint_utils

    from powernorm_fairseq.models.steps import agree_on_statistics

    fairseq_save = checkpoint_utils.save_checkpoint

    @functools.wraps(fairseq_save)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        if not cfg.no_save:
            agree_on_statistics(trainer.get_model())
        return fairseq_save(cfg, trainer, epoch_itr, val_loss)

    checkpoint_utils.save_checkpoint = save_checkpoint
