"""The interpreter's end does not tear a thread out of torch's code."""

import sys

import pytest

pytest.importorskip("fairseq")

from tests.fairseq_fixes.commands import USER_DIR, call

CODE = """
import argparse, torch
from fairseq import utils
from fairseq.data import iterators
torch.set_num_threads(1)
utils.import_user_module(argparse.Namespace(user_dir={!r}))

class Batches:
    def __len__(self):
        return 10**6
    def __iter__(self):
        while True:
            yield [torch.sort(torch.rand(2000))[0] for _ in range(20)]

batches = iterators.BufferedIterator(10, Batches())
for _ in range(30):
    next(batches)
""".format(USER_DIR)


def test_a_process_ends_while_its_buffer_is_being_filled():
    """Without the fix 8 of 8 ended with SIGABRT."""
    assert [call([sys.executable, "-c", CODE], timeout=60)[0] for _ in range(5)] == [0] * 5
