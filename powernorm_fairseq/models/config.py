"""The configurations of the models: fairseq's own with flat names, and the settings of the norms."""

from argparse import Namespace
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, List, Optional, Tuple, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import OmegaConf

from powernorm_fairseq.models.norm_settings import NormSettings, norm_options, own_options, setting
from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.norms.settings import check_choice

# Fields that fairseq declares in a way the rest of fairseq does not read; here their default is none.
_CORRECTED = {
    "encoder_layers_to_keep": Optional[str],  # build_model splits it at commas
    "decoder_layers_to_keep": Optional[str],
    "decoder_input_dim": Optional[int],  # none: as wide as the decoder
    "decoder_output_dim": Optional[int],
    "encoder_normalize_before": Optional[bool],  # none: pre-norm; a true default would make its flag switch it off
    "decoder_normalize_before": Optional[bool],
}
_CHARACTERS = (
    "character_embeddings character_filters character_embedding_dim char_embedder_highway_layers "  # of an embedding
)
# What belongs to dot-product attention, or would put a further LayerNorm or an unknown layer into the model.
_NOT_TENSORIZED = (
    "attention_dropout decoder_attention_heads decoder_xformers_att_config quant_noise_pq quant_noise_pq_block_size "
    "quant_noise_scalar layernorm_embedding scale_fc scale_attn scale_heads scale_resids "
    "base_layers base_sublayers base_shuffle"
)


def _flat(config: Any, without: str = "") -> Type[FairseqDataclass]:
    """A fairseq configuration with flat names, `encoder.layers` as `encoder_layers`, and without some of them.

    argparse knows flat names alone, which fairseq cannot map to a nested dataclass; so hydra gets the flat ones too.
    """
    kept: List[Tuple[str, Any, Any]] = []

    def add(part: Any, prefix: str) -> None:
        for each in fields(part):
            name = prefix + each.name
            if isinstance(each.type, type) and issubclass(each.type, FairseqDataclass):
                add(each.type, name + "_")
            elif name in _CORRECTED:
                kept.append((name, _CORRECTED[name], field(default=None, metadata=each.metadata)))
            elif not each.name.startswith("_") and name not in without.split():
                default = each.default if each.default is not MISSING else each.default_factory()
                kept.append((name, each.type, field(default=default, metadata=each.metadata)))

    add(config, "")
    return make_dataclass("_Flat" + config.__name__, kept, bases=(FairseqDataclass,))


@dataclass
class PowerNormTransformerConfig(NormSettings, _flat(TransformerConfig)):
    """Settings of `powernorm_transformer`; the help texts are those of the command line."""

    encoder_norm: str = setting("pn", "norm of the encoder layers and at the end of the encoder")
    decoder_norm: str = setting("ln", "norm of the decoder layers and at the end of the decoder")
    fold_norms: bool = setting(
        False,
        "norms with running statistics: generation puts them into the linear layers behind them; for a model trained "
        "without it: fairseq-generate --model-overrides \"{'fold_norms': True}\"",
    )


@dataclass
class _LanguageModel(NormSettings):
    norm: str = setting("pn", "norm of all layers and at the end")
    autocast_bfloat16: bool = setting(
        False,
        "multiply matrices in bfloat16 while training, and keep all else in float32; faster on processors with "
        "avx512_bf16 or amx_bf16",
    )


@dataclass
class PowerNormLMConfig(_LanguageModel, _flat(TransformerLanguageModelConfig, _CHARACTERS)):
    """Settings of `powernorm_transformer_lm`."""


@dataclass
class TensorizedLMConfig(_LanguageModel, _flat(TransformerLanguageModelConfig, _CHARACTERS + _NOT_TENSORIZED)):
    """Settings of `tensorized_lm`."""

    attention_width: int = setting(40, "width of queries, keys and values")
    attention_cores: int = setting(1, "block terms of multi-linear attention, each with its own projections and core")
    no_causal_mask: bool = setting(
        False,
        "for study: let every position see all others, as the public code of the tensorized Transformer does; the "
        "words to predict leak into the model, and no perplexity of it means anything",
    )
    leaking_evaluation: bool = setting(False, "evaluate a model with --no-causal-mask, which is refused otherwise")


def nested_config(cfg: Any, schema: Type[FairseqDataclass] = PowerNormTransformerConfig) -> TransformerConfig:
    """fairseq's own configuration object from a flat one, which may come from argparse, hydra or a checkpoint.

    The norms' settings ride along: ``cfg.encoder.norm`` and ``cfg.decoder.norm`` are names, ``cfg.norm_options`` holds
    what :func:`powernorm_fairseq.norms.build_norm` takes, and ``cfg.own_norm_options`` more for one norm or another.
    """
    given = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if OmegaConf.is_config(cfg) else vars(cfg)
    known = {each.name: each.default for each in fields(schema) if not each.name.startswith("_")}
    flat = Namespace(**{name: given.get(name, default) for name, default in known.items()})
    flags = {"encoder": "--encoder-norm", "decoder": "--decoder-norm"}
    for dim in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(flat, dim) is None:
            setattr(flat, dim, flat.decoder_embed_dim)
    language_model = issubclass(schema, _LanguageModel)
    if language_model:
        flags, flat.decoder_norm = {"decoder": "--norm"}, flat.norm
        if flat.decoder_layers_to_keep:
            flat.decoder_layers = len(flat.decoder_layers_to_keep.split(","))
        if flat.max_target_positions is None:
            flat.max_target_positions = flat.tokens_per_sample
        if schema is TensorizedLMConfig:
            flat.decoder_attention_heads = 1
        _check_adaptive(flat)
    for side, flag in flags.items():
        before, norm = f"{side}_normalize_before", str(getattr(flat, f"{side}_norm"))
        if flat.post_norm and getattr(flat, before):
            raise ValueError(f"--post-norm and --{side}-normalize-before contradict each other; give one of them")
        if getattr(flat, before) is None:
            setattr(flat, before, not flat.post_norm)
        check_choice(flag, norm, norm_names())
        setattr(flat, f"{side}_norm", norm)
    nested = TransformerConfig.from_namespace(flat)
    nested.norm_options = norm_options(flat, cfg)
    nested.own_norm_options = own_options(flat, cfg, [getattr(flat, f"{side}_norm") for side in flags])
    if language_model and flat.norm == "dyt":  # as its authors have it in language models
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
