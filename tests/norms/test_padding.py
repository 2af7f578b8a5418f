"""Nothing that stands at padding reaches a real token, a parameter or a statistic."""

import pytest
import torch

from powernorm_fairseq.norms import norm_names
from tests.norms.batches import bare_norm, random_affine, random_batch, training_step

NAMES = norm_names()
BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
EVERYWHERE = {"groups": 2, "layer_scale": "head", "warmup_updates": 1, "window": 2}


def make(name, **options):
    return random_affine(bare_norm(name, 6, **{**EVERYWHERE, **options})).double()


def everything(norm, x, dy, mask):
    """Outputs and gradients of the real tokens, gradients of the parameters and all buffers after three steps."""
    for _ in range(3):
        y, dx = training_step(norm, x, dy, mask)
    real = ~mask
    return [y[real], dx[real], *(p.grad for p in norm.parameters()), *norm.buffers()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30, 0.0])
def test_what_stands_at_padding_does_not_matter(name, garbage):
    x, dy, mask = random_batch(0)
    expected = everything(make(name), x, dy, mask)
    x, dy = x.clone(), dy.clone()
    x[mask] = garbage
    dy[mask] = garbage
    for ours, theirs in zip(everything(make(name), x, dy, mask), expected):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [True, False])
def test_output_and_gradient_at_padding_are_zero(name, training):
    x, dy, mask = random_batch(0)
    x[mask] = float("nan")
    x.requires_grad_()
    norm = make(name).train(training)
    y = norm(x, mask)
    y.backward(dy)
    assert torch.equal(y[mask], torch.zeros_like(y[mask]))
    assert torch.equal(x.grad[mask], torch.zeros_like(y[mask]))


@pytest.mark.parametrize("name", NAMES)
def test_amount_of_padding_does_not_matter(name):
    x, dy, mask = random_batch(0)
    real = ~mask
    expected = everything(make(name), x[real], dy[real], torch.zeros(int(real.sum()), dtype=torch.bool))
    pad = torch.randn(4, 7, 6, dtype=torch.float64)
    wide = everything(
        make(name),
        torch.cat([x, pad], 1),
        torch.cat([dy, pad], 1),
        torch.cat([mask, torch.ones(4, 7, dtype=torch.bool)], 1),
    )
    for ours, theirs in zip(wide, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["tokens", "T x B", "not contiguous", "4 dimensions"])
def test_any_leading_layout(name, layout):
    x, dy, mask = random_batch(0)
    expected = everything(make(name), x, dy, mask)[2:]
    views = {
        "tokens": lambda t: t.reshape(20, *t.shape[2:]),
        "T x B": lambda t: t.transpose(0, 1).contiguous(),
        "not contiguous": lambda t: t.transpose(0, 1),
        "4 dimensions": lambda t: t.reshape(2, 2, 5, *t.shape[2:]),
    }
    view = views[layout]
    for ours, theirs in zip(everything(make(name), view(x), view(dy), view(mask))[2:], expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", ["paper", "release"])
@pytest.mark.parametrize("shape, padded", [((3, 4, 6), True), ((0, 6), False), ((0, 5, 6), True), ((3, 0, 6), False)])
def test_batch_without_a_real_token_moves_nothing(name, recipe, shape, padded):
    norm = make(name, recipe=recipe)
    training_step(norm, *random_batch(1))
    before = [buffer.clone() for buffer in norm.buffers()]
    x = torch.full(shape, 3.0, dtype=torch.float64)
    mask = torch.ones(shape[:-1], dtype=torch.bool) if padded else None
    y, dx = training_step(norm, x, torch.zeros_like(x), mask)
    assert y.shape == x.shape and torch.isfinite(y).all() and torch.isfinite(dx).all()
    for buffer, old in zip(norm.buffers(), before):
        assert torch.equal(buffer, old)
    for parameter in norm.parameters():
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_batch_of_one_token(name):
    norm = make(name)
    x = torch.randn(1, 6, dtype=torch.float64)
    for _ in range(3):
        y, dx = training_step(norm, x, torch.ones_like(x))
        assert torch.isfinite(y).all() and torch.isfinite(dx).all()
    assert all(torch.isfinite(buffer).all() for buffer in norm.buffers())
    if name in BATCH_NORMS:
        assert norm.num_updates == 3


def test_release_recipe_of_pn_lets_padding_into_nu_as_there():
    x, dy, mask = random_batch(0)
    options = {"recipe": "release", "layer_scale": "none"}
    norm, other = make("pn", **options), make("pn", **options)
    training_step(norm, x, dy, mask)
    x, dy = x.clone(), dy.clone()
    x[mask] *= 2
    training_step(other, x, dy, mask)
    assert torch.equal(norm.running_psi2, other.running_psi2)
    assert not torch.allclose(norm.nu, other.nu)
    x[mask] = float("nan")
    training_step(other, x, dy, mask)
    assert torch.isfinite(other.nu).all()
