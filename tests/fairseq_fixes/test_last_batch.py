"""No sentence is left out, whatever --required-batch-size-multiple says."""

import argparse
import re

import numpy
import pytest

pytest.importorskip("fairseq")

from fairseq import utils
from fairseq.data import ListDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator

from tests.fairseq_fixes.commands import USER_DIR, call, program, train


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("limits", [{"max_tokens": 50}, {"max_sentences": 12}, {"max_tokens": 50, "max_sentences": 4}])
def test_batches_hold_every_sentence(limits, multiple):
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    for count in range(42):
        indices = numpy.random.RandomState(count).permutation(count)
        lengths = indices % 9 + 1
        batches = data_utils.batch_by_size(
            indices, num_tokens_fn=lambda index: index % 9 + 1, num_tokens_vec=lengths,
            required_batch_size_multiple=multiple, **limits,
        )  # fmt: skip
        assert [number for batch in batches for number in batch] == indices.tolist()


def test_grouped_shuffling_that_would_leave_out_batches_is_an_error(toy_data, tmp_path):
    """fairseq drops what does not make a whole group."""
    flags = ["--grouped-shuffling", "--batch-size", "40", "--max-tokens", "9999", "--max-epoch", "2"]
    train(toy_data, tmp_path, *flags)
    dataset = ListDataset(list(range(5)), numpy.ones(5, dtype=int))
    batches = [[number] for number in range(5)]
    iterator = EpochBatchIterator(dataset, list, batches, num_shards=2, grouped_shuffling=True)
    with pytest.raises(ValueError, match="--grouped-shuffling leaves out 1 of 5 batches on 2 processes"):
        iterator.next_epoch_itr(shuffle=True)


def test_training_and_generation_with_the_defaults_of_fairseq(toy_data, tmp_path):
    output = train(toy_data, tmp_path, "--max-epoch", 1, "--batch-size", 64, "--max-tokens", 9999)
    assert '"train_num_updates": "4"' in output  # 64 + 64 + 64 + 8 sentences
    output = train(toy_data, tmp_path / "30", "--max-epoch", 1, "--batch-size", 30, "--max-tokens", 9999)
    assert '"train_num_updates": "9"' in output  # 8 x 24 + 8: a batch of 30 is cut to a multiple of 8
    generate = [*program("fairseq-generate"), toy_data, "--user-dir", USER_DIR, "--cpu", "--beam", 1]
    generate += ["--path", tmp_path / "checkpoint_last.pt"]
    code, output = call(generate)
    assert code == 0, output[-3000:]
    assert sorted(map(int, re.findall(r"^H-(\d+)", output, re.MULTILINE))) == list(range(30))
