"""RBN, UN, PRepBN, DyT, Derf and ScaleNorm against their formulas; what only they have: a penalty, schedules."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import build_norm, fold_norm, kernels, take_penalty, window_norms
from tests.norms import reference
from tests.norms.batches import bare_norm, random_affine, random_batch, training_step
from tests.processes import run_processes

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
RECIPES = ["paper", "release"]
WEIGHTS = {"penalty_mean": 0.7, "penalty_var": 0.3}


def penalised_step(norm, x, dy, mask, dpenalty=2.0):
    """One forward and backward of sum(Y dY) + dpenalty * penalty: Y, dL/dX, penalty."""
    x = x.clone().requires_grad_()
    y = norm.train()(x, mask)
    penalty = take_penalty(norm)
    norm.zero_grad()
    ((y * dy)[~mask].sum() + dpenalty * penalty).backward()
    return y.detach(), x.grad, penalty.detach()


# ---------------------------------------------------------------- RBN


@pytest.mark.parametrize("recipe", RECIPES)
def test_rbn_equals_the_formulas(recipe):
    norm = random_affine(bare_norm("rbn", 6, recipe=recipe, eps=0.1, **WEIGHTS)).double()
    weights = tuple(WEIGHTS.values())
    plain = reference.RBN(norm.weight.detach(), norm.bias.detach(), 0.1, weights=weights, release=recipe == "release")
    for seed in range(8):
        x, dy, mask = random_batch(seed)
        x[..., 2] *= 0.05  # a variance below eps
        y, dx, penalty = penalised_step(norm, x, dy, mask)
        expected_y, expected_dx, expected = plain.step(x[~mask], dy[~mask], 2.0)
        torch.testing.assert_close(y[~mask], expected_y, **CLOSE)
        torch.testing.assert_close(dx[~mask], expected_dx, **CLOSE)
        assert float(penalty) == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(norm.running_mean, plain.mu, **CLOSE)
        torch.testing.assert_close(norm.running_var, plain.var, **CLOSE)


def test_rbn_values_of_its_authors():
    norm = build_norm("rbn", 8)
    assert (norm.penalty_mean, norm.penalty_var, norm.momentum, norm.layer_scale) == (0.1, 0.01, 0.05, "layer")
    assert build_norm("rbn", 8, recipe="release").layer_scale == "none"


@pytest.mark.parametrize("kernel", ["eager", "auto"])
@pytest.mark.parametrize("layer_scale", ["none", "head"])
def test_gradient_of_the_penalty_equals_autograd(kernel, layer_scale):
    x, _, mask = random_batch(3)
    x = x.float()
    norm = bare_norm("rbn", 6, groups=2, layer_scale=layer_scale, kernel=kernel, **WEIGHTS)
    training_step(norm, x, x, mask)
    take_penalty(norm)
    mu, var = norm.running_mean.double(), norm.running_var.double()
    wide = x.double().requires_grad_()
    s = wide[~mask].view(-1, 2, 3)
    if layer_scale == "head":
        s = s / (s.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    s = s.reshape(-1, 6)
    expected = 0.7 * (mu - s.mean(0)).square().sum() + 0.3 * (var - s.var(0, unbiased=False)).abs().sum()
    expected.backward()
    own = x.clone().requires_grad_()
    norm(own, mask)
    penalty = take_penalty(norm)
    penalty.backward()
    torch.testing.assert_close(penalty.double(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_penalty_under_activation_checkpointing(reentrant, recipe):
    options = {"recipe": recipe, **WEIGHTS}
    blocks = [nn.Sequential(nn.Linear(6, 6), bare_norm("rbn", 6, **options)).double() for _ in range(2)]
    plain, checkpointed = nn.Sequential(*blocks), copy.deepcopy(nn.Sequential(*blocks))
    for seed in range(3):
        results = []
        x, dy, _ = random_batch(seed)
        for model in (plain, checkpointed):
            own = x.clone().requires_grad_()
            if model is plain:
                y = model(own)
            else:
                y = own
                for block in model:
                    y = checkpoint(block, y, use_reentrant=reentrant)
            model.zero_grad()
            ((y * dy).sum() + 3 * take_penalty(model)).backward()
            assert take_penalty(model) is None  # the second forward left none
            results.append([y.detach(), own.grad, *(p.grad for p in model.parameters()), *model.buffers()])
        for ours, theirs in zip(*results):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("recipe", RECIPES)
def test_penalty_of_processes_equals_that_of_one(recipe, tmp_path):
    """Each has put the penalty of all tokens on its loss, with a weight of its own."""
    cuts, weights = (0, 9, 9, 12), (0.5, 0.2, 1.3)

    def steps(first, last, weight, sync):
        norm, results = bare_norm("rbn", 6, recipe=recipe, sync=sync, **WEIGHTS).double(), []
        for seed in range(4):
            x, dy, mask = random_batch(seed, (12, 5, 6))
            parts = x[first:last] * 2 + 1, dy[first:last], mask[first:last]
            results.append(penalised_step(norm, *parts, dpenalty=weight))
        return results

    ranks = run_processes(lambda rank: steps(cuts[rank], cuts[rank + 1], weights[rank], True), 3, tmp_path)
    for number, (y, dx, penalty) in enumerate(steps(0, 12, sum(weights), False)):
        mask = random_batch(number, (12, 5, 6))[2]
        torch.testing.assert_close(torch.cat([rank[number][0] for rank in ranks])[~mask], y[~mask], **CLOSE)
        torch.testing.assert_close(torch.cat([rank[number][1] for rank in ranks])[~mask], dx[~mask], **CLOSE)
        for rank in ranks:
            torch.testing.assert_close(rank[number][2], penalty, **CLOSE)


def test_penalty_of_a_batch_without_a_token_is_zero():
    norm = bare_norm("rbn", 6)
    x = torch.ones(3, 6, requires_grad=True)
    norm(x, torch.ones(3, dtype=torch.bool))
    penalty = take_penalty(norm)
    penalty.backward()
    assert float(penalty) == 0.0 and not x.grad.any()


def test_penalty_is_left_in_training_alone_and_taken_once():
    model = nn.Sequential(bare_norm("rbn", 6), bare_norm("rbn", 6), bare_norm("bn", 6))
    assert take_penalty(model) is None
    model(torch.randn(5, 6))
    assert take_penalty(model) > 0 and take_penalty(model) is None
    model.eval()(torch.randn(5, 6))
    assert take_penalty(model) is None


def test_penalties_that_reach_no_loss_are_refused():
    norm = bare_norm("rbn", 6)
    with pytest.raises(RuntimeError, match="penalties of 64 calls of an rbn were never added to a loss"):
        for _ in range(65):
            norm(torch.randn(5, 6))
    with torch.no_grad():
        for _ in range(100):
            norm(torch.randn(5, 6))
    assert copy.deepcopy(norm).take_penalty() is None


def test_penalty_of_a_compiled_norm():
    if not hasattr(torch, "compile") or torch.__version__ < "2.6":
        pytest.skip("torch.compile needs torch >= 2.6")
    torch._dynamo.reset()
    eager = bare_norm("rbn", 6, **WEIGHTS)
    norm = copy.deepcopy(eager)
    model = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        x, dy, mask = (t.float() if t.is_floating_point() else t for t in random_batch(seed))
        results = []
        for call, owner in ((eager, eager), (model, norm)):
            own = x.clone().requires_grad_()
            y = call(own, mask)
            penalty = take_penalty(owner)
            ((y * dy).sum() + penalty).backward()
            results.append([y.detach(), own.grad, penalty.detach()])
        torch.testing.assert_close(*results)


# ---------------------------------------------------------------- UN

UN_CASES = {
    "window": {"window": 3, "momentum": 0.3},
    "warm-up": {"window": 2, "warmup": 5},
    "outliers": {"window": 3, "outliers": True, "warmup": 4},
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("case", UN_CASES)
def test_un_equals_the_formulas(case, padded, monkeypatch):
    monkeypatch.setattr(window_norms, "FIRST_STEPS", 6)
    settings = UN_CASES[case]
    options = {"warmup_updates": settings.get("warmup", 0), **{k: v for k, v in settings.items() if k != "warmup"}}
    norm = random_affine(bare_norm("un", 6, **options)).double()
    plain = reference.UN(norm.weight.detach(), norm.bias.detach(), first=6, **settings)
    for seed in range(12):
        x, dy, mask = random_batch(seed, padded=padded)
        if seed in (8, 10):
            x = x * torch.tensor([1, 1, 1, 30, 1, 1.0])
        y, dx = training_step(norm, x, dy, mask if padded else None)
        expected_y, expected_dx = plain.step(x[~mask], dy[~mask])
        torch.testing.assert_close(y[~mask], expected_y, **CLOSE)
        torch.testing.assert_close(dx[~mask], expected_dx, **CLOSE)
        torch.testing.assert_close(norm.running_psi2, plain.running, **CLOSE)
        torch.testing.assert_close(norm.grad_mean, plain.e, **CLOSE)
        torch.testing.assert_close(norm.weight.grad, plain.of_gamma, **CLOSE)
        torch.testing.assert_close(norm.bias.grad, dy[~mask].sum(0), **CLOSE)
    assert (plain.left_out > 0) == (case == "outliers")


@pytest.mark.parametrize("case", UN_CASES)
def test_un_in_float32_equals_float64(case, monkeypatch):
    monkeypatch.setattr(window_norms, "FIRST_STEPS", 6)
    settings = UN_CASES[case]
    options = {"warmup_updates": settings.get("warmup", 0), **{k: v for k, v in settings.items() if k != "warmup"}}
    norm = random_affine(bare_norm("un", 6, **options))
    wide = copy.deepcopy(norm).double()
    for seed in range(12):
        x, dy, mask = random_batch(seed)
        if seed in (8, 10):
            x = x * torch.tensor([1, 1, 1, 30, 1, 1.0])
        ours, theirs = training_step(norm, x.float(), dy.float(), mask), training_step(wide, x, dy, mask)
        for own, expected in zip((*ours, *norm.buffers()), (*theirs, *wide.buffers())):
            torch.testing.assert_close(own.double(), expected.double(), rtol=1e-4, atol=1e-4)


def test_un_has_r_of_one_for_a_thousand_steps():
    gradients = {}
    for updates in (999, 1000):
        norm = bare_norm("un", 6).double()
        norm.num_updates.fill_(updates)
        norm.running_psi2.fill_(3.0)
        x, dy, _ = random_batch(0)
        training_step(norm, x, dy)
        gradients[updates] = norm.weight.grad.clone()
    assert not torch.allclose(gradients[999], gradients[1000])
    assert build_norm("un", 8).window == 4 and build_norm("un", 8).momentum == 0.1


# ---------------------------------------------------------------- PRepBN


def test_prepbn_equals_the_formula_and_its_gradient_that_of_autograd():
    norm = random_affine(bare_norm("prepbn", 6, updates=4, momentum=0.3)).double()
    mu, var = torch.zeros(6).double(), torch.ones(6).double()
    for step in range(7):
        x, dy, mask = random_batch(step)
        share = max(0.0, 1 - step / 4)
        own = x[~mask].clone().requires_grad_()
        parameters = [parameter.detach().clone().requires_grad_() for parameter in norm.parameters()]
        named = dict(zip(dict(norm.named_parameters()), parameters))
        mean, variance = own.mean(0), own.var(0, unbiased=False)
        bn = (own - mean) / (variance + 1e-5).sqrt() * named["weight"] + named["bias"]
        centred = own - own.mean(1, keepdim=True)
        ln = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * named["ln_weight"] + named["ln_bias"]
        expected = share * ln + (1 - share) * (bn + named["eta"] * own)
        expected.backward(dy[~mask])
        y, dx = training_step(norm, x, dy, mask)
        torch.testing.assert_close(y[~mask], expected.detach(), **CLOSE)
        torch.testing.assert_close(dx[~mask], own.grad, **CLOSE)
        for ours, theirs in zip(norm.parameters(), parameters):
            torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
        mu, var = 0.7 * mu + 0.3 * mean.detach(), 0.7 * var + 0.3 * variance.detach()
        torch.testing.assert_close(norm.running_var, var, **CLOSE)
        # evaluation follows the lambda that the training has reached
        share = max(0.0, 1 - (step + 1) / 4)
        bn = (x[~mask] - mu) / (var + 1e-5).sqrt() * named["weight"] + named["bias"] + named["eta"] * x[~mask]
        torch.testing.assert_close(norm.eval()(x, mask)[~mask], share * ln + (1 - share) * bn, **CLOSE)
        norm.recipe = "release"
        torch.testing.assert_close(norm(x, mask)[~mask], bn, **CLOSE)
        norm.recipe = "paper"


def test_prepbn_folds_when_nothing_of_ln_is_left():
    norm, linear = random_affine(bare_norm("prepbn", 6, updates=3)).double(), nn.Linear(6, 4).double()
    training_step(norm, *random_batch(0))
    with pytest.raises(ValueError, match="folded after updates=3 batches, when nothing of LN is left; it has seen 1"):
        fold_norm(norm.eval(), [linear])
    for seed in range(2):
        training_step(norm, *random_batch(seed))
    x = random_batch(5)[0]
    expected = linear(norm.eval()(x))
    rest = fold_norm(norm, [linear])
    torch.testing.assert_close(linear(rest(x)), expected, **CLOSE)


def test_prepbn_keeps_the_schedule_of_its_checkpoint():
    first, second = bare_norm("prepbn", 6, updates=4), bare_norm("prepbn", 6, updates=9)
    first(torch.randn(5, 6))
    with pytest.warns(UserWarning, match="LN becomes BN in 4 batches, and that is kept; updates=9 has no effect"):
        nn.ModuleDict({"norm": second}).load_state_dict(nn.ModuleDict({"norm": first}).state_dict())
    assert first.share_of_ln() == second.share_of_ln() == 0.75


def test_prepbn_needs_its_length():
    with pytest.raises(ValueError, match="updates is not given"):
        build_norm("prepbn", 8)
    with pytest.raises(ValueError, match="updates=0 is too small"):
        build_norm("prepbn", 8, updates=0)


# ---------------------------------------------------------------- DyT, Derf, ScaleNorm


def by_hand(name, norm, x):
    """The formula, number by number."""
    result = torch.empty_like(x)
    for i, row in enumerate(x):
        length = max(math.sqrt(sum(float(v) ** 2 for v in row)), 1e-5)
        for c, value in enumerate(row.tolist()):
            if name == "scalenorm":
                result[i, c] = float(norm.weight) * value / length
                continue
            u = float(norm.alpha) * value + (float(norm.shift) if name == "derf" else 0.0)
            squashed = math.erf(u) if name == "derf" else math.tanh(u)
            result[i, c] = float(norm.weight[c]) * squashed + float(norm.bias[c])
    return result


@pytest.mark.parametrize("kernel", ["eager", "auto"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["dyt", "derf", "scalenorm"])
def test_pointwise_norms_equal_the_formulas(name, dtype, kernel):
    norm = random_affine(bare_norm(name, 37, kernel=kernel)).to(dtype)
    x, dy, mask = (t.to(dtype) if t.is_floating_point() else t for t in random_batch(0, (9, 11, 37)))
    x[0, 0] = 0.0
    x[0, 1] *= 1e-7
    x[0, 2] *= 40
    mask[0, :3] = False
    y, dx = training_step(norm, x, dy, mask)
    close = CLOSE if dtype == torch.float64 else {"rtol": 3e-6, "atol": 1e-6}
    torch.testing.assert_close(y[~mask].double(), by_hand(name, norm, x[~mask].double()), **close)
    wide = copy.deepcopy(norm).double()
    wide.kernel = "eager"
    own = x.double().requires_grad_()
    wide.zero_grad()
    wide(own, mask).backward(dy.double())
    close = {"rtol": 1e-4, "atol": 2e-5}
    if name == "scalenorm":  # the gradient of a short token is large
        own.grad[0, :2], dx[0, :2] = own.grad[0, :2] * 1e-5, dx[0, :2] * 1e-5
    torch.testing.assert_close(dx.double(), own.grad, **close)
    for ours, theirs in zip(norm.parameters(), wide.parameters()):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, **close)


@pytest.mark.parametrize("name", ["dyt", "derf", "scalenorm"])
def test_gradcheck(name):
    norm = random_affine(bare_norm(name, 4)).double()
    x, _, mask = random_batch(1, (3, 2, 4))
    parameters = list(norm.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: norm(x, mask), (x.requires_grad_(), *parameters))


def test_pointwise_norms_start_as_their_authors_say():
    assert float(build_norm("dyt", 8).alpha) == float(build_norm("derf", 8).alpha) == 0.5
    assert float(build_norm("derf", 8).shift) == 0.0 and build_norm("dyt", 8).shift is None
    assert float(build_norm("dyt", 8, alpha_start=0.2).alpha) == pytest.approx(0.2)
    assert float(build_norm("scalenorm", 16).weight) == 4.0 and build_norm("scalenorm", 16).bias is None
    assert float(build_norm("prepbn", 8, updates=1).eta) == 1.0


@pytest.mark.skipif(kernels.serving("auto", "cpu")[0] != "cpp", reason="it is said of the C++ operators alone")
@pytest.mark.parametrize("name", ["dyt", "derf", "scalenorm"])
def test_threads_change_no_bit(name):
    results, before = [], torch.get_num_threads()
    x, dy, mask = (t.float() if t.is_floating_point() else t for t in random_batch(0, (300, 7, 16)))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            norm = random_affine(bare_norm(name, 16))
            results.append([*training_step(norm, x, dy, mask), *(p.grad for p in norm.parameters())])
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(map(torch.equal, others, results[0]))


@pytest.mark.parametrize("name", ["dyt", "derf", "scalenorm"])
def test_what_is_not_finite_stays_so(name):
    x = torch.randn(4, 6)
    x[1, 2] = float("nan")
    assert build_norm(name, 6)(x)[1].isnan().any()
