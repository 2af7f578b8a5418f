"""Named architectures: sizes, and a preset for each row of the tables."""

from typing import Any, Callable

from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy

from powernorm_fairseq.models import transformer  # noqa: F401  registers the model

ROWS = ("ln", "bn", "pnv", "pn", "gn", "brn", "mabn", "rbn", "un", "prepbn", "dyt", "derf", "scalenorm")
SYNCED = ("bn", "pnv")  # in the `big` model, as the paper does; not pn


def _architecture(name: str, fairseq_sizes: Callable[[Any], None], **ours: Any) -> Callable[[Any], None]:
    """Registers ``name``: what the user gave, then ``ours``, then the sizes of a fairseq architecture."""

    @register_model_architecture("powernorm_transformer", name)
    def fill_in(args: Any) -> None:
        # fairseq's architectures would make it post-norm; none leaves the choice to --post-norm
        pre_norm = {"encoder_normalize_before": None, "decoder_normalize_before": None}
        for setting, value in {**pre_norm, **ours}.items():
            setattr(args, setting, getattr(args, setting, value))
        fairseq_sizes(args)

    return fill_in


TINY = {
    "encoder_layers": 2,
    "encoder_embed_dim": 128,
    "encoder_ffn_embed_dim": 256,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_embed_dim": 128,
    "decoder_ffn_embed_dim": 256,
    "decoder_attention_heads": 4,
}

powernorm_tiny = _architecture("powernorm_tiny", transformer_legacy.base_architecture, **TINY)
powernorm_iwslt_de_en = _architecture("powernorm_iwslt_de_en", transformer_legacy.transformer_iwslt_de_en)
powernorm_wmt_en_de = _architecture("powernorm_wmt_en_de", transformer_legacy.transformer_wmt_en_de)
powernorm_wmt_en_de_big = _architecture("powernorm_wmt_en_de_big", transformer_legacy.transformer_wmt_en_de_big)

for _row in ROWS:
    _architecture(f"transformer_{_row}_iwslt_de_en", powernorm_iwslt_de_en, encoder_norm=_row)
    _architecture(
        f"transformer_{_row}_wmt_en_de_big", powernorm_wmt_en_de_big, encoder_norm=_row, sync_norm=_row in SYNCED
    )
