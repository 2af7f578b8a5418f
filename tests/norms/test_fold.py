"""Folding one norm into the layers behind it."""

import copy

import pytest
import torch
from torch import nn

from powernorm_fairseq.norms import FoldedNorm, fold_norm, norm_names
from powernorm_fairseq.norms.base import BatchStatisticsNorm
from tests.norms.batches import bare_norm

FOLDABLE = [name for name in norm_names() if issubclass(type(bare_norm(name, 2)), BatchStatisticsNorm)]


def trained_norm(name, layer_scale="head", affine=True):
    """A norm with parameters and statistics that are far from where they start."""
    torch.manual_seed(3)
    norm = bare_norm(name, 12, groups=3, layer_scale=layer_scale, affine=affine).double()
    if affine:
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    for _ in range(20):
        norm(3 * torch.randn(40, 12, dtype=torch.float64) + 1)
    return norm.eval()


def test_what_can_be_folded():
    assert FOLDABLE == ["bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn"]


@pytest.mark.parametrize("layer_scale", ["none", "layer", "head"])
@pytest.mark.parametrize("name", FOLDABLE)
def test_every_reader_gives_the_same(name, layer_scale):
    norm = trained_norm(name, layer_scale)
    readers = [nn.Linear(12, 5).double(), nn.Linear(12, 7, bias=False).double()]
    x = 2 * torch.randn(6, 4, 12, dtype=torch.float64)
    expected = [reader(norm(x)) for reader in readers]
    rest = fold_norm(norm, readers)
    for reader, output in zip(readers, expected):
        torch.testing.assert_close(reader(rest(x)), output, rtol=1e-10, atol=1e-10)
    assert not list(rest.parameters()) and not list(rest.buffers())
    if layer_scale == "none":
        assert rest(x) is x


@pytest.mark.parametrize("name", ["bn", "pn"])
def test_without_factors_and_offsets(name):
    norm, reader = trained_norm(name, affine=False), nn.Linear(12, 5).double()
    x = torch.randn(9, 12, dtype=torch.float64)
    expected = reader(norm(x))
    rest = fold_norm(norm, [reader])
    torch.testing.assert_close(reader(rest(x)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 4e-2), (torch.float16, 5e-3)])
def test_types_stay_and_are_rounded_once(dtype, tolerance):
    norm, reader = trained_norm("pn").to(dtype), nn.Linear(12, 5).to(dtype)
    exact = trained_norm("pn").float().double()
    exact.weight.data, exact.bias.data = norm.weight.data.double(), norm.bias.data.double()
    x = torch.randn(9, 12).to(dtype)
    expected = copy.deepcopy(reader).double()(exact(x.double()))
    rest = fold_norm(norm, [reader])
    assert reader.weight.dtype == reader.bias.dtype == rest(x).dtype == dtype
    # the product itself in float64: a half-precision one adds roundings that are not the fold's
    assert (reader.double()(rest(x).double()) - expected).abs().max() < tolerance * expected.abs().max()


def test_large_values_in_half_precision_do_not_overflow():
    x = torch.full((2, 12), 6e4, dtype=torch.float16)
    assert torch.equal(FoldedNorm(3, 1e-5)(x), torch.ones_like(x))


def test_tied_weights_stay_as_they_are_elsewhere():
    norm, reader, other = trained_norm("pn"), nn.Linear(12, 12).double(), nn.Linear(12, 12).double()
    other.weight = reader.weight
    before, statistics = other.weight.clone(), copy.deepcopy(norm.state_dict())
    fold_norm(norm, [reader])
    assert torch.equal(other.weight, before) and not torch.equal(reader.weight, before)
    assert all(torch.equal(value, statistics[key]) for key, value in norm.state_dict().items())


def test_it_refuses_to_train():
    model = nn.Sequential(FoldedNorm(1, 1e-5), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="folded norms cannot be trained"):
        model.train()
    assert not model.eval()[0].training


def test_print_shows_the_settings():
    assert repr(FoldedNorm(3, 1e-5)) == "FoldedNorm(scale_groups=3, eps=1e-05, kernel='auto')"


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (0, 12)])
def test_kernels_give_the_same(shape):
    rest, x = FoldedNorm(3, 1e-5), torch.randn(shape)
    with torch.no_grad():
        fused = rest(x)
    torch.testing.assert_close(fused, rest(x))
