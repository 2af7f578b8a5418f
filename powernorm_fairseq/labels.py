"""What each norm is called in tables and figures; known without importing torch."""

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


def label(norm: Optional[str]) -> Optional[str]:
    """Of a norm by its name in flags and files; a norm from elsewhere has its name in capitals."""
    return LABELS.get(norm, norm.upper()) if norm else norm
