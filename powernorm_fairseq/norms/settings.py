"""Checks of the settings of a norm; each failure is one sentence that names the setting and what is allowed."""

from typing import Any, Dict, Sequence

RECIPES = ("paper", "release")
LAYER_SCALES = ("none", "layer", "head")
# What a setting may be, by its name, which means the same in every norm.
CHOICES = {"recipe": RECIPES, "layer_scale": LAYER_SCALES}
FRACTIONS = ("alpha_fwd", "alpha_bwd", "momentum")
POSITIVE = ("eps", "alpha_start")
LEAST = {
    "num_features": 1, "window": 1, "updates": 1,
    "warmup_updates": 0, "rise_updates": 0, "penalty_mean": 0, "penalty_var": 0,
}  # fmt: skip


def check_settings(settings: Dict[str, Any]) -> None:
    """Refuses bad values. None stands for what a norm has by default."""
    for name, value in settings.items():
        if name in CHOICES:
            check_choice(name, value, CHOICES[name])
        elif value is None:
            continue
        elif name in FRACTIONS:
            check_fraction(name, value)
        elif name in POSITIVE:
            check_positive(name, value)
        elif name in LEAST:
            check_at_least(name, value, LEAST[name])


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuses a value that is not in ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not known; choose from {', '.join(allowed)}")


def check_fraction(name: str, value: float) -> None:
    """Refuses a value outside the open interval (0, 1)."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}={value!r} is out of range; it must lie between 0 and 1, both excluded")


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuses a number that is too small."""
    if not value >= least:
        raise ValueError(f"{name}={value!r} is too small; it must be at least {least}")


def check_positive(name: str, value: float) -> None:
    """Refuses zero, negative numbers and NaN."""
    if not value > 0:
        raise ValueError(f"{name}={value!r} must be greater than 0")


def check_groups(groups: int, num_features: int) -> None:
    """Refuses groups that do not divide the width."""
    check_at_least("groups", groups, 1)
    if num_features % groups:
        raise ValueError(f"groups={groups} does not divide the width {num_features}")
