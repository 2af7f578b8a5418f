"""Every norm with batch statistics against the paper's formulas, step by step over a random run in float64."""

import pytest
import torch

from tests.norms import reference
from tests.norms.batches import bare_norm, random_affine, random_batch, training_step

CLOSE = {"rtol": 1e-10, "atol": 1e-10}

# name, options of the norm, reference of the same settings, buffers that must agree (ours -> the reference's)
CASES = {
    "bn": ("bn", {"momentum": 0.3, "eps": 1e-3}, lambda g, b: reference.BN(g, b, 1e-3, 0.3), ["running_mean:mu"]),
    "bn-var": ("bn", {}, lambda g, b: reference.BN(g, b), ["running_var:var"]),
    "pnv": ("pnv", {"alpha_fwd": 0.7}, lambda g, b: reference.PNV(g, b, alpha=0.7), ["running_psi2:psi2"]),
    "pn": (
        "pn",
        {"alpha_fwd": 0.7, "alpha_bwd": 0.8, "warmup_updates": 4, "eps": 1e-3},
        lambda g, b: reference.PN(g, b, 1e-3, 0.7, 0.8, 4),
        ["running_psi2:psi2", "nu:nu"],
    ),
    "pn-without-warm-up": ("pn", {}, lambda g, b: reference.PN(g, b), ["running_psi2:psi2", "nu:nu"]),
    "brn": (
        "brn",
        {"momentum": 0.3, "warmup_updates": 2, "rise_updates": 5},
        lambda g, b: reference.BRN(g, b, momentum=0.3, warmup=2, rise=5),
        ["running_mean:mu", "running_var:var"],
    ),
    "brn-at-once": ("brn", {}, lambda g, b: reference.BRN(g, b), ["running_mean:mu"]),
    "brn-default-rise": ("brn", {"warmup_updates": 3}, lambda g, b: reference.BRN(g, b, warmup=3, rise=3), []),
    "mabn": (
        "mabn",
        {"momentum": 0.3, "warmup_updates": 2, "window": 3},
        lambda g, b: reference.MABN(g, b, momentum=0.3, warmup=2, window=3),
        ["running_chi2:running"],
    ),
    "mabn-long-warm-up": (
        "mabn",
        {"warmup_updates": 5, "window": 2},
        lambda g, b: reference.MABN(g, b, warmup=5, window=2),
        ["running_chi2:running"],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padded", [True, False])
def test_run_equals_the_formulas(case, padded):
    name, options, make, buffers = CASES[case]
    norm = random_affine(bare_norm(name, 6, **options)).double()
    plain = make(norm.weight.detach(), norm.bias.detach())
    for seed in range(10):
        x, dy, mask = random_batch(seed, padded=padded)
        real = ~mask
        y, dx = training_step(norm, x, dy, mask if padded else None)
        expected_y, expected_dx = plain.step(x[real], dy[real])
        torch.testing.assert_close(y[real], expected_y, **CLOSE)
        torch.testing.assert_close(dx[real], expected_dx, **CLOSE)
        for pair in buffers:
            ours, theirs = pair.split(":")
            torch.testing.assert_close(getattr(norm, ours), getattr(plain, theirs), **CLOSE)
        assert norm.num_updates == seed + 1


def test_pn_release_recipe_equals_the_released_behaviour():
    options = {"alpha_fwd": 0.7, "alpha_bwd": 0.8, "warmup_updates": 4}
    norm = random_affine(bare_norm("pn", 6, recipe="release", **options)).double()
    plain = reference.PN(norm.weight.detach(), norm.bias.detach(), 1e-5, 0.7, 0.8, 4, release=True)
    for seed in range(10):
        x, dy, mask = random_batch(seed)
        y, dx = training_step(norm, x, dy, mask)
        expected_y, expected_dx = plain.step(x[~mask], dy[~mask], x[mask], dy[mask])
        torch.testing.assert_close(y[~mask], expected_y, **CLOSE)
        torch.testing.assert_close(dx[~mask], expected_dx, **CLOSE)
        torch.testing.assert_close(norm.running_psi2, plain.psi2, **CLOSE)
        torch.testing.assert_close(norm.nu, plain.nu, **CLOSE)


def test_bn_release_recipe_counts_padding_in_the_variance():
    norm = random_affine(bare_norm("bn", 6, recipe="release")).double()
    assert norm.momentum == 0.05
    for seed in range(3):
        x, dy, mask = random_batch(seed)
        norm.reset_running_stats()
        plain = reference.BN(norm.weight.detach(), norm.bias.detach(), momentum=0.05, extra=int(mask.sum()))
        y, dx = training_step(norm, x, dy, mask)
        expected_y, expected_dx = plain.step(x[~mask], dy[~mask])
        torch.testing.assert_close(y[~mask], expected_y, **CLOSE)
        torch.testing.assert_close(dx[~mask], expected_dx, **CLOSE)
        torch.testing.assert_close(norm.running_var, plain.var, **CLOSE)


@pytest.mark.parametrize("name", ["bn", "brn", "mabn", "pnv", "pn"])
def test_evaluation_uses_running_statistics(name):
    norm = random_affine(bare_norm(name, 6)).double()
    for seed in range(3):
        training_step(norm, *random_batch(seed))
    norm.eval()
    x, _, mask = random_batch(99)
    mean = norm.running_mean if name in ("bn", "brn") else torch.zeros(6, dtype=torch.float64)
    power = getattr(norm, {"bn": "running_var", "brn": "running_var", "mabn": "running_chi2"}.get(name, "running_psi2"))
    expected = norm.weight * (x - mean) / (power + 1e-5).sqrt() + norm.bias
    torch.testing.assert_close(norm(x, mask)[~mask], expected[~mask], **CLOSE)
    torch.testing.assert_close(norm(x), expected, **CLOSE)


@pytest.mark.parametrize("name", ["ln", "rms", "gn", "bn", "brn", "mabn", "pnv", "pn"])
def test_gradients_of_factor_and_offset(name):
    norm = random_affine(bare_norm(name, 6, groups=2)).double()
    x, dy, mask = random_batch(1)
    y, _ = training_step(norm, x, dy, mask)
    if norm.bias is not None:
        torch.testing.assert_close(norm.bias.grad, dy[~mask].sum(0), **CLOSE)
        x_hat = (y[~mask] - norm.bias) / norm.weight
    else:
        x_hat = y[~mask] / norm.weight
    torch.testing.assert_close(norm.weight.grad, (dy[~mask] * x_hat).sum(0), **CLOSE)


@pytest.mark.parametrize("layer_scale, slices", [("layer", 1), ("head", 3)])
@pytest.mark.parametrize("name", ["bn", "brn", "mabn", "pnv", "pn"])
def test_layer_scale_stands_in_front_of_the_norm(name, layer_scale, slices):
    x, dy, mask = random_batch(5)
    scaled_by_hand = x.clone().requires_grad_()
    rows = scaled_by_hand.view(4, 5, slices, 6 // slices)
    scaled = (rows / (rows.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()).view(4, 5, 6)
    plain = random_affine(bare_norm(name, 6, eps=1e-3)).double()
    plain(scaled, mask).backward(dy)
    norm = random_affine(bare_norm(name, 6, eps=1e-3, groups=3, layer_scale=layer_scale)).double()
    y, dx = training_step(norm, x, dy, mask)
    torch.testing.assert_close(dx, scaled_by_hand.grad, **CLOSE)
    for buffer, expected in zip(norm.buffers(), plain.buffers()):
        torch.testing.assert_close(buffer, expected, **CLOSE)
    norm.eval(), plain.eval()
    torch.testing.assert_close(norm(x, mask), plain(scaled.detach(), mask), **CLOSE)


def test_token_norms_equal_torch():
    x, dy, mask = random_batch(2)
    for name, torch_norm in (
        ("ln", torch.nn.LayerNorm(6, eps=1e-3)),
        ("gn", torch.nn.GroupNorm(3, 6, eps=1e-3)),
    ):
        norm = random_affine(bare_norm(name, 6, groups=3, eps=1e-3)).double()
        random_affine(torch_norm).double()
        expected_x = x.clone().requires_grad_()
        expected = torch_norm(expected_x.view(-1, 6)).view(x.shape)
        expected.backward(dy)
        y, dx = training_step(norm, x, dy)
        torch.testing.assert_close(y, expected.detach(), **CLOSE)
        torch.testing.assert_close(dx, expected_x.grad, **CLOSE)
    rms = random_affine(bare_norm("rms", 6, eps=1e-3)).double()
    expected = rms.weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(rms(x), expected, **CLOSE)


def test_bn_equals_torch_without_padding():
    norm, torch_norm = bare_norm("bn", 6, momentum=0.3).double(), torch.nn.BatchNorm1d(6, momentum=0.3).double()
    random_affine(norm), random_affine(torch_norm)
    for seed in range(4):
        x, dy, _ = random_batch(seed, padded=False)
        expected_x = x.clone().requires_grad_()
        expected = torch_norm(expected_x.view(-1, 6)).view(x.shape)
        expected.backward(dy)
        y, dx = training_step(norm, x, dy)
        torch.testing.assert_close(y, expected.detach(), **CLOSE)
        torch.testing.assert_close(dx, expected_x.grad, **CLOSE)
        torch.testing.assert_close(norm.running_mean, torch_norm.running_mean, **CLOSE)
