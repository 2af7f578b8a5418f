"""The configurations of the language models: fairseq's own, without what they do not have, and the norms' settings."""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, FrozenSet, Optional, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

from powernorm_fairseq.models.norm_settings import (
    NormSettings,
    check_norm,
    given_settings,
    norm_options,
    own_options,
    set_normalize_before,
)

_CHARACTERS = frozenset(
    "character_embeddings character_filters character_embedding_dim char_embedder_highway_layers".split()
)
# What belongs to dot-product attention, or would put a further LayerNorm or an unknown layer into the model.
_NOT_TENSORIZED = _CHARACTERS | frozenset(
    "attention_dropout decoder_attention_heads decoder_xformers_att_config quant_noise_pq quant_noise_pq_block_size "
    "quant_noise_scalar layernorm_embedding scale_fc scale_attn scale_heads scale_resids "
    "base_layers base_sublayers base_shuffle".split()
)
# None: as wide as the decoder; pre-norm. fairseq's defaults would be 512 and a flag that switches pre-norm on.
_OPTIONAL = {
    "decoder_input_dim": Optional[int],
    "decoder_output_dim": Optional[int],
    "decoder_normalize_before": Optional[bool],
}


def _without(names: FrozenSet[str]) -> Type[FairseqDataclass]:
    """fairseq's configuration of a Transformer language model without some of its settings."""
    kept = []
    for setting in fields(TransformerLanguageModelConfig):
        if setting.name in _OPTIONAL:
            kept.append((setting.name, _OPTIONAL[setting.name], field(default=None, metadata=setting.metadata)))
        elif setting.name not in names and not setting.name.startswith("_"):
            default = setting.default if setting.default is not MISSING else setting.default_factory()
            kept.append((setting.name, setting.type, field(default=default, metadata=setting.metadata)))
    return make_dataclass("_LanguageModelConfig", kept, bases=(FairseqDataclass,))


@dataclass
class _Precision:
    """Settings of all language models that change how exactly they compute."""

    autocast_bfloat16: bool = field(
        default=False,
        metadata={
            "help": "multiply matrices in bfloat16 while training, and keep all else in float32; faster on processors "
            "with avx512_bf16 or amx_bf16"
        },
    )


@dataclass
class PowerNormLMConfig(_Precision, NormSettings, _without(_CHARACTERS)):
    """Settings of `powernorm_transformer_lm`."""

    norm: str = field(default="pn", metadata={"help": "norm of all layers and at the end"})


@dataclass
class TensorizedLMConfig(_Precision, NormSettings, _without(_NOT_TENSORIZED)):
    """Settings of `tensorized_lm`."""

    norm: str = field(default="pn", metadata={"help": "norm of all layers and at the end"})
    attention_width: int = field(default=40, metadata={"help": "width of queries, keys and values"})
    attention_cores: int = field(
        default=1, metadata={"help": "block terms of multi-linear attention, each with its own projections and core"}
    )
    no_causal_mask: bool = field(
        default=False,
        metadata={
            "help": "for study: let every position see all others, as the public code of the tensorized Transformer "
            "does; the words to predict leak into the model, and no perplexity of it means anything"
        },
    )
    leaking_evaluation: bool = field(
        default=False, metadata={"help": "evaluate a model with --no-causal-mask, which is refused otherwise"}
    )


def nested_lm_config(cfg: Any, schema: Type[FairseqDataclass]) -> TransformerConfig:
    """fairseq's configuration object of a Transformer, as its decoder reads it, with the norms' settings beside it."""
    flat = given_settings(cfg, schema)
    if flat.decoder_layers_to_keep:
        flat.decoder_layers = len(flat.decoder_layers_to_keep.split(","))
    if flat.max_target_positions is None:
        flat.max_target_positions = flat.tokens_per_sample
    for dim in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(flat, dim) is None:
            setattr(flat, dim, flat.decoder_embed_dim)
    set_normalize_before(flat, "decoder")
    flat.decoder_norm = check_norm("--norm", flat.norm)
    if schema is TensorizedLMConfig:
        flat.decoder_attention_heads = 1
    _check_adaptive(flat)
    nested = TransformerConfig.from_namespace(flat)
    nested.norm_options = norm_options(flat, cfg)
    for name in ("autocast_bfloat16", "no_causal_mask", "leaking_evaluation"):
        setattr(nested, name, getattr(flat, name, False))
    nested.own_norm_options = own_options(flat, cfg, (flat.decoder_norm,))
    if flat.decoder_norm == "dyt":  # as its authors have it in language models
        nested.own_norm_options["dyt"]["bias"] = False
    return nested


def _check_adaptive(flat: Any) -> None:
    """Refuses adaptive embeddings that cannot be tied."""
    if not flat.tie_adaptive_weights:
        return
    if not flat.adaptive_input:
        raise ValueError("--tie-adaptive-weights needs --adaptive-input")
    for ours, theirs in (
        ("adaptive_input_factor", "adaptive_softmax_factor"),
        ("adaptive_input_cutoff", "adaptive_softmax_cutoff"),
        ("decoder_input_dim", "decoder_output_dim"),
    ):
        if getattr(flat, ours) != getattr(flat, theirs):
            flags = ["--" + name.replace("_", "-") for name in (ours, theirs)]
            raise ValueError(
                f"--tie-adaptive-weights needs equal {flags[0]} and {flags[1]}, not {getattr(flat, ours)} and "
                f"{getattr(flat, theirs)}"
            )
