"""A training that is resumed after its first epoch composes other batches (versions of fairseq after 0.12.2).

A run composes its batches in its first epoch and only shuffles them in the others. But newer versions of fairseq
compose them with a seed that depends on the epoch, which is another one after a resume. Mended by the seed of the
first epoch.
"""

from typing import Any

from powernorm_fairseq.around import around


def install() -> None:
    """Makes the task of a training compose its batches in one way."""
    from fairseq import checkpoint_utils

    @around(checkpoint_utils, "load_checkpoint")
    def load(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        _keep_batches(trainer.task)
        return fairseq_load(cfg, trainer, **more)


def _keep_batches(task: Any) -> None:
    """Makes ``task`` compose the batches of a resumed run as the run did that it resumes."""

    @around(task, "get_batch_iterator", mark="keeps_batches")
    def kept(get_batch_iterator: Any, dataset: Any, *args: Any, epoch: int = 1, **more: Any) -> Any:
        new_each_epoch = more.get("disable_iterator_cache") or more.get("update_epoch_batch_itr")
        new_each_epoch = new_each_epoch or getattr(task.cfg, "rebuild_batches", False)
        if not new_each_epoch and task.can_reuse_epoch_itr(dataset):
            epoch = 1  # what is kept goes to the right epoch by itself, after a resume by the state of the iterator
        return get_batch_iterator(dataset, *args, epoch=epoch, **more)
