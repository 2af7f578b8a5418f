"""Saving, copying, exporting, and checkpoints of the authors' release."""

import copy
import io

import pytest
import torch

from powernorm_fairseq.norms import norm_names
from tests.norms.batches import bare_norm, random_affine, random_batch, training_step

BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
OPTIONS = {"warmup_updates": 3, "window": 3, "groups": 2, "layer_scale": "head"}


def run(norm, seeds):
    """Steps over the batches of ``seeds``, in float32."""
    for seed in seeds:
        x, dy, mask = random_batch(seed)
        training_step(norm, x.float(), dy.float(), mask)
    return norm


@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize("halfway", [2, 5])
def test_run_goes_on_from_a_checkpoint_bit_for_bit(name, halfway):
    whole = run(random_affine(bare_norm(name, 6, **OPTIONS)), range(8))
    first = run(random_affine(bare_norm(name, 6, **OPTIONS)), range(halfway))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = bare_norm(name, 6, **OPTIONS)
    second.load_state_dict(torch.load(file))
    run(second, range(halfway, 8))
    for key, value in whole.state_dict().items():
        assert torch.equal(second.state_dict()[key], value), key


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_copy_is_independent(name):
    norm = run(bare_norm(name, 6, **OPTIONS), range(2))
    other = copy.deepcopy(norm)
    before = copy.deepcopy(norm.state_dict())
    run(other, range(2, 5))
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value)
    run(norm, range(2, 5))
    for key, value in norm.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_averaged_models_of_torch(name):
    norm = run(bare_norm(name, 6, **OPTIONS), range(2))
    averaged = torch.optim.swa_utils.AveragedModel(norm)
    averaged.update_parameters(norm)
    x, _, mask = random_batch(9)
    assert torch.isfinite(averaged.eval()(x.float(), mask)).all()


@pytest.mark.parametrize("name", norm_names())
def test_affine_off_means_no_parameters(name):
    norm = bare_norm(name, 6, affine=False)
    assert list(norm.parameters()) == []
    x, dy, mask = random_batch(0)
    y, _ = training_step(norm.double(), x, dy, mask)
    expected, _ = training_step(bare_norm(name, 6).double(), x, dy, mask)  # ones and zeros change nothing
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_buffers_are_those_documented(name):
    expected = {
        "bn": {"running_mean", "running_var"},
        "brn": {"running_mean", "running_var"},
        "mabn": {"running_chi2", "psi2_window", "grad_window"},
        "pnv": {"running_psi2"},
        "pn": {"running_psi2", "nu"},
        "rbn": {"running_mean", "running_var"},
        "un": {"running_psi2", "psi2_window", "grad_window", "grad_mean"},
        "prepbn": {"running_mean", "running_var", "fall_updates"},
    }
    buffers = dict(bare_norm(name, 6).named_buffers())
    assert set(buffers) == expected[name] | {"num_updates"}
    for key, buffer in buffers.items():
        counts = key in ("num_updates", "fall_updates")
        assert buffer.dtype == (torch.int64 if counts else torch.float32)
        assert buffer.shape[-1:] == (() if counts else (6,))


def test_reset_forgets_every_batch():
    for name in BATCH_NORMS:
        fresh = bare_norm(name, 6, **OPTIONS)
        norm = run(bare_norm(name, 6, **OPTIONS), range(5))
        norm.reset_running_stats()
        for key, value in fresh.named_buffers():
            assert torch.equal(dict(norm.named_buffers())[key], value), key


def released_pn(width=6):
    return {
        "norm.weight": torch.rand(width),
        "norm.bias": torch.rand(width),
        "norm.running_phi": torch.rand(1, width, 1, 1) + 0.5,
        "norm.ema_gz": torch.randn(1, width, 1, 1),
        "norm.iters": torch.tensor([4321]),
    }


@pytest.mark.parametrize("recipe", ["paper", "release"])
def test_released_pn_checkpoint_loads(recipe):
    state = released_pn()
    model = torch.nn.ModuleDict({"norm": bare_norm("pn", 6, alpha_bwd=0.8, recipe=recipe)})
    model.load_state_dict(dict(state))
    norm = model["norm"]
    assert torch.equal(norm.running_psi2, state["norm.running_phi"].view(6))
    torch.testing.assert_close(norm.nu, 0.2 * state["norm.ema_gz"].view(6))
    assert norm.num_updates == 4321
    x = torch.randn(3, 6)
    expected = x / (norm.running_psi2 + 1e-5).sqrt() * state["norm.weight"] + state["norm.bias"]
    torch.testing.assert_close(norm.eval()(x), expected)


def test_released_bn_checkpoint_loads():
    norm = bare_norm("bn", 6)
    torch_norm = torch.nn.BatchNorm1d(6)
    torch_norm(torch.randn(10, 6))
    norm.load_state_dict(torch_norm.state_dict())
    assert norm.num_updates == 1 and torch.equal(norm.running_var, torch_norm.running_var)


def test_wrong_checkpoint_is_named():
    with pytest.raises(RuntimeError, match="running_psi2"):
        bare_norm("pn", 6).load_state_dict(bare_norm("bn", 6).state_dict())
