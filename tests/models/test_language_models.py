"""The language models: causality, neighbours, norms, settings, decoding, and real training."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from powernorm_fairseq.models.architectures import PTB, TINY, WIKITEXT103
from powernorm_fairseq.norms import NORMS, norm_names
from tests.models.training import LMRun, same, state

TENSORIZED, TRANSFORMER = "tensorized_lm_tiny", "powernorm_transformer_lm_tiny"
TWO_CORES = ("--attention-cores", 2)
ADAPTIVE = (
    "--criterion adaptive_loss --ddp-backend legacy_ddp --adaptive-softmax-cutoff 10,20 --adaptive-softmax-factor 1 "
    "--adaptive-input --adaptive-input-cutoff 10,20 --adaptive-input-factor 1 --tie-adaptive-weights"
).split()
# Every architecture, the large ones at a size that a test can afford.
ARCHITECTURES = {
    "tiny": (TENSORIZED, ()),
    "two cores": (TENSORIZED, TWO_CORES),
    "ptb": ("tensorized_lm_ptb", ()),
    "wikitext103": ("tensorized_lm_wikitext103", ADAPTIVE),
    "transformer": (TRANSFORMER, ()),
    "base transformer": ("powernorm_transformer_lm", ("--decoder-attention-heads", 4)),
}


def outputs(run, tokens):
    """Log-probabilities of every word at every position."""
    run.model.eval()
    with torch.no_grad():
        return run.model.get_normalized_probs(run.model(tokens), log_probs=True)


@pytest.mark.parametrize(
    "name, norm", [*((name, "pn") for name in ARCHITECTURES), ("tiny", "bn"), ("transformer", "bn")]
)
def test_no_output_depends_on_a_later_token(toy_text, name, norm):
    arch, flags = ARCHITECTURES[name]
    run = LMRun(toy_text, "--norm", norm, *flags, arch=arch)
    run.train(2)
    tokens = torch.randint(4, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    before = outputs(run, tokens)
    for position in (1, 6, 11):
        changed = tokens.clone()
        changed[:, position:] = (tokens[:, position:] - 4 + 7) % 36 + 4
        after = outputs(run, changed)
        # Not to the bit: an adaptive softmax multiplies by the words of a cluster together, whose number may change,
        # and with another shape the same sum of some hundred float32 products may be rounded in another order.
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=1e-5, atol=1e-5)
        assert not torch.equal(after[:, position], before[:, position])


def test_without_mask_outputs_depend_on_later_tokens(toy_text, caplog):
    run = LMRun(toy_text, "--norm", "ln", "--no-causal-mask")
    assert "--no-causal-mask: every position sees the word that it is to predict" in caplog.text
    run.train(2)
    tokens = torch.randint(4, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] - 4 + 7) % 36 + 4
    before, after = outputs(run, tokens), outputs(run, changed)
    assert (before[:, 0] - after[:, 0]).abs().max() > 1e-6
    with pytest.raises(ValueError, match="evaluate_lm.py --leaking measures it all the same"):
        run.model.prepare_for_inference_(run.cfg)  # what fairseq-eval-lm calls
    LMRun(toy_text, "--norm", "ln", "--no-causal-mask", "--leaking-evaluation").model.prepare_for_inference_(run.cfg)


@pytest.mark.parametrize("arch, norm", [*((TENSORIZED, norm) for norm in norm_names()), (TRANSFORMER, "pn")])
def test_every_norm_is_replaced_learns_and_ignores_the_neighbours_at_evaluation(toy_text, arch, norm):
    """Neighbours: neither their words, nor the padding that longer ones bring, change the outputs of a sequence."""
    run = LMRun(toy_text, "--norm", norm, arch=arch)
    names = [f"decoder.layers.{i}.{which}" for i in (0, 1) for which in ("self_attn_layer_norm", "final_layer_norm")]
    assert sorted(run.norms(NORMS[norm])) == ([] if norm == "ln" else sorted([*names, "decoder.layer_norm"]))
    assert sum(isinstance(module, torch.nn.LayerNorm) for module in run.model.modules()) == (5 if norm == "ln" else 0)
    losses = run.train(40)  # the first ones are noise of the warm-up
    assert sum(losses[-5:]) / 5 < losses[0] - (0.3 if norm == "dyt" else 0.5)  # dyt is the slowest: 0.43 here
    tokens = torch.randint(4, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    tokens[1, 7:] = run.task.source_dictionary.pad()
    together = outputs(run, tokens)
    for row, length in ((0, 12), (1, 7), (2, 12)):
        alone = outputs(run, tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch, norm", [(TENSORIZED, "bn"), (TENSORIZED, "pn"), (TRANSFORMER, "pn")])
def test_padding_does_not_reach_the_statistics(toy_text, arch, norm):
    """A batch, and the same with more padding behind every sequence, move all statistics and weights alike."""
    runs = [LMRun(toy_text, "--norm", norm, "--dropout", 0.0, arch=arch) for _ in range(2)]
    pad = runs[0].task.source_dictionary.pad()
    sample = runs[0].batches[0]
    short = {**sample, "net_input": dict(sample["net_input"])}
    short["net_input"]["src_tokens"], short["target"] = (
        tokens[:, :9].clone() for tokens in (sample["net_input"]["src_tokens"], sample["target"])
    )
    short["net_input"]["src_tokens"][0, 5:] = short["target"][0, 5:] = pad
    padded = {**short, "net_input": dict(short["net_input"])}
    padded["net_input"]["src_tokens"], padded["target"] = (
        torch.cat([tokens, torch.full((tokens.shape[0], 3), pad)], 1)
        for tokens in (short["net_input"]["src_tokens"], short["target"])
    )
    for run, batch in zip(runs, (short, padded)):
        run.trainer.train_step([batch])
        run.trainer.train_step([batch])
    for key, value in runs[0].buffers().items():
        torch.testing.assert_close(runs[1].buffers()[key], value, rtol=1e-5, atol=1e-6)


def test_ln_is_fairseqs_own_pre_norm_language_model(toy_text):
    """Same parameters, and losses that agree to the last bit over ten updates with dropout."""
    flags = ["--dropout", 0.2, "--attention-dropout", 0.1, "--activation-dropout", 0.1, "--decoder-attention-heads", 4]
    flags += ["--decoder-layers", 2, "--share-decoder-input-output-embed"]
    ours = LMRun(toy_text, "--norm", "ln", *flags, arch="powernorm_transformer_lm")
    dims = ["--decoder-input-dim", 16, "--decoder-output-dim", 16, "--decoder-normalize-before"]
    theirs = LMRun(toy_text, *flags, *dims, arch="transformer_lm")
    assert list(ours.model.state_dict()) == list(theirs.model.state_dict())
    assert ours.train(10) == theirs.train(10)
    assert same(state(ours.model), state(theirs.model))


@pytest.mark.parametrize("arch", [TENSORIZED, TRANSFORMER])
def test_flags_reach_the_norms(toy_text, arch):
    flags = "--norm-recipe release --layer-scale layer --norm-alpha-fwd 0.95 --norm-alpha-bwd 0.99 --sync-norm"
    run = LMRun(toy_text, *flags.split(), "--norm-warmup-updates", 33, arch=arch)
    assert len(run.norms()) == 5
    for norm in run.norms().values():
        assert (norm.recipe, norm.layer_scale, norm.alpha_fwd, norm.alpha_bwd) == ("release", "layer", 0.95, 0.99)
        assert norm.warmup_updates == 33 and norm.sync and norm.groups == {TENSORIZED: 1, TRANSFORMER: 4}[arch]


def test_settings_that_are_not_given(toy_text):
    for norm in LMRun(toy_text, "--norm", "bn", "--norm-momentum", 0.3, "--warmup-updates", 17).norms().values():
        assert norm.momentum == 0.3 and norm.layer_scale == "layer"
    for norm in LMRun(toy_text, "--warmup-updates", 17).norms().values():
        assert norm.warmup_updates == 17 and norm.layer_scale == "head" and not norm.sync


def test_post_norm_on_request(toy_text):
    run = LMRun(toy_text, "--post-norm")
    assert run.model.decoder.layer_norm is None and not run.model.decoder.layers[0].normalize_before
    run.train(2)


@pytest.mark.parametrize(
    "arch, context, layers, width, inner, dropout, parameters",
    [
        # embeddings of 48 words, then layers x (attention + feed-forward + two norms) and the norm at the end
        ("tensorized_lm_ptb", 32, 3, 256, 2100, 0.3, 48 * 256 + 3 * (3 * 40 * 256 + 40 + 1024 * 256)),
        ("tensorized_lm_wikitext103", 80, 6, 256, 2100, 0.3, None),
        ("tensorized_lm_tiny", 32, 2, 64, 256, 0.1, None),
    ],
)
def test_sizes_of_the_architectures(toy_text, arch, context, layers, width, inner, dropout, parameters):
    adaptive = ADAPTIVE if arch.endswith("wikitext103") else []
    run = LMRun(toy_text, *adaptive, arch=arch, sizes=["--tokens-per-sample", context])
    decoder = run.model.decoder
    layer = decoder.layers[0]
    assert (len(decoder.layers), layer.embed_dim, layer.fc1.out_features) == (layers, width, inner)
    assert layer.self_attn.context == context == decoder.max_positions() and layer.self_attn.cores == 1
    assert layer.self_attn.width == (32 if arch.endswith("tiny") else 40)
    assert layer.normalize_before and run.cfg.model.dropout == dropout
    assert (decoder.adaptive_softmax is not None) == bool(adaptive)
    if parameters is not None:
        feed_forward = 2 * 256 * 2100 + 2100 + 256
        expected = parameters + 3 * feed_forward + (2 * 3 + 1) * 2 * 256
        assert sum(parameter.numel() for parameter in run.model.parameters()) == expected


def test_wikitext103_ties_a_full_width_adaptive_softmax():
    assert WIKITEXT103["adaptive_softmax_cutoff"] == WIKITEXT103["adaptive_input_cutoff"] == "20000,40000,200000"
    assert WIKITEXT103["tie_adaptive_weights"] and WIKITEXT103["adaptive_softmax_factor"] == 1
    assert PTB["share_decoder_input_output_embed"] and TINY["share_decoder_input_output_embed"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--tie-adaptive-weights"], "--tie-adaptive-weights needs --adaptive-input"),
        ([*ADAPTIVE, "--adaptive-input-cutoff", "10,30"], "equal --adaptive-input-cutoff and --adaptive-softmax"),
        (["--post-norm", "--decoder-normalize-before"], "--post-norm and --decoder-normalize-before contradict"),
        (["--attention-width", 0], "attention_width=0 makes no sense"),
    ],
)
def test_settings_that_cannot_work_are_refused(toy_text, flags, message):
    with pytest.raises(ValueError, match=message):
        LMRun(toy_text, *flags)


@pytest.mark.parametrize("name", ["tiny", "two cores", "transformer"])
def test_step_by_step_decoding_equals_the_whole_at_once(toy_text, name):
    arch, flags = ARCHITECTURES[name]
    run = LMRun(toy_text, *flags, arch=arch)
    run.train(3)
    run.model.eval()
    tokens = torch.randint(4, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    saved = {}
    with torch.no_grad():
        whole, _ = run.model(tokens)
        steps = []
        for end in range(1, 13):
            if end == 6:  # as a beam search does
                order = torch.tensor([2, 0, 1])
                run.model.decoder.reorder_incremental_state_scripting(saved, order)
                tokens, whole, steps = tokens[order], whole[order], [step[order] for step in steps]
            steps.append(run.model.decoder(tokens[:, :end], incremental_state=saved)[0])
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


def test_beam_search_stays_inside_the_context(toy_text):
    run = LMRun(toy_text)
    run.train(3)
    generator = SequenceGenerator([run.model], run.task.target_dictionary, beam_size=3, max_len_b=200)
    sample = {"net_input": {"src_tokens": torch.tensor([[2, 5, 6], [2, 7, 8]]), "src_lengths": torch.tensor([3, 3])}}
    results = run.task.inference_step(generator, [run.model], sample)
    assert len(results) == 2
    for hypotheses, prefix in zip(results, ([5, 6], [7, 8])):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            assert hypothesis["tokens"][:2].tolist() == prefix and len(hypothesis["tokens"]) <= 12


@pytest.mark.parametrize("norm", ["mabn", "pn"])
def test_activation_checkpointing_changes_nothing(toy_text, norm):
    flags = ["--norm", norm, "--dropout", 0.0]
    plain, checkpointed = LMRun(toy_text, *flags), LMRun(toy_text, *flags, "--checkpoint-activations")
    assert plain.train(4) == checkpointed.train(4)
    assert same(plain.buffers(), checkpointed.buffers())


@pytest.mark.parametrize("flag", ["--fp16", "--amp"])
def test_half_precision_trains_and_keeps_statistics_in_float32(toy_text, flag):
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 1):
        pytest.skip("this torch cannot multiply half-precision matrices on a CPU")
    run = LMRun(toy_text, flag, "--fp16-init-scale", 4)
    losses = run.train(8)
    assert losses[-1] < losses[0]
    assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in run.buffers().values())


@pytest.mark.parametrize("arch", [TENSORIZED, TRANSFORMER])
@pytest.mark.parametrize("criterion", ["label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy"])
def test_autocast_multiplies_in_bfloat16_while_training_alone(toy_text, arch, criterion):
    flags = ("--norm", "pn", "--criterion", criterion, "--label-smoothing", 0.1)
    plain, rough = LMRun(toy_text, *flags, arch=arch), LMRun(toy_text, *flags, "--autocast-bfloat16", arch=arch)
    valid = [run.trainer.valid_step(run.batches[0])["nll_loss"] for run in (plain, rough)]
    assert float(valid[0]) == float(valid[1])
    dtypes = {}
    for name in ("layers.0.fc1", "layers.0.fc2", "layers.0.final_layer_norm", "layer_norm"):
        module = rough.model.decoder.get_submodule(name)
        module.register_forward_hook(lambda _, __, out, name=name: dtypes.update({name: out.dtype}))
    losses = plain.train(20), rough.train(20)
    assert dtypes.pop("layers.0.fc1") == dtypes.pop("layers.0.fc2") == torch.bfloat16
    assert set(dtypes.values()) == {torch.float32} == {weight.dtype for weight in rough.model.parameters()}
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


def test_stand_in_batches_move_nothing(toy_text):
    run = LMRun(toy_text, "--norm", "pn")
    run.train(2)
    before = run.buffers()
    run.trainer.train_step([{}])
    assert same(run.buffers(), before)
    assert all(norm.num_updates == 2 for norm in run.norms().values())


def test_mabn_centralises_the_weights_that_feed_the_residual_stream(toy_text):
    layer = LMRun(toy_text, "--norm", "mabn").model.decoder.layers[0]
    for linear in (layer.self_attn.out_proj, layer.fc2):
        assert linear.weight.mean(1).abs().max() < 1e-6
        assert linear.parametrizations.weight.original.mean(1).abs().max() > 1e-4
