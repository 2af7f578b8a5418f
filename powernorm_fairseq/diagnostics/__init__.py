"""What the norms of a model do: measured by hooks from outside, inside fairseq or not."""

from powernorm_fairseq.diagnostics.hooks import Probes, attach

__all__ = ["Probes", "attach"]
