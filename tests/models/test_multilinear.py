"""Multi-linear attention: the factorised form against the definition, and what the module makes of it."""

import pytest
import torch

from powernorm_fairseq.models.multilinear import multilinear, naive_multilinear, unmasked_multilinear
from powernorm_fairseq.models.tensorized import MultiLinearAttention


def tensors(batch, width, length, context, features):
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(batch, width, length, generator=generator, dtype=torch.double) for _ in range(3))
    weight = torch.randn(features, context * context, generator=generator, dtype=torch.double)
    return [tensor.requires_grad_() for tensor in (q, k, v, weight)]


def plain_loop(q, k, v, weight):
    """The formula, cell by cell."""
    batch, _, length = q.shape
    context = round(weight.shape[1] ** 0.5)
    out = torch.zeros(batch, length, weight.shape[0], dtype=q.dtype)
    for b in range(batch):
        for i in range(length):
            for j in range(i + 1):
                for m in range(i + 1):
                    out[b, i] += (q[b, :, i] * k[b, :, j] * v[b, :, m]).sum() * weight[:, j * context + m]
    return out


def test_the_naive_form_is_the_formula():
    for length in (1, 5):
        inputs = tensors(2, 3, length, 5, 4)
        torch.testing.assert_close(naive_multilinear(*inputs), plain_loop(*inputs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length, context", [(32, 32), (23, 32), (1, 32), (16, 16), (33, 40)])
@pytest.mark.parametrize("block, strip", [(1, 1), (7, 3), (16, 16), (16, 4), (32, 8), (64, 5)])
def test_factorised_equals_naive_with_gradients(length, context, block, strip):
    """Full contexts and shorter ones, blocks that divide the length or not, strips that divide the block or not."""
    inputs = tensors(3, 5, length, context, 6)
    expected, outputs = naive_multilinear(*inputs), multilinear(*inputs, block=block, strip=strip)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    for ours, theirs in zip(
        torch.autograd.grad(outputs, inputs, upstream), torch.autograd.grad(expected, inputs, upstream)
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [7, 9])
def test_without_mask_all_positions_see_all(length):
    q, k, v, weight = inputs = tensors(2, 3, length, 9, 4)
    slices = torch.einsum("bri,brj,brk->bijk", q, k, v)
    expected = torch.einsum("bijk,cjk->bic", slices, weight.view(4, 9, 9)[:, :length, :length])
    torch.testing.assert_close(unmasked_multilinear(*inputs), expected, rtol=1e-10, atol=1e-10)


def test_gradients_by_finite_differences():
    assert torch.autograd.gradcheck(lambda *inputs: multilinear(*inputs, block=3, strip=2), tensors(2, 2, 7, 8, 3))


def test_nothing_of_size_n_cubed_is_kept_for_the_backward():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        multilinear(*tensors(2, 4, 64, 64, 8))
    assert max(tensor.numel() for tensor in kept) == 8 * 64 * 64  # the weight itself
    assert sum(tensor.numel() for tensor in kept) - 8 * 64 * 64 == 2 * (3 * 4 * 64 + 4 * 8)  # q, k, v and a state


def module(cores, **settings):
    torch.manual_seed(3)
    return MultiLinearAttention(12, width=5, context=9, cores=cores, **settings).double()


def reference(attention, x):
    """Core by core, from the module's parameters alone; x is T x B x C."""
    q, k, v = attention.qkv_proj.weight.chunk(3)
    slices = 0
    for t in range(attention.cores):
        rows = slice(t * attention.width, (t + 1) * attention.width)
        factors = (torch.einsum("tbc,rc->btr", x, projection[rows]) for projection in (q, k, v))
        slices = slices + torch.einsum("r,bir,bjr,bkr->bijk", attention.core[t], *factors) / attention.cores
    length = x.shape[0]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    slices = slices * seen[:, :, None] * seen[:, None, :]
    corner = attention.out_proj.weight.view(-1, attention.context, attention.context)[:, :length, :length]
    return torch.einsum("bijk,cjk->ibc", slices, corner)


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("length", [9, 4])
def test_module_averages_its_cores(cores, length):
    attention = module(cores)
    x = torch.randn(length, 2, 12, dtype=torch.double)
    torch.testing.assert_close(attention(x)[0], reference(attention, x), rtol=1e-10, atol=1e-10)


def test_cores_start_as_distributions():
    core = module(2).core
    torch.testing.assert_close(core.sum(1), torch.ones(2, dtype=torch.double))
    assert (core > 0).all() and core.std() > 0


def test_padded_positions_are_not_seen_wherever_they_are():
    attention = module(1)
    x = torch.randn(9, 2, 12, dtype=torch.double)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, :3] = mask[1, 7:] = True
    other = x.clone()
    other[:3, 0] = other[7:, 1] = 1e6
    ours, theirs = (attention(value, key_padding_mask=mask)[0] for value in (x, other))
    assert torch.equal(ours[3:, 0], theirs[3:, 0]) and torch.equal(ours[:7, 1], theirs[:7, 1])


def test_the_module_without_mask():
    attention, x = module(1, causal=False), torch.randn(9, 2, 12, dtype=torch.double)
    q, k, v = attention.qkv_proj(x).permute(1, 2, 0).chunk(3, 1)
    expected = unmasked_multilinear(q * attention.core.view(1, -1, 1), k, v, attention.out_proj.weight)
    torch.testing.assert_close(attention(x)[0], expected.transpose(0, 1), rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="--no-causal-mask cannot write text"):
        attention(x[:1], incremental_state={})


def test_too_long_a_context_is_refused():
    with pytest.raises(ValueError, match="context of 10 tokens is longer than the 9"):
        module(1)(torch.randn(10, 2, 12, dtype=torch.double))


@pytest.mark.parametrize("name", ["width", "cores", "context"])
def test_bad_sizes_are_refused(name):
    with pytest.raises(ValueError, match="=0 makes no sense; give 1 or more"):
        MultiLinearAttention(12, **{"width": 5, "context": 9, "cores": 1, name: 0})
