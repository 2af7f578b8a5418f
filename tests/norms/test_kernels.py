"""Every implementation equals the plain one in float64, to the rounding of its own type."""

import copy
import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import kernels, ops
from tests.norms.batches import bare_norm, random_affine, training_step
from tests.processes import run_processes

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
needs_cpp = pytest.mark.skipif(not NEW_TORCH, reason="the C++ kernels need torch >= 2.10")
kernels.unusable("cpp")  # loads the operators, whichever test comes first
BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
CLOSE = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}, torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2}}
# Rows, columns, slices: less than a vector, not a multiple of one, the widths that have code of their own, many blocks.
SHAPES = [(1, 4, 1), (7, 6, 2), (40, 33, 3), (65, 128, 4), (70, 256, 2), (50, 128, 2), (2500, 20, 1), (0, 8, 2)]


def random_rows(shape, mask="random", dtype=torch.float32, offset=0.0, seed=0):
    """x, dy and padding; whatever stands at padding is not a number."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=generator) + offset).to(dtype)
    dy = torch.randn(shape, generator=generator).to(dtype)
    share = {"random": 0.3, "empty": 0.0, "full": 1.0}.get(mask)
    padding = None if share is None else torch.rand(shape[0], generator=generator) < share
    if padding is not None:
        x[padding], dy[padding] = float("nan"), float("nan")
    return x, dy, padding


SETTINGS = {  # the settings and the state of each operator's forward, between eps, gamma, beta and given
    "bn": ("batch", (0.1, False, 0, -1), lambda w: [torch.randn(w), torch.rand(w) + 0.5]),
    "bn-release": ("batch", (0.05, True, 0, -1), lambda w: [torch.randn(w), torch.rand(w) + 0.5]),
    "pnv": ("batch", (0.1, False, 0, -1), lambda w: [None, torch.rand(w) + 0.5]),
    "brn": ("batch", (0.1, False, 2, 4), lambda w: [torch.randn(w), torch.rand(w) + 0.5]),
    "pn": ("power", (0.9, 2), lambda w: [torch.rand(w) + 0.5]),
    "pn-warm": ("power", (0.9, 9), lambda w: [torch.rand(w) + 0.5]),
    "mabn": ("window", (0.1, 2), lambda w: [torch.rand(w) + 0.5, torch.rand(3, w)]),
    "mabn-warm": ("window", (0.1, 9), lambda w: [torch.rand(w) + 0.5, torch.rand(3, w)]),
}


def wide(values):
    """Floating-point tensors in float64."""
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def run_operators(case, operators, x, dy, padding, groups, gamma, beta, state):
    """Outputs and moved state of a forward and a backward."""
    kind, settings, _ = SETTINGS[case]
    state = [None if value is None else value.clone() for value in state]
    rows = (x, padding, groups, 1e-5)
    y, columns, scales = operators[f"{kind}_forward"](*rows, gamma, beta, *settings, *state, None, True)
    scale, moved = torch.tensor(4.0), torch.linspace(-1, 1, 3 * x.shape[-1]).to(gamma.dtype).view(3, -1)
    if kind == "batch":
        more = (state[0] is not None, columns, scales, None)
    elif kind == "power":
        moved = moved[0].clone()
        more = (0.8, scale, columns, scales, moved, True)
    else:
        more = (scale, columns, scales, None, moved, True)
    grads = operators[f"{kind}_backward"](dy, *rows, gamma, *more)
    return [y, columns, *grads, moved, *(value for value in state if value is not None)]


@needs_cpp
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", SETTINGS)
def test_cpp_operators_equal_the_plain_ones(case, shape):
    count, width, slices = shape
    for dtype, mask, groups in itertools.product(CLOSE, ["none", "empty", "random", "full"], [0, slices]):
        x, dy, padding = random_rows((count, width), mask, dtype)
        torch.manual_seed(3)
        columns = [torch.randn(width), torch.randn(width), [*SETTINGS[case][2](width), torch.tensor(4)]]
        fast = run_operators(case, ops.FAST, x, dy, padding, groups, *columns)
        columns = [*wide(columns[:2]), wide(columns[2])]
        plain = run_operators(case, ops.PLAIN, x.double(), dy.double(), padding, groups, *columns)
        for ours, theirs in zip(fast, plain):
            tolerance = CLOSE[ours.dtype if ours.dtype in CLOSE else torch.float32]
            atol = tolerance["atol"] * (1 if ours.dim() == 2 else max(1, count) ** 0.5 * 3)
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=10 * tolerance["rtol"], atol=atol)


@needs_cpp
@pytest.mark.parametrize("mask", ["none", "random", "full"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["ln", "rms", "gn"])
def test_cpp_norms_of_tokens_equal_the_plain_ones(name, shape, mask):
    count, width, groups = shape
    x, dy, padding = random_rows((count, width), mask)
    norm, plain = (bare_norm(name, width, groups=groups, kernel=kernel) for kernel in ("cpp", "eager"))
    plain.load_state_dict(random_affine(norm).state_dict())
    y, dx = training_step(norm, x, dy, padding)
    expected_y, expected_dx = training_step(plain.double(), x.double(), dy.double(), padding)
    torch.testing.assert_close(y.double(), expected_y, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(dx.double(), expected_dx, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(norm.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4 * max(1, count) ** 0.5)


@needs_cpp
@pytest.mark.parametrize("name, function", [("dyt", torch.tanh), ("derf", torch.erf)])
def test_cpp_functions_are_exact_to_a_few_units_in_the_last_place(name, function):
    x = torch.logspace(-20, 2, 40_000)
    x = torch.cat([x, -x]).view(-1, 8)
    y, dx = training_step(bare_norm(name, 8, alpha_start=1.0, kernel="cpp"), x, torch.ones_like(x))
    wide = x.double().requires_grad_()
    expected = function(wide)
    expected.sum().backward()
    torch.testing.assert_close(y.double(), expected.detach(), rtol=5e-7, atol=0)
    torch.testing.assert_close(dx.double(), wide.grad, rtol=1e-6, atol=1e-6)


@needs_cpp
@pytest.mark.parametrize("mask", ["none", "random", "full"])
@pytest.mark.parametrize("seen", [0, 3, 9])
@pytest.mark.parametrize("affine", [True, False])
def test_prepbn_in_evaluation_has_the_gradients_of_float64(mask, seen, affine):
    x, dy, padding = random_rows((90, 12), mask)
    norm = random_affine(bare_norm("prepbn", 12, updates=6, affine=affine, kernel="cpp"))
    norm.num_updates.fill_(seen)
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2.0)
    results = []
    for own in (norm, copy.deepcopy(norm).double()):
        wide = x.to(own.running_var.dtype).requires_grad_()
        y = own.eval()(wide, padding)
        inputs = [wide, *own.parameters()]
        results.append([y, *torch.autograd.grad(y, inputs, dy.to(y.dtype), retain_graph=True)])
        (once,) = torch.autograd.grad(y, wide, torch.ones_like(dy).to(y.dtype), create_graph=True)
        results[-1] += torch.autograd.grad(once.square().sum(), wide)
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    assert norm.num_updates == seen


@pytest.mark.parametrize("sums", ["statistics", "gradient_sums"])
@needs_cpp
def test_sums_for_other_processes(sums):
    x, dy, padding = random_rows((90, 12))
    for groups, more in ((0, None), (3, None), (3, torch.randn(12))):
        if sums == "statistics":
            args = [(x, padding, groups, 1e-5, more is not None)]
        else:
            args = [(dy, x, padding, groups, 1e-5, more)]
        fast, plain = ops.FAST[sums](*args[0]), ops.PLAIN[sums](*wide(args[0]))
        torch.testing.assert_close(fast.double(), plain, rtol=1e-4, atol=1e-4)


@needs_cpp
@pytest.mark.parametrize("rows", [90, 3000])
def test_moments_do_not_cancel(rows):
    x, _, padding = random_rows((rows, 8), offset=-10000.0)
    ours = ops.FAST["statistics"](x, padding, 0, 1e-5, True).double()
    theirs = ops.PLAIN["statistics"](x.double(), padding, 0, 1e-5, True)
    torch.testing.assert_close(ours[:8], theirs[:8], rtol=1e-6, atol=0)
    torch.testing.assert_close(ours[8:], theirs[8:], rtol=1e-5, atol=0)


@pytest.mark.parametrize("kernel", ["eager", pytest.param("cpp", marks=needs_cpp)])
@pytest.mark.parametrize("name", ["bn", "pnv"])
def test_squares_of_large_numbers_do_not_overflow(name, kernel):
    """4096 squares of 1e18 are more than a float can hold; their mean is not."""
    x = 1e18 * random_rows((4096, 8), mask="none")[0]
    norm = bare_norm(name, 8, kernel=kernel)
    y = norm(x)
    torch.testing.assert_close(y.double(), bare_norm(name, 8)(x.double()), rtol=1e-3, atol=1e-4)
    assert norm.num_updates == 1


@needs_cpp
@pytest.mark.parametrize(
    "change, message",
    [
        ({4: torch.ones(7)}, "gamma has 7 elements; the width is 6"),
        ({5: torch.zeros(6, dtype=torch.float64)}, "beta must be float32 or bfloat16"),
        ({0: torch.zeros(4, 6).half()}, "x must be float32 or bfloat16"),
        ({0: torch.zeros(6, 4).t()}, "x must be contiguous"),
        ({1: torch.zeros(3, dtype=torch.bool)}, "padding has 3 elements; there are 4 tokens"),
        ({1: torch.zeros(4)}, "padding must be bool"),
        ({2: 4}, "groups must divide the width"),
        ({8: torch.ones(5)}, "running_psi2 has 5 elements; it must have 6"),
        ({8: torch.ones(6, dtype=torch.float64)}, "running_psi2 must be float32"),
        ({9: torch.tensor(0.0)}, "num_updates must be one int64"),
    ],
)
def test_operators_check_what_they_are_given(change, message):
    arguments = [torch.zeros(4, 6), None, 2, 1e-5, torch.ones(6), torch.zeros(6)]
    arguments += [0.9, 0, torch.ones(6), torch.tensor(0), None, True]
    for position, value in change.items():
        arguments[position] = value
    with pytest.raises(RuntimeError, match=message):
        ops.FAST["power_forward"](*arguments)


@needs_cpp
def test_parameters_and_masks_of_any_stride():
    x, dy, _ = random_rows((6, 4), mask="none")
    for mask in (torch.zeros(1, dtype=torch.bool).expand(6), torch.eye(12, dtype=torch.bool)[3, ::2]):
        results = []
        for kernel in ("eager", "cpp"):
            norm = bare_norm("pn", 4, kernel=kernel)
            norm.weight = torch.nn.Parameter(torch.arange(8.0)[::2])
            results.append(training_step(norm, x, dy, mask))
        torch.testing.assert_close(results[0], results[1])


def make(name, width=12, dtype=torch.float32, **options):
    everywhere = {"groups": 2, "layer_scale": "head", "warmup_updates": 2, "window": 2, "alpha_bwd": 0.8}
    return random_affine(bare_norm(name, width, **{**everywhere, **options})).to(dtype)


def five_steps(norm, dtype, layout=lambda t: t):
    """Outputs, gradients and buffers of five steps, in float64."""
    results = []
    for seed in range(5):
        x, dy, padding = random_rows((90, norm.num_features), offset=0.5, seed=seed)
        dy[padding] = 0.0  # in the release, a gradient at padding counts
        x, dy, padding = layout(x), layout(dy), layout(padding)
        y, dx = training_step(norm, x.to(dtype), dy.to(dtype), padding)
        results += [y, dx, *(parameter.grad for parameter in norm.parameters()), *norm.buffers()]
    results += [norm.eval()(x.to(dtype), padding).detach()]
    with torch.no_grad():
        results += [norm(x.to(dtype), padding)]
    return [result.double().clone() for result in results]


@pytest.mark.parametrize("kernel", ["eager", pytest.param("cpp", marks=needs_cpp)])
@pytest.mark.parametrize("recipe", ["paper", "release"])
@pytest.mark.parametrize("layer_scale", ["none", "layer", "head"])
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_norms_equal_float64(name, layer_scale, recipe, kernel):
    options = {"layer_scale": layer_scale, "recipe": recipe, "kernel": kernel}
    expected = five_steps(make(name, dtype=torch.float64, **options), torch.float64)
    for ours, theirs in zip(five_steps(make(name, **options), torch.float32), expected):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@needs_cpp
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_layout_does_not_matter(name):
    layouts = {
        "T x B": lambda t: t.reshape(6, 15, *t.shape[1:]),
        "B x T": lambda t: t.reshape(6, 15, *t.shape[1:]).transpose(0, 1).contiguous().transpose(0, 1),
        "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    }
    expected = five_steps(make(name, kernel="cpp"), torch.float32)
    for layout in layouts.values():
        for ours, theirs in zip(five_steps(make(name, kernel="cpp"), torch.float32, layout), expected):
            assert torch.equal(ours.reshape(theirs.shape), theirs)


@needs_cpp
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_threads_change_no_bit(name):
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(five_steps(make(name, width=64, kernel="cpp"), torch.float32))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(map(torch.equal, others, results[0]))


@needs_cpp
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_activation_checkpointing_changes_no_bit(name):
    plain, checkpointed = make(name, kernel="cpp"), make(name, kernel="cpp")
    for seed in range(5):
        x, dy, padding = random_rows((30, 12), seed=seed)
        y, dx = training_step(plain, x, dy, padding)
        x = x.clone().requires_grad_()
        again = checkpoint(checkpointed, x, padding, use_reentrant=False)
        again.backward(dy)
        assert torch.equal(again, y) and torch.equal(x.grad, dx)
        assert all(map(torch.equal, checkpointed.buffers(), plain.buffers()))


@needs_cpp
def test_processes_with_shares_equal_one(tmp_path):
    """Synchronised statistics use the same kernels, split at the all-reduce."""
    names = [(name, recipe) for name in BATCH_NORMS for recipe in ("paper", "release")]

    def outputs(first, last, sync):
        results = []
        for name, recipe in names:
            norm = make(name, recipe=recipe, sync=sync, kernel="cpp")
            for seed in range(4):
                x, dy, padding = random_rows((90, 12), seed=seed)
                dy[padding] = 0.0
                y, dx = training_step(norm, x[first:last], dy[first:last], padding[first:last])
                results.append((y, dx, [buffer.clone() for buffer in norm.buffers()]))
        return results

    cuts = (0, 80, 90)
    ranks = run_processes(lambda rank: outputs(cuts[rank], cuts[rank + 1], True), 2, tmp_path)
    for whole, *parts in zip(outputs(0, 90, False), *ranks):
        for part in (0, 1):
            torch.testing.assert_close(torch.cat([p[part] for p in parts]), whole[part], rtol=1e-4, atol=1e-4)
        for part in parts:
            torch.testing.assert_close(part[2], whole[2], rtol=1e-4, atol=1e-4)


@needs_cpp
def test_implementation_is_chosen_by_input_and_setting():
    x, wide_x = torch.zeros(2, 3, 12), torch.zeros(2, 12, dtype=torch.float64)

    def chosen(norm, x):
        return norm._implementation(x, norm.running_psi2)

    for served in (x, x.bfloat16(), x.transpose(0, 1), x[:0]):
        assert chosen(make("pn", kernel="auto"), served) == chosen(make("pn", kernel="cpp"), served) == "cpp"
    for left in (wide_x, x.half(), x.to("meta")):
        assert chosen(make("pn", kernel="auto"), left) == "plain"
    assert chosen(make("pn", kernel="eager"), x) == chosen(make("pn", dtype=torch.float64), x) == "plain"
    assert chosen(make("pn", affine=False), x) == chosen(make("pn", bias=False), x) == "cpp"


@pytest.mark.parametrize("kernel", ["eager", pytest.param("cpp", marks=needs_cpp)])
@pytest.mark.parametrize("name", ["pn", "pnv", "bn"])
def test_backward_keeps_the_input_and_little_else(name, kernel):
    norm, x = make(name, width=512, groups=4, kernel=kernel), torch.randn(400, 512, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel() * t.element_size()), lambda _: None):
        norm(x, torch.zeros(400, dtype=torch.bool))
    assert sum(kept) < 1.05 * 4 * x.numel()


@needs_cpp
def test_cpp_operators_were_built():
    assert kernels.describe() == "cpp" and kernels.available() == ["cpp", "eager"]


def test_switch(monkeypatch):
    x = torch.zeros(2, 4)
    monkeypatch.setenv("POWERNORM_KERNEL", "eager")
    assert bare_norm("pn", 4).kernel == "eager" and bare_norm("pn", 4)._implementation(x) == "plain"
    assert kernels.describe().startswith("eager")
    monkeypatch.setenv("POWERNORM_KERNEL", "fast")
    with pytest.raises(ValueError, match="POWERNORM_KERNEL='fast' is not known; choose from auto, eager, cpp, triton"):
        bare_norm("pn", 4)
    assert bare_norm("pn", 4, kernel="auto").kernel == "auto"
    with pytest.raises(ValueError, match="kernel='quick' is not known"):
        bare_norm("ln", 4, kernel="quick")
    monkeypatch.setattr(kernels, "unusable", lambda kernel: "there is none" if kernel == "cpp" else None)
    monkeypatch.setattr(kernels, "_found", {})
    with pytest.raises(ValueError, match="kernel='cpp' cannot be used: there is none; choose from eager"):
        bare_norm("pn", 4, kernel="cpp")
    assert bare_norm("pn", 4, kernel="auto")._implementation(x) == "plain"


@needs_cpp
@pytest.mark.parametrize(
    "mask",
    [
        lambda random: random(30)[::3],
        lambda random: random(4, 10).t(),
        lambda random: random(7, 5, 3).permute(2, 1, 0),
        lambda random: random(3, 5, 14)[..., ::2],
        lambda random: random(5).unsqueeze(1).expand(5, 4),
    ],
    ids=["one dimension", "transposed", "three dimensions", "every second", "expanded"],
)
def test_a_mask_of_any_strides_is_read_as_torch_reads_it(mask):
    padding = mask(lambda *shape: torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.3)
    x = torch.randn(*padding.shape, 16, generator=torch.Generator().manual_seed(2))
    assert padding.any() and not padding.all()
    found, expected = (bare_norm("pn", 16, kernel="cpp")(x, each) for each in (padding, padding.clone().contiguous()))
    assert torch.equal(found, expected) and not found[padding].any()
