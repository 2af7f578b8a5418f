"""A training that is resumed within an epoch on another number of processes crashes, or skips or repeats data.

fairseq saves how many batches each process has had, which means another place in the data for another number of
processes, and it loses batches where that number is no multiple of ``--update-freq``. Mended by saving how many batches
all processes have had, and by dividing what is left of the epoch among those that there are now.
"""

import contextlib
from typing import Any, Dict, Iterator, Tuple

from powernorm_fairseq.around import around

_START = "resumed_at"  # of an iterator: epoch, its own count there, and the batches that all processes had had


def install() -> None:
    """Makes the position in an epoch independent of the number of processes."""
    from fairseq import checkpoint_utils
    from fairseq.data.iterators import EpochBatchIterator

    @around(EpochBatchIterator, "state_dict")
    def state_dict(fairseq_state: Any, self: Any) -> Dict[str, Any]:
        state = fairseq_state(self)
        if state["iterations_in_epoch"] > 0:
            count, batches = _start(self, state["epoch"])
            state["batches_in_epoch"] = batches + (state["iterations_in_epoch"] - count) * self.num_shards
            state["batch_count"] = len(self.frozen_batches)
        return state

    @around(EpochBatchIterator, "load_state_dict")
    def load_state_dict(fairseq_load: Any, self: Any, state: Dict[str, Any]) -> None:
        done, own = state.get("batches_in_epoch"), state.get("iterations_in_epoch", 0)
        grouped = getattr(self, "batches_per_update", 1)
        if done is None or (done == own * self.num_shards and own % grouped == 0):
            fairseq_load(self, state)
            return
        _check(self, state)
        self.epoch = state["epoch"]
        count = done // self.num_shards // grouped * grouped  # about as far as it looks in the log
        with _without(done):
            rest = self._get_iterator_for_epoch(self.epoch, shuffle=state.get("shuffle", True))
        rest.n += count
        rest.total += count
        self._next_epoch_itr = rest
        setattr(self, _START, (self.epoch, count, done))

    @around(checkpoint_utils, "load_checkpoint")
    def resume(fairseq_resume: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        @around(trainer, "get_train_iterator", mark="tells_batches_per_update")
        def told(get_train_iterator: Any, epoch: int, *args: Any, **options: Any) -> Any:
            iterator = get_train_iterator(epoch, *args, **options)
            frequencies = trainer.cfg.optimization.update_freq
            iterator.batches_per_update = frequencies[min(epoch, len(frequencies)) - 1]
            return iterator

        return fairseq_resume(cfg, trainer, **more)


def _start(iterator: Any, epoch: int) -> Tuple[int, int]:
    """From where the iterator counts in an epoch: its count, and the batches of all processes before."""
    resumed, count, batches = getattr(iterator, _START, (None, 0, 0))
    return (count, batches) if resumed == epoch else (0, 0)


def _check(iterator: Any, state: Dict[str, Any]) -> None:
    """Refuses to go on within an epoch where the batches are other ones."""
    if len(iterator.frozen_batches) != state["batch_count"]:
        raise ValueError(
            "the epoch began with {} batches and now has {}, so it cannot be gone on with in its middle; use the "
            "--max-tokens and --batch-size that it began with, or --reset-dataloader".format(
                state["batch_count"], len(iterator.frozen_batches)
            )
        )
    if getattr(iterator, "grouped_shuffling", False):
        raise ValueError(
            "with --grouped-shuffling the order of the batches depends on the number of processes; go on with the "
            "number that the epoch began with, or use --reset-dataloader"
        )


@contextlib.contextmanager
def _without(done: int) -> Iterator[None]:
    """Inside, batches are divided among the processes without the first ``done`` of them."""
    from fairseq.data import iterators

    fairseq_sharded = iterators.ShardedIterator

    def sharded(batches: Any, *args: Any, **more: Any) -> Any:
        return fairseq_sharded(batches[done:], *args, **more)

    iterators.ShardedIterator = sharded
    try:
        yield
    finally:
        iterators.ShardedIterator = fairseq_sharded
