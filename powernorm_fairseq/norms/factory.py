"""From the name of a norm to the layer."""

from typing import Any, Callable, Dict, List, Optional, Type

from powernorm_fairseq.norms.base import Norm
from powernorm_fairseq.norms.batch_norm import BatchNorm, BatchRenorm, RegularisedBatchNorm
from powernorm_fairseq.norms.kernels import choose_kernel
from powernorm_fairseq.norms.power_norm import PowerNorm, PowerNormV
from powernorm_fairseq.norms.progressive_batch_norm import ProgressiveBatchNorm
from powernorm_fairseq.norms.scale_norm import ScaleNorm
from powernorm_fairseq.norms.settings import check_choice, check_groups, check_settings
from powernorm_fairseq.norms.token_norms import DynamicErf, DynamicTanh, GroupNorm, LayerNorm, RMSNorm
from powernorm_fairseq.norms.window_norms import MovingAverageBatchNorm, UnifiedNorm

NORMS: Dict[str, Type[Norm]] = {
    "ln": LayerNorm,
    "rms": RMSNorm,
    "gn": GroupNorm,
    "bn": BatchNorm,
    "brn": BatchRenorm,
    "mabn": MovingAverageBatchNorm,
    "pnv": PowerNormV,
    "pn": PowerNorm,
    "rbn": RegularisedBatchNorm,
    "un": UnifiedNorm,
    "prepbn": ProgressiveBatchNorm,
    "dyt": DynamicTanh,
    "derf": DynamicErf,
    "scalenorm": ScaleNorm,
}
# The layer-scale in front of each norm where nothing else is said: as in the authors' release.
USUAL_LAYER_SCALE = {"pn": "head", "pnv": "head", "bn": "layer", "brn": "layer", "mabn": "layer", "rbn": "layer"}
RELEASED_WITHOUT_LAYER_SCALE = ("rbn",)  # in the release of its own authors
USUAL_HEAD = 64  # features of an attention head


def register_norm(name: str) -> Callable[[Type[Norm]], Type[Norm]]:
    """Makes a class known to :func:`build_norm`, and to the command line, by a name of its own.

    Example: ``@register_norm("my_norm")`` above ``class MyNorm(Norm):``
    """
    if name in NORMS:
        raise ValueError(f"norm={name!r} is registered already, as {NORMS[name].__module__}.{NORMS[name].__name__}")

    def register(kind: Type[Norm]) -> Type[Norm]:
        if not (isinstance(kind, type) and issubclass(kind, Norm)):
            raise TypeError(f"norm={name!r} has to be a class derived from powernorm_fairseq.norms.Norm, not {kind!r}")
        NORMS[name] = kind
        return kind

    return register


def norm_names() -> List[str]:
    """The names that :func:`build_norm` knows."""
    return list(NORMS)


def norm_options(name: str) -> List[str]:
    """The settings that the norm ``name`` has, beside its width."""
    check_choice("norm", name, norm_names())
    return NORMS[name].options()


def usual_groups(num_features: int) -> int:
    """As many slices as make them about as wide as an attention head usually is; more than one if the width allows."""
    divisors = [groups for groups in range(2, num_features // 2 + 1) if num_features % groups == 0]
    return min(divisors, key=lambda groups: abs(num_features / groups - USUAL_HEAD), default=1)


def build_norm(
    name: str, num_features: int, groups: Optional[int] = None, layer_scale: Optional[str] = None, **options: Any
) -> Norm:
    """Builds a norm by its name.

    Args:
        name: one of :func:`norm_names`.
        num_features: size of the last dimension of the input.
        groups: number of attention heads, the slices of ``gn`` and of a layer-scale by ``head``. Default: what makes
            slices of 64 features, or about that
        layer_scale: see :class:`~powernorm_fairseq.norms.base.BatchStatisticsNorm`. Default: that of the authors'
            release, ``head`` for pn and pnv, ``layer`` for bn, brn, mabn and rbn
        **options: settings under the names they have in the classes. One set of options serves all norms, so that an
            experiment can exchange the norm and nothing else: a setting that this norm does not have is checked and
            then left aside; one that no norm has is an error.

    Example: ``build_norm("pn", 512, groups=8, warmup_updates=8000)``
    """
    own = norm_options(name)
    known = {option for norm in NORMS for option in norm_options(norm)}
    options["groups"] = usual_groups(num_features) if groups is None else groups
    if layer_scale is None:
        released = options.get("recipe") == "release" and name in RELEASED_WITHOUT_LAYER_SCALE
        layer_scale = "none" if released else USUAL_LAYER_SCALE.get(name, "none")
    options["layer_scale"] = layer_scale
    for option in options:
        check_choice("option", option, sorted(known))
    check_settings(options)
    check_groups(options["groups"], num_features)
    choose_kernel(options.get("kernel"))
    return NORMS[name](num_features, **{option: value for option, value in options.items() if option in own})
