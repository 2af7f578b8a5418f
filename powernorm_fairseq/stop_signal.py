"""What a model's task had to be told before trainings looked by themselves; see ``fairseq_fixes/stop.py``."""

from powernorm_fairseq.fairseq_fixes.stop import HEEDED, stop_on_request  # noqa: F401
