"""Named architectures of the language models."""

from typing import Any, Dict

from fairseq.models import register_model_architecture

from powernorm_fairseq.models import language_model, tensorized  # noqa: F401  they register the models

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
TINY: Dict[str, Any] = {
    **PTB,
    "decoder_layers": 2,
    "decoder_embed_dim": 64,
    "decoder_ffn_embed_dim": 256,
    "attention_width": 32,
    "dropout": 0.1,
}
TINY_TRANSFORMER: Dict[str, Any] = {
    "decoder_layers": 2,
    "decoder_embed_dim": 64,
    "decoder_ffn_embed_dim": 256,
    "decoder_attention_heads": 4,
    "share_decoder_input_output_embed": True,
}


def _architecture(model: str, name: str, sizes: Dict[str, Any]) -> None:
    """Registers ``name``: what the user gave, then ``sizes``; the rest stays as the configuration has it."""

    @register_model_architecture(model, name)
    def fill_in(args: Any) -> None:
        for setting, value in sizes.items():
            setattr(args, setting, getattr(args, setting, value))


_architecture("tensorized_lm", "tensorized_lm_ptb", PTB)
_architecture("tensorized_lm", "tensorized_lm_wikitext103", WIKITEXT103)
_architecture("tensorized_lm", "tensorized_lm_tiny", TINY)
_architecture("powernorm_transformer_lm", "powernorm_transformer_lm_tiny", TINY_TRANSFORMER)
