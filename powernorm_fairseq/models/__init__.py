"""fairseq models built with the norms of this package."""

from powernorm_fairseq.models import architectures, linear_criterion  # noqa: F401  they register themselves
