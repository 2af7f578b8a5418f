"""The norms wherever a model may take them: each test is a use that torch's own norms allow."""

import copy
import io
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import build_norm, fold_norm, norm_names, take_penalty, training_step
from tests.norms.batches import bare_norm, random_affine, random_batch
from tests.norms.batches import training_step as step
from tests.processes import run_processes

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
compiles = pytest.mark.skipif(VERSION < (2, 6), reason="torch.compile and torch.export need torch >= 2.6")
BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
RELEASED = ["pn", "bn", "rbn", "prepbn"]
CASES = [*((name, {}) for name in norm_names()), *((name, {"recipe": "release"}) for name in RELEASED)]
IDS = [name + options.get("recipe", "") for name, options in CASES]
KERNELS = ["eager", "auto"]


def make(name, width=8, **options):
    everywhere = {"groups": 2, "layer_scale": "head", "warmup_updates": 2, "window": 2, "updates": 3}
    return random_affine(build_norm(name, width, **{**everywhere, **options}))


def batch(seed, shape=(4, 5, 8)):
    x, dy, mask = random_batch(seed, shape)
    return x.float(), dy.float(), mask


def buffers(norm):
    return [buffer.clone() for buffer in norm.buffers()]


# ---------------------------------------------------------------- torch.nn's own models


@pytest.mark.parametrize("name", norm_names())
@pytest.mark.parametrize("norm_first", [True, False])
def test_inside_torchs_encoder_layer_in_evaluation(name, norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    layer.norm1, layer.norm2 = make(name), make(name)
    x, mask = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    layer.train()(x)
    layer.eval()
    with_gradients = layer(x, src_key_padding_mask=mask)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, src_key_padding_mask=mask), with_gradients)
    layer.norm2 = nn.LayerNorm(8)
    with_gradients = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), with_gradients)


def test_nested_tensors_are_refused_with_a_sentence():
    nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)]) if VERSION >= (2, 0) else None
    if nested is None:
        pytest.skip("torch < 2.0 has no nested tensors")
    with pytest.raises(ValueError, match="enable_nested_tensor=False"):
        make("pn")(nested)


# ---------------------------------------------------------------- activation checkpointing, several backwards


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_a_norm_that_is_called_twice_in_a_step_under_checkpointing(name, options, kernel, reentrant):
    plain, checkpointed = (make(name, kernel=kernel, **options) for _ in range(2))
    for seed in range(5):
        first, second = batch(seed)[0], batch(seed + 100)[0]
        dy, mask = batch(seed)[1:]
        results = []
        for norm, call in ((plain, lambda n, *a: n(*a)), (checkpointed, None)):
            norm.zero_grad()
            inputs = [first.clone().requires_grad_(), second.clone().requires_grad_()]
            if call is None:
                outputs = [checkpoint(norm, x, mask, use_reentrant=reentrant) for x in inputs]
            else:
                outputs = [call(norm, x, mask) for x in inputs]
            torch.autograd.backward(outputs, [dy, dy])
            results.append([*outputs, *(x.grad for x in inputs), *(p.grad for p in norm.parameters()), *buffers(norm)])
        assert all(map(torch.equal, *results))


@pytest.mark.parametrize("reentrant", [True, False])
def test_both_calls_in_one_checkpoint(reentrant):
    def twice(norm, x):
        return norm(torch.tanh(norm(x)))

    plain, checkpointed = make("pn"), make("pn")
    for seed in range(5):
        x, dy, _ = batch(seed)
        results = []
        for norm in (plain, checkpointed):
            own = x.clone().requires_grad_()
            y = twice(norm, own) if norm is plain else checkpoint(twice, norm, own, use_reentrant=reentrant)
            y.backward(dy)
            results.append([y, own.grad, *buffers(norm)])
        assert all(map(torch.equal, *results))


def test_what_cannot_be_told_apart_is_refused():
    norm, (x, dy, _) = make("pn", warmup_updates=0), batch(0)
    x.requires_grad_()
    total = checkpoint(norm, x, use_reentrant=False) + checkpoint(norm, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="repeats one of several calls of a PowerNorm.*they had the same input"):
        total.backward(dy)


def test_moving_the_model_between_a_checkpointed_forward_and_its_backward():
    norm, (x, dy, mask) = make("pn"), batch(0)
    expected = copy.deepcopy(norm)
    _, expected_dx = step(expected, x, dy, mask)
    x.requires_grad_()
    y = checkpoint(norm, x, mask, use_reentrant=False)
    norm.to("cpu", torch.float32)
    norm.double().float()
    y.backward(dy)
    assert torch.equal(x.grad, expected_dx)


def test_records_are_neither_kept_nor_pickled_without_checkpointing():
    norm, (x, dy, mask) = make("pn"), batch(0, (40, 50, 8))
    before = len(pickle.dumps(norm))
    for _ in range(3):
        step(norm, x, dy, mask)
    assert len(pickle.dumps(norm)) <= before + 100
    torch.save(norm, io.BytesIO())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_a_graph_gives_one_gradient_and_moves_statistics_once(name, options, kernel):
    norm, once = make(name, kernel=kernel, **options), make(name, kernel=kernel, **options)
    for seed in range(4):
        x, dy, mask = batch(seed)
        step(once, x, dy, mask)
        x = x.requires_grad_()
        y = norm(x, mask)
        (first,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        (second,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(first, second)
        assert all(map(torch.equal, buffers(norm), buffers(once)))


@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_functional_call_moves_the_state_it_is_given(name, options):
    if VERSION < (2, 0):
        pytest.skip("torch.func came with torch 2.0")
    norm, (x, dy, mask) = make(name, **options), batch(0)
    expected, before = copy.deepcopy(norm), buffers(norm)
    step(expected, x, dy, mask)
    state = {key: value.clone() for key, value in norm.state_dict().items()}
    x.requires_grad_()
    torch.func.functional_call(norm, state, (x, mask)).backward(dy)
    assert all(map(torch.equal, buffers(norm), before))
    for key, value in expected.named_buffers():
        assert torch.equal(state[key], value), key


# ---------------------------------------------------------------- gradients of gradients, frozen statistics


EXACT = ["bn", "pnv", "ln", "rms", "gn", "rbn", "prepbn", "dyt", "derf", "scalenorm"]


@pytest.mark.parametrize("layer_scale", ["none", "head"])
@pytest.mark.parametrize("name", EXACT)
def test_double_backward(name, layer_scale):
    norm = make(name, 4, layer_scale=layer_scale).double()
    norm.fixed_share = 0.3  # of LN in prepbn, which would change from call to call
    x, _, mask = random_batch(0, (3, 2, 4))
    x.requires_grad_()

    def function(x, w):
        if name == "rbn":
            norm.reset_running_stats()  # the penalty is a distance from them
        y, penalty = norm(x, mask) * w, take_penalty(norm)
        return y if penalty is None else y + penalty

    assert torch.autograd.gradgradcheck(function, (x, torch.ones(4, requires_grad=True).double()))


def test_double_backward_in_cpp():
    results = []
    for kernel in ("eager", "auto"):
        norm, (x, dy, mask) = make("bn", kernel=kernel), batch(0)
        x.requires_grad_()
        (grad,) = torch.autograd.grad(norm(x, mask), x, dy, create_graph=True)
        grad.square().sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["pn", "mabn", "brn", "un"])
def test_approximate_gradients_refuse_to_be_differentiated(name):
    x, dy, mask = batch(0)
    y = make(name)(x.requires_grad_(), mask)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(y, x, dy, create_graph=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_evaluation_has_a_gradient(name, options, kernel):
    norm = make(name, kernel=kernel, **options)
    x, dy, mask = batch(0)
    step(norm, x, dy, mask)
    norm.eval()
    wide = copy.deepcopy(norm).double()
    wide.kernel = "eager"
    results = []
    for model, dtype in ((norm, torch.float32), (wide, torch.float64)):
        model.zero_grad()
        own = x.to(dtype).detach().requires_grad_()
        y = model(own, mask)
        y.backward(dy.to(dtype))
        results.append([value.double() for value in (y, own.grad, *(p.grad for p in model.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_a_step_between_an_evaluation_and_its_backward_changes_no_gradient(name, kernel):
    norm, (x, dy, mask) = make(name, kernel=kernel), batch(0)
    own = x.clone().requires_grad_()
    y = norm.eval()(own, mask)
    (expected,) = torch.autograd.grad(y, own, dy, retain_graph=True)
    step(norm, 10 * x, dy, mask)
    assert torch.equal(torch.autograd.grad(y, own, dy)[0], expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", norm_names())
def test_derivatives_by_torch_func_and_forward_mode_in_evaluation(name, mode):
    if VERSION < (2, 0):
        pytest.skip("torch.func came with torch 2.0")
    norm, (x, dy, _) = make(name), batch(0)
    step(norm, x, dy)
    norm.eval()
    wide, h = copy.deepcopy(norm).double(), 1e-6
    with mode():
        expected = (wide(x.double() + h * dy) - wide(x.double() - h * dy)) / (2 * h)
        with torch.autograd.forward_ad.dual_level():
            y = norm(torch.autograd.forward_ad.make_dual(x, dy))
            tangent = torch.autograd.forward_ad.unpack_dual(y).tangent
        for found in (tangent, torch.func.jvp(norm, (x,), (dy,))[1]):
            torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(torch.vmap(norm)(x), norm(x))
    own = x.clone().requires_grad_()
    norm(own).pow(3).sum().backward()
    torch.testing.assert_close(torch.func.grad(lambda x: norm(x).pow(3).sum())(x), own.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_other_derivatives_in_training_are_refused(name):
    """Their gradient is one that they define, or has statistics to move."""
    if VERSION < (2, 0):
        pytest.skip("torch.func came with torch 2.0")
    norm, (x, dy, _) = make(name), batch(0)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
            norm(torch.autograd.forward_ad.make_dual(x, dy))
        with mode(), pytest.raises(RuntimeError, match="functorch transforms"):
            torch.vmap(norm)(x)


# ---------------------------------------------------------------- parameters that are not plain ones


@pytest.mark.parametrize("name", norm_names())
def test_parametrised_weights(name):
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    norm, (x, dy, mask) = make(name), batch(0)
    expected = copy.deepcopy(norm)
    with torch.no_grad():
        expected.weight.mul_(2)
    parametrize.register_parametrization(norm, "weight", Doubled())
    for ours, theirs in zip(step(norm, x, dy, mask), step(expected, x, dy, mask)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [name for name in norm_names() if name != "scalenorm"])  # it has one number
def test_pruned_weights(name):
    norm, (x, dy, mask) = make(name), batch(0)
    prune.random_unstructured(norm, "weight", amount=3)
    y, _ = step(norm, x, dy, mask)
    assert (norm.weight == 0).sum() == 3 and torch.isfinite(y).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", norm_names())
def test_without_a_bias(name, training):
    x, dy, mask = batch(0)
    removed, built = make(name), make(name, bias=False)
    removed.bias = None
    if name == "prepbn":
        removed.ln_bias = None
    built.load_state_dict(removed.state_dict())
    for norm in (removed, built):
        norm.train(training)
        y = norm(x.requires_grad_(), mask)
        y.backward(dy)
        assert norm.bias is None and torch.isfinite(y).all()
    assert torch.equal(removed(x, mask), built(x, mask))


@pytest.mark.parametrize("name", norm_names())
def test_replicas_of_data_parallel(name):
    """What nn.DataParallel makes of a module: parameters and buffers as plain attributes of a copy."""
    norm, (x, dy, mask) = make(name), batch(0)
    replica = norm._replicate_for_data_parallel()
    for key, value in norm._parameters.items():
        if value is None:
            replica._parameters[key] = None
        else:
            object.__setattr__(replica, key, value)
    replica._buffers = dict(norm._buffers)
    y = replica(x, mask)
    y.backward(dy)
    assert norm.weight.grad is not None
    if name in BATCH_NORMS:
        assert norm.num_updates == 1


def test_fsdp_with_its_default_settings(tmp_path):
    from torch.distributed.fsdp import FullyShardedDataParallel

    def work(rank):
        torch.manual_seed(0)
        results = {}
        for name in norm_names():
            model = nn.Sequential(nn.Linear(8, 8), make(name), nn.Linear(8, 8))
            x = batch(rank)[0]
            sharded = FullyShardedDataParallel(copy.deepcopy(model), device_id=torch.device("cpu"))
            results[name] = torch.equal(sharded(x), model(x))
            sharded(x).sum().backward()
        return results

    if VERSION < (2, 6):
        pytest.skip("FSDP on a CPU needs torch >= 2.6")
    for rank in run_processes(work, 2, tmp_path):
        assert all(rank.values()), rank


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize("assign", [False, True])
def test_half_precision_state_keeps_statistics_wide(name, assign):
    if VERSION < (2, 1):
        pytest.skip("assign came with torch 2.1")
    norm, (x, dy, mask) = make(name), batch(0)
    step(norm, x, dy, mask)
    state = {key: value.bfloat16() for key, value in norm.state_dict().items()}
    state["num_updates"] = torch.tensor(256.0).bfloat16()
    other = make(name)
    other.load_state_dict(state, assign=assign)
    assert all(b.dtype in (torch.float32, torch.int64) for b in other.buffers())
    step(other.float(), x, dy, mask)
    assert other.num_updates == 257


def test_old_counters_load():
    norm = make("pn")
    state = {**norm.state_dict(), "num_updates": torch.tensor(12.0)}
    norm.load_state_dict(state)
    assert norm.num_updates == 12 and norm.num_updates.dtype == torch.int64


@pytest.mark.parametrize("name", norm_names())
def test_meta_device_and_reset(name):
    fresh = build_norm(name, 8, updates=3)
    norm = build_norm(name, 8, updates=3, device="meta")
    assert all(tensor.is_meta for tensor in [*norm.parameters(), *norm.buffers()])
    norm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*norm.parameters(), *norm.buffers()]:
            tensor.fill_(7)
    norm.reset_parameters()
    for key, value in fresh.state_dict().items():
        assert torch.equal(norm.state_dict()[key], value), key


@pytest.mark.parametrize("name", norm_names())
def test_device_and_type(name):
    norm = build_norm(name, 8, updates=3, dtype=torch.bfloat16)
    assert norm.weight.dtype == torch.bfloat16
    assert all(b.dtype in (torch.float32, torch.int64) for b in norm.buffers())
    wide = build_norm(name, 8, updates=3, dtype=torch.float64)
    assert all(t.dtype in (torch.float64, torch.int64) for t in [*wide.parameters(), *wide.buffers()])


@pytest.mark.parametrize("key", ["running_phi", "ema_gz"])
def test_released_checkpoint_of_another_width_is_named(key):
    state = make("pn").state_dict()
    names = {"running_phi": "running_psi2", "ema_gz": "nu"}
    state[key] = torch.ones(1, 6, 1, 1)
    del state[names[key]]
    with pytest.raises(RuntimeError, match=f"norm.{key} has the width 6, but this norm has 8"):
        nn.ModuleDict({"norm": make("pn")}).load_state_dict({f"norm.{name}": value for name, value in state.items()})


def test_loss_scale_of_another_thread_does_not_reach_this_one():
    steady, disturbed = make("pn"), make("pn")
    inside, done = threading.Event(), threading.Event()

    def other():
        with training_step(loss_scale=1024.0, counts=False):
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(20)
    try:
        for seed in range(4):
            step(steady, *batch(seed))
            step(disturbed, *batch(seed))
    finally:
        done.set()
        thread.join()
    alone = make("pn")
    for seed in range(4):
        step(alone, *batch(seed))
    assert all(map(torch.equal, buffers(disturbed), buffers(alone)))
    assert disturbed.num_updates == 4


@pytest.mark.parametrize("name", ["pn", "mabn", "un"])
def test_a_loss_scale_that_the_forward_did_not_know_is_refused(name):
    x, dy, mask = batch(0)
    y = make(name)(x.requires_grad_(), mask)
    with training_step(loss_scale=8.0), pytest.raises(RuntimeError, match="has to hold forward and backward"):
        y.backward(dy)


def test_a_grad_scaler_says_its_scale():
    kind = torch.amp.GradScaler if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler") else None
    if kind is None:
        pytest.skip("torch.amp.GradScaler came with torch 2.3")
    scaler = kind("cpu", init_scale=128.0)
    steady, scaled = make("pn", layer_scale="none"), make("pn", layer_scale="none")
    for seed in range(4):
        x, dy, mask = batch(seed)
        step(steady, x, dy, mask)
        with training_step(scaler):
            scaler.scale((scaled(x.requires_grad_(), mask) * dy).sum()).backward()
    assert scaler.get_scale() == 128.0 and steady.nu.abs().max() > 0
    assert torch.equal(steady.nu, scaled.nu)


# ---------------------------------------------------------------- folding


def test_folding_into_what_is_no_plain_linear_layer():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    norm = make("pn").eval()
    with pytest.raises(TypeError, match="torch.nn.Linear alone, not into a Scaled"):
        fold_norm(norm, [Scaled(8, 3)])
    with pytest.raises(TypeError, match="not into a Conv1d"):
        fold_norm(norm, [nn.Conv1d(8, 3, 1)])


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_folding_into_a_centralised_layer(name):
    from powernorm_fairseq.norms import centralise_weight

    norm, linear, x = make(name).eval().double(), nn.Linear(8, 3).double(), batch(0)[0].double()
    centralise_weight(linear)
    norm.num_updates.fill_(3)  # nothing of LN is left in prepbn
    expected = linear(norm(x))
    rest = fold_norm(norm, [linear])
    torch.testing.assert_close(linear(rest(x)), expected)


# ---------------------------------------------------------------- scripts, graphs, exports


def test_scripting_is_refused():
    with pytest.raises(Exception):  # noqa: B017 - torch's own error, or ours
        torch.jit.script(make("pn"))(batch(0)[0])


@pytest.mark.parametrize("name", norm_names())
def test_traced_evaluation(name):
    norm, (x, _, mask) = make(name).eval(), batch(0)
    traced = torch.jit.trace(norm, (x, mask))
    other, _, other_mask = batch(1, (4, 5, 8))
    torch.testing.assert_close(traced(other, other_mask), norm(other, other_mask))


@compiles
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_compiled_training_equals_eager_training(name, options, kernel):
    torch._dynamo.reset()
    eager, (x, dy, mask) = make(name, kernel=kernel, **options), batch(0)
    norm = copy.deepcopy(eager)
    model = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        x, dy, mask = batch(seed)
        results = []
        for call in (eager, model):
            own = x.clone().requires_grad_()
            y = call(own, mask)
            y.backward(dy)
            results.append([y.detach(), own.grad])
        torch.testing.assert_close(*results)
        torch.testing.assert_close(buffers(norm), buffers(eager))
    eager.eval(), norm.eval()
    torch.testing.assert_close(model(x, mask), eager(x, mask))


@compiles
@pytest.mark.parametrize("name", ["pn", "bn"])
def test_compiled_by_inductor(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 8), make(name), nn.Linear(8, 8), make(name))
    norm = copy.deepcopy(eager)
    model = torch.compile(norm, fullgraph=True)
    for seed in range(4):
        x, dy, _ = batch(seed)
        for call in (eager, model):
            call.zero_grad()
            call(x).backward(dy)
        torch.testing.assert_close(buffers(norm), buffers(eager))
        torch.testing.assert_close([p.grad for p in norm.parameters()], [p.grad for p in eager.parameters()])


@compiles
@pytest.mark.parametrize("where", ["in the graph", "around it", "around it, reentrant"])
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_checkpointing_does_not_repeat_a_compiled_norm(name, where):
    """It would start from statistics that have moved, or move them twice."""
    torch._dynamo.reset()
    norm, (x, dy, _) = make(name), batch(0)
    if where == "in the graph" and name == "rbn":  # torch itself refuses what leaves a penalty behind
        model = torch.compile(lambda x: checkpoint(norm, x, use_reentrant=False), fullgraph=True, backend="aot_eager")
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Mutating a variable"):
            model(x)
        return
    if where == "in the graph":
        model = torch.compile(lambda x: checkpoint(norm, x, use_reentrant=False), fullgraph=True, backend="aot_eager")
        y = model(x)
    else:
        model = torch.compile(norm, fullgraph=True, backend="aot_eager")
        y = checkpoint(model, x.requires_grad_(), use_reentrant=where.endswith("reentrant"))
    with pytest.raises(RuntimeError, match="activation checkpointing cannot repeat a norm that torch.compile has"):
        y.backward(dy)


@compiles
@pytest.mark.parametrize("name", norm_names())
def test_exported_evaluation(name):
    norm, (x, _, mask) = make(name).eval(), batch(0)
    dynamic = {"x": {0: torch.export.Dim("b")}, "padding_mask": {0: torch.export.Dim("b")}}
    other, _, other_mask = batch(1, (7, 5, 8))
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            program = torch.export.export(norm, (x, mask), dynamic_shapes=dynamic)
            torch.testing.assert_close(program.module()(other, other_mask), norm(other, other_mask))
            assert "powernorm" not in str(program.graph)  # plain operators, for any runtime


@compiles
@pytest.mark.parametrize("name", norm_names())
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    norm, (x, _, mask) = make(name).eval(), batch(0)
    with torch.no_grad():
        program = torch.onnx.export(norm, (x, mask), dynamo=True, verbose=False)
    assert program.model.graph.num_nodes() > 0


def test_process_groups_are_not_needed():
    assert not dist.is_initialized()
    norm = bare_norm("pn", 8, sync=True)
    step(norm, *batch(0))
    assert norm.num_updates == 1
