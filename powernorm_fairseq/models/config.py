"""The configuration of `powernorm_transformer`: fairseq's own, flattened, and the settings of the norms."""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Iterator, Optional, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from powernorm_fairseq.models.norm_settings import (
    NormSettings,
    check_norm,
    given_settings,
    norm_options,
    own_options,
    set_normalize_before,
)

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
class PowerNormTransformerConfig(NormSettings, _FlatTransformerConfig):
    """Settings of `powernorm_transformer`; the help texts are those of the command line."""

    encoder_norm: str = field(
        default="pn", metadata={"help": "norm of the encoder layers and at the end of the encoder"}
    )
    decoder_norm: str = field(
        default="ln", metadata={"help": "norm of the decoder layers and at the end of the decoder"}
    )
    fold_norms: bool = field(
        default=False,
        metadata={
            "help": "norms with running statistics: generation puts them into the linear layers behind them; for a "
            "model trained without it: fairseq-generate --model-overrides \"{'fold_norms': True}\""
        },
    )


def nested_config(cfg: Any) -> TransformerConfig:
    """fairseq's own configuration object from a flat one, which may come from argparse, hydra or a checkpoint.

    The norms' settings ride along: ``cfg.encoder.norm`` and ``cfg.decoder.norm`` are names, ``cfg.norm_options`` holds
    what :func:`powernorm_fairseq.norms.build_norm` takes, and ``cfg.own_norm_options`` more for one norm or another; so
    does ``cfg.fold_norms``.
    """
    flat = given_settings(cfg, PowerNormTransformerConfig)
    for dim in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(flat, dim) is None:
            setattr(flat, dim, flat.decoder_embed_dim)
    for side in ("encoder", "decoder"):
        set_normalize_before(flat, side)
        setattr(flat, f"{side}_norm", check_norm(f"--{side}-norm", getattr(flat, f"{side}_norm")))
    nested = TransformerConfig.from_namespace(flat)
    nested.norm_options = norm_options(flat, cfg)
    nested.own_norm_options = own_options(flat, cfg, (flat.encoder_norm, flat.decoder_norm))
    nested.fold_norms = flat.fold_norms
    return nested
