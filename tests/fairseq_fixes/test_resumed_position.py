"""A training that goes on within an epoch sees each sentence once, on any number of processes."""

import pytest

pytest.importorskip("fairseq")

from powernorm_fairseq.safe_load import load_checkpoint
from tests.fairseq_fixes.commands import call, program, train_together, train_words

FLAGS = ["--batch-size", 5, "--max-tokens", 4000, "--required-batch-size-multiple", 1, "--disable-validation"]
EPOCH = list(range(200))  # sentences; 40 batches


def sentences(updates):
    return sorted(number for update in updates for number in update)


@pytest.mark.parametrize(
    "stretches",
    [
        pytest.param([(2, 1, 7), (1, 1, 1000)], marks=pytest.mark.slow),
        pytest.param([(1, 1, 7), (2, 1, 1000)], marks=pytest.mark.slow),
        # an epoch with four kinds of updates
        pytest.param([(2, 1, 5), (3, 1, 8), (1, 4, 11), (1, 1, 1000)], marks=pytest.mark.slow),
        [(1, 1, 7), (1, 2, 1000)],  # 7 batches are no whole number of updates
    ],
    ids=str,
)
def test_an_epoch_has_each_sentence_once(stretches, toy_data, tmp_path):
    seen = []
    for number, (processes, frequency, last) in enumerate(stretches):
        flags = [*FLAGS, "--update-freq", frequency, "--max-update", last, "--max-epoch", 1]
        seen += train_together(toy_data, tmp_path / "save", processes, *flags, notes=tmp_path / f"notes{number}")
    assert sentences(seen) == EPOCH
    position = load_checkpoint(tmp_path / "save" / "checkpoint_last.pt")["extra_state"]["train_iterator"]
    assert (position["epoch"], position["iterations_in_epoch"]) == (2, 0)


def test_other_batches_within_an_epoch_are_refused(toy_data, tmp_path):
    train_together(toy_data, tmp_path, 1, *FLAGS, "--max-update", 7)
    words = train_words(toy_data, tmp_path, *FLAGS, "--batch-size", 3, "--update-freq", 2, "--max-epoch", 1)
    code, output = call([*program("fairseq-train"), *words])
    assert code != 0 and "the epoch began with 40 batches and now has 67" in output.splitlines()[-1], output[-3000:]
