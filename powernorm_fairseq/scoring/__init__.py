"""From translations to scores, as the literature computes them, without torch or fairseq.

- ``tokenized``: Moses' ``multi-bleu.perl`` (as it is since July 2018), equal to the last printed digit.
- ``compound-split``: the same after splitting compounds at their hyphens, as the PowerNorm release does it.
- ``sacrebleu``, ``chrf``, ``ter``: sacreBLEU on detokenised text, with its signature.
- ``comet``: by ``unbabel-comet`` and a model, where they are installed.

``text`` reads files, ``metrics`` has the scores and their paired bootstrap, ``multi_bleu`` the arithmetic of Moses,
``comet`` the neural metric, ``generate_log`` the output of fairseq-generate.
"""

from powernorm_fairseq.scoring.generate_log import parse_generate_log
from powernorm_fairseq.scoring.metrics import DEFAULT_METRICS, METRICS, Comparison, Scorer
from powernorm_fairseq.scoring.multi_bleu import Score, multi_bleu
from powernorm_fairseq.scoring.text import BPE_KINDS, SENTENCEPIECE_SPACE, ScoringError, Text, find_bpe_kind, remove_bpe

__all__ = [
    "BPE_KINDS",
    "Comparison",
    "DEFAULT_METRICS",
    "METRICS",
    "SENTENCEPIECE_SPACE",
    "Score",
    "Scorer",
    "ScoringError",
    "Text",
    "find_bpe_kind",
    "multi_bleu",
    "parse_generate_log",
    "remove_bpe",
]
