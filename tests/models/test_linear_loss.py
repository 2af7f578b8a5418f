"""The loss of an output layer in chunks: equal to fairseq's, small, and the criterion that trains with it."""

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from powernorm_fairseq.models.linear_criterion import ChunkedLabelSmoothedCrossEntropy
from powernorm_fairseq.models.linear_loss import linear_loss
from tests.models.training import LMRun, Run, same, state

PAD = 1
CHUNKED = ("--criterion", "chunked_label_smoothed_cross_entropy", "--label-smoothing", 0.1)
PLAIN = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1)


def inputs(tokens=23, words=17, width=5, dtype=torch.double):
    generator = torch.Generator().manual_seed(1)
    features, weight = (torch.randn(size, width, generator=generator, dtype=dtype) for size in (tokens, words))
    target = torch.randint(2, words, (tokens,), generator=generator)
    target[::4] = PAD
    return features.requires_grad_(), weight.requires_grad_(), target


def fairseqs(features, weight, target, epsilon):
    return label_smoothed_nll_loss(torch.log_softmax(features @ weight.t(), -1), target, epsilon, PAD)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 5 * 17, 23 * 17, 10**6])
def test_equals_fairseqs_loss_with_gradients(epsilon, chunk):
    """One token at a time, chunks that do not divide the batch, the whole at once; a quarter of it is padding."""
    features, weight, target = inputs()
    ours = linear_loss(features, weight, target, epsilon, PAD, chunk=chunk)
    theirs = fairseqs(features, weight, target, epsilon)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for got, expected in zip(
        torch.autograd.grad(3 * ours[0], (features, weight)), torch.autograd.grad(3 * theirs[0], (features, weight))
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_improbable_words_have_a_finite_loss():
    features, weight = torch.tensor([[1000.0]]), torch.tensor([[1.0], [-1.0], [0.0]])
    loss, nll = linear_loss(features, weight, torch.tensor([1]), 0.0, 5)
    assert loss.item() == nll.item() == 2000.0


def test_bfloat16_products_come_close_and_keep_gradients_in_float32():
    features, weight, target = inputs(200, 50, 32, torch.float32)
    exact = fairseqs(features, weight, target, 0.1)[0]
    rough = linear_loss(features, weight, target, 0.1, PAD, torch.bfloat16, chunk=64 * 50)[0]
    assert rough.dtype == torch.float32 and rough != exact
    torch.testing.assert_close(rough, exact, rtol=5e-3, atol=0.0)
    for got, expected in zip(
        torch.autograd.grad(rough, (features, weight)), torch.autograd.grad(exact, (features, weight))
    ):
        assert got.dtype == torch.float32
        assert (got - expected).norm() < 0.02 * expected.norm()


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="such a mode of dispatch came with torch 2")
def test_no_tensor_is_larger_than_a_chunk():
    dispatch = pytest.importorskip("torch.utils._python_dispatch")
    sizes = []

    class Sizes(dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(each.numel() for each in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(each))
            return result

    features, weight, target = inputs(64, 40, 5)
    with Sizes():
        linear_loss(features, weight, target, 0.1, PAD, chunk=16 * 40)[0].backward()
    assert max(sizes) == 16 * 40


def test_a_gradient_that_nobody_wants_is_not_computed():
    features, weight, target = inputs()
    loss, nll = linear_loss(features.detach(), weight, target, 0.1, PAD)
    loss.backward()
    assert features.grad is None and weight.grad is not None and not nll.requires_grad


@pytest.mark.parametrize("kind, norm", [(LMRun, "--norm"), (Run, "--encoder-norm")])
def test_all_gradients_are_those_of_fairseqs_criterion(toy_text, toy_data, kind, norm):
    """A language model and a translation model, with dropout; fairseq's softmax is in float32 even in float64."""
    runs = [kind(toy_text if kind is LMRun else toy_data, norm, "pn", *criterion) for criterion in (PLAIN, CHUNKED)]
    assert isinstance(runs[1].trainer.criterion, ChunkedLabelSmoothedCrossEntropy)
    losses = []
    for run in runs:
        torch.manual_seed(1)
        loss, size, logged = run.trainer.criterion(run.model.double().train(), run.batches[0])
        loss.backward()
        losses.append((loss.item(), size, sorted(logged), logged["nll_loss"].item()))
    assert losses[0][:2] == pytest.approx(losses[1][:2], rel=1e-6) and losses[0][2] == losses[1][2]
    assert losses[0][3] == pytest.approx(losses[1][3], rel=1e-6)
    for ours, theirs in zip(*(run.model.parameters() for run in runs)):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_training_goes_as_with_fairseqs_criterion(toy_text):
    losses = [LMRun(toy_text, "--norm", "pn", *criterion).train(20) for criterion in (PLAIN, CHUNKED)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3) and losses[0][-1] < losses[0][0] - 0.5


@pytest.mark.parametrize("flags", [("--report-accuracy",), ("--ignore-prefix-size", 2)])
def test_what_needs_probabilities_is_done_by_fairseq(toy_text, flags):
    ours, theirs = (LMRun(toy_text, *criterion, *flags) for criterion in (CHUNKED, PLAIN))
    assert ours.train(3) == theirs.train(3) and same(state(ours.model), state(theirs.model))
    if flags == ("--report-accuracy",):
        assert "n_correct" in ours.trainer.criterion(ours.model, ours.batches[0])[2]


def test_validation_has_no_gradient_and_the_same_loss(toy_text):
    ours, theirs = (LMRun(toy_text, *criterion) for criterion in (CHUNKED, PLAIN))
    logged = [run.trainer.valid_step(run.batches[0]) for run in (ours, theirs)]
    assert float(logged[0]["nll_loss"]) == pytest.approx(float(logged[1]["nll_loss"]), rel=1e-6)
