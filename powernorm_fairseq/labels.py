"""How norms are called in tables and figures: ``pnv`` is PN-V, every other name its capitals."""

from typing import Optional


def label(norm: Optional[str]) -> Optional[str]:
    """Of a norm by its name in flags and files."""
    return {"pnv": "PN-V"}.get(norm, norm.upper()) if norm else norm
