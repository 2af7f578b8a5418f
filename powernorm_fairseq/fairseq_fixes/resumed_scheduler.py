"""A resumed training leaves out what the scheduler of the learning rate does at the end of an epoch.

fairseq saves first and tells the scheduler the loss afterwards, so that no checkpoint knows of it. Mended by telling it
after loading.
"""

from typing import Any

from powernorm_fairseq.around import around


def install() -> None:
    """Tells the scheduler the loss of an epoch that ended with the checkpoint."""
    from fairseq import checkpoint_utils

    @around(checkpoint_utils, "load_checkpoint")
    def load(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        if trainer.get_num_updates() > 0 and not cfg.reset_lr_scheduler and not cfg.reset_dataloader:
            position = extra_state["train_iterator"]
            if position["iterations_in_epoch"] == 0:
                trainer.lr_step(position["epoch"] - 1, extra_state["val_loss"])
        return extra_state, epoch_itr
