"""What is known of each norm without importing torch, which takes seconds: its label, and whether batches matter."""

from typing import Optional

LABELS = {
    "ln": "LN",
    "rms": "RMS",
    "gn": "GN",
    "bn": "BN",
    "brn": "BRN",
    "mabn": "MABN",
    "pnv": "PN-V",
    "pn": "PN",
    "rbn": "RBN",
    "un": "UN",
    "prepbn": "PRepBN",
    "dyt": "DyT",
    "derf": "Derf",
    "scalenorm": "ScaleNorm",
}
#: Norms of a token by itself. All others, a user's own too, count as norms with statistics of a batch.
TOKEN_NORMS = frozenset(("ln", "rms", "gn", "dyt", "derf", "scalenorm"))


def label(norm: Optional[str]) -> Optional[str]:
    """Of a norm by its name in flags and files; a norm from elsewhere has its name in capitals."""
    return LABELS.get(norm, norm.upper()) if norm else norm
