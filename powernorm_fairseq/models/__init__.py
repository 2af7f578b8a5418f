"""fairseq models built with the norms of this package."""

from powernorm_fairseq.models import architectures, lm_architectures, transformer  # noqa: F401
