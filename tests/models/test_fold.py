"""Folding whole fairseq models."""

import copy

import pytest
import torch
from fairseq.models import BaseFairseqModel
from fairseq_cli import generate as fairseq_generate
from torch import nn

from powernorm_fairseq.models.fold import fold
from powernorm_fairseq.norms import BatchStatisticsNorm, FoldedNorm
from powernorm_fairseq.safe_load import load_checkpoint
from tests.models.training import USER_DIR, Run

FOLDABLE = ["bn", "brn", "mabn", "pnv", "pn"]


def trained(toy_data, *flags):
    """A run whose model has been trained a little, and whose norms are far from where they start; in float64."""
    run = Run(toy_data, "--norm-warmup-updates", 2, *flags)
    run.train(4)
    torch.manual_seed(5)
    for norm in run.norms(BatchStatisticsNorm).values():
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    run.model.double().eval()
    return run


@pytest.fixture(scope="module")
def pn(toy_data):
    """A run with PN; not to be changed."""
    return trained(toy_data)


def padded_batch(run):
    """The batch with the largest share of padding."""
    return max(run.batches, key=lambda batch: batch["net_input"]["src_tokens"].eq(1).float().mean().item())


def logits_at_tokens(model, batch):
    """Outputs of the model where the target is no padding."""
    with torch.no_grad():
        output = model(**batch["net_input"])[0]
    return output[batch["target"].ne(1)]


def assert_same_model(run, folded):
    batch = padded_batch(run)
    assert batch["net_input"]["src_tokens"].eq(1).any() and batch["net_input"]["prev_output_tokens"].eq(1).any()
    ours, expected = logits_at_tokens(folded, batch), logits_at_tokens(run.model, batch)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def folded_names(model):
    return {name for name, module in model.named_modules() if isinstance(module, FoldedNorm)}


def left_over(model):
    return {name for name, module in model.named_modules() if isinstance(module, BatchStatisticsNorm)}


@pytest.mark.parametrize("name", FOLDABLE)
def test_same_outputs_with_padding(toy_data, name):
    run = trained(toy_data, "--encoder-norm", name)
    before = copy.deepcopy(run.model.state_dict())
    folded = fold(run.model)
    assert_same_model(run, folded)
    assert folded_names(folded) == {key for key in run.norms() if key.startswith("encoder.")}
    after = run.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before if not key.endswith("_float_tensor"))
    assert not folded_names(run.model)


@pytest.mark.parametrize("layer_scale", ["none", "layer"])
def test_layer_scales(toy_data, layer_scale):
    run = trained(toy_data, "--layer-scale", layer_scale)
    assert_same_model(run, fold(run.model))


@pytest.mark.parametrize("encoder_norm", ["ln", "pn"])
def test_decoder_norms(toy_data, encoder_norm):
    run = trained(toy_data, "--decoder-norm", "pn", "--encoder-norm", encoder_norm)
    folded = fold(run.model)
    assert_same_model(run, folded)
    assert left_over(folded) == {"decoder.layer_norm"}


def test_cross_self_attention(toy_data):
    """The decoder's keys and values come from two norms there, so neither can be folded."""
    run = trained(toy_data, "--decoder-norm", "bn", "--cross-self-attention")
    folded = fold(run.model)
    assert_same_model(run, folded)
    mixed = {f"decoder.layers.{layer}.self_attn_layer_norm" for layer in (0, 1)}
    assert left_over(folded) == {"decoder.layer_norm", "encoder.layer_norm"} | mixed


def test_token_norms_stay(toy_data):
    run = trained(toy_data, "--encoder-norm", "gn")
    folded = fold(run.model)
    assert not folded_names(folded)
    assert_same_model(run, folded)


def test_padding_is_finite_and_reaches_nobody(pn):
    """Other tokens at padding, and more of it, change nothing at the real tokens."""
    encoder = fold(pn.model).encoder
    tokens = torch.tensor([[7, 8, 9, 2], [1, 1, 5, 2]])
    more = torch.cat([torch.ones(2, 3, dtype=torch.long), tokens], 1)
    short, long = (encoder(batch)["encoder_out"][0].transpose(0, 1) for batch in (tokens, more))
    assert torch.isfinite(long).all()
    real = tokens.ne(1)
    torch.testing.assert_close(long[:, 3:][real], short[real], rtol=1e-10, atol=1e-10)
    alone = encoder(tokens[1:, 2:])["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(alone[0], short[1, 2:], rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def checkpoint(toy_data, tmp_path_factory):
    """A checkpoint whose norms are far from where they start."""
    run = trained(toy_data, "--encoder-norm", "bn")
    run.model.float()
    path = tmp_path_factory.mktemp("fold") / "checkpoint.pt"
    run.trainer.consolidate_optimizer()
    run.trainer.save_checkpoint(str(path), {"train_iterator": {}})
    return path


def generate(toy_data, checkpoint, monkeypatch, capsys, *flags):
    """Hypotheses and scores of the real `fairseq-generate`, and the model that made them."""
    models = []

    def keep(model, cfg):
        prepare(model, cfg)
        models.append(model)

    prepare = BaseFairseqModel.prepare_for_inference_
    monkeypatch.setattr(BaseFairseqModel, "prepare_for_inference_", keep)
    argv = f"fairseq-generate {toy_data} --user-dir {USER_DIR} --path {checkpoint} --cpu --beam 3 --max-len-b 8".split()
    monkeypatch.setattr("sys.argv", [*argv, *"--required-batch-size-multiple 1 --num-workers 0".split(), *flags])
    fairseq_generate.cli_main()
    monkeypatch.undo()
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("H-")]
    return {number: (float(score), words) for number, score, words in lines}, models[0]


@pytest.mark.parametrize("older", [False, True])
def test_fairseq_generate_folds_on_request(toy_data, checkpoint, monkeypatch, capsys, older):
    if older:  # written before the setting was there
        state = load_checkpoint(str(checkpoint))
        del state["cfg"]["model"]["fold_norms"]
        checkpoint = checkpoint.with_name("older.pt")
        torch.save(state, str(checkpoint))
    expected, model = generate(toy_data, checkpoint, monkeypatch, capsys)
    assert len(expected) == 30 and not folded_names(model)
    override = ["--model-overrides", "{'model': {'fold_norms': True}}"]
    ours, model = generate(toy_data, checkpoint, monkeypatch, capsys, *override)
    assert len(folded_names(model)) == 5
    for number, (score, words) in expected.items():
        assert ours[number][1] == words and ours[number][0] == pytest.approx(score, abs=1e-4)


def test_in_place_and_twice(pn):
    batch, model = padded_batch(pn), copy.deepcopy(pn.model)
    assert fold(model, inplace=True) is model
    output = logits_at_tokens(model, batch)
    torch.testing.assert_close(output, logits_at_tokens(pn.model, batch), rtol=1e-10, atol=1e-10)
    assert torch.equal(logits_at_tokens(fold(model), batch), output)


def test_a_folded_model_cannot_be_trained(pn):
    folded = fold(pn.model)
    assert not folded.training
    with pytest.raises(RuntimeError, match="folded norms cannot be trained"):
        folded.train()


def test_post_norm_is_refused(toy_data):
    run = trained(toy_data, "--post-norm")
    with pytest.raises(ValueError, match="a post-norm model cannot be folded"):
        fold(run.model, inplace=True)
    assert not folded_names(run.model)
