"""Statistics move once for each mini-batch that counts."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import training_step
from powernorm_fairseq.norms.context import in_backward
from tests.norms.batches import bare_norm, random_affine, random_batch
from tests.norms.batches import training_step as step

BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 0)
REENTRANT = [True, False] if NEW_TORCH else [True]


def make(name):
    return random_affine(bare_norm(name, 6, warmup_updates=2, window=2, groups=2, layer_scale="head")).double()


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_activation_checkpointing_changes_nothing(name, reentrant):
    plain, checkpointed = make(name), make(name)
    options = {"use_reentrant": reentrant} if NEW_TORCH else {}
    for seed in range(6):
        x, dy, mask = random_batch(seed)
        expected_y, expected_dx = step(plain, x, dy, mask)
        x = x.requires_grad_()
        y = checkpoint(checkpointed, x, mask, **options)
        y.backward(dy)
        assert torch.equal(y, expected_y)
        assert torch.equal(x.grad, expected_dx)
        for buffer, expected in zip(checkpointed.buffers(), plain.buffers()):
            assert torch.equal(buffer, expected)


def test_in_backward_tells_a_backward_from_the_rest():
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(in_backward())
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(in_backward())
            return grad

    Probe.apply(torch.ones(1, requires_grad=True)).backward()
    assert seen == [False, True] and not in_backward()


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_evaluation_moves_nothing(name):
    norm = make(name)
    step(norm, *random_batch(0))
    before = [buffer.clone() for buffer in norm.buffers()]
    norm.eval()
    x, dy, mask = random_batch(1)
    norm(x.requires_grad_(), mask).backward(dy)
    assert all(torch.equal(buffer, old) for buffer, old in zip(norm.buffers(), before))


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_stand_in_batch_moves_nothing(name):
    norm = make(name)
    step(norm, *random_batch(0))
    before = [buffer.clone() for buffer in norm.buffers()]
    with training_step(counts=False):
        step(norm, *random_batch(1))
    assert all(torch.equal(buffer, old) for buffer, old in zip(norm.buffers(), before))
    step(norm, *random_batch(1))
    assert not all(torch.equal(buffer, old) for buffer, old in zip(norm.buffers(), before))


def test_context_ends_with_an_exception():
    norm = make("pn")
    with pytest.raises(RuntimeError, match="stop"), training_step(loss_scale=8.0, counts=False):
        raise RuntimeError("stop")
    step(norm, *random_batch(0))
    assert norm.num_updates == 1


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_forward_without_gradient_moves_forward_statistics(name):
    """As torch's BatchNorm does: a way to calibrate a model on other data."""
    norm = make(name)
    with torch.no_grad():
        norm(*random_batch(0)[::2])
    assert norm.num_updates == 1
