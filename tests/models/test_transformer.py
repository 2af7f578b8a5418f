"""The model: what it replaces, what it leaves alone."""

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from powernorm_fairseq.models.architectures import ROWS
from powernorm_fairseq.norms import NORMS, PowerNorm, norm_names
from tests.models.training import Run, same, state

PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]


def test_ln_is_fairseqs_own_pre_norm_transformer(toy_data):
    """Same parameters, and losses that agree to the last bit over ten updates with dropout."""
    flags = ["--dropout", 0.2, "--attention-dropout", 0.1, "--activation-dropout", 0.1]
    ours = Run(toy_data, "--encoder-norm", "ln", *flags)
    sizes = ["--encoder-layers", 2, "--decoder-layers", 2]
    heads = ["--encoder-attention-heads", 4, "--decoder-attention-heads", 4]
    theirs = Run(toy_data, *PRE_NORM, *flags, *sizes, *heads, arch="transformer")
    assert list(ours.model.state_dict()) == list(theirs.model.state_dict())
    assert not ours.norms()
    assert ours.train(10) == theirs.train(10)
    assert same(state(ours.model), state(theirs.model))


@pytest.mark.parametrize("name", [name for name in norm_names() if name != "ln"])
def test_every_encoder_norm_is_replaced_and_no_decoder_norm(toy_data, name):
    run = Run(toy_data, "--encoder-norm", name)
    expected = [f"encoder.layers.{i}.{which}" for i in (0, 1) for which in ("self_attn_layer_norm", "final_layer_norm")]
    assert sorted(run.norms(NORMS[name])) == sorted([*expected, "encoder.layer_norm"])
    decoder = [m for n, m in run.model.decoder.named_modules() if n.endswith("layer_norm")]
    assert len(decoder) == 7 and all(type(norm) is torch.nn.LayerNorm for norm in decoder)


@pytest.mark.parametrize("name", [name for name in norm_names() if name != "ln"])
def test_decoder_norm(toy_data, name):
    run = Run(toy_data, "--encoder-norm", "ln", "--decoder-norm", name)
    assert len(run.norms(NORMS[name])) == 7 and all(norm.startswith("decoder.") for norm in run.norms())
    losses = run.train(3)
    assert all(torch.isfinite(torch.tensor(loss)) for loss in losses)


def test_post_norm_on_request(toy_data):
    run = Run(toy_data, "--post-norm")
    assert not run.model.encoder.layers[0].normalize_before and run.model.encoder.layer_norm is None
    assert not run.model.decoder.layers[0].normalize_before and run.model.decoder.layer_norm is None
    assert len(run.norms(PowerNorm)) == 4
    run.train(2)


def test_fairseqs_own_pre_norm_flag_keeps_its_meaning(toy_data):
    run = Run(toy_data, *PRE_NORM)
    assert run.model.encoder.layers[0].normalize_before and run.model.encoder.layer_norm is not None


def test_contradicting_flags_are_refused(toy_data):
    with pytest.raises(ValueError, match="--post-norm and --encoder-normalize-before contradict"):
        Run(toy_data, "--post-norm", *PRE_NORM)


def test_flags_reach_the_norms(toy_data):
    run = Run(
        toy_data,
        *"--norm-recipe release --layer-scale layer --norm-alpha-fwd 0.95 --norm-alpha-bwd 0.99".split(),
        *"--norm-warmup-updates 33".split(),
    )
    for name, norm in run.norms().items():
        assert (norm.recipe, norm.layer_scale, norm.alpha_fwd, norm.alpha_bwd) == ("release", "layer", 0.95, 0.99)
        # the release fixes the warm-up of the norm at the end of the encoder
        assert norm.warmup_updates == (1000 if name == "encoder.layer_norm" else 33)
    run = Run(toy_data, *"--encoder-norm bn --norm-momentum 0.3".split())
    assert all(norm.momentum == 0.3 for norm in run.norms().values())


@pytest.mark.parametrize("recipe", ["paper", "release"])
def test_warm_up_follows_the_learning_rate_schedule(toy_data, recipe):
    norms = Run(toy_data, "--warmup-updates", 17, "--norm-recipe", recipe).norms()
    assert norms.pop("encoder.layer_norm").warmup_updates == {"paper": 17, "release": 1000}[recipe]
    assert {norm.warmup_updates for norm in norms.values()} == {17}
    norms = Run(toy_data, "--lr-scheduler", "fixed", "--warmup-updates", 9).norms()
    assert norms["encoder.layers.0.final_layer_norm"].warmup_updates == 9


@pytest.mark.parametrize(
    "name, layer_scale",
    [
        *(("pn", "head"), ("pnv", "head"), ("bn", "layer"), ("brn", "layer"), ("mabn", "layer"), ("rbn", "layer")),
        *(("un", "none"), ("prepbn", "none")),
    ],
)
def test_usual_layer_scale(toy_data, name, layer_scale):
    for norm in Run(toy_data, "--encoder-norm", name).norms().values():
        assert norm.layer_scale == layer_scale and norm.groups == 4
    for norm in Run(toy_data, "--encoder-norm", name, "--layer-scale", "none").norms().values():
        assert norm.layer_scale == "none"


def test_group_norm_has_one_group_for_each_head(toy_data):
    assert all(norm.groups == 4 for norm in Run(toy_data, "--encoder-norm", "gn").norms().values())


def test_mabn_centralises_the_weights_that_feed_the_residual_stream(toy_data):
    run = Run(toy_data, "--encoder-norm", "mabn")
    layer = run.model.encoder.layers[0]
    for linear in (layer.self_attn.out_proj, layer.fc2):
        assert linear.weight.mean(1).abs().max() < 1e-6
        assert linear.parametrizations.weight.original.mean(1).abs().max() > 1e-3
    assert layer.fc1.weight.mean(1).abs().max() > 1e-3
    with pytest.raises(ValueError, match="quant-noise"):
        Run(toy_data, "--encoder-norm", "mabn", "--quant-noise-pq", 0.1)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("size", ["iwslt_de_en", "wmt_en_de_big"])
def test_preset_for_each_row_of_the_paper(toy_data, row, size):
    assert f"transformer_{row}_{size}" in ARCH_MODEL_REGISTRY
    run = Run(toy_data, arch=f"transformer_{row}_{size}", sizes=["--encoder-layers", 1, "--decoder-layers", 1])
    width, ffn, heads = {"iwslt_de_en": (512, 1024, 4), "wmt_en_de_big": (1024, 4096, 16)}[size]
    layer = run.model.encoder.layers[0]
    assert (layer.embed_dim, layer.fc1.out_features, layer.self_attn.num_heads) == (width, ffn, heads)
    assert layer.normalize_before
    assert len(run.norms(NORMS[row])) == (0 if row == "ln" else 3)
    for norm in run.norms().values():
        assert getattr(norm, "sync", False) == (size == "wmt_en_de_big" and row in ("bn", "pnv"))
    assert run.cfg.model.dropout == {"iwslt_de_en": 0.1, "wmt_en_de_big": 0.3}[size]


def test_sizes_of_the_other_architectures(toy_data):
    for arch, layers, width, ffn, heads in (
        ("powernorm_tiny", 2, 128, 256, 4),
        ("powernorm_iwslt_de_en", 6, 512, 1024, 4),
        ("powernorm_wmt_en_de", 6, 512, 2048, 8),
    ):
        encoder = Run(toy_data, arch=arch, sizes=[]).model.encoder
        layer = encoder.layers[0]
        assert (len(encoder.layers), layer.embed_dim, layer.fc1.out_features) == (layers, width, ffn)
        assert layer.self_attn.num_heads == heads and type(encoder.layer_norm) is PowerNorm


@pytest.mark.parametrize("name", [name for name in norm_names() if name != "ln"])
def test_translation_of_a_sentence_does_not_depend_on_its_neighbours(toy_data, name):
    """Evaluation: padding that longer neighbours bring changes nothing."""
    run = Run(toy_data, "--encoder-norm", name, "--decoder-norm", name)
    run.train(3)
    run.model.eval()
    sample = run.batches[0]["net_input"]
    pad = run.task.source_dictionary.pad()
    with torch.no_grad():
        together, _ = run.model(**sample)
        for i in range(3):
            source = sample["src_tokens"][i : i + 1]
            target = sample["prev_output_tokens"][i : i + 1]
            source, target = source[:, source[0] != pad], target[:, target[0] != pad]
            alone, _ = run.model(source, torch.tensor([source.shape[1]]), target)
            torch.testing.assert_close(together[i, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in norm_names() if name != "ln"])
def test_step_by_step_decoding_equals_the_whole_at_once(toy_data, name):
    run = Run(toy_data, "--encoder-norm", name, "--decoder-norm", name)
    run.train(3)
    run.model.eval()
    sample = run.batches[0]["net_input"]
    with torch.no_grad():
        whole, _ = run.model(**sample)
        encoder_out = run.model.encoder(sample["src_tokens"], sample["src_lengths"])
        state = {}
        target = sample["prev_output_tokens"]
        ends = range(1, target.shape[1] + 1)
        steps = [run.model.decoder(target[:, :end], encoder_out, incremental_state=state)[0] for end in ends]
    stepwise = torch.cat(steps, 1)
    real = target != run.task.target_dictionary.pad()
    torch.testing.assert_close(stepwise[real], whole[real], rtol=1e-4, atol=1e-5)


def test_released_checkpoint_of_a_whole_model_loads(toy_data):
    run = Run(toy_data)
    run.train(3)
    released = {}
    for key, value in run.model.state_dict().items():
        if key.endswith("running_psi2"):
            released[key.replace("running_psi2", "running_phi")] = value.view(1, -1, 1, 1)
        elif key.endswith("layer_norm.nu"):
            released[key.replace(".nu", ".ema_gz")] = value.view(1, -1, 1, 1) / (1 - 0.9)
        elif key.endswith("num_updates"):
            released[key.replace("num_updates", "iters")] = value.long().view(1)
        else:
            released[key] = value
    fresh = Run(toy_data)
    fresh.model.load_state_dict(released, strict=True)
    for key, value in state(run.model).items():
        torch.testing.assert_close(fresh.model.state_dict()[key], value)


def test_post_norm_model_translates_with_its_own_norms_after_loading(toy_data):
    """fairseq 0.12.2 has a fast path for loaded post-norm models that knows LayerNorm alone."""
    run = Run(toy_data, "--post-norm")
    run.train(3)
    run.model.eval()
    loaded = Run(toy_data, "--post-norm").model
    loaded.load_state_dict(run.model.state_dict())
    loaded.eval()
    with torch.no_grad():
        sample = run.batches[0]["net_input"]
        assert torch.equal(loaded(**sample)[0], run.model(**sample)[0])


@pytest.mark.parametrize("recipe, batches", [("paper", 17 * 4), ("release", 17)])
def test_the_warm_up_of_norms_lasts_as_many_updates_as_that_of_the_schedule(toy_data, recipe, batches):
    """An update of --update-freq 4 has four mini-batches; the release counts those."""
    run = Run(toy_data, "--warmup-updates", 17, "--update-freq", 4, "--norm-recipe", recipe)
    assert run.norms()["encoder.layers.0.final_layer_norm"].warmup_updates == batches
    run = Run(toy_data, "--norm-warmup-updates", 17, "--update-freq", 4, "--norm-recipe", recipe)
    assert run.norms()["encoder.layers.0.final_layer_norm"].warmup_updates == batches


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--norm-alpha-fwd", 1.5), "--norm-alpha-fwd=1.5 is out of range"),
        (("--norm-alpha-bwd", 0), "--norm-alpha-bwd=0.0 is out of range"),
        (("--norm-momentum", 2), "--norm-momentum=2.0 is out of range"),
        (("--norm-warmup-updates", -3), "--norm-warmup-updates=-3 is too small"),
    ],
)
def test_errors_name_the_flag(toy_data, flags, message):
    with pytest.raises(ValueError, match=message):
        Run(toy_data, *flags)
