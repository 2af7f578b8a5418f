"""fairseq's decoder-only Transformer with the norms of this package; `ln` leaves it as fairseq makes it."""

from typing import Any, Type

import torch
from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.modules import AdaptiveInput
from torch import Tensor, nn

from powernorm_fairseq.models.config import PowerNormLMConfig, nested_config
from powernorm_fairseq.models.norm_settings import offer_norms
from powernorm_fairseq.models.steps import prepare
from powernorm_fairseq.models.transformer import NormDecoder


def build_embedding(cfg: TransformerConfig, dictionary: Any) -> nn.Module:
    """The input embedding, adaptive if asked."""
    if not cfg.adaptive_input:
        return Embedding(len(dictionary), cfg.decoder.input_dim, dictionary.pad())
    return AdaptiveInput(
        len(dictionary),
        dictionary.pad(),
        cfg.decoder.input_dim,
        cfg.adaptive_input_factor,
        cfg.decoder.embed_dim,
        utils.eval_str_list(cfg.adaptive_input_cutoff, type=int),
        cfg.quant_noise.pq,
        cfg.quant_noise.pq_block_size,
    )


@register_model("powernorm_transformer_lm", dataclass=PowerNormLMConfig)
class PowerNormLanguageModel(FairseqLanguageModel):
    """Pre-norm decoder-only Transformer whose norms come from this package.

    In training the batch-wise norms measure all positions of a batch, later ones included, as in the paper. At
    evaluation they use running statistics, so that no output depends on a later token or on another sequence.
    """

    config: Type[FairseqDataclass] = PowerNormLMConfig
    decoder_class: Type[NormDecoder] = NormDecoder
    autocast_bfloat16 = False

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the model's flags."""
        super().add_args(parser)
        offer_norms(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PowerNormLanguageModel":
        """Builds the model from a flat configuration."""
        prepare(task, cfg)
        nested = nested_config(cfg, cls.config)
        embedding = build_embedding(nested, task.source_dictionary)
        model = cls(cls.decoder_class(nested, task.target_dictionary, embedding, no_encoder_attn=True))
        model.autocast_bfloat16 = nested.autocast_bfloat16
        return model

    @property
    def autocast_now(self) -> bool:
        """Whether matrices are multiplied in bfloat16: in training alone, so that validation is exact."""
        return self.autocast_bfloat16 and self.training

    def forward(self, src_tokens: Tensor, **kwargs: Any) -> Any:
        """See fairseq."""
        with torch.autocast(src_tokens.device.type, torch.bfloat16, enabled=self.autocast_now):
            return super().forward(src_tokens, **kwargs)
