"""Up to ``--required-batch-size-multiple`` - 1 sentences of every set are left out (versions of fairseq after 0.12.2).

``batch_by_size`` drops the last batch if it is no multiple of that number, 8 by default: a few sentences of the
training and validation data are never seen, and ``fairseq-generate`` answers with fewer translations than there are
sentences. Mended by a last batch of what is left. ``--grouped-shuffling`` drops
whole batches on several processes: an error.
"""

from typing import Any

from powernorm_fairseq.around import around


def install() -> None:
    """Makes the batches hold every sentence that they are made of."""
    import numpy
    from fairseq.data import data_utils
    from fairseq.data.iterators import EpochBatchIterator

    @around(data_utils, "batch_by_size")
    def batch_by_size(fairseq_batches: Any, indices: Any, *args: Any, **more: Any) -> Any:
        if not isinstance(indices, numpy.ndarray):
            indices = numpy.fromiter(indices, dtype=numpy.int64, count=-1)
        if len(indices) == 0:
            return []  # fairseq asks for the length of the last one
        batches = fairseq_batches(indices, *args, **more)
        kept = sum(map(len, batches))
        return batches if kept == len(indices) else [*batches, indices[kept:]]  # they are cut from the indices in order

    @around(EpochBatchIterator, "_get_iterator_for_epoch")
    def get_iterator(fairseq_iterator: Any, self: Any, epoch: int, shuffle: bool, *args: Any, **more: Any) -> Any:
        left_out = len(self.frozen_batches) % self.num_shards
        if left_out and shuffle and getattr(self, "grouped_shuffling", False):
            raise ValueError(
                f"--grouped-shuffling leaves out {left_out} of {len(self.frozen_batches)} batches on "
                f"{self.num_shards} processes; drop the flag, or use another number of processes"
            )
        return fairseq_iterator(self, epoch, shuffle, *args, **more)
