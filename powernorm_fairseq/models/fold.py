"""Folding a whole model for inference: which layers read the output of which norm."""

import copy
from typing import Iterator, List, Tuple

from torch import nn

from powernorm_fairseq.norms import BatchStatisticsNorm, fold_norm

Fold = Tuple[nn.Module, str, List[nn.Linear]]  # a module, its attribute that is a norm, all layers that read the norm


def fold(model: nn.Module, inplace: bool = False) -> nn.Module:
    """Puts the norms with running statistics into the linear layers behind them; prepbn once nothing of LN is left.

    Afterwards their factors, offsets and statistics are part of the query, key and value projections, of the first
    layer of each feed-forward block and, for the norm that ends the encoder, of the decoder's attention to it; of the
    norms only the layer-scale is left. The model's outputs stay the same up to rounding. Those of the encoder alone do
    not, and what stands at padding is finite there but no longer zero. Norms that measure each token stay, and so does
    one that ends the decoder, because its reader is the embedding matrix.

    Args:
        model: a pre-norm ``powernorm_transformer``.
        inplace: change ``model`` itself and not a copy.

    Returns:
        The folded model, in evaluation mode; it cannot be trained.
    """
    if not inplace:
        model = copy.deepcopy(model)
    folds = [place for place in _places(model) if isinstance(getattr(place[0], place[1]), BatchStatisticsNorm)]
    for module, _, _ in folds:
        if not getattr(module, "normalize_before", True):
            raise ValueError(
                "a post-norm model cannot be folded: the residual connection reads the output of its norms; "
                "only pre-norm models can (without --post-norm)"
            )
    for module, name, linears in folds:
        setattr(module, name, fold_norm(getattr(module, name), linears))
    return model.eval()


def _places(model: nn.Module) -> Iterator[Fold]:
    """All norms that linear layers alone read, if the model is pre-norm."""
    for layer in model.encoder.layers:
        attention = layer.self_attn
        yield layer, "self_attn_layer_norm", [attention.q_proj, attention.k_proj, attention.v_proj]
        yield layer, "final_layer_norm", [layer.fc1]
    readers = []
    for layer in model.decoder.layers:
        attention = layer.self_attn
        if not layer.cross_self_attention:  # else keys and values come from the encoder as well
            yield layer, "self_attn_layer_norm", [attention.q_proj, attention.k_proj, attention.v_proj]
        if layer.encoder_attn is not None:
            yield layer, "encoder_attn_layer_norm", [layer.encoder_attn.q_proj]
            readers += [layer.encoder_attn.k_proj, layer.encoder_attn.v_proj]
        yield layer, "final_layer_norm", [layer.fc1]
    if readers and not any(layer.cross_self_attention for layer in model.decoder.layers):
        yield model.encoder, "layer_norm", readers
