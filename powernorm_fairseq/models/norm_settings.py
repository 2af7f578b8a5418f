"""The settings of the norms, the same in every model of this package."""

import logging
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Sequence

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import ListConfig, OmegaConf

from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.norms.settings import (
    LAYER_SCALES,
    RECIPES,
    check_at_least,
    check_fraction,
    check_positive,
)

logger = logging.getLogger(__name__)


def setting(default: Any, about: str) -> Any:
    """A field of a configuration with its help text."""
    return field(default=default, metadata={"help": about})


@dataclass
class NormSettings(FairseqDataclass):
    """Settings of all norms of a model; the help texts are those of the command line."""

    post_norm: bool = setting(False, "normalise after each residual connection instead of before each block")
    norm_recipe: ChoiceEnum(RECIPES) = setting(
        "paper", "what bn, pn, rbn and prepbn follow: the paper's text, or the authors' released code"
    )
    layer_scale: Optional[ChoiceEnum(LAYER_SCALES)] = setting(
        None,
        "scale each token to unit quadratic mean in front of the norm, over the layer or each head (default: head for "
        "pn and pnv, layer for bn, brn, mabn and rbn, none for the others)",
    )
    norm_alpha_fwd: float = setting(0.9, "pn, pnv: weight of the old value in the running quadratic mean")
    norm_alpha_bwd: float = setting(0.9, "pn: weight of the old value in the running mean of the backward")
    norm_momentum: Optional[float] = setting(
        None,
        "bn, brn, mabn, rbn, un, prepbn: weight of the new batch in running statistics (default: 0.1; 0.05 for rbn, "
        "and for bn in the release recipe; 0.02 for mabn)",
    )
    norm_warmup_updates: Optional[int] = setting(
        None,
        "pn, brn, mabn, un: updates whose mini-batches are normalised by their own statistics; in the release recipe, "
        "that many mini-batches (default: the warm-up of the learning-rate schedule)",
    )
    sync_norm: bool = setting(False, "norms with statistics of a batch: take them over the batches of all processes")
    rbn_penalty_mean: Optional[float] = setting(
        None, "rbn: weight of the distance of means in the loss (default: 0.1; post-norm: 60)"
    )
    rbn_penalty_var: Optional[float] = setting(
        None, "rbn: weight of the distance of variances (default: 0.01; post-norm: 0)"
    )
    un_window: Optional[int] = setting(None, "un: mini-batches in its window (default: 4)")
    un_outliers: bool = setting(False, "un: leave mini-batches that stand out of its window")
    prepbn_updates: Optional[int] = setting(
        None, "prepbn: updates in which LN becomes BN (default: 4/5 of --max-update)"
    )
    dyt_alpha: Optional[float] = setting(None, "dyt: alpha at the start (default: 0.5)")
    dyt_alpha_attention: Optional[float] = setting(
        None, "dyt: the same in front of attention (default: that of --dyt-alpha)"
    )
    derf_alpha: Optional[float] = setting(None, "derf: alpha at the start (default: 0.5)")
    norm_stats: bool = setting(False, "record what the norms do, in SAVE_DIR/norm_stats.jsonl and in the log")
    norm_stats_interval: int = setting(50, "updates between two records of --norm-stats")


def norm_options(flat: Namespace, cfg: Any) -> Dict[str, Any]:
    """What :func:`powernorm_fairseq.norms.build_norm` takes, from ``flat`` and the schedule beside ``cfg``."""
    for name in ("norm_alpha_fwd", "norm_alpha_bwd", "norm_momentum"):
        if getattr(flat, name) is not None:
            check_fraction("--" + name.replace("_", "-"), getattr(flat, name))
    warmup = flat.norm_warmup_updates
    if warmup is not None:
        check_at_least("--norm-warmup-updates", warmup, 0)
    else:
        schedules = [_beside(cfg, "lr_scheduler", name) for name in ("warmup_updates", "warmup_steps")]
        warmup = next((int(value) for value in schedules if isinstance(value, (int, float))), None)
    if warmup is None:
        logger.warning("the learning-rate schedule has no warm-up to follow; --norm-warmup-updates is 0")
        warmup = 0
    if str(flat.norm_recipe) != "release":  # norms count mini-batches
        warmup *= _batches_per_update(cfg)
    return {
        "recipe": str(flat.norm_recipe),
        "layer_scale": None if flat.layer_scale is None else str(flat.layer_scale),
        "alpha_fwd": flat.norm_alpha_fwd,
        "alpha_bwd": flat.norm_alpha_bwd,
        "momentum": flat.norm_momentum,
        "sync": flat.sync_norm,
        "warmup_updates": warmup,
    }


# The flags that one norm alone has -> that norm, and the setting's name there.
OWN_SETTINGS = {
    "rbn_penalty_mean": ("rbn", "penalty_mean"),
    "rbn_penalty_var": ("rbn", "penalty_var"),
    "un_window": ("un", "window"),
    "un_outliers": ("un", "outliers"),
    "prepbn_updates": ("prepbn", "updates"),
    "dyt_alpha": ("dyt", "alpha_start"),
    "dyt_alpha_attention": ("dyt", "alpha_attention"),
    "derf_alpha": ("derf", "alpha_start"),
}


def own_options(flat: Namespace, cfg: Any, norms: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """What each of ``norms`` gets besides: the flags that it alone has, and what follows from the rest of ``cfg``."""
    found: Dict[str, Dict[str, Any]] = {norm: {} for norm in norms}
    if "rbn" in found and flat.post_norm:
        found["rbn"] = {"penalty_mean": 60.0, "penalty_var": 0.0}
    for flag, (norm, option) in OWN_SETTINGS.items():
        value, name = getattr(flat, flag), "--" + flag.replace("_", "-")
        if value is None or value is False:
            continue
        if norm not in found:
            raise ValueError(f"{name} is a setting of {norm} alone, but the norms are {' and '.join(found)}; drop it")
        if flag.startswith("rbn"):
            check_at_least(name, value, 0)
        elif "alpha" in flag:
            check_positive(name, value)
        elif value is not True:
            check_at_least(name, value, 1)
        found[norm][option] = value
    if "prepbn" in found:
        batches = _batches_per_update(cfg)
        whole = _beside(cfg, "optimization", "max_update") or 0
        if whole < 2 and not found["prepbn"].get("updates"):
            raise ValueError("prepbn does not know the length of the training; give --prepbn-updates, or --max-update")
        found["prepbn"]["updates"] = batches * (found["prepbn"].get("updates") or whole * 4 // 5)
        logger.info("prepbn: LN becomes BN in %s mini-batches", found["prepbn"]["updates"])
    return found


def offer_norms(parser: Any) -> None:
    """Makes ``--help`` and the parser know the norms there are now: a plugin may have registered its own."""
    for flag in ("--encoder-norm", "--decoder-norm", "--norm"):
        action = parser._option_string_actions.get(flag)
        if action is not None:
            action.choices = norm_names()


def _beside(cfg: Any, section: str, name: str) -> Any:
    """A setting of the training that stands beside the model's: in a section of hydra's, or flat in argparse's."""
    if OmegaConf.is_config(cfg):
        parent = cfg._get_parent()
        cfg = parent.get(section) if parent is not None else None
    return getattr(cfg, name, None)


def _batches_per_update(cfg: Any) -> int:
    """What ``--update-freq`` says for the first epoch."""
    update_freq = _beside(cfg, "optimization", "update_freq")
    if isinstance(update_freq, str):
        update_freq = [int(part) for part in update_freq.split(",")]
    update_freq = list(update_freq) if isinstance(update_freq, (list, tuple, ListConfig)) else [update_freq or 1]
    if len(set(update_freq)) > 1:
        logger.warning("--update-freq changes; the norms' warm-up is counted by its first value, %s", update_freq[0])
    return update_freq[0]
