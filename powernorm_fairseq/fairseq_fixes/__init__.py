"""What is mended of fairseq, one file for each defect: its reason is the file's docstring.

fairseq asks a plugin nothing at these places, so each fix replaces one of fairseq's functions by one that calls it.
:func:`install` does so when fairseq loads the plugin. A fix changes nothing for models and trainings that do not meet
the defect. ``POWERNORM_FIXES`` leaves fixes out: ``-patience,-last_batch`` these two, ``none`` all of them. The test of
a fix has its name, in ``tests/fairseq_fixes`` or, for what a crash leaves behind, ``tests/faults``.
"""

import importlib
import os
from typing import Set, Tuple

VARIABLE = "POWERNORM_FIXES"
# In the order in which they are installed: what a later one wraps is what an earlier one made.
FIXES = (
    "loading",
    "saving",
    "damaged_checkpoint",
    "resumed_batches",
    "resumed_position",
    "resumed_scheduler",
    "patience",
    "finished",
    "last_batch",
    "bfloat16",
    "background_thread",
    "saved_statistics",
    "ddp_on_cpu",
    "ema",
    "heartbeat",
    "stop",
)
_installed: Set[str] = set()


def chosen(setting: str) -> Tuple[str, ...]:
    """The fixes that a value of POWERNORM_FIXES leaves.

    Raises:
        ValueError: the value names no fix.
    """
    if setting == "none":
        return ()
    left_out = [word.strip() for word in setting.split(",") if word.strip()]
    for word in left_out:
        if word[:1] != "-" or word[1:] not in FIXES:
            names = ", ".join("-" + name for name in FIXES)
            raise ValueError(f"{VARIABLE}={setting}: {word} is not known; choose none, or from {names}")
    return tuple(name for name in FIXES if "-" + name not in left_out)


def install() -> None:
    """Mends fairseq, which has to be importable; repeating the call changes nothing."""
    for name in chosen(os.environ.get(VARIABLE, "")):
        if name not in _installed:
            _installed.add(name)
            importlib.import_module(f"{__name__}.{name}").install()
