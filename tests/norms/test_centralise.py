"""Weight centralisation."""

import copy

import pytest
import torch
from torch import nn

from powernorm_fairseq.norms import centralise_weight


def test_output_gradient_and_checkpoint():
    linear = nn.Linear(5, 3).double()
    plain = copy.deepcopy(linear)
    centralise_weight(linear)
    x = torch.randn(7, 5, dtype=torch.float64)
    weight = plain.weight - plain.weight.mean(1, keepdim=True)
    expected = x @ weight.t() + plain.bias
    torch.testing.assert_close(linear(x), expected)
    expected.square().sum().backward()
    linear(x).square().sum().backward()
    torch.testing.assert_close(linear.parametrizations.weight.original.grad, plain.weight.grad)
    assert set(linear.state_dict()) == {"weight", "bias"}
    assert torch.equal(linear.state_dict()["weight"], plain.weight)
    assert torch.equal(copy.deepcopy(linear)(x), linear(x))


def test_checkpoints_of_plain_layers_load():
    linear, plain = nn.Linear(5, 3), nn.Linear(5, 3)
    centralise_weight(linear)
    nn.Sequential(linear).load_state_dict(nn.Sequential(plain).state_dict())
    assert torch.equal(linear.parametrizations.weight.original, plain.weight)


def test_a_weight_can_be_assigned_and_initialised():
    linear = nn.Linear(5, 3)
    centralise_weight(linear)
    with torch.no_grad():
        linear.weight = nn.init.xavier_uniform_(torch.empty(3, 5))
        assigned = linear.parametrizations.weight.original.clone()
        nn.init.xavier_uniform_(linear.parametrizations.weight.original)
    assert not torch.equal(linear.parametrizations.weight.original, assigned)
    assert linear.weight.mean(1).abs().max() < 1e-6


def test_only_a_linear_layer():
    with pytest.raises(TypeError, match="Embedding"):
        centralise_weight(nn.Embedding(3, 4))
