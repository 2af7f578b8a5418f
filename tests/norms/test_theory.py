"""The paper's lemmas and its theorem, checked on random data."""

import pytest
import torch

from tests.norms.batches import bare_norm, random_affine, random_batch, training_step


@pytest.mark.parametrize("name", ["bn", "pnv"])
def test_exact_gradients_pass_gradcheck(name):
    norm = random_affine(bare_norm(name, 4, groups=2, layer_scale="head")).double()
    x, _, mask = random_batch(0, (2, 3, 4))
    assert torch.autograd.gradcheck(lambda v: norm(v, mask), x.requires_grad_(), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["bn", "pnv"])
@pytest.mark.parametrize("recipe", ["paper", "release"])
def test_exact_gradients_equal_autograd(name, recipe):
    norm = random_affine(bare_norm(name, 6, recipe=recipe)).double()
    x, dy, mask = random_batch(3)
    _, dx = training_step(norm, x, dy, mask)
    real = x[~mask].requires_grad_()
    total = mask.numel() if recipe == "release" and name == "bn" else real.shape[0]
    mean = real.mean(0) if name == "bn" else 0.0
    std = ((real - mean).pow(2).sum(0) / total + 1e-5).sqrt()
    (norm.weight * (real - mean) / std + norm.bias).backward(dy[~mask])
    torch.testing.assert_close(dx[~mask], real.grad, rtol=1e-10, atol=1e-10)


def test_lemma_1_lipschitz_identity_of_pnv():
    norm = random_affine(bare_norm("pnv", 6, eps=1e-30)).double()
    x, dy, mask = random_batch(4, (8, 9, 6))
    _, dx = training_step(norm, x, dy, mask)
    x, dy, dx = x[~mask], dy[~mask], dx[~mask]
    tokens = x.shape[0]
    psi = x.pow(2).mean(0).sqrt()
    x_hat = x / psi
    inner = (dy * x_hat / tokens**0.5).sum(0)
    identity = norm.weight**2 / psi**2 * (dy.pow(2).sum(0) - inner**2)
    torch.testing.assert_close(dx.pow(2).sum(0), identity, rtol=1e-10, atol=1e-10)


def test_theorem_1_nu_and_input_gradients_stay_bounded():
    """The constants of the theorem's assumptions are measured on the run; the bounds follow from them.

    While (1 - alpha) Gamma <= 1, a step takes nu to a weighted mean of nu and Lambda / Gamma, and by Cauchy-Schwarz
    |Lambda| / Gamma <= C2 / sqrt(Gamma): so |nu| <= C2 / sqrt(least Gamma), and the input gradient is bounded with it.
    """
    alpha, steps = 0.9, 3000
    norm = bare_norm("pn", 8, alpha_bwd=alpha, warmup_updates=10, eps=1e-12).double()
    generator = torch.Generator().manual_seed(0)
    nus, gradients, gammas, x_hats, gs, psis = (torch.zeros(steps, dtype=torch.float64) for _ in range(6))
    least_gamma = float("inf")
    for t in range(steps):
        scale = 0.5 + torch.rand(8, generator=generator, dtype=torch.float64)  # batches differ a lot
        x = torch.randn(32, 8, generator=generator, dtype=torch.float64) * scale
        dy = torch.randn(32, 8, generator=generator, dtype=torch.float64).clamp(-2, 2) + 0.5 * x.sign()  # adds up in nu
        x_hat, dx = training_step(norm, x, dy)  # gamma = 1, beta = 0
        nus[t], gradients[t], x_hats[t], gs[t] = norm.nu.abs().max(), dx.abs().max(), x_hat.abs().max(), dy.abs().max()
        gammas[t], psis[t] = x_hat.square().mean(0).max(), (x / x_hat).min()
        least_gamma = min(least_gamma, float(x_hat.square().mean(0).min()))
    assert gammas.max() < 1 / (1 - alpha)  # the assumption on C1
    bound = gs.max() / least_gamma**0.5
    assert nus.max() <= bound
    assert gradients.max() <= (gs.max() + bound * x_hats.max()) / psis.min()
    # The bounds are not empty: nu has settled away from zero, neither vanishing nor growing.
    assert nus[100:1500].mean() > 0.1 and nus[1500:].mean() < 1.1 * nus[100:1500].mean()
