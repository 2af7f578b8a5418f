"""Every number of the probes against a direct computation from stored activations and gradients, in float64."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq import diagnostics
from powernorm_fairseq.diagnostics import hooks
from powernorm_fairseq.diagnostics.hooks import SEES_KEYWORDS
from powernorm_fairseq.norms import build_norm, training_step
from tests.norms.batches import random_affine, random_batch

EPS = 1e-5
D = 6
OPTIONS = {
    "bn": {},
    "bn released": {"recipe": "release"},
    "brn": {"warmup_updates": 2},
    "mabn": {"window": 3},
    "rbn": {},
    "un": {"window": 3},
    "prepbn": {"updates": 4},
    "pnv": {"alpha_fwd": 0.8},
    "pn": {"alpha_fwd": 0.8, "alpha_bwd": 0.7, "warmup_updates": 2},
    "pn released": {"alpha_fwd": 0.8, "alpha_bwd": 0.7, "warmup_updates": 2, "recipe": "release"},
}


def make(case, layer_scale="none"):
    name = case.split()[0]
    return random_affine(build_norm(name, D, groups=2, layer_scale=layer_scale, **OPTIONS[case])).double()


def scaled(rows, layer_scale):
    """Each token, or each half of it, divided by its quadratic mean."""
    width = {"none": 0, "layer": D, "head": D // 2}[layer_scale]
    if not width:
        return rows
    parts = [part / torch.sqrt((part**2).mean(1, keepdim=True) + EPS) for part in rows.split(width, 1)]
    return torch.cat(parts, 1)


def average_norm(matrix):
    """Norm of each row, as a quadratic mean over the rows, divided by d."""
    return math.sqrt(float((matrix**2).sum(1).mean())) / matrix.shape[1]


def through(statistic, x, dy, gamma, extra=0):
    """The part of dL/dx that flows through one statistic of the batch alone, by autograd."""
    fixed = x.detach()
    x = fixed.clone().requires_grad_()
    share = len(x) / (len(x) + extra)
    var = fixed.var(0, unbiased=False) * share
    if statistic == "mu":
        y = (fixed - x.mean(0)) / torch.sqrt(var + EPS)
    elif statistic == "var":
        y = (fixed - fixed.mean(0)) / torch.sqrt(x.var(0, unbiased=False) * share + EPS)
    else:
        y = fixed / torch.sqrt((x**2).mean(0) + EPS)
    (grad,) = torch.autograd.grad((dy * gamma * y).sum(), x)
    return grad


def moving(history, momentum):
    """Weighted mean of all batches before, the newest with the largest weight."""
    weights = torch.tensor([(1 - momentum) ** age for age in range(len(history))], dtype=torch.float64)
    return sum(weight * value for weight, value in zip(weights, reversed(history))) / weights.sum()


def expect(norm, x, dy, before, history, momentum, extra=0, unbiased=False):
    """What a step must give that has real rows ``x``; ``before`` are the norm's buffers when it began."""
    gamma, n = norm.weight.detach(), len(x)
    var = x.var(0, unbiased=False) * n / (n + extra) * (n / (n - 1) if unbiased else 1)
    batch = {"mu": x.mean(0), "var": var, "psi2": (x**2).mean(0)}
    before = {**before, **({"running_psi2": before["running_chi2"]} if "running_chi2" in before else {})}
    own = {"mu": "running_mean", "var": "running_var", "psi2": "running_psi2"}
    numbers = {"tokens": n}
    for statistic, value in batch.items():
        running = before.get(own[statistic])
        if running is None and history:
            running = moving([old[statistic] for old in history], momentum)
        if running is not None:
            squares = [(float(a) - float(b)) ** 2 for a, b in zip(value, running)]
            numbers[f"dist_{statistic}"] = math.sqrt(sum(squares)) / D
        numbers[f"g_{statistic}"] = average_norm(through(statistic, x, dy, gamma, extra))
    ratios = sorted((abs(g) / math.sqrt(p + EPS) for g, p in zip(gamma.tolist(), batch["psi2"].tolist())))
    numbers["gamma_psi_min"], numbers["gamma_psi_max"] = ratios[0], ratios[-1]
    numbers["gamma_psi_q50"] = (ratios[2] + ratios[3]) / 2  # of six
    history.append(batch)
    return numbers


def pn_numbers(norm, x, dy, before, batch_psi2):
    """Gamma, Lambda and nu of Algorithm 2; and the nu that must follow from them."""
    in_warmup = before["num_updates"] + 1 <= norm.warmup_updates
    x_hat = x / torch.sqrt((batch_psi2 if in_warmup else before["running_psi2"]) + EPS)
    gamma, lambda_ = (x_hat**2).mean(0), (norm.weight.detach() * dy * x_hat).mean(0)
    nu, alpha = before["nu"], norm.alpha_bwd
    torch.testing.assert_close(norm.nu, nu * (1 - (1 - alpha) * gamma) + (1 - alpha) * lambda_)
    return {
        "Gamma_min": float(gamma.min()),
        "Gamma_mean": float(gamma.mean()),
        "Gamma_max": float(gamma.max()),
        "Lambda_max": float(lambda_.abs().max()),
        "Lambda_norm": float(lambda_.norm()) / D,
        "nu_max": float(nu.abs().max()),
        "nu_norm": float(nu.norm()) / D,
    }


@pytest.mark.parametrize("layer_scale, chosen", [("none", True), ("layer", True), ("head", True), ("head", False)])
@pytest.mark.parametrize("case", OPTIONS)
def test_training_steps(case, layer_scale, chosen, monkeypatch):
    """With padding left out, and with padding masked as on a GPU."""
    monkeypatch.setattr(hooks, "CHOOSING_DEVICES", ("cpu",) if chosen else ())
    norm = make(case, layer_scale)
    probes = diagnostics.attach(norm)
    history, momentum = [], norm.momentum if hasattr(norm, "momentum") else 1 - norm.alpha_fwd
    for step in range(5):
        x, dy, mask = random_batch(step)
        before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        y = norm(x.clone().requires_grad_(), mask)
        y.backward(dy)
        rows = scaled(x[~mask], layer_scale)
        extra = int(mask.sum()) if case == "bn released" else 0
        expected = expect(norm, rows, dy[~mask], before, history, momentum, extra)
        if hasattr(norm, "nu"):
            everyone = case.endswith("released")  # padding takes part in these means
            all_rows, all_dy = (scaled(x.reshape(-1, D), layer_scale), dy.reshape(-1, D))
            own = (all_rows, all_dy) if everyone else (rows, dy[~mask])
            expected.update(pn_numbers(norm, *own, before, history[-1]["psi2"]))
        measured = probes.read()[""]
        for quantile in ("05", "25", "75", "95"):
            del measured[f"gamma_psi_q{quantile}"]  # see the test of the vectors
        assert measured == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "norm, shape",
    [(nn.BatchNorm1d(D), (9, D)), (nn.BatchNorm1d(D), (4, D, 3)), (nn.BatchNorm2d(D, momentum=0.3), (3, D, 2, 4))],
    ids=["1d", "1d with length", "2d"],
)
def test_norms_of_torch(norm, shape):
    """Their running variance is the unbiased one, so the batch's is too."""
    norm, history = random_affine(norm).double(), []
    probes = diagnostics.attach(norm)
    for step in range(3):
        x, dy, _ = random_batch(step, shape)
        before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
        norm(x.requires_grad_()).backward(dy)
        rows, dy = (t.detach().transpose(1, -1).reshape(-1, D) for t in (x, dy))
        expected = expect(norm, rows, dy, before, history, norm.momentum, unbiased=True)
        measured = probes.read()[""]
        for key, value in expected.items():
            assert measured[key] == pytest.approx(value, rel=1e-10), key


@pytest.mark.parametrize("case", OPTIONS)
def test_evaluation_gives_the_training_inference_discrepancy(case):
    norm = make(case, "head")
    for step in range(3):
        x, dy, mask = random_batch(step)
        norm(x.requires_grad_(), mask).backward(dy)
    norm.eval()
    probes = diagnostics.attach(norm)
    means, divisors = [], []
    for step in range(4):
        x, _, mask = random_batch(100 + step)
        norm(x, mask)
        rows = scaled(x[~mask], "head")
        if hasattr(norm, "running_var"):
            var = rows.var(0, unbiased=False)
            if case.endswith("released"):
                var = var * len(rows) / mask.numel()
            sigma = torch.sqrt(var + EPS)
            means.append(float(((norm.running_mean - rows.mean(0)).abs() / sigma).mean()))
            divisors.append(float((torch.sqrt(norm.running_var + EPS) / sigma - 1).abs().mean()))
        else:
            running = norm.running_chi2 if case == "mabn" else norm.running_psi2
            psi = torch.sqrt((rows**2).mean(0) + EPS)
            divisors.append(float((torch.sqrt(running + EPS) / psi - 1).abs().mean()))
    measured = probes.read_evaluation()[""]
    assert measured.pop("batches") == 4
    assert measured.pop("tid_var") == pytest.approx(sum(divisors) / 4, rel=1e-10)
    assert measured.pop("tid_mean", None) == (pytest.approx(sum(means) / 4, rel=1e-10) if means else None)
    assert not measured and probes.read_evaluation() == {} and probes.read() == {}


def test_loss_scale_is_taken_out():
    one, other = make("pn"), make("pn")
    x, dy, mask = random_batch(0)
    numbers = []
    for norm, scale in ((one, 1.0), (other, 128.0)):
        probes = diagnostics.attach(norm)
        with training_step(loss_scale=scale):
            norm(x.clone().requires_grad_(), mask).backward(scale * dy)
        numbers.append(probes.read()[""])
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-12)


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("case", ["bn", "pn", "pnv", "mabn"])
def test_what_stands_at_padding_is_not_seen(case, chosen, monkeypatch):
    monkeypatch.setattr(hooks, "CHOOSING_DEVICES", ("cpu",) if chosen else ())
    norm, (x, dy, mask) = make(case, "head"), random_batch(1)
    numbers = []
    for junk in (0.0, math.nan, math.inf):
        norm.reset_running_stats()
        probes = diagnostics.attach(norm)
        norm(x.masked_fill(mask.unsqueeze(2), junk).requires_grad_(), mask).backward(dy)
        numbers.append(probes.read()[""])
        probes.detach()
    assert numbers[0] == numbers[1] == numbers[2]
    assert all(math.isfinite(value) for value in numbers[0].values())


@pytest.mark.skipif(not SEES_KEYWORDS, reason="hooks of this torch do not see keyword arguments")
def test_mask_may_be_given_by_name():
    norm, (x, dy, mask) = make("pnv"), random_batch(1)
    probes = diagnostics.attach(norm)
    norm(x.requires_grad_(), padding_mask=mask).backward(dy)
    assert probes.read()[""]["tokens"] == int((~mask).sum())


@pytest.mark.parametrize("case", OPTIONS)
def test_activation_checkpointing_changes_no_number(case):
    """The second forward sees the running statistics that the first has moved already."""
    numbers = []
    for reentrant in (None, True, False):
        norm = make(case, "layer")
        probes = diagnostics.attach(norm)
        for step in range(3):
            x, dy, mask = random_batch(step)
            x.requires_grad_()
            if reentrant is None:
                y = norm(x, mask)
            else:
                y = checkpoint(norm, x, mask, use_reentrant=reentrant)
            y.backward(dy)
            numbers.append(probes.read()[""])
    assert numbers[3:6] == numbers[6:9] == numbers[:3]
    assert "g_psi2" in numbers[0]


def test_stand_in_batches_are_left_out():
    norm, (x, dy, mask) = make("pn"), random_batch(0)
    probes = diagnostics.attach(norm)
    with training_step(counts=False):
        norm(x.requires_grad_(), mask).backward(dy)
    assert probes.read() == {}


def test_first_call_counts_until_it_is_read():
    norm = make("bn")
    probes = diagnostics.attach(norm)
    for step in range(2):
        x, dy, mask = random_batch(step)
        norm(x.requires_grad_(), mask).backward(dy)
    first = probes.read()[""]
    again = make("bn")
    probes = diagnostics.attach(again)
    x, dy, mask = random_batch(0)
    again(x.requires_grad_(), mask).backward(dy)
    assert probes.read()[""] == first


def test_detached_probes_leave_nothing_behind():
    model = nn.Sequential(nn.Linear(D, D), build_norm("bn", D), nn.LayerNorm(D), nn.BatchNorm1d(D))
    probes = diagnostics.attach(model)
    assert list(probes.probes) == ["1", "3"]
    assert all(module._forward_hooks and module._forward_pre_hooks for module in (model[1], model[3]))
    probes.detach()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    model(torch.randn(5, D)).sum().backward()
    assert probes.read() == {}


def test_vectors_are_those_that_the_quantiles_summarise():
    norm, (x, dy, mask) = make("pnv"), random_batch(0)
    probes = diagnostics.attach(norm)
    norm(x.requires_grad_(), mask).backward(dy)
    vector = torch.tensor(probes.vectors()[""], dtype=torch.float64)
    expected = norm.weight.detach().abs() / torch.sqrt((x.detach()[~mask] ** 2).mean(0) + EPS)
    torch.testing.assert_close(vector, expected)
    numbers = probes.read()[""]
    for name, share in (("q05", 0.05), ("q25", 0.25), ("q75", 0.75), ("q95", 0.95)):
        position = share * (D - 1)
        low, values = int(position), sorted(vector.tolist())
        value = values[low] + (position - low) * (values[low + 1] - values[low])
        assert numbers[f"gamma_psi_{name}"] == pytest.approx(value, rel=1e-10)


def test_input_that_is_overwritten_is_an_error():
    norm, (x, dy, mask) = make("pnv"), random_batch(0)
    probes = diagnostics.attach(norm)
    hidden = x.requires_grad_() * 1
    y = norm(hidden, mask)
    hidden.data.zero_()
    hidden.detach().add_(1)
    with pytest.raises(RuntimeError, match="in place"):
        y.backward(dy)
    probes.detach()
