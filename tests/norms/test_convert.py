"""Norms of this package in models that were built with others."""

import copy

import pytest
import torch
from torch import nn

from powernorm_fairseq.norms import (
    PowerNorm,
    build_norm,
    calibrate,
    convert_norms,
    convert_sync,
    padding,
    pass_padding,
)
from tests.norms.batches import random_batch
from tests.norms.batches import training_step as step
from tests.processes import run_processes

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
new_torch = pytest.mark.skipif(VERSION < (2, 0), reason="hooks with keywords came with torch 2.0")
BATCH_NORMS = ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]


def encoder(layers=2, width=8, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width))
    for parameter in model.parameters():  # no two norms alike
        nn.init.normal_(parameter, std=0.3)
    return model


# ---------------------------------------------------------------- convert_norms


def test_weights_places_and_modes_are_taken_over():
    model, old = encoder(), encoder()
    model.eval()
    changed = convert_norms(model, "pn", groups=2)
    assert sorted(changed) == sorted(name for name, module in old.named_modules() if isinstance(module, nn.LayerNorm))
    assert len(changed) == 5 and not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    for name, norm in changed.items():
        theirs = old.get_submodule(name)
        assert model.get_submodule(name) is norm and isinstance(norm, PowerNorm) and not norm.training
        assert torch.equal(norm.weight, theirs.weight) and torch.equal(norm.bias, theirs.bias)
        assert float(norm.eps) == theirs.eps and norm.layer_scale == "head" and norm.groups == 2


def test_ln_in_the_place_of_ln_changes_nothing():
    model, x = encoder().eval(), torch.randn(3, 5, 8)
    expected = model(x)
    convert_norms(model, "ln")
    torch.testing.assert_close(model(x), expected)


def test_by_name_pattern():
    model = encoder()
    assert set(convert_norms(model, "pn", r"layers\.1\.norm")) == {"layers.1.norm1", "layers.1.norm2"}
    assert isinstance(model.layers[0].norm1, nn.LayerNorm) and isinstance(model.norm, nn.LayerNorm)
    with pytest.raises(ValueError, match="no norm of the model has a name that matches 'decoder'; its norms are"):
        convert_norms(model, "pn", "decoder")
    with pytest.raises(ValueError, match="norm='pnorm' is not known"):
        convert_norms(model, "pnorm")


def test_padding_in_torchs_encoder_without_gradients():
    """torch would hand on nested tensors, or compute LayerNorm; here the mask reaches the norms."""
    model, x = encoder(), torch.randn(3, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    convert_norms(model, "bn")
    results = []
    for filler in (0.0, 100.0):
        own = copy.deepcopy(model)
        x[mask] = filler
        with padding(mask):
            own.train()(x, src_key_padding_mask=mask)
        own.eval()
        with torch.no_grad(), padding(mask):
            results.append(own(x, src_key_padding_mask=mask)[~mask])
        with padding(mask):
            torch.testing.assert_close(own(x, src_key_padding_mask=mask)[~mask], results[-1])
    torch.testing.assert_close(*results)


def test_batch_norms_and_norms_without_parameters():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6, elementwise_affine=False), nn.LayerNorm(6))
    model(torch.randn(9, 6))
    old = copy.deepcopy(model).eval()
    changed = convert_norms(model, "bn", layer_scale="none")
    assert changed["0"].num_updates == 1 and changed["1"].weight is None
    x = torch.randn(4, 6)
    torch.testing.assert_close(changed["0"].eval()(x), old[0](x))


def test_what_is_not_a_norm_of_the_last_dimension():
    with pytest.raises(ValueError, match="0 normalises more than the last dimension"):
        convert_norms(nn.Sequential(nn.LayerNorm((3, 4))), "pn")
    with pytest.raises(ValueError, match="itself a norm"):
        convert_norms(nn.LayerNorm(4), "pn")


@new_torch
def test_bert_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    settings.update(vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(0)
    bert = transformers.BertModel(transformers.BertConfig(**settings), add_pooling_layer=False)
    changed = convert_norms(bert, "pn", r"encoder\.layer", groups=2)
    assert len(changed) == 4 and isinstance(bert.embeddings.LayerNorm, nn.LayerNorm)
    tokens, mask = torch.randint(1, 50, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    undo = pass_padding(bert, "attention_mask", marks_padding=False)
    for filler in (0, 9):
        tokens[1, 4:] = filler
        bert(input_ids=tokens, attention_mask=mask).last_hidden_state.sum().backward()
    assert all(norm.num_updates == 2 for norm in changed.values())
    bert.eval()
    outputs = []
    for filler in (0, 9):
        tokens[1, 4:] = filler
        with torch.no_grad():
            outputs.append(bert(tokens, mask).last_hidden_state)
    assert torch.equal(outputs[0][mask.bool()], outputs[1][mask.bool()])
    assert not outputs[0][~mask.bool()].any()  # the mask reached the norms
    undo()
    with torch.no_grad():
        assert bert(tokens, mask).last_hidden_state[~mask.bool()].abs().max() > 0


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("batch_first", [True, False])
def test_announced_padding_is_that_of_the_call(batch_first):
    x, _, mask = random_batch(0, (3, 5, 6))
    with padding(mask if batch_first else mask.t(), batch_first=batch_first):
        announced = build_norm("bn", 6).double()(x)
        with padding(None):
            assert not torch.equal(build_norm("bn", 6).double()(x), announced)
        other = torch.zeros_like(mask)
        assert not torch.equal(build_norm("bn", 6).double()(x, other), announced)  # a mask of its own goes first
    assert torch.equal(announced, build_norm("bn", 6).double()(x, mask))
    assert torch.equal(build_norm("bn", 6).double()(x), build_norm("bn", 6).double()(x, other))


def test_padding_of_another_shape_is_refused():
    with padding(torch.zeros(3, 5, dtype=torch.bool)), pytest.raises(ValueError, match="check batch_first"):
        build_norm("pn", 6)(torch.zeros(5, 3, 6))


@new_torch
@pytest.mark.parametrize("name", ["ln", "bn", "pn"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_announced_padding_under_checkpointing(name, reentrant):
    from torch.utils.checkpoint import checkpoint

    plain, checkpointed = (build_norm(name, 6).double() for _ in range(2))
    for seed in range(3):
        x, dy, mask = random_batch(seed, (3, 5, 6))
        expected = step(plain, x, dy, mask)
        x.requires_grad_()
        with padding(mask):
            y = checkpoint(checkpointed, x, use_reentrant=reentrant)
        y.backward(dy)  # outside: the second forward does not see the context
        assert torch.equal(y, expected[0]) and torch.equal(x.grad, expected[1])
        assert all(map(torch.equal, checkpointed.buffers(), plain.buffers()))


@new_torch
def test_hooks_hand_on_the_mask_and_end_with_the_call():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = build_norm("bn", 6)

        def forward(self, x, mask=None, fail=False):
            y = self.norm(x)
            if fail:
                raise RuntimeError("stop")
            return y

    model, (x, _, mask) = Model().double(), random_batch(0, (3, 5, 6))
    expected = build_norm("bn", 6).double()(x, mask)
    undo = pass_padding(model, "mask")
    assert torch.equal(model(x, mask), expected) and torch.equal(model(x, mask=mask), expected)
    assert not torch.equal(model(x), expected)
    with pytest.raises(RuntimeError, match="stop"):
        model(x, mask, True)
    undo()
    assert not torch.equal(model(x, mask), expected)
    with pytest.raises(ValueError, match="argument='pad' is not known; choose from x, mask, fail"):
        pass_padding(model, "pad")


# ---------------------------------------------------------------- convert_sync, calibrate


def test_convert_sync(tmp_path):
    model = nn.Sequential(build_norm("pn", 6), nn.Linear(6, 6), build_norm("bn", 6))

    def work(rank):
        synced = convert_sync(copy.deepcopy(model))
        synced(random_batch(rank)[0].float())
        synced[0]._settle()
        return [buffer.clone() for buffer in synced.buffers()]

    first, second = run_processes(work, 2, tmp_path)
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_calibration_averages_over_batches(name):
    norm = build_norm(name, 6, layer_scale="none", warmup_updates=3, window=2, updates=5).double()
    for seed in range(5):
        step(norm, *random_batch(seed + 50))
    norm.eval()
    kept = {key: value.clone() for key, value in norm.named_buffers() if not key.startswith("running")}
    settings = repr(norm)
    batches = [random_batch(seed)[::2] for seed in range(4)]
    assert calibrate(nn.Sequential(norm)[0], batches) == 4
    rows = [x[~mask] for x, mask in batches]
    mean, power = norm.running_statistics()
    expected = sum(x.square().mean(0) if mean is None else x.var(0, unbiased=False) for x in rows) / 4
    torch.testing.assert_close(power, expected)
    if mean is not None:
        torch.testing.assert_close(mean, sum(x.mean(0) for x in rows) / 4)
    assert repr(norm) == settings and not norm.training
    assert all(torch.equal(getattr(norm, key), value) for key, value in kept.items())


def test_calibration_calls_any_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.dropout = build_norm("pnv", 6), nn.Dropout(0.5)

        def forward(self, x, mask=None):
            assert not self.dropout.training
            return self.norm(self.dropout(x), mask)

    model, (x, _, mask) = Model(), random_batch(0)
    x = x.float()
    assert calibrate(model, [x, (x, mask), {"x": x, "mask": mask}]) == 3
    assert model.training and model.dropout.training
    with pytest.raises(ValueError, match="no batch"):
        calibrate(model, [])


def test_factors_where_the_new_norm_has_more_or_fewer_of_them():
    model = nn.Sequential(nn.LayerNorm(6))
    nn.init.uniform_(model[0].weight, 1, 2)
    with pytest.raises(ValueError, match="0 has a factor for each feature; scalenorm has one for all"):
        convert_norms(model, "scalenorm")
    expected, x = model[0], torch.randn(5, 6)
    convert_norms(model, "prepbn", updates=10)  # at the start it is LN
    torch.testing.assert_close(model(x), expected(x))
    model = nn.Sequential(nn.LayerNorm(6))
    convert_norms(model, "scalenorm")
    assert float(model[0].weight) == pytest.approx(6**0.5)
