"""Checkpoints cannot be loaded with torch 2.6 and later, which refuses what fairseq puts beside the tensors.

Mended by allowing exactly that; torch's protection against code in checkpoints stays on.
"""

from powernorm_fairseq.safe_load import allow_fairseq_checkpoints


def install() -> None:
    """Lets ``torch.load`` read fairseq's checkpoints."""
    allow_fairseq_checkpoints()
