"""Norms of this package in models that were built with others: exchange, synchronise, calibrate."""

import re
from typing import Any, Dict, Iterable, List, Optional

import torch
from torch import Tensor, nn

from powernorm_fairseq.norms.base import BatchStatisticsNorm, Norm
from powernorm_fairseq.norms.batch_norm import BatchNorm
from powernorm_fairseq.norms.factory import build_norm

# Kinds of norms, by the end of their class's name: torch's own, and those that model libraries write for themselves.
CONVERTIBLE = ("LayerNorm", "RMSNorm", "BatchNorm1d")


def convert_norms(model: nn.Module, name: str, pattern: str = "", **options: Any) -> Dict[str, Norm]:
    r"""Puts norms of this package in the place of the LayerNorms, RMSNorms and BatchNorm1ds of any model.

    Factors and offsets are copied, and so are width, eps, device and type; a ``bn`` also takes over running statistics.
    Norms of this package stay as they are. A model that hands padding to its layers needs :func:`pass_padding` or
    :func:`padding` besides, or the padding counts as tokens.

    Args:
        model: changed in place. The last dimension of what its norms get has to be their width.
        name: the new norm, as in :func:`build_norm`.
        pattern: a regular expression; only norms whose name in the model has a match are exchanged. Default: all
        **options: as in :func:`build_norm`.

    Returns:
        The new norms by their names.

    Example: ``convert_norms(bert, "pn", r"encoder\.layer", groups=12, warmup_updates=8000)``
    """
    found = [
        (path, module) for path, module in model.named_modules() if _is_norm(module) and re.search(pattern, path)
    ]
    if not found:
        known = [path for path, module in model.named_modules() if _is_norm(module)]
        raise ValueError(f"no norm of the model has a name that matches {pattern!r}; its norms are {known}")
    changed = {path: _converted(path, module, name, options) for path, module in found}
    for path, norm in changed.items():
        parent, _, attribute = path.rpartition(".")
        if not path:
            raise ValueError("the model is itself a norm; build the new one with build_norm")
        setattr(model.get_submodule(parent), attribute, norm)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # its layers would get tokens without the shape of the batch
    return changed


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith(CONVERTIBLE) and not isinstance(module, Norm)


def _converted(path: str, old: Any, name: str, options: Dict[str, Any]) -> Norm:
    weight, bias = getattr(old, "weight", None), getattr(old, "bias", None)
    shape = getattr(old, "normalized_shape", None) or getattr(old, "num_features", None)
    width = weight.numel() if weight is not None else shape if isinstance(shape, int) else (shape or (0,))[-1]
    if (weight is not None and weight.dim() != 1) or (isinstance(shape, tuple) and len(shape) != 1) or not width:
        raise ValueError(f"{path} normalises more than the last dimension, or does not say its width; use a pattern")
    like = {} if weight is None else {"device": weight.device, "dtype": weight.dtype}
    eps = next((getattr(old, own) for own in ("eps", "variance_epsilon") if getattr(old, own, None)), 1e-5)
    own = {"eps": float(eps), "affine": weight is not None, "bias": bias is not None, **like, **options}
    norm = build_norm(name, width, **own)
    with torch.no_grad():
        of_ln = ((getattr(norm, "ln_weight", None), weight), (getattr(norm, "ln_bias", None), bias))  # prepbn's
        for mine, theirs in ((norm.weight, weight), (norm.bias, bias), *of_ln):
            if mine is not None and theirs is not None and mine.shape != theirs.shape:
                if not theirs.is_meta and bool((theirs != 1).any()):
                    raise ValueError(f"{path} has a factor for each feature; {name} has one for all of them")
            elif mine is not None and theirs is not None:
                mine.copy_(theirs)
                mine.requires_grad_(theirs.requires_grad)
        if isinstance(norm, BatchNorm) and getattr(old, "running_mean", None) is not None:
            norm.running_mean.copy_(old.running_mean)
            norm.running_var.copy_(old.running_var)
            norm.num_updates.copy_(old.num_batches_tracked)
    return norm.train(old.training)


def batch_norms(model: nn.Module) -> List[BatchStatisticsNorm]:
    """All norms of a model that have running statistics."""
    return [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]


def convert_sync(model: nn.Module, process_group: Optional[Any] = None) -> nn.Module:
    """Makes all norms of a model take their statistics over the processes of a group; returns the model."""
    for norm in batch_norms(model):
        norm._set(sync=True, process_group=process_group)
    return model


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Any]) -> int:
    """Estimates all running statistics anew, as the plain average over batches, with the weights as they are.

    The norms normalise by each batch's own statistics meanwhile, everything else is in evaluation mode; the backward
    averages of PN and MABN, settings, number of updates and modes are as before in the end.

    Args:
        model: a model with norms of this package.
        batches: tensors, or tuples or dictionaries of arguments for a call of ``model``.

    Returns:
        The number of batches.
    """
    norms, modes = batch_norms(model), {module: module.training for module in model.modules()}
    settings = [{name: value for name, value in vars(norm).items() if not name.startswith("_")} for norm in norms]
    kept = [
        {name: buffer.clone() for name, buffer in norm.named_buffers() if not name.startswith("running")}
        for norm in norms
    ]
    model.eval()
    count = 0
    try:
        for count, batch in enumerate(batches, 1):
            for norm in norms:
                norm.train()
                norm.average_over(count)
                norm.num_updates.fill_(count - 1)
            if isinstance(batch, dict):
                model(**batch)
            elif isinstance(batch, Tensor):
                model(batch)
            else:
                model(*batch)
    finally:
        for norm, own, buffers in zip(norms, settings, kept):
            vars(norm).update(own)
            for name, buffer in buffers.items():
                getattr(norm, name).copy_(buffer)
        for module, mode in modes.items():
            module.training = mode
    if count == 0:
        raise ValueError("there is no batch to calibrate with")
    return count
