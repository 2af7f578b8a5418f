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
    stored = dict(linear.named_parameters())
    torch.testing.assert_close(stored["weight"].grad, plain.weight.grad)
    assert list(linear.state_dict()) == ["weight", "bias"]
    assert torch.equal(linear.state_dict()["weight"], plain.weight)
    assert torch.equal(copy.deepcopy(linear)(x), linear(x))


def test_only_a_linear_layer():
    with pytest.raises(TypeError, match="Embedding"):
        centralise_weight(nn.Embedding(3, 4))
