"""The configuration of `powernorm_transformer`: fairseq's own, flattened, and the settings of the norms."""

import logging
from argparse import Namespace
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Dict, Iterator, Optional, Tuple

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf

from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.norms.settings import LAYER_SCALES, RECIPES

logger = logging.getLogger(__name__)

# Layer-scale in front of each norm where --layer-scale says nothing: as in the authors' release.
USUAL_LAYER_SCALE = {"pn": "head", "pnv": "head", "bn": "layer", "brn": "layer", "mabn": "layer"}

# Fields that fairseq declares in a way the rest of fairseq does not read.
_CORRECTED_FIELDS = {
    "encoder_layers_to_keep": Optional[str],  # build_model splits it at commas
    "decoder_layers_to_keep": Optional[str],
    "decoder_input_dim": Optional[int],  # none: as wide as the decoder
    "decoder_output_dim": Optional[int],
    "encoder_normalize_before": Optional[bool],  # none: pre-norm; a true default would make its flag switch it off
    "decoder_normalize_before": Optional[bool],
}


def _flat_fields(config: Any, prefix: str = "") -> Iterator[Tuple[str, Any, Any]]:
    """Name, type and field of each setting in a nested fairseq configuration, `encoder.layers` as `encoder_layers`."""
    for setting in fields(config):
        name = prefix + setting.name
        if isinstance(setting.type, type) and issubclass(setting.type, FairseqDataclass):
            yield from _flat_fields(setting.type, name + "_")
        elif name in _CORRECTED_FIELDS:
            yield name, _CORRECTED_FIELDS[name], field(default=None, metadata=setting.metadata)
        elif not setting.name.startswith("_"):
            default = setting.default if setting.default is not MISSING else setting.default_factory()
            yield name, setting.type, field(default=default, metadata=setting.metadata)


# argparse knows flat names alone, and fairseq cannot map them to a nested dataclass; so hydra gets the flat names too.
_FlatTransformerConfig = make_dataclass(
    "_FlatTransformerConfig", list(_flat_fields(TransformerConfig)), bases=(FairseqDataclass,)
)


@dataclass
class PowerNormTransformerConfig(_FlatTransformerConfig):
    """Settings of `powernorm_transformer`; the help texts are those of the command line."""

    encoder_norm: ChoiceEnum(norm_names()) = field(
        default="pn", metadata={"help": "norm of the encoder layers and at the end of the encoder"}
    )
    decoder_norm: ChoiceEnum(norm_names()) = field(
        default="ln", metadata={"help": "norm of the decoder layers and at the end of the decoder"}
    )
    post_norm: bool = field(
        default=False, metadata={"help": "normalise after each residual connection instead of before each block"}
    )
    norm_recipe: ChoiceEnum(RECIPES) = field(
        default="paper", metadata={"help": "what bn and pn follow: the paper's text, or the authors' released code"}
    )
    layer_scale: Optional[ChoiceEnum(LAYER_SCALES)] = field(
        default=None,
        metadata={
            "help": "scale each token to unit quadratic mean in front of the norm, over the layer or each head "
            "(default: head for pn and pnv, layer for bn, brn and mabn, none for the others)"
        },
    )
    norm_alpha_fwd: float = field(
        default=0.9, metadata={"help": "pn, pnv: weight of the old value in the running quadratic mean"}
    )
    norm_alpha_bwd: float = field(
        default=0.9, metadata={"help": "pn: weight of the old value in the running mean of the backward"}
    )
    norm_momentum: Optional[float] = field(
        default=None,
        metadata={
            "help": "bn, brn, mabn: weight of the new batch in running statistics "
            "(default: 0.1; 0.05 for bn in the release recipe; 0.02 for mabn)"
        },
    )
    norm_warmup_updates: Optional[int] = field(
        default=None,
        metadata={
            "help": "pn, brn, mabn: mini-batches normalised by their own statistics "
            "(default: the warm-up of the learning-rate schedule)"
        },
    )
    sync_norm: bool = field(
        default=False, metadata={"help": "bn, brn, mabn, pnv, pn: take statistics over the batches of all processes"}
    )
    fold_norms: bool = field(
        default=False,
        metadata={
            "help": "bn, brn, mabn, pnv, pn: fairseq-generate puts the norms into the linear layers behind them; "
            "training is not concerned"
        },
    )
    norm_stats: bool = field(
        default=False, metadata={"help": "record what the norms do, in SAVE_DIR/norm_stats.jsonl and in the log"}
    )
    norm_stats_interval: int = field(default=50, metadata={"help": "updates between two records of --norm-stats"})


def nested_config(cfg: Any) -> TransformerConfig:
    """fairseq's own configuration object from a flat one, which may come from argparse, hydra or a checkpoint.

    The norms' settings ride along: ``cfg.encoder.norm`` and ``cfg.decoder.norm`` are names, ``cfg.norm_options`` holds
    what :func:`powernorm_fairseq.norms.build_norm` takes; so does ``cfg.fold_norms``.
    """
    given = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if OmegaConf.is_config(cfg) else vars(cfg)
    flat = Namespace(**{setting.name: given.get(setting.name, setting.default) for setting in _settings()})
    for dim in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(flat, dim) is None:
            setattr(flat, dim, flat.decoder_embed_dim)
    for side in ("encoder", "decoder"):
        _set_normalize_before(flat, side)
    nested = TransformerConfig.from_namespace(flat)
    nested.norm_options = _norm_options(flat, _schedule_warmup(cfg))
    nested.fold_norms = flat.fold_norms
    return nested


def _settings() -> Tuple[Any, ...]:
    return tuple(setting for setting in fields(PowerNormTransformerConfig) if not setting.name.startswith("_"))


def _set_normalize_before(flat: Namespace, side: str) -> None:
    name = f"{side}_normalize_before"
    if flat.post_norm and getattr(flat, name):
        raise ValueError(f"--post-norm and --{side}-normalize-before contradict each other; give one of them")
    if getattr(flat, name) is None:
        setattr(flat, name, not flat.post_norm)


def _norm_options(flat: Namespace, schedule_warmup: Optional[int]) -> Dict[str, Any]:
    warmup = flat.norm_warmup_updates
    if warmup is None and schedule_warmup is None:
        logger.warning("the learning-rate schedule has no warm-up to follow; --norm-warmup-updates is 0")
    return {
        "recipe": str(flat.norm_recipe),
        "layer_scale": None if flat.layer_scale is None else str(flat.layer_scale),
        "alpha_fwd": flat.norm_alpha_fwd,
        "alpha_bwd": flat.norm_alpha_bwd,
        "momentum": flat.norm_momentum,
        "sync": flat.sync_norm,
        "warmup_updates": next((value for value in (warmup, schedule_warmup) if value is not None), 0),
    }


def _schedule_warmup(cfg: Any) -> Optional[int]:
    """Warm-up of the learning-rate schedule that stands beside the model's settings, if it has one."""
    if not OmegaConf.is_config(cfg):
        return getattr(cfg, "warmup_updates", None)
    parent = cfg._get_parent()
    schedule = parent.get("lr_scheduler") if parent is not None else None
    for name in ("warmup_updates", "warmup_steps"):
        value = getattr(schedule, name, None) if schedule is not None else None
        if isinstance(value, (int, float)):
            return int(value)
    return None
