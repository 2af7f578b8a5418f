"""fairseq's label-smoothed loss, computed by :mod:`powernorm_fairseq.models.linear_loss`."""

from typing import Any, Dict, Tuple

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from powernorm_fairseq.models.linear_loss import linear_loss


@register_criterion("chunked_label_smoothed_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class ChunkedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """``label_smoothed_cross_entropy``, flags and results alike, that never stores the probabilities of a batch.

    What needs them (accuracy, losses of single positions, an output layer that is more than a matrix) is done by
    fairseq's own.
    """

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, int, Dict[str, Any]]:
        """See fairseq."""
        output = getattr(model.decoder, "output_projection", None)
        plain = type(output) is nn.Linear and output.bias is None and model.decoder.adaptive_softmax is None
        if not (reduce and plain) or self.report_accuracy or self.ignore_prefix_size:
            return super().forward(model, sample, reduce)
        features = model(**sample["net_input"], features_only=True)[0]
        dtype = torch.bfloat16 if getattr(model, "autocast_now", False) else None
        loss, nll_loss = linear_loss(
            features.flatten(0, -2), output.weight, sample["target"].flatten(), self.eps, self.padding_idx, dtype
        )
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {"loss": loss.data, "nll_loss": nll_loss.data, "ntokens": sample["ntokens"]}
        return loss, sample_size, {**logged, "nsentences": sample["target"].size(0), "sample_size": sample_size}
