"""Half precision: statistics stay float32 and finite."""

import copy

import pytest
import torch

from powernorm_fairseq.norms import norm_names, training_step
from tests.norms.batches import bare_norm, random_affine, random_batch
from tests.norms.batches import training_step as step

BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_buffers_stay_float32(name, dtype):
    norm = bare_norm(name, 6)
    for _ in range(3):
        step(norm, *(t.float() if t.is_floating_point() else t for t in random_batch(0)))
    before = copy.deepcopy(norm.state_dict())
    for model in (torch.nn.Sequential(norm).to(dtype), torch.nn.Sequential(norm).to("cpu", dtype)):
        assert model[0].weight.dtype == dtype
        for key, buffer in model[0].named_buffers():
            assert buffer.dtype == (torch.int64 if key in ("num_updates", "fall_updates") else torch.float32)
            assert torch.equal(buffer, before[key])  # not by way of half precision


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_double_takes_the_buffers_along(name):
    buffers = [buffer for buffer in bare_norm(name, 6).double().buffers() if buffer.is_floating_point()]
    assert buffers and all(buffer.dtype == torch.float64 for buffer in buffers)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", norm_names())
def test_half_model_computes_in_float32(name, dtype):
    """The same as float32 arithmetic on the rounded input, rounded once at the end."""
    options = {"groups": 2, "layer_scale": "head", "warmup_updates": 1}
    x, dy, mask = random_batch(0)
    x, dy = x.to(dtype), dy.to(dtype)
    norm = random_affine(bare_norm(name, 6, **options)).to(dtype)
    plain = bare_norm(name, 6, **options)
    plain.load_state_dict(norm.state_dict())
    for _ in range(3):
        y, dx = step(norm, x, dy, mask)
        expected_y, expected_dx = step(plain, x.float(), dy.float(), mask)
        assert y.dtype == dtype and dx.dtype == dtype
        torch.testing.assert_close(y, expected_y.to(dtype))
        torch.testing.assert_close(dx, expected_dx.to(dtype))
        for buffer, expected in zip(norm.buffers(), plain.buffers()):
            torch.testing.assert_close(buffer, expected)


@pytest.mark.parametrize("name", ["pn", "pnv", "bn", "rbn", "un", "prepbn"])
def test_squares_do_not_overflow_in_fp16(name):
    norm = bare_norm(name, 6).half()
    y, _ = step(norm, torch.full((3, 6), 60000.0).half(), torch.ones(3, 6).half())
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(buffer).all() for buffer in norm.buffers())


@pytest.mark.parametrize("name", norm_names())
def test_autocast_leaves_the_norm_alone(name):
    x, _, mask = random_batch(0)
    x = x.float()
    norm, plain = bare_norm(name, 6, groups=2), bare_norm(name, 6, groups=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x, mask)
        half = norm(x.bfloat16(), mask)
    assert y.dtype == torch.float32 and half.dtype == torch.bfloat16
    assert torch.equal(y, plain(x, mask))
    assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in norm.buffers())


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_overflow_in_the_backward_leaves_every_buffer_finite(name, bad):
    norm = bare_norm(name, 6, window=2)
    x, dy, mask = random_batch(0)
    step(norm, x.float(), dy.float(), mask)
    late = ("nu", "grad_window", "grad_mean")
    kept = {key: value.clone() for key, value in norm.state_dict().items() if key in late}
    dy[0, 0, 0] = bad
    step(norm, x.float(), dy.float(), mask)
    for key, buffer in norm.named_buffers():
        assert torch.isfinite(buffer).all(), key
    for key, value in kept.items():
        assert torch.equal(norm.state_dict()[key], value)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_overflow_in_the_forward_moves_nothing(name):
    norm = bare_norm(name, 6)
    x, dy, mask = random_batch(0)
    step(norm, x.float(), dy.float(), mask)
    before = copy.deepcopy(norm.state_dict())
    x[0, 0, 0] = float("inf")
    step(norm, x.float(), dy.float(), mask)
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value), key


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("name", ["pn", "mabn", "un"])
def test_backward_averages_survive_a_change_of_the_loss_scale(name, as_tensor):
    """Powers of two change no digit, so the runs agree to the last bit."""
    steady, changing = (bare_norm(name, 6, window=2, warmup_updates=2) for _ in range(2))
    for seed, scale in enumerate([1.0, 128.0, 128.0, 2.0, 1024.0, 0.5, 64.0]):
        x, dy, mask = random_batch(seed)
        _, expected = step(steady, x.float(), dy.float(), mask)
        with training_step(loss_scale=torch.tensor(scale) if as_tensor else scale):
            _, dx = step(changing, x.float(), scale * dy.float(), mask)
        assert torch.equal(dx / scale, expected)
        for buffer, expected in zip(changing.buffers(), steady.buffers()):
            assert torch.equal(buffer, expected)
