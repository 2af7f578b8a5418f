"""The Triton kernels equal plain torch: in Triton's interpreter (make test-triton), or on a GPU where there is one."""

import importlib.machinery
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from powernorm_fairseq.norms.kernels.eager import EagerRows

from powernorm_fairseq.norms import build_norm, kernels
from tests.norms.batches import random_affine
from tests.norms.batches import training_step as step

REPOSITORY = Path(__file__).parents[2]
UNUSABLE = kernels.unusable("triton")
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
RECIPES = [("pn", "paper"), ("pn", "release"), ("bn", "paper"), ("bn", "release")]
NORMS = [*RECIPES, ("pnv", None), ("brn", None), ("mabn", None)]
ALL_KERNELS = ["eager", pytest.param("triton", marks=pytest.mark.skipif(UNUSABLE is not None, reason=str(UNUSABLE)))]

needs_triton = pytest.mark.skipif(UNUSABLE is not None, reason=f"{UNUSABLE} (make test-triton)")


@pytest.fixture
def triton_rows(monkeypatch):
    """The kernels with tiles and blocks so small that a small batch takes several of each."""
    from powernorm_fairseq.norms.kernels import triton_rows

    monkeypatch.setattr(triton_rows, "TILE", 32)
    monkeypatch.setattr(triton_rows, "MAX_BLOCKS", 2)
    return triton_rows


def make_mask(kind, rows):
    if kind == "none":
        return None
    share = {"empty": 0.0, "full": 1.0, "random": 0.4}[kind]
    return (torch.rand(rows) < share).to(DEVICE)


def results(rows_type, x, dy, mask, groups, columns):
    """Everything that rows can compute, with the scales of the slices computed by each pass that may be the first."""
    a, b, c = columns

    def make(scales=None):
        return rows_type(x, mask, groups, 1e-5, scales)

    forward = make()
    return [
        make().square_sums(),
        *make().moments(),
        make().affine(a, b),
        *forward.affine_and_square_sums(a, b),
        forward.square_sums(),
        *forward.moments(),
        *make(forward.scales).backward_sums(dy, c),
        make(forward.scales).backward(dy, a, b, c),
        *make(forward.scales).backward_and_sums(dy, a, b, c),
    ]


def assert_close(actual, expected):
    half = {torch.float16: 2**-10, torch.bfloat16: 2**-7}  # a unit in the last place: the interpreter cuts bfloat16 off
    tolerance = half.get(expected.dtype, 1e-5)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=2e-5)


@needs_triton
@pytest.mark.parametrize(
    "rows, columns, groups, mask, dtype",
    [
        (37, 24, 0, "random", torch.float32),
        (37, 6, 2, "random", torch.float32),
        (20, 24, 1, "none", torch.bfloat16),
        (9, 24, 3, "random", torch.float16),
        (9, 140, 0, "random", torch.bfloat16),
        (5, 6, 2, "full", torch.float32),
        (5, 6, 0, "full", torch.float16),
        (7, 6, 1, "empty", torch.float32),
        (3, 80, 1, "none", torch.float32),
        (1, 1, 1, "none", torch.float32),
        (0, 6, 2, "none", torch.float32),
        (0, 6, 0, "empty", torch.bfloat16),
    ],
)
def test_passes_equal_plain_torch(triton_rows, rows, columns, groups, mask, dtype):
    torch.manual_seed(rows + columns)
    x, dy = (torch.randn(2, rows, columns) * 2 + 0.5).to(DEVICE, dtype)
    mask = make_mask(mask, rows)
    if mask is not None:
        x[mask] = dy[mask] = float("nan")
    coefficients = torch.randn(3, columns, device=DEVICE)
    expected = results(EagerRows, x, dy, mask, groups, coefficients)
    actual = results(triton_rows.TritonRows, x, dy, mask, groups, coefficients)
    for ours, plain in zip(actual, expected):
        assert_close(ours, plain)


@needs_triton
def test_what_is_not_contiguous_is_read_in_its_order(triton_rows):
    torch.manual_seed(0)
    x, dy = torch.randn(2, 6, 11, device=DEVICE).transpose(1, 2)
    mask = (torch.rand(22) < 0.4).to(DEVICE)[::2]
    coefficients = torch.randn(6, 3, device=DEVICE).t()
    expected = results(EagerRows, x, dy, mask, 2, coefficients)
    for ours, plain in zip(results(triton_rows.TritonRows, x, dy, mask, 2, coefficients), expected):
        assert_close(ours, plain)


@needs_triton
@pytest.mark.parametrize("groups", [0, 2])
def test_squares_that_are_not_needed_are_not_computed(triton_rows, groups):
    x = torch.randn(9, 4, device=DEVICE)
    expected = EagerRows(x, None, groups, 1e-5).affine_and_square_sums(x[0], x[1])
    for needed in (torch.tensor(False, device=DEVICE), torch.tensor(True, device=DEVICE)):
        rows = triton_rows.TritonRows(x, None, groups, 1e-5)
        sums = rows.square_sums(needed=needed)
        assert_close(sums, expected[1] * needed)
        for actual, plain in zip(rows.affine_and_square_sums(x[0], x[1]), expected):
            assert_close(actual, plain)


@needs_triton
def test_power_norm_needs_the_squares_first_in_the_warm_up_alone(triton_rows, monkeypatch):
    needs, square_sums = [], triton_rows.TritonRows.square_sums

    def record(rows, needed):
        needs.append(needed.item())
        return square_sums(rows, needed)

    monkeypatch.setattr(triton_rows.TritonRows, "square_sums", record)
    norm = build_norm("pn", 4, kernel="triton", warmup_updates=2).to(DEVICE)
    for _ in range(4):
        norm(torch.randn(3, 4, device=DEVICE))
    assert needs == [True, True, False, False]


@needs_triton
def test_moments_do_not_cancel(triton_rows):
    torch.manual_seed(0)
    x = (torch.randn(90, 3) + torch.tensor([0.0, 1e3, -1e4])).to(DEVICE)
    mean, squares = triton_rows.TritonRows(x, None, 0, 1e-5).moments()
    wide = EagerRows(x.double(), None, 0, 1e-5).moments()
    torch.testing.assert_close(mean.double(), wide.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(squares.double(), wide.squares, rtol=1e-5, atol=0)


@needs_triton
@pytest.mark.parametrize("name, recipe", NORMS)
def test_training_equals_plain_torch(triton_rows, name, recipe):
    options = {"groups": 2, "layer_scale": "none" if name == "bn" else "head", "warmup_updates": 2, "window": 2}
    if recipe is not None:
        options["recipe"] = recipe
    plain, ours = (
        random_affine(build_norm(name, 6, kernel=kernel, **options)).to(DEVICE) for kernel in ("eager", "triton")
    )
    for number in range(5):
        torch.manual_seed(number)
        x, dy = (torch.randn(2, 5, 4, 6) * 2 + 0.5).to(DEVICE).transpose(1, 2)  # B x T x C of T x B x C
        mask = (torch.rand(4, 5) < 0.4).to(DEVICE) | (number == 3)  # the fourth batch is all padding
        x[mask] = float("nan")
        for actual, expected in zip(step(ours, x, dy, mask), step(plain, x, dy, mask)):
            assert_close(actual, expected)
        for actual, expected in zip(ours.parameters(), plain.parameters()):
            assert_close(actual.grad, expected.grad)
        for actual, expected in zip(ours.buffers(), plain.buffers()):
            assert_close(actual, expected)
    with torch.no_grad():
        assert_close(ours.eval()(x, mask), plain.eval()(x, mask))
    assert kernels.rows_type("triton", x.float()) is triton_rows.TritonRows


@needs_triton
def test_float64_goes_to_plain_torch():
    assert kernels.rows_type("triton", torch.zeros(1, 1, dtype=torch.float64, device=DEVICE)) is EagerRows


@needs_triton
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    environment = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path), PYTHONPATH=str(REPOSITORY))
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).parent / "compile_triton.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["forward_kernel", "moments_kernel", "backward_kernel"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TorchDispatchMode is as it is here from torch 2 on")
@pytest.mark.parametrize("kernel", ALL_KERNELS)
@pytest.mark.parametrize("name, recipe", NORMS)
def test_no_value_travels_to_the_host(name, recipe, kernel):
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    device = DEVICE if kernel == "triton" else "cpu"
    options = {} if recipe is None else {"recipe": recipe}
    norm = build_norm(name, 4, kernel=kernel, groups=2, layer_scale="head", warmup_updates=1, **options).to(device)
    x, dy = torch.randn(2, 3, 4, device=device)
    with Record():
        step(norm, x, dy, torch.tensor([False, True, False], device=device))
    assert "empty_like" in called or "rsqrt" in called  # something has been recorded
    assert not {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "unique"} & set(called)


def test_triton_is_not_imported_before_it_is_needed():
    code = "import sys, powernorm_fairseq.norms as n; n.build_norm('pn', 4); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=str(REPOSITORY)).returncode == 0


@pytest.fixture
def without_triton(monkeypatch):
    """Neither triton nor a GPU nor the interpreter."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kernels.triton_unusable.cache_clear()
    yield monkeypatch
    kernels.triton_unusable.cache_clear()


def test_missing_triton_is_named(without_triton):
    with pytest.raises(ValueError, match="^kernel='triton' cannot be used: triton is not installed; choose from "):
        build_norm("pn", 4, kernel="triton")
    without_triton.setenv("POWERNORM_KERNEL", "triton")
    with pytest.raises(ValueError, match="^POWERNORM_KERNEL='triton' cannot be used: triton is not installed"):
        build_norm("pn", 4)
    assert "triton" not in kernels.available("cuda") + kernels.available("cpu")


def test_missing_gpu_is_named(without_triton):
    module = types.ModuleType("triton")
    module.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    without_triton.setitem(sys.modules, "triton", module)
    with pytest.raises(ValueError, match="there is no CUDA device; TRITON_INTERPRET=1 runs it in the interpreter"):
        build_norm("pn", 4, kernel="triton")


def test_old_triton_is_named(without_triton):
    module = types.ModuleType("triton")
    module.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    module.__version__ = "2.1.0"
    without_triton.setitem(sys.modules, "triton", module)
    without_triton.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="triton 2.1.0 is too old; 3.2 or later will do"):
        build_norm("pn", 4, kernel="triton")
