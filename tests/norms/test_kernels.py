"""Every implementation equals the plain one in float64, to the rounding of its own type."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import build_norm, kernels
from powernorm_fairseq.norms.fused import FusedBatchStep, serves
from powernorm_fairseq.norms.kernels import chunked, cpp
from powernorm_fairseq.norms.kernels.eager import EagerRows
from tests.norms.batches import random_affine, training_step
from tests.processes import run_processes

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
needs_cpp = pytest.mark.skipif(not NEW_TORCH, reason="the C++ kernels need torch >= 2.10")
BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn"]
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


def all_passes(rows, dy, vectors):
    """What every pass returns, the first one on fresh rows each time."""
    scale, shift, c = vectors
    results = [rows().square_sums(), *rows().moments(), rows().affine(scale, shift)]
    results += rows().affine_and_square_sums(scale, shift)
    reused = rows()
    results += [reused.square_sums(), reused.affine(scale, shift), reused.count(), reused.positions()]
    back = rows(*reused.saved()[2:])
    results += [*back.backward_sums(dy, shift), *back.backward_sums(dy, None)]
    results += [back.backward(dy, scale, shift, c), back.backward(dy, scale, shift, None)]
    return results + [*back.backward_and_sums(dy, scale, shift, c), *back.backward_and_sums(dy, scale, shift, None)]


@needs_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "empty", "random", "full"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_cpp_passes_equal_the_plain_ones(shape, scaled, mask, dtype):
    count, width, groups = shape[0], shape[1], shape[2] if scaled else 0
    x, dy, padding = random_rows((count, width), mask, dtype)
    vectors = torch.randn(3, width, generator=torch.Generator().manual_seed(1))

    def plain(scales=None):
        return EagerRows(x.double(), padding, groups, 1e-5, scales)

    def fused(scales=None):
        return cpp.CppRows(x, padding, groups, 1e-5, scales)

    expected = all_passes(plain, dy.double(), vectors.double())
    for ours, theirs in zip(all_passes(fused, dy, vectors), expected):
        assert ours.dtype == (dtype if ours.dim() == 2 else torch.float32)
        torch.testing.assert_close(ours.double(), theirs, rtol=CLOSE[ours.dtype]["rtol"], atol=sums_atol(ours, count))


def sums_atol(result, count):
    """A sum of many terms may be small although they are not."""
    return CLOSE[result.dtype]["atol"] * (1 if result.dim() == 2 else max(1, count) ** 0.5 * 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "random", "full"])
@pytest.mark.parametrize("groups", [0, 3])
def test_chunks_change_nothing(groups, mask, dtype, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 12 * 7)
    x, dy, padding = random_rows((40, 12), mask, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    vectors = torch.randn(3, 12, generator=torch.Generator().manual_seed(1)).to(wide)

    def whole(scales=None):
        return EagerRows(x, padding, groups, 1e-5, scales)

    def in_chunks(scales=None):
        return chunked.ChunkedRows(x, padding, groups, 1e-5, scales)

    for ours, theirs in zip(all_passes(in_chunks, dy, vectors), all_passes(whole, dy, vectors)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_large_input_on_a_cpu_is_cut_into_chunks():
    norm = build_norm("pn", 512, kernel="eager")
    assert type(norm.rows(torch.zeros(4096, 512), None)) is chunked.ChunkedRows
    assert type(norm.rows(torch.zeros(40, 512), None)) is EagerRows


@needs_cpp
@pytest.mark.parametrize("rows", [90, 3000])
def test_moments_do_not_cancel(rows):
    x, _, padding = random_rows((rows, 8), offset=-10000.0)
    mean, squares = cpp.CppRows(x, padding, 0, 1e-5).moments()
    expected_mean, expected_squares = EagerRows(x.double(), padding, 0, 1e-5).moments()
    torch.testing.assert_close(mean.double(), expected_mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(squares.double(), expected_squares, rtol=1e-5, atol=0)


@needs_cpp
def test_parameters_and_masks_of_any_stride():
    x, dy, _ = random_rows((6, 4), mask="none")
    for mask in (torch.zeros(1, dtype=torch.bool).expand(6), torch.eye(12, dtype=torch.bool)[3, ::2]):
        results = []
        for kernel in ("eager", "cpp"):
            norm = build_norm("pn", 4, kernel=kernel)
            norm.weight = torch.nn.Parameter(torch.arange(8.0)[::2])
            results.append(training_step(norm, x, dy, mask))
        torch.testing.assert_close(results[0], results[1])


def make(name, width=12, dtype=torch.float32, **options):
    everywhere = {"groups": 2, "layer_scale": "head", "warmup_updates": 2, "window": 2, "alpha_bwd": 0.8}
    return random_affine(build_norm(name, width, **{**everywhere, **options})).to(dtype)


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
@pytest.mark.parametrize("name", ["bn", "pnv", "pn"])
def test_whole_steps_serve_what_they_can(name):
    x, mask = torch.zeros(2, 3, 12), torch.zeros(2, 3, dtype=torch.bool)
    norm = make(name, kernel="auto")
    for served in (x, x.bfloat16(), x.transpose(0, 1), x[:0]):
        assert serves(norm, served, None)
    assert serves(norm, x, mask) and serves(norm, x.transpose(0, 1), mask.t())
    assert serves(make(name, dtype=torch.bfloat16), x.bfloat16(), mask)
    for other in (make(name, kernel="eager"), make(name, dtype=torch.float64), make(name, affine=False)):
        assert not serves(other, x, mask)
    for left in (x.double(), x.half(), torch.zeros(2, 3, 6), torch.zeros(()), x.to("meta")):
        assert not serves(norm, left, None)
    assert not serves(norm, x, mask.t()) and not serves(norm, x, mask.byte())
    alone = make(name, sync=True)  # there is but one process
    assert isinstance(alone(x.requires_grad_(), mask).grad_fn.step, FusedBatchStep)
    assert make("pn", recipe="release").fused_step is None and make("brn").fused_step is None


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
    assert build_norm("pn", 4).kernel == "eager" and type(build_norm("pn", 4).rows(x, None)) is EagerRows
    assert kernels.describe().startswith("eager")
    monkeypatch.setenv("POWERNORM_KERNEL", "fast")
    with pytest.raises(ValueError, match="POWERNORM_KERNEL='fast' is not known; choose from auto, eager, cpp, triton"):
        build_norm("pn", 4)
    assert build_norm("pn", 4, kernel="auto").kernel == "auto"
    with pytest.raises(ValueError, match="kernel='quick' is not known"):
        build_norm("ln", 4, kernel="quick")
    monkeypatch.setattr(cpp, "UNUSABLE", "there is none")
    with pytest.raises(ValueError, match="kernel='cpp' cannot be used: there is none; choose from eager"):
        build_norm("pn", 4, kernel="cpp")
    assert type(build_norm("pn", 4, kernel="auto").rows(x, None)) is EagerRows
