"""The settings of the norms, the same in every model of this package."""

import logging
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Optional, Sequence, Type

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import ListConfig, OmegaConf

from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.norms.settings import (
    LAYER_SCALES,
    RECIPES,
    check_at_least,
    check_choice,
    check_fraction,
    check_positive,
)

logger = logging.getLogger(__name__)


@dataclass
class NormSettings(FairseqDataclass):
    """Settings of all norms of a model; the help texts are those of the command line."""

    post_norm: bool = field(
        default=False, metadata={"help": "normalise after each residual connection instead of before each block"}
    )
    norm_recipe: ChoiceEnum(RECIPES) = field(
        default="paper",
        metadata={"help": "what bn, pn, rbn and prepbn follow: the paper's text, or the authors' released code"},
    )
    layer_scale: Optional[ChoiceEnum(LAYER_SCALES)] = field(
        default=None,
        metadata={
            "help": "scale each token to unit quadratic mean in front of the norm, over the layer or each head "
            "(default: head for pn and pnv, layer for bn, brn, mabn and rbn, none for the others)"
        },
    )
    norm_alpha_fwd: float = field(
        default=0.9, metadata={"help": "pn, pnv: weight of the old value in the running quadratic mean"}
    )
    norm_alpha_bwd: float = field(
        default=0.9, metadata={"help": "pn: weight of the old value in the running mean of the backward"}
    )
    norm_momentum: Optional[float] = field(
        default=None,
        metadata={
            "help": "bn, brn, mabn, rbn, un, prepbn: weight of the new batch in running statistics "
            "(default: 0.1; 0.05 for rbn, and for bn in the release recipe; 0.02 for mabn)"
        },
    )
    norm_warmup_updates: Optional[int] = field(
        default=None,
        metadata={
            "help": "pn, brn, mabn, un: updates whose mini-batches are normalised by their own statistics; in the "
            "release recipe, that many mini-batches (default: the warm-up of the learning-rate schedule)"
        },
    )
    sync_norm: bool = field(
        default=False,
        metadata={"help": "norms with statistics of a batch: take them over the batches of all processes"},
    )
    rbn_penalty_mean: Optional[float] = field(
        default=None,
        metadata={"help": "rbn: weight of the distance of means in the loss (default: 0.1; post-norm: 60)"},
    )
    rbn_penalty_var: Optional[float] = field(
        default=None, metadata={"help": "rbn: weight of the distance of variances (default: 0.01; post-norm: 0)"}
    )
    un_window: Optional[int] = field(default=None, metadata={"help": "un: mini-batches in its window (default: 4)"})
    un_outliers: bool = field(default=False, metadata={"help": "un: leave mini-batches that stand out of its window"})
    prepbn_updates: Optional[int] = field(
        default=None, metadata={"help": "prepbn: updates in which LN becomes BN (default: 4/5 of --max-update)"}
    )
    dyt_alpha: Optional[float] = field(default=None, metadata={"help": "dyt: alpha at the start (default: 0.5)"})
    dyt_alpha_attention: Optional[float] = field(
        default=None, metadata={"help": "dyt: the same in front of attention (default: that of --dyt-alpha)"}
    )
    derf_alpha: Optional[float] = field(default=None, metadata={"help": "derf: alpha at the start (default: 0.5)"})
    norm_stats: bool = field(
        default=False, metadata={"help": "record what the norms do, in SAVE_DIR/norm_stats.jsonl and in the log"}
    )
    norm_stats_interval: int = field(default=50, metadata={"help": "updates between two records of --norm-stats"})


def given_settings(cfg: Any, schema: Type[FairseqDataclass]) -> Namespace:
    """The settings of ``schema`` as ``cfg`` has them, which may come from argparse, hydra or a checkpoint."""
    given = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if OmegaConf.is_config(cfg) else vars(cfg)
    settings = [setting for setting in fields(schema) if not setting.name.startswith("_")]
    return Namespace(**{setting.name: given.get(setting.name, setting.default) for setting in settings})


def set_normalize_before(flat: Namespace, side: str) -> None:
    """Decides between pre-norm and post-norm; pre-norm unless ``--post-norm`` is given."""
    name = f"{side}_normalize_before"
    if flat.post_norm and getattr(flat, name):
        raise ValueError(f"--post-norm and --{side}-normalize-before contradict each other; give one of them")
    if getattr(flat, name) is None:
        setattr(flat, name, not flat.post_norm)


def norm_options(flat: Namespace, cfg: Any) -> Dict[str, Any]:
    """What :func:`powernorm_fairseq.norms.build_norm` takes, from ``flat`` and the schedule beside ``cfg``."""
    check_fraction("--norm-alpha-fwd", flat.norm_alpha_fwd)
    check_fraction("--norm-alpha-bwd", flat.norm_alpha_bwd)
    if flat.norm_momentum is not None:
        check_fraction("--norm-momentum", flat.norm_momentum)
    if flat.norm_warmup_updates is not None:
        check_at_least("--norm-warmup-updates", flat.norm_warmup_updates, 0)
    warmup, schedule_warmup = flat.norm_warmup_updates, _schedule_warmup(cfg)
    if warmup is None and schedule_warmup is None:
        logger.warning("the learning-rate schedule has no warm-up to follow; --norm-warmup-updates is 0")
    warmup = next((value for value in (warmup, schedule_warmup) if value is not None), 0)
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
        found["prepbn"]["updates"] = batches * (found["prepbn"].get("updates") or _share_of_training(cfg))
        logger.info("prepbn: LN becomes BN in %s mini-batches", found["prepbn"]["updates"])
    return found


def _share_of_training(cfg: Any) -> int:
    """Four fifths of the updates of a training."""
    section = _beside(cfg, "optimization") if OmegaConf.is_config(cfg) else cfg
    updates = getattr(section, "max_update", None) or 0
    if updates < 2:
        raise ValueError("prepbn does not know the length of the training; give --prepbn-updates, or --max-update")
    return updates * 4 // 5


def check_norm(flag: str, name: str) -> str:
    """The name of a norm, if there is one of that name."""
    check_choice(flag, str(name), norm_names())
    return str(name)


def offer_norms(parser: Any) -> None:
    """Makes ``--help`` and the parser know the norms there are now: a plugin may have registered its own."""
    for flag in ("--encoder-norm", "--decoder-norm", "--norm"):
        action = parser._option_string_actions.get(flag)
        if action is not None:
            action.choices = norm_names()


def _beside(cfg: Any, section: str) -> Any:
    """The section of fairseq's configuration that stands beside the model's settings, if it is known."""
    parent = cfg._get_parent()
    return parent.get(section) if parent is not None else None


def _batches_per_update(cfg: Any) -> int:
    """What ``--update-freq`` says for the first epoch."""
    update_freq = getattr(_beside(cfg, "optimization") if OmegaConf.is_config(cfg) else cfg, "update_freq", None)
    if isinstance(update_freq, str):
        update_freq = [int(part) for part in update_freq.split(",")]
    update_freq = list(update_freq) if isinstance(update_freq, (list, tuple, ListConfig)) else [update_freq or 1]
    if len(set(update_freq)) > 1:
        logger.warning("--update-freq changes; the norms' warm-up is counted by its first value, %s", update_freq[0])
    return update_freq[0]


def _schedule_warmup(cfg: Any) -> Optional[int]:
    """Warm-up of the learning-rate schedule that stands beside the model's settings, if it has one."""
    if not OmegaConf.is_config(cfg):
        return getattr(cfg, "warmup_updates", None)
    schedule = _beside(cfg, "lr_scheduler")
    for name in ("warmup_updates", "warmup_steps"):
        value = getattr(schedule, name, None) if schedule is not None else None
        if isinstance(value, (int, float)):
            return int(value)
    return None
