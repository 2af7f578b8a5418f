"""Named architectures: sizes, and a preset for each row of the tables."""

from typing import Any, Callable, Dict

from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy

from powernorm_fairseq.models import language_model, tensorized, transformer  # noqa: F401  they register the models

ROWS = ("ln", "bn", "pnv", "pn", "gn", "brn", "mabn", "rbn", "un", "prepbn", "dyt", "derf", "scalenorm")
SYNCED = ("bn", "pnv")  # in the `big` model, as the paper does; not pn
SMALL_SIDES = {"layers": 2, "embed_dim": 128, "ffn_embed_dim": 256, "attention_heads": 4}
SMALL = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SMALL_SIDES.items()}
# The tensorized Transformer core-1 of the paper's LM table. The context is the task's --tokens-per-sample: 32 and 80.
PTB: Dict[str, Any] = {
    "decoder_layers": 3,
    "decoder_embed_dim": 256,
    "decoder_ffn_embed_dim": 2100,
    "attention_width": 40,
    "dropout": 0.3,
    "share_decoder_input_output_embed": True,
}
WIKITEXT103: Dict[str, Any] = {
    **PTB,
    "decoder_layers": 6,
    "share_decoder_input_output_embed": False,  # tied inside the adaptive softmax instead
    "adaptive_softmax_cutoff": "20000,40000,200000",
    "adaptive_softmax_factor": 1.0,
    "adaptive_input": True,
    "adaptive_input_cutoff": "20000,40000,200000",
    "adaptive_input_factor": 1.0,
    "tie_adaptive_weights": True,
}
_SMALL: Dict[str, Any] = {
    "decoder_layers": 2,
    "decoder_embed_dim": 64,
    "decoder_ffn_embed_dim": 256,
    "share_decoder_input_output_embed": True,
}
TINY: Dict[str, Any] = {**PTB, **_SMALL, "attention_width": 32, "dropout": 0.1}
TINY_TRANSFORMER: Dict[str, Any] = {**_SMALL, "decoder_attention_heads": 4}


def _architecture(
    model: str, name: str, sizes: Dict[str, Any], then: Callable[[Any], None] = lambda args: None
) -> Callable[[Any], None]:
    """Registers ``name``: what the user gave, then ``sizes``, then those of another architecture or the model's own."""

    @register_model_architecture(model, name)
    def fill_in(args: Any) -> None:
        for setting, value in sizes.items():
            setattr(args, setting, getattr(args, setting, value))
        then(args)

    return fill_in


def _translation(name: str, then: Callable[[Any], None], **sizes: Any) -> Callable[[Any], None]:
    """fairseq's architectures would make it post-norm; none leaves the choice to --post-norm."""
    pre_norm = {"encoder_normalize_before": None, "decoder_normalize_before": None}
    return _architecture("powernorm_transformer", name, {**pre_norm, **sizes}, then)


_translation("powernorm_tiny", transformer_legacy.base_architecture, **SMALL)
_translation("powernorm_wmt_en_de", transformer_legacy.transformer_wmt_en_de)
_iwslt = _translation("powernorm_iwslt_de_en", transformer_legacy.transformer_iwslt_de_en)
_big = _translation("powernorm_wmt_en_de_big", transformer_legacy.transformer_wmt_en_de_big)
for _row in ROWS:
    _translation(f"transformer_{_row}_iwslt_de_en", _iwslt, encoder_norm=_row)
    _translation(f"transformer_{_row}_wmt_en_de_big", _big, encoder_norm=_row, sync_norm=_row in SYNCED)
for _name, _sizes in (("ptb", PTB), ("wikitext103", WIKITEXT103), ("tiny", TINY)):
    _architecture("tensorized_lm", f"tensorized_lm_{_name}", _sizes)
_architecture("powernorm_transformer_lm", "powernorm_transformer_lm_tiny", TINY_TRANSFORMER)
