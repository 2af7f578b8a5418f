"""fairseq's Transformer with the norms of this package; the norm `ln` leaves it as fairseq makes it."""

from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from powernorm_fairseq.models.config import PowerNormTransformerConfig, nested_config
from powernorm_fairseq.models.fold import fold
from powernorm_fairseq.models.norm_settings import offer_norms
from powernorm_fairseq.models.padding import PaddingMask
from powernorm_fairseq.models.steps import prepare
from powernorm_fairseq.norms import build_norm, centralise_weight

RELEASED_FINAL_WARMUP = 1000  # the release fixes the warm-up of the norm at the end of the encoder
RELEASED_FINAL_WARMUP_OF = ("pn", "brn", "mabn")  # those that its authors compare
RELEASED_WITHOUT_FINAL = ("rbn",)  # its authors leave the LayerNorm at the end of the encoder


def replace_norms(module: nn.Module, names: Tuple[str, ...], cfg: TransformerConfig, side: Any, **special: Any) -> None:
    """Puts the norms of one side in the place of fairseq's LayerNorms and gives ``module`` the mask they need.

    Args:
        module: an encoder, a decoder or a layer of either.
        names: attributes of ``module`` that are LayerNorms; one that is None stays None.
        cfg: the model's configuration.
        side: ``cfg.encoder`` or ``cfg.decoder``.
        **special: settings of these norms that differ from the configuration's.
    """
    module.padding = PaddingMask()
    if side.norm == "ln":
        return
    own = dict(cfg.own_norm_options[str(side.norm)])
    in_front_of_attention = own.pop("alpha_attention", None)
    for name in names:
        fairseq_norm = getattr(module, name)
        if fairseq_norm is not None:
            options = {**cfg.norm_options, "groups": side.attention_heads, **own, **special}
            if in_front_of_attention is not None and "attn" in name:
                options["alpha_start"] = in_front_of_attention
            norm = build_norm(str(side.norm), fairseq_norm.weight.shape[0], **options)
            module.padding.attach(norm)
            setattr(module, name, norm)


def _centralise(layer: nn.Module, linears: Tuple[nn.Module, ...], side: Any) -> None:
    """MABN's weight centralisation on the linear layers of ``layer`` that feed the residual stream."""
    if side.norm != "mabn":
        return
    if layer.quant_noise > 0:
        raise ValueError("the norm mabn centralises weights, which --quant-noise-pq cannot work with; drop one of them")
    for linear in linears:
        centralise_weight(linear)


class KeepsFinalNorm:
    """Of an encoder or a decoder: a state without version is taken for a current one.

    fairseq takes such a state for one of 2018 and drops the norm at the end; but it is what ``--store-ema`` hands over.
    """

    version: Tensor

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """See fairseq."""
        state_dict.setdefault(f"{name}.version", self.version.clone())
        return super().upgrade_state_dict_named(state_dict, name)


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP around a layer, as fairseq wraps its own."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class NormEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer with both norms replaced."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        replace_norms(self, ("self_attn_layer_norm", "final_layer_norm"), cfg, cfg.encoder)
        _centralise(self, (self.self_attn.out_proj, self.fc2), cfg.encoder)
        if cfg.encoder.norm != "ln":
            self.can_use_fastpath = False  # fairseq 0.12.2: a fused post-norm layer that takes every norm for LayerNorm

    def forward(self, x: Tensor, encoder_padding_mask: Optional[Tensor], *args: Any, **kwargs: Any) -> Any:
        """See fairseq; ``x`` is T x B x C, the mask B x T."""
        with self.padding.of(encoder_padding_mask):
            return super().forward(x, encoder_padding_mask, *args, **kwargs)


class NormEncoder(KeepsFinalNorm, TransformerEncoderBase):
    """fairseq's encoder with all its norms replaced."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        norm = str(cfg.encoder.norm) if cfg.norm_options["recipe"] == "release" else ""
        special = {"warmup_updates": RELEASED_FINAL_WARMUP} if norm in RELEASED_FINAL_WARMUP_OF else {}
        replace_norms(self, () if norm in RELEASED_WITHOUT_FINAL else ("layer_norm",), cfg, cfg.encoder, **special)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """One layer of the encoder."""
        return wrap_layer(NormEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def forward_scriptable(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """See fairseq; the mask is for the norm at the end, each layer gets its own."""
        with self.padding.of(src_tokens.eq(self.padding_idx)):
            return super().forward_scriptable(src_tokens, *args, **kwargs)


class NormDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with all its norms replaced."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        replace_norms(self, ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"), cfg, cfg.decoder)
        attention = (self.self_attn,) if self.encoder_attn is None else (self.self_attn, self.encoder_attn)
        _centralise(self, (*(block.out_proj for block in attention), self.fc2), cfg.decoder)

    def forward(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Any] = None,
        *args: Any,
        self_attn_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Any:
        """See fairseq; while decoding step by step ``x`` is the newest position alone and there is no mask for it."""
        with self.padding.of(self_attn_padding_mask if incremental_state is None else None):
            return super().forward(
                x,
                encoder_out,
                encoder_padding_mask,
                incremental_state,
                *args,
                self_attn_padding_mask=self_attn_padding_mask,
                **kwargs,
            )


class NormDecoder(KeepsFinalNorm, TransformerDecoderBase):
    """fairseq's decoder with all its norms replaced."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Module, no_encoder_attn: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn, **more)
        replace_norms(self, ("layer_norm",), cfg, cfg.decoder)
        if cfg.decoder.norm == "dyt" and no_encoder_attn:  # a language model, as its authors have it
            start = torch.tensor([float(self.embed_scale)])
            del self.embed_scale
            self.embed_scale = nn.Parameter(start)

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """One layer of the decoder."""
        return wrap_layer(NormDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Any],
        incremental_state: Optional[Any] = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See fairseq; the mask is for the norm at the end, each layer gets its own."""
        mask = prev_output_tokens.eq(self.padding_idx) if incremental_state is None else None
        with self.padding.of(mask):
            return super().extract_features_scriptable(
                prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
            )


@register_model("powernorm_transformer", dataclass=PowerNormTransformerConfig)
class PowerNormTransformer(TransformerModelBase):
    """Pre-norm Transformer whose encoder norms, and decoder norms if asked, come from this package."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the model's flags, without defaults: the architecture fills them in."""
        super(TransformerModelBase, cls).add_args(parser)
        offer_norms(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PowerNormTransformer":
        """Builds the model from a flat configuration."""
        prepare(task, cfg)
        return super().build_model(nested_config(cfg), task)

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Module) -> nn.Module:
        """The encoder."""
        return NormEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Module) -> nn.Module:
        """The decoder."""
        return NormDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """See fairseq, which calls it before generating; folds the norms if ``--fold-norms`` says so."""
        super().make_generation_fast_(**kwargs)
        if self.cfg.fold_norms:
            fold(self, inplace=True)
