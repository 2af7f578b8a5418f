"""Real fairseq training steps: precision, checkpointing, accumulation, stand-in batches, EMA and the rest."""

import copy

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from powernorm_fairseq.norms import BatchStatisticsNorm
from tests.models.training import RECIPE, USER_DIR, Run, config, same, state

BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]
NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 1)
needs_half_on_cpu = pytest.mark.skipif(not NEW_TORCH, reason="this torch cannot multiply fp16 matrices on a CPU")


@pytest.mark.parametrize("arch", ["powernorm_tiny", "transformer"])
def test_configurations_of_these_tests_are_fairseqs(arch):
    for flags in ("--dropout 0.1 --lr 1", "--dropout 0.2 --lr 2,3", "--dropout 0.2 --lr 2 --fp16 --adam-eps 1e-4"):
        argv = ["data", "--user-dir", USER_DIR, "--arch", arch, *RECIPE, *flags.split()]
        theirs = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))
        assert dict(config(argv)) == dict(theirs)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_statistics_move_once_for_each_update(toy_data, name):
    run = Run(toy_data, "--encoder-norm", name)
    run.train(3)
    assert len(run.norms()) == 5 and all(norm.num_updates == 3 for norm in run.norms().values())


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_activation_checkpointing_changes_nothing(toy_data, name):
    """To rounding: fairseq sums the decoder layers' gradients of the encoder output in another order then."""
    flags = ["--encoder-norm", name, "--decoder-norm", name, "--dropout", 0.0]
    plain, checkpointed = Run(toy_data, *flags), Run(toy_data, *flags, "--checkpoint-activations")
    plain.train(6), checkpointed.train(6)
    for key, value in plain.buffers().items():
        torch.testing.assert_close(checkpointed.buffers()[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_accumulated_gradients_move_statistics_once_for_each_mini_batch(toy_data, name):
    run = Run(toy_data, "--encoder-norm", name, "--update-freq", 3)
    run.train(2)
    assert all(norm.num_updates == 6 for norm in run.norms().values())


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_stand_in_batches_and_validation_move_nothing(toy_data, name):
    """An empty sample is how fairseq gives a worker nothing to do; the trainer puts its dummy batch there."""
    flags = ["--encoder-norm", name, "--update-freq", 2]
    run = Run(toy_data, *flags)
    run.train(2)
    before = run.buffers()
    run.trainer.train_step([{}, {}])
    assert same(run.buffers(), before)
    run.trainer.valid_step(run.batches[0])
    run.trainer.valid_step({})
    assert same(run.buffers(), before)
    run.trainer.train_step([run.batches[0], {}])
    assert all(norm.num_updates == 5 for norm in run.norms().values())


@pytest.mark.parametrize("flag", ["--fp16", "--memory-efficient-fp16", "--bf16", "--amp"])
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_half_precision_keeps_statistics_in_float32(toy_data, name, flag):
    if "16" in flag and not NEW_TORCH:
        pytest.skip("this torch cannot multiply half-precision matrices on a CPU")
    run = Run(toy_data, "--encoder-norm", name, flag)
    run.train(4)
    for key, buffer in run.buffers().items():
        assert buffer.dtype == (torch.int64 if key.endswith("_updates") else torch.float32), key
        assert torch.isfinite(buffer).all(), key
    if flag != "--amp":
        assert run.model.encoder.layer_norm.weight.dtype == {"--bf16": torch.bfloat16}.get(flag, torch.float16)


@needs_half_on_cpu
@pytest.mark.parametrize("flag", ["--fp16", "--memory-efficient-fp16"])
@pytest.mark.parametrize("name", ["pn", "mabn", "un"])
def test_changing_loss_scale_gives_the_run_of_a_constant_one(toy_data, name, flag):
    """fairseq doubles the scale after each window of good updates; nu is kept in units of the loss."""
    flags = ["--encoder-norm", name, flag, "--fp16-init-scale", 16, "--dropout", 0.0]
    constant = Run(toy_data, *flags, "--fp16-scale-window", 1000)
    changing = Run(toy_data, *flags, "--fp16-scale-window", 2)
    expected, losses = constant.train(10), changing.train(10)
    assert constant.trainer.optimizer.scaler.loss_scale == 16
    assert changing.trainer.optimizer.scaler.loss_scale > 256
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-3, atol=0)
    key = "encoder.layer_norm." + {"pn": "nu", "mabn": "grad_window", "un": "grad_mean"}[name]
    ours, theirs = changing.buffers()[key], constant.buffers()[key]
    assert (ours - theirs).norm() < 0.05 * theirs.norm()


@needs_half_on_cpu
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_overflow_leaves_every_buffer_finite(toy_data, name, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # fairseq reports an overflow on the GPU
    run = Run(toy_data, "--encoder-norm", name, "--fp16", "--fp16-init-scale", 2**24)
    run.train(12)
    assert run.trainer.optimizer.scaler.loss_scale < 2**24  # there were overflows
    assert run.trainer.get_num_updates() < 12
    assert all(torch.isfinite(buffer).all() for buffer in run.buffers().values())


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_resumed_run_continues_bit_for_bit(toy_data, tmp_path, name):
    whole = Run(toy_data, "--encoder-norm", name, "--dropout", 0.0)
    losses = whole.train(8)
    first = Run(toy_data, "--encoder-norm", name, "--dropout", 0.0)
    first.train(5)
    file = tmp_path / "checkpoint.pt"
    first.trainer.consolidate_optimizer()
    first.trainer.save_checkpoint(str(file), {"train_iterator": first.iterator.state_dict(), "val_loss": 1.0})
    second = Run(toy_data, "--encoder-norm", name, "--dropout", 0.0)
    second.trainer.load_checkpoint(str(file))
    assert second.train(3, first=5) == losses[5:]
    assert same(state(second.model), state(whole.model))


@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize("fp32", [[], ["--ema-fp32"]])
def test_ema(toy_data, name, fp32):
    run = Run(toy_data, "--encoder-norm", name, "--store-ema", "--ema-decay", 0.5, *fp32)
    run.train(4)
    ema = run.trainer.ema.get_model()
    ema.eval()
    with torch.no_grad():
        output, _ = ema(**run.batches[0]["net_input"])
    assert torch.isfinite(output).all()
    divided = {"pn": "psi2", "pnv": "psi2", "un": "psi2", "mabn": "chi2"}
    key = "running_" + divided.get(name, "var")
    ours, averaged = getattr(run.model.encoder.layer_norm, key), getattr(ema.encoder.layer_norm, key)
    assert (averaged > 0).all() and not torch.equal(ours, averaged)


@pytest.mark.parametrize("name", ["pn", "bn"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5],
        ["--quant-noise-pq", 0.1, "--quant-noise-pq-block-size", 4],
        ["--layernorm-embedding"],
        ["--no-cross-attention"],
        ["--encoder-learned-pos", "--decoder-learned-pos"],
    ],
    ids=lambda flags: flags[0],
)
def test_what_fairseq_offers_keeps_working(toy_data, name, flags):
    run = Run(toy_data, "--encoder-norm", name, *flags)
    assert all(torch.isfinite(torch.tensor(loss)) for loss in run.train(4))


def test_pruned_layers_load(toy_data):
    """fairseq keeps a subset of layers of a LayerDrop model by --encoder-layers-to-keep."""
    run = Run(toy_data)
    run.train(2)
    pruned = Run(toy_data, "--encoder-layers-to-keep", "1", "--decoder-layers-to-keep", "0,1")
    pruned.model.load_state_dict(copy.deepcopy(run.model.state_dict()), strict=True, model_cfg=pruned.cfg.model)
    assert torch.equal(
        pruned.model.encoder.layers[0].final_layer_norm.nu, run.model.encoder.layers[1].final_layer_norm.nu
    )


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_copy_of_a_model_is_independent(toy_data, name):
    run = Run(toy_data, "--encoder-norm", name)
    run.train(1)
    other = copy.deepcopy(run.model)
    before = run.buffers()
    other.train()
    other(**run.batches[0]["net_input"])[0].sum().backward()
    assert same(run.buffers(), before)
    copied = [module for module in other.modules() if isinstance(module, BatchStatisticsNorm)]
    assert all(norm.num_updates == 2 for norm in copied)
