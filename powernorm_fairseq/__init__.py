"""PowerNorm and its rivals for fairseq; importing the package registers its models where fairseq is installed."""

import importlib.util

if importlib.util.find_spec("fairseq") is not None:
    from powernorm_fairseq import models  # noqa: F401
    from powernorm_fairseq.safe_load import allow_fairseq_checkpoints

    allow_fairseq_checkpoints()
