"""The Triton operators equal plain torch: in Triton's interpreter (make test-triton), or on a GPU."""

import importlib.machinery
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from powernorm_fairseq.norms import functional, kernels, ops, take_penalty
from tests.norms.batches import bare_norm, random_affine, training_step
from tests.norms.test_kernels import SETTINGS, random_rows

REPOSITORY = Path(__file__).parents[2]
UNUSABLE = kernels.unusable("triton")
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
NORMS = ["bn", "brn", "mabn", "pnv", "pn"]
# Rows, columns, slices: one of each, no power of two, several slices of several tiles, no rows at all.
SHAPES = [(1, 6, 2), (37, 6, 2), (12, 33, 3), (5, 1, 1), (3, 40, 1), (0, 6, 2)]
MASKS = ["none", "random", "full"]
WAITING = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "unique", "equal"}
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "view", "_unsafe_view", "slice", "split", "detach", "t"}
FREE |= {"split_with_sizes", "select", "unbind", "alias", "transpose", "as_strided", "unsqueeze", "expand", "permute"}

needs_triton = pytest.mark.skipif(UNUSABLE is not None, reason=f"{UNUSABLE} (make test-triton)")


@pytest.fixture
def triton_kernels():
    from powernorm_fairseq.norms.kernels import triton_kernels

    triton_kernels.grid_of.cache_clear()
    triton_kernels.processors.cache_clear()
    yield triton_kernels
    triton_kernels.grid_of.cache_clear()
    triton_kernels.processors.cache_clear()


@pytest.fixture
def small(triton_kernels, monkeypatch):
    """The operators with tiles so small that a small batch takes several of each kind."""
    sizes = {"TILE": 32, "SLICE": 16, "BLOCKS": 2, "COLUMNS": 16, "CHUNK": 16, "PROGRAMS": 3}
    sizes["INTERPRETED_PROCESSORS"] = 2
    for name, size in sizes.items():
        monkeypatch.setattr(triton_kernels, name, size)
    return kernels.triton_operators()


@pytest.fixture
def launches(triton_kernels, monkeypatch):
    """The names of the kernels that were launched."""
    from torch.utils._python_dispatch import _disable_current_modes

    names, launch = [], triton_kernels.launch

    def record(kernel, *args, **options):
        names.append(kernel.fn.__name__)
        with _disable_current_modes():  # the interpreter uses torch as well
            launch(kernel, *args, **options)

    monkeypatch.setattr(triton_kernels, "launch", record)
    return names


def as_type(values, dtype):
    """The same on the device; floating-point tensors, but for those of the batch, as ``dtype``."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.to(DEVICE, dtype if value.is_floating_point() else value.dtype, copy=True)
        found.append(value)
    return found


def assert_close(actual, expected, rows, dtype=torch.float32):
    """Equal to the rounding of ``dtype``; sums over rows grow with them."""
    unit = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    unit = unit if actual.dtype == dtype else 2e-6
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected.double(), rtol=20 * unit, atol=10 * unit * max(1, rows) ** 0.5)


def step_of(operators, case, x, dy, padding, groups, gamma, beta, state, given=None):
    """Outputs and moved state of a forward and a backward; ``given`` are sums over several processes."""
    kind, settings, _ = SETTINGS[case]
    rows, (given_forward, given_backward) = (x, padding, groups, 1e-5), given or (None, None)
    y, columns, scales = operators[f"{kind}_forward"](*rows, gamma, beta, *settings, *state, given_forward, True)
    width, like = x.shape[-1], state[-2]
    scale, moved = like.new_tensor(4.0), torch.linspace(-1, 1, 3 * width).to(like).view(3, -1)
    if kind == "batch":
        more = (state[0] is not None, columns, scales, given_backward)
    elif kind == "power":
        moved = moved[0].clone()
        more = (0.8, scale, columns, scales, moved, True)
    else:
        more = (scale, columns, scales, given_backward, moved, True)
    grads = operators[f"{kind}_backward"](dy, *rows, gamma, *more)
    return [y, grads[0], columns, *grads[1:], moved, *(value for value in state if value is not None)]


def both_steps(operators, case, shape, mask, groups, dtype=torch.float32, given=False):
    """The same step by ``operators`` and by the plain ones in float64."""
    count, width = shape
    x, dy, padding = random_rows(shape, mask, dtype, offset=0.5)
    torch.manual_seed(3)
    gamma, beta = torch.randn(2, width).to(dtype)
    state = [*SETTINGS[case][2](width), torch.tensor(4)]
    sums = None
    if given:  # a batch and a half
        more, kind = torch.cat([x, x[: count // 2]]), SETTINGS[case][0]
        masked = None if padding is None else torch.cat([padding, padding[: count // 2]])
        centred = kind == "batch" and state[0] is not None
        forward = functional.statistics(more.double(), masked, groups, 1e-5, centred)
        centre = forward[:width] if centred else None
        sums = forward, 1.5 * functional.gradient_sums(dy.double(), x.double(), padding, groups, 1e-5, centre)
    results = []
    for kind, chosen in ((torch.float32, operators), (torch.float64, ops.PLAIN)):
        rows = as_type([x, dy, padding], dtype if kind == torch.float32 else kind)
        columns = as_type([gamma, beta], dtype if kind == torch.float32 else kind)
        own = sums and as_type(sums, kind)
        results.append(step_of(chosen, case, *rows, groups, *columns, as_type(state, kind), own))
    return results


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", SETTINGS)
def test_operators_equal_the_plain_ones(small, case, shape):
    count, width, slices = shape
    for mask, groups in (("none", 0), ("random", slices), ("full", slices)):
        for actual, expected in zip(*both_steps(small, case, (count, width), mask, groups)):
            scale = 10 if count < 5 else 1  # 1 / std is large where there is hardly a variance
            assert_close(actual, expected, scale**2 * count)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", SETTINGS)
def test_half_precision(small, case, dtype):
    for actual, expected in zip(*both_steps(small, case, (21, 12), "random", 2, dtype)):
        assert_close(actual, expected, 21, dtype)


@needs_triton
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("case", SETTINGS)
def test_sums_of_several_processes(small, case, groups):
    for actual, expected in zip(*both_steps(small, case, (12, 6), "random", groups, given=True)):
        assert_close(actual, expected, 12)


@needs_triton
@pytest.mark.parametrize("left", [0, 1, 2])
def test_the_last_step_of_the_warm_up(small, left, monkeypatch):
    monkeypatch.setitem(SETTINGS, "pn", ("power", (0.9, 4 + left), SETTINGS["pn"][2]))  # the fifth step
    for actual, expected in zip(*both_steps(small, "pn", (12, 6), "random", 2)):
        assert_close(actual, expected, 12)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_for_other_processes(small, shape):
    count, width, slices = shape
    for mask in MASKS:
        x, dy, padding = random_rows((count, width), mask)
        for groups, centre in ((slices, None), (0, torch.randn(width))):
            rows, wide = as_type([x, padding], torch.float32), as_type([x, padding], torch.float64)
            of_x = [own[0](*own[1], groups, 1e-5, centre is not None)
                    for own in ((small["statistics"], rows), (functional.statistics, wide))]
            assert_close(*of_x, count)
            of_dy = [own[0](*as_type([dy], own[2]), *own[1], groups, 1e-5, *as_type([centre], own[2]))
                     for own in ((small["gradient_sums"], rows, torch.float32),
                                 (functional.gradient_sums, wide, torch.float64))]
            assert_close(*of_dy, count)


def by_autograd(function, x, dy, gamma, beta):
    """Output and gradients of a plain function in float64."""
    inputs = [None if t is None else t.requires_grad_() for t in as_type([x, gamma, beta], torch.float64)]
    y = function(*inputs)
    y.backward(*as_type([dy], torch.float64))
    return [y.detach(), *(t.grad for t in inputs if t is not None)]


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_equals_the_plain_one(small, shape, dtype):
    count, width, slices = shape
    torch.manual_seed(5)
    gamma, beta, centre, power = torch.randn(4, width)
    for mask, groups, statistics in (
        ("none", 0, (centre, power.abs())), ("random", slices, (None, power.abs())), ("full", slices, (centre, None)),
    ):
        x, dy, padding = random_rows((count, width), mask, dtype)
        own, wide = as_type(statistics, torch.float32), as_type(statistics, torch.float64)
        x, dy, padding = as_type([x, dy], dtype) + as_type([padding], dtype)
        weights = as_type([gamma, beta], torch.float32)

        def plain(x, gamma, beta):
            return functional.evaluate(x, padding, groups, 1e-5, gamma, beta, *wide)  # noqa: B023

        expected = by_autograd(plain, x, dy, gamma, beta)
        y = small["evaluate"](x, padding, groups, 1e-5, *weights, *own)
        grads = small["evaluate_backward"](dy, x, padding, groups, 1e-5, weights[0], *own)
        for actual, theirs in zip([y, *grads], expected):
            assert_close(actual, theirs, count, dtype)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_of_tokens_equal_the_plain_ones(small, shape, dtype):
    count, width, groups = shape
    torch.manual_seed(5)
    for mask, centred, affine in (("none", True, True), ("random", True, False), ("random", False, True)):
        gamma, beta = torch.randn(2, width).to(dtype) if affine else (None, None)
        x, dy, padding = random_rows((count, width), mask, dtype, offset=3.0)
        x, dy, padding, weight, bias = as_type([x, dy, padding, gamma, beta], dtype)

        def plain(x, gamma, beta):
            return functional.token_norm(x, padding, groups, 1e-5, gamma, beta, centred)  # noqa: B023

        expected = by_autograd(plain, x, dy, gamma, beta)
        y, columns = small["token_forward"](x, padding, groups, 1e-5, weight, bias, centred)
        grads = small["token_backward"](dy, x, padding, groups, 1e-5, weight, centred, columns)
        for actual, theirs in zip([y, *grads], expected):
            assert_close(actual, theirs, 30 * count, dtype)


@needs_triton
def test_moments_do_not_cancel(small):
    x, _, padding = as_type(random_rows((90, 8), offset=-10000.0), torch.float32)
    ours = small["statistics"](x, padding, 0, 1e-5, True).double()
    theirs = functional.statistics(x.double(), padding, 0, 1e-5, True)
    torch.testing.assert_close(ours[:8], theirs[:8], rtol=1e-6, atol=0)
    torch.testing.assert_close(ours[8:], theirs[8:], rtol=1e-5, atol=0)


@needs_triton
@pytest.mark.parametrize("name", ["bn", "pnv", "pn", "mabn"])
def test_squares_of_large_numbers_do_not_overflow(name):
    """4096 squares of 1e18 are more than a float can hold; their mean is not."""
    x = 1e18 * random_rows((4096, 2), mask="none")[0].to(DEVICE)
    norm, plain = (bare_norm(name, 2, kernel=kernel).to(DEVICE) for kernel in ("triton", "eager"))
    torch.testing.assert_close(norm(x).double(), plain.double()(x.double()), rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(norm.buffers(), plain.buffers()):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-3, atol=0)
    assert norm.num_updates == 1


@needs_triton
@pytest.mark.parametrize("reason", ["no token", "not finite"])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_move_only_where_they_can(small, name, reason):
    norm = bare_norm(name, 6, kernel="triton", layer_scale="none", window=2).to(DEVICE)
    x, dy, mask = as_type(random_rows((9, 6)), torch.float32)
    training_step(norm, x, dy, mask)
    before = [buffer.clone() for buffer in norm.buffers()]
    bad = x.clone()
    bad[~mask, 0] = float("inf")
    training_step(norm, x if reason == "no token" else bad, dy, mask | (reason == "no token"))
    assert all(map(torch.equal, norm.buffers(), before))
    if name in ("pn", "mabn"):  # the backward's own: only its gradient is wrong
        training_step(norm, x, dy * float("inf"), mask)
        moved = dict(zip(dict(norm.named_buffers()), map(torch.equal, norm.buffers(), before)))
        assert moved["nu" if name == "pn" else "grad_window"] and not moved["num_updates"]
    training_step(norm, x, dy, mask)
    assert not any(map(torch.equal, norm.buffers(), before))


@needs_triton
def test_rows_are_not_read_first_after_the_warm_up(small):
    from powernorm_fairseq.norms.kernels.triton_ops import Batch

    x = torch.full((9, 4), 3.0, device=DEVICE)
    for updates, read in ((1, True), (2, False)):
        squares = Batch(x, None, 0, 1e-5).squares(torch.tensor(updates, device=DEVICE), warmup=2)
        torch.testing.assert_close(squares.sums.sum(0) * squares.unit, x.square().sum(0) * read)


def recorder():
    """Torch's operations, in the order in which they are called."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Record(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.called = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.called.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

        def launching(self):
            return [name for name in self.called if name not in FREE]

    return Record()


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", ["no mask", "mask", "transposed mask"])
@pytest.mark.parametrize("layer_scale", ["none", "layer", "head"])
def test_power_norm_takes_four_launches_in_each_direction(launches, layer_scale, masked, dtype):
    """Half-precision parameters need one more, to convert both gradients."""
    norm = bare_norm("pn", 4, kernel="triton", groups=2, layer_scale=layer_scale, warmup_updates=1).to(DEVICE, dtype)
    x, dy = torch.randn(2, 3, 2, 4, device=DEVICE).to(dtype)
    mask = {"no mask": None, "mask": torch.zeros(3, 2, dtype=torch.bool, device=DEVICE),
            "transposed mask": torch.zeros(2, 3, dtype=torch.bool, device=DEVICE).t()}[masked]
    for _ in range(2):
        training_step(norm, x, dy, mask)
    x.requires_grad_()
    launches.clear()
    with recorder() as forward:
        y = norm(x, mask)
    assert launches == ["forward_kernel", "power_columns_kernel", "move_kernel"] and forward.launching() == []
    launches.clear()
    with recorder() as backward:
        torch.autograd.grad(y, [x, *norm.parameters()], dy)
    assert launches == ["gradient_kernel", "gradient_columns_kernel", "move_kernel"]
    assert backward.launching() == ([] if dtype is torch.float32 else ["_to_copy"])


@needs_triton
def test_what_need_not_be_launched_is_not(launches):
    norm = bare_norm("pn", 4, kernel="triton", layer_scale="layer", warmup_updates=3).to(DEVICE)
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    norm(x)
    warm_up = ["forward_kernel", "power_columns_kernel"]
    assert launches == [*warm_up, "forward_kernel", "power_columns_kernel", "move_kernel"]
    launches.clear()
    norm.eval()
    with torch.no_grad(), recorder() as evaluation:
        norm(x)
    assert launches == ["forward_kernel"] and evaluation.launching() == []
    launches.clear()
    norm(x[:0])
    assert launches == []


@needs_triton
@pytest.mark.parametrize("name", [*NORMS, "ln", "gn", "rms"])
def test_no_value_travels_to_the_host(launches, name):
    norm = bare_norm(name, 4, kernel="triton", groups=2, layer_scale="head", warmup_updates=1, window=2).to(DEVICE)
    x, dy = torch.randn(2, 3, 4, device=DEVICE)
    mask = torch.tensor([False, True, False], device=DEVICE)
    for _ in range(2):  # the warm-up's end is read once
        training_step(norm, x, dy, mask)
    with recorder() as record:
        training_step(norm, x, dy, mask)
        norm.eval()(x, mask).sum().backward() if norm.weight is not None else None
    assert launches and "empty_like" in record.called and not WAITING & set(record.called)


@needs_triton
@pytest.mark.parametrize("rows, columns, groups", [(4096, 512, 4), (4096, 1024, 1), (4096, 1024, 16), (4096, 1024, 0),
                                                   (30000, 4096, 1), (16384, 128, 0), (3, 128, 0), (0, 128, 4)])
def test_grid_fits_the_processors(triton_kernels, rows, columns, groups):
    for processors in (108, 132):
        grid = triton_kernels.grid_of(rows, columns, groups, processors)
        assert grid.blocks * grid.block_rows >= rows and (grid.blocks - 1) * grid.block_rows <= max(0, rows - 1)
        assert grid.slices * grid.width >= columns and grid.tile_columns >= grid.width
        wanted = triton_kernels.PROGRAMS * processors
        tiles = -(-rows // grid.tile_rows) * grid.slices
        assert min(wanted // 2, tiles) <= grid.blocks * grid.slices <= max(wanted, grid.slices)


@needs_triton
@pytest.mark.parametrize(
    "change, message",
    [
        ({4: torch.ones(7)}, "gamma has 7 elements; the width is 6"),
        ({5: torch.zeros(6, dtype=torch.float64)}, "beta must be float32, bfloat16 or float16"),
        ({0: torch.zeros(4, 6).double()}, "x must be float32, bfloat16 or float16"),
        ({0: torch.zeros(6, 4).t()}, "x must be contiguous"),
        ({1: torch.zeros(3, dtype=torch.bool)}, "padding has 3 elements; there are 4 tokens"),
        ({1: torch.zeros(4)}, "padding must be bool"),
        ({2: 4}, "groups must divide the width"),
        ({8: torch.ones(5)}, "running_psi2 has 5 elements; it must have 6"),
        ({8: torch.ones(6, dtype=torch.float64)}, "running_psi2 must be float32"),
        ({9: torch.tensor(0.0)}, "num_updates must be one int64"),
        ({10: torch.ones(6)}, "given has 6 elements; it must have 7"),
    ],
)
def test_operators_check_what_they_are_given(change, message):
    arguments = [torch.zeros(4, 6), None, 2, 1e-5, torch.ones(6), torch.zeros(6)]
    arguments += [0.9, 0, torch.ones(6), torch.tensor(0), None, True]
    for position, value in change.items():
        arguments[position] = value
    with pytest.raises(RuntimeError, match=message):
        kernels.triton_operators()["power_forward"](*[a.to(DEVICE) if isinstance(a, torch.Tensor) else a
                                                      for a in arguments])


def steps(norm, dtype, layout=lambda t: t, number=4):
    """Outputs, gradients and buffers of some steps and of an evaluation, in float64."""
    results = []
    for seed in range(number):
        x, dy, mask = as_type(random_rows((20, norm.num_features), offset=0.5, seed=seed), dtype)
        mask = mask | (seed == 2)  # a batch of padding alone
        x, dy, mask = layout(x), layout(dy), layout(mask)
        y, dx = training_step(norm, x, dy, mask)
        results += [y, dx, *(parameter.grad for parameter in norm.parameters()), *norm.buffers()]
    x = x.clone().requires_grad_()
    y = norm.eval()(x, mask)
    results += [y, *torch.autograd.grad(y, [x, *norm.parameters()], dy)]
    return [result.detach().double().clone() for result in results]


def make(name, kernel, layer_scale="head", **options):
    common = {"groups": 2, "layer_scale": layer_scale, "warmup_updates": 2, "window": 2, "alpha_bwd": 0.8}
    return random_affine(bare_norm(name, 6, kernel=kernel, **{**common, **options})).to(DEVICE)


@needs_triton
@pytest.mark.parametrize("layer_scale", ["none", "layer", "head"])
@pytest.mark.parametrize("name", [*NORMS, "ln", "gn", "rms"])
def test_norms_equal_plain_torch(small, name, layer_scale):
    if name in ("ln", "gn", "rms") and layer_scale != "none":
        pytest.skip("no layer-scale")
    norm = make(name, "triton", layer_scale)
    assert norm._implementation(torch.zeros(1, 6, device=DEVICE)) == "triton"
    expected = steps(make(name, "eager", layer_scale).double(), torch.float64)
    actual = steps(norm, torch.float32)
    for ours, theirs in zip(actual, expected):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@needs_triton
@pytest.mark.parametrize("name", ["pn", "bn"])
def test_layout_does_not_matter(small, name):
    layouts = {
        "as it is": lambda t: t,
        "B x T": lambda t: t.reshape(4, 5, *t.shape[1:]).transpose(0, 1).contiguous().transpose(0, 1),
        "strided": lambda t: torch.stack([t, t], -1)[..., 0],
        "three dimensions": lambda t: t.reshape(2, 5, 2, *t.shape[1:]).transpose(0, 2).contiguous().transpose(0, 2),
    }
    expected = steps(make(name, "triton"), torch.float32, number=1)
    for layout in layouts.values():
        for ours, theirs in zip(steps(make(name, "triton"), torch.float32, layout, 1), expected):
            assert torch.equal(ours.reshape(theirs.shape), theirs)


@needs_triton
def test_parameters_of_any_stride(small):
    x, dy, mask = as_type(random_rows((6, 4)), torch.float32)
    results = []
    for kernel in ("eager", "triton"):
        norm = bare_norm("pn", 4, kernel=kernel).to(DEVICE)
        norm.weight = torch.nn.Parameter(torch.arange(8.0, device=DEVICE)[::2])
        results.append(training_step(norm, x, dy, mask))
    torch.testing.assert_close(results[0], results[1])


@needs_triton
@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("name", ["bn", "pnv", "ln"])
def test_gradients_can_be_differentiated_again(small, name, mode):
    results = []
    for kernel in ("eager", "triton"):
        norm = make(name, kernel).train(mode == "training")
        x, dy, mask = as_type(random_rows((8, 6)), torch.float32)
        x = x.masked_fill(mask.unsqueeze(1), 0.0).requires_grad_()
        dx, = torch.autograd.grad(norm(x, mask), x, dy.nan_to_num(), create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), [x, norm.weight]))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_triton
def test_what_triton_does_not_serve_goes_to_plain_torch():
    x = torch.zeros(2, 6, device=DEVICE)
    norm = make("pn", "triton")
    assert norm._implementation(x, norm.running_psi2) == norm._implementation(x.half(), norm.running_psi2) == "triton"
    assert norm._implementation(x.double()) == norm._implementation(x, norm.running_psi2.double()) == "plain"


@needs_triton
def test_every_operator_is_there(small):
    assert set(small) == set(ops.SCHEMAS)
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    assert all(registered(f"powernorm::{name}", "CUDA") for name in ops.SCHEMAS)
    x = torch.randn(5, 6, device=DEVICE)
    served = ops._on_gpu("statistics")(x, None, 2, 1e-5, False)  # what torch calls for a tensor on a GPU
    assert torch.equal(served, small["statistics"](x, None, 2, 1e-5, False))


@needs_triton
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("count", [0, 3])
def test_shape_functions_say_what_operators_return(triton_kernels, monkeypatch, count, groups):
    """What a compiled graph expects of them."""
    monkeypatch.setattr(triton_kernels, "launch", lambda *args, **options: None)
    x, column, updates = torch.zeros(count, 6), torch.ones(6), torch.tensor(1)
    window, rows = torch.ones(2, 6), (x, None, groups, 1e-5)
    batch = (*rows, column, column, 0.1, False, 0, -1, column, column, updates, None, True)
    power = (*rows, column, column, 0.9, 0, column, updates, None, True)
    moving = (*rows, column, column, 0.1, 0, column, window, updates, None, True)

    def outputs(function, *args):
        found = function(*(arg.to(DEVICE) if isinstance(arg, torch.Tensor) else arg for arg in args))
        return found if isinstance(found, tuple) else (found,)

    operators = kernels.triton_operators()
    saved = {name: [value.cpu() for value in outputs(operators[name], *args)[1:]]
             for name, args in (("batch_forward", batch), ("power_forward", power), ("window_forward", moving))}
    calls = {
        "statistics": (*rows, True), "gradient_sums": (x, *rows, column),
        "evaluate": (*rows, column, None, None, column), "evaluate_backward": (x, *rows, column, None, column),
        "batch_forward": batch, "batch_backward": (x, *rows, column, True, *saved["batch_forward"], None),
        "power_forward": power,
        "power_backward": (x, *rows, column, 0.9, None, *saved["power_forward"], column, True),
        "window_forward": moving,
        "window_backward": (x, *rows, column, None, *saved["window_forward"], None, window, True),
    }
    if groups > 0:
        calls["token_forward"] = (*rows, column, column, True)
        calls["token_backward"] = (x, *rows, column, True, torch.zeros(2, count, groups))
        assert set(calls) == set(ops.SCHEMAS)
    for name, args in calls.items():
        for ours, theirs in zip(outputs(operators[name], *args), outputs(ops._fake(name), *args)):
            assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride()), name


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What became of every kernel on each kind of GPU."""
    folder = tmp_path_factory.mktemp("triton")
    environment = dict(os.environ, TRITON_CACHE_DIR=str(folder), PYTHONPATH=str(REPOSITORY))
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).parent / "compile_triton.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_triton
def test_every_kernel_compiles_for_a_gpu(compiled, triton_kernels):
    kernels_there = {name for name in vars(triton_kernels) if name.endswith("_kernel")}
    for capability in (80, 90):
        assert {row["kernel"] for row in compiled if row["sm"] == capability} == kernels_there


@needs_triton
def test_rows_are_read_and_written_16_bytes_at_a_time(compiled):
    """Rows in smaller pieces would take two or more for each 16 bytes; single columns and scalars take a few."""
    rows = [row for row in compiled if row["fast"] and row["rows_in"] > 0]
    assert rows
    for row in rows:
        assert row["wide_loads"] >= row["rows_in"] and row["narrow_loads"] < 2 * row["rows_in"], row
        if row["rows_out"] > 0:
            assert row["wide_stores"] >= row["rows_out"] and row["narrow_stores"] < 2 * row["rows_out"] + 2, row


@needs_triton
def test_kernels_keep_to_registers(compiled):
    """With 128 registers, as many programs of 128 threads as are started for a processor run there at a time."""
    for row in compiled:
        assert row["stack"] == row["local"] == 0, row  # nothing is spilled
        of_pn = row["fast"] and "centre" not in row["given"]
        assert row["registers"] <= (80 if row["rows_in"] == 0 else 128 if of_pn else 168), row
    assert max(row["registers"] for row in compiled) > 64  # they have been read


def test_triton_is_not_imported_before_it_is_needed():
    code = "import sys, powernorm_fairseq.norms as n; n.build_norm('pn', 4); sys.exit('triton' in sys.modules)"
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="0")
    assert subprocess.run([sys.executable, "-c", code], cwd=str(REPOSITORY), env=environment).returncode == 0


@pytest.fixture
def without_triton(monkeypatch):
    """Neither triton nor a GPU nor the interpreter."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "_found", {})
    kernels.unusable.cache_clear()
    yield monkeypatch
    kernels.unusable.cache_clear()


def test_missing_triton_is_named(without_triton):
    with pytest.raises(ValueError, match="^kernel='triton' cannot be used: triton is not installed; choose from "):
        bare_norm("pn", 4, kernel="triton")
    without_triton.setenv("POWERNORM_KERNEL", "triton")
    with pytest.raises(ValueError, match="^POWERNORM_KERNEL='triton' cannot be used: triton is not installed"):
        bare_norm("pn", 4)
    assert "triton" not in kernels.available("cuda") + kernels.available("cpu")


def test_missing_gpu_is_named(without_triton):
    module = types.ModuleType("triton")
    module.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    without_triton.setitem(sys.modules, "triton", module)
    with pytest.raises(ValueError, match="there is no CUDA device; TRITON_INTERPRET=1 runs it in the interpreter"):
        bare_norm("pn", 4, kernel="triton")


def test_old_triton_is_named(without_triton):
    module = types.ModuleType("triton")
    module.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    module.__version__ = "2.1.0"
    without_triton.setitem(sys.modules, "triton", module)
    without_triton.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="triton 2.1.0 is too old; 3.2 or later will do"):
        bare_norm("pn", 4, kernel="triton")


@needs_triton
@pytest.mark.parametrize("layer_scale", ["none", "head"])
@pytest.mark.parametrize("name", ["rbn", "un", "prepbn"])
def test_rivals_on_these_operators_equal_float64(name, layer_scale):
    """RBN, UN and PRepBN have no kernels of their own: they use those of the others."""
    options = {"groups": 3, "layer_scale": layer_scale, "updates": 4, "window": 2, "penalty_mean": 0.7}
    norm = random_affine(bare_norm(name, 24, kernel="triton", **options)).to(DEVICE)
    wide = bare_norm(name, 24, kernel="eager", **options).double()
    wide.load_state_dict(norm.state_dict())
    for seed in range(4):
        x, dy, padding = random_rows((30, 24), offset=0.5, seed=seed)
        results = []
        for model, dtype, device in ((norm, torch.float32, DEVICE), (wide, torch.float64, "cpu")):
            own = x.detach().clone().to(device, dtype).requires_grad_()
            y = model(own, padding.to(device))
            penalty = take_penalty(model)
            loss = (y * dy.to(device, dtype))[~padding.to(device)].sum()
            model.zero_grad()
            (loss if penalty is None else loss + 2 * penalty).backward()
            found = [y, own.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()]
            results.append([tensor.detach().cpu().double() for tensor in found])
        for ours, theirs in zip(*results):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
