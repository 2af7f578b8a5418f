"""PowerNorm and its rivals for fairseq; importing the package registers its models where fairseq is installed.

It also makes fairseq's checkpoints safe: loaded without running code from them, written so that no fault leaves half of
one behind, and resumed to the very run that was stopped.
"""

import importlib.util

if importlib.util.find_spec("fairseq") is not None:
    from powernorm_fairseq import models, resume, safe_load, safe_save  # noqa: F401

    safe_load.allow_fairseq_checkpoints()
    safe_save.install()
    resume.install()
