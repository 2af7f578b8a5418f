"""Normalisation layers that leave padding out: LN, RMS, GN, BN, BRN, MABN, PN-V, PN and later ones. Pure torch."""

from powernorm_fairseq.norms.base import BatchStatisticsNorm, Norm
from powernorm_fairseq.norms.batch_norm import BatchNorm, BatchRenorm, RegularisedBatchNorm, take_penalty
from powernorm_fairseq.norms.context import padding, pass_padding, training_step
from powernorm_fairseq.norms.convert import calibrate, convert_norms, convert_sync
from powernorm_fairseq.norms.factory import NORMS, build_norm, norm_names, norm_options, register_norm
from powernorm_fairseq.norms.fold import FoldedNorm, fold_norm
from powernorm_fairseq.norms.power_norm import PowerNorm, PowerNormV
from powernorm_fairseq.norms.progressive_batch_norm import ProgressiveBatchNorm
from powernorm_fairseq.norms.scale_norm import ScaleNorm
from powernorm_fairseq.norms.token_norms import DynamicErf, DynamicTanh, GroupNorm, LayerNorm, RMSNorm
from powernorm_fairseq.norms.window_norms import MovingAverageBatchNorm, UnifiedNorm, centralise_weight

__all__ = [
    "NORMS",
    "BatchNorm",
    "BatchRenorm",
    "BatchStatisticsNorm",
    "DynamicErf",
    "DynamicTanh",
    "FoldedNorm",
    "GroupNorm",
    "LayerNorm",
    "MovingAverageBatchNorm",
    "Norm",
    "PowerNorm",
    "PowerNormV",
    "ProgressiveBatchNorm",
    "RMSNorm",
    "RegularisedBatchNorm",
    "ScaleNorm",
    "UnifiedNorm",
    "build_norm",
    "calibrate",
    "centralise_weight",
    "convert_norms",
    "convert_sync",
    "fold_norm",
    "norm_names",
    "norm_options",
    "padding",
    "pass_padding",
    "register_norm",
    "take_penalty",
    "training_step",
]
