"""The tensorized Transformer (Ma et al., 2019) as a causal language model, with the norms of this package."""

import logging
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from powernorm_fairseq.models.config import TensorizedLMConfig
from powernorm_fairseq.models.language_model import PowerNormLanguageModel
from powernorm_fairseq.models.multilinear import multilinear, unmasked_multilinear
from powernorm_fairseq.models.transformer import NormDecoder, NormDecoderLayer, wrap_layer

logger = logging.getLogger(__name__)


@with_incremental_state
class MultiLinearAttention(nn.Module):
    r"""Attention over pairs of positions, in place of fairseq's ``MultiheadAttention``.

    .. math:: A_{ijk} = \frac{1}{h} \sum_{t=1}^{h} \sum_r c^{(t)}_r Q^{(t)}_{ir} K^{(t)}_{jr} V^{(t)}_{kr}

    The n x n slice of position i, flattened and zero where j > i or k > i, goes through one linear layer. Block terms
    are averaged, as in `A Tensorized Transformer for Language Modeling <https://arxiv.org/abs/1906.09777>`_; they have
    projections of their own, since terms that shared them would be one term with the mean of their cores. Together
    they are one term of width h R, which is how they are computed.

    Args:
        embed_dim: size of input and output.
        width: R.
        cores: h. Default: 1
        context: n, the longest context; the linear layer has n² inputs.
        causal: whether cells with j > i or k > i are zero. Without, a position sees the word that it is to predict.
            Default: true
    """

    num_heads = 1

    def __init__(self, embed_dim: int, width: int, context: int, cores: int = 1, causal: bool = True) -> None:
        super().__init__()
        for name, value in (("attention_width", width), ("attention_cores", cores), ("tokens_per_sample", context)):
            if value < 1:
                raise ValueError(f"{name}={value} makes no sense; give 1 or more")
        self.width, self.cores, self.context, self.head_dim, self.causal = width, cores, context, embed_dim, causal
        self.qkv_proj = nn.Linear(embed_dim, 3 * cores * width, bias=False)
        self.core = nn.Parameter(torch.empty(cores, width))
        self.out_proj = nn.Linear(context * context, embed_dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights; cores start as random distributions over r."""
        for part in self.qkv_proj.weight.chunk(3):
            nn.init.xavier_uniform_(part)
        with torch.no_grad():
            self.core.copy_(torch.rand_like(self.core).softmax(-1))
        self.out_proj.reset_parameters()

    def extra_repr(self) -> str:
        """The settings."""
        return f"width={self.width}, cores={self.cores}, context={self.context}, causal={self.causal}"

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        **_: Any,
    ) -> Tuple[Tensor, None]:
        """Attends, causally unless the module was told otherwise.

        Args:
            query: T x B x C; while decoding step by step, the newest position alone.
            key: as ``query``; taken for granted.
            value: as ``query``; taken for granted.
            key_padding_mask: B x T, true at positions that no other may see.
            incremental_state: keys and values of earlier positions, while decoding step by step.

        Returns:
            T x B x C, and None in place of attention weights.
        """
        q, k, v = self.qkv_proj(query).permute(1, 2, 0).chunk(3, dim=1)  # each B x hR x T
        q = q * (self.core / self.cores).to(q).view(1, -1, 1)
        if key_padding_mask is not None and incremental_state is None:
            k, v = (part.masked_fill(key_padding_mask[:, None], 0.0) for part in (k, v))
        if incremental_state is not None:
            return self._step(q, k, v, incremental_state).transpose(0, 1), None
        self._check_length(q.shape[2])
        attend = multilinear if self.causal else unmasked_multilinear
        return attend(q, k, v, self.out_proj.weight.to(q.dtype)).transpose(0, 1), None

    def _check_length(self, length: int) -> None:
        if length > self.context:
            raise ValueError(
                f"a context of {length} tokens is longer than the {self.context} the model was built for; give at most "
                f"--tokens-per-sample {self.context}"
            )

    def _step(self, q: Tensor, k: Tensor, v: Tensor, incremental_state: Any) -> Tensor:
        """The newest position: one slice, B x 1 x C."""
        if not self.causal:
            raise ValueError("a model with --no-causal-mask cannot write text word by word: it sees the words to come")
        saved = self._get_input_buffer(incremental_state)
        if saved:
            k, v = torch.cat([saved["prev_key"], k], 2), torch.cat([saved["prev_value"], v], 2)
        self._set_input_buffer(incremental_state, {"prev_key": k, "prev_value": v})
        self._check_length(k.shape[2])
        corner = self.out_proj.weight.to(q.dtype).view(-1, self.context, self.context)[:, : k.shape[2], : k.shape[2]]
        slices = (q * k).transpose(1, 2) @ v  # B x T x T
        return (slices.flatten(1) @ corner.flatten(1).t())[:, None]

    def _get_input_buffer(self, incremental_state: Any) -> Dict[str, Optional[Tensor]]:
        return self.get_incremental_state(incremental_state, "attn_state") or {}

    def _set_input_buffer(self, incremental_state: Any, buffer: Dict[str, Optional[Tensor]]) -> None:
        self.set_incremental_state(incremental_state, "attn_state", buffer)

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Follows a beam search that has reordered its hypotheses."""
        buffer = self._get_input_buffer(incremental_state)
        if buffer:
            reordered = {name: part.index_select(0, new_order) for name, part in buffer.items()}
            self._set_input_buffer(incremental_state, reordered)


class TensorizedDecoderLayer(NormDecoderLayer):
    """A decoder layer with multi-linear attention."""

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig, **_: Any) -> nn.Module:
        """The attention of the layer."""
        sizes = (cfg.attention_width, cfg.max_target_positions, cfg.attention_cores)
        return MultiLinearAttention(embed_dim, *sizes, causal=not cfg.no_causal_mask)


class TensorizedDecoder(NormDecoder):
    """fairseq's decoder with multi-linear attention and all its norms replaced."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self.leaks, self.leaking_evaluation = cfg.no_causal_mask, cfg.leaking_evaluation
        if self.leaks:
            logger.warning("--no-causal-mask: every position sees the word that it is to predict; for study alone")

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """One layer of the decoder."""
        return wrap_layer(TensorizedDecoderLayer(cfg, no_encoder_attn), cfg)


@register_model("tensorized_lm", dataclass=TensorizedLMConfig)
class TensorizedLanguageModel(PowerNormLanguageModel):
    """The tensorized Transformer: causal (but for ``--no-causal-mask``), pre-norm, all its norms from this package.

    The longest context, ``--tokens-per-sample`` at training, is part of the model's shape.
    """

    config = TensorizedLMConfig
    decoder_class = TensorizedDecoder

    def prepare_for_inference_(self, cfg: Any) -> None:
        """See fairseq, whose programs call it before they evaluate; refuses a model that sees what it is to predict."""
        if self.decoder.leaks and not self.decoder.leaking_evaluation:
            raise ValueError(
                "this model was trained with --no-causal-mask: it sees the words that it is to predict, so its "
                "perplexity says nothing; evaluate_lm.py --leaking measures it all the same"
            )
        super().prepare_for_inference_(cfg)
