"""Checkpoints read without running code from them.

Since 2.6, ``torch.load`` refuses every class and function that is not on its allow-list. fairseq checkpoints hold an
``argparse.Namespace`` and, depending on version and run, numpy scalars, omegaconf containers and fairseq's meters, so
they are refused. :func:`allow_fairseq_checkpoints` puts exactly these on the list; the protection stays on.

Older versions of torch have no such list. There :func:`load_checkpoint` reads through an unpickler with a list of its
own; fairseq's own ``torch.load`` is as unprotected there as it has always been.
"""

import argparse
import collections
import importlib
import pickle
import re
import types
import typing
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from pathlib import Path
from typing import Any, Dict, List, Tuple, Type, Union

import numpy
import torch

_OMEGACONF = {
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode", "BooleanNode", "FloatNode", "IntegerNode", "StringNode"),
}
_METERS = ("AverageMeter", "StopwatchMeter", "TimeMeter")
_NUMPY_SCALARS = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
_REBUILD = ("_rebuild_parameter", "_rebuild_tensor", "_rebuild_tensor_v2")


def has_native_allow_list() -> bool:
    """Whether this torch has an allow-list with names of its own (2.6 and later)."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 6)


def _found(module: str, names: Tuple[str, ...]) -> List[Any]:
    """The attributes ``names`` of ``module`` that exist in this installation."""
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return []
    return [getattr(loaded, name) for name in names if hasattr(loaded, name)]


def fairseq_globals() -> List[Tuple[Any, str]]:
    """What fairseq checkpoints hold beside tensors: each object with the name under which it may be pickled."""
    plain = (argparse.Namespace, collections.defaultdict, numpy.dtype, numpy.ndarray, dict, int, list)
    allowed: List[Tuple[Any, str]] = [(thing, f"{thing.__module__}.{thing.__qualname__}") for thing in plain]
    allowed.append((typing.Any, "typing.Any"))  # omegaconf: the type of an untyped value
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):  # numpy 1 and 2 name it differently
        functions = _found("numpy._core.multiarray", ("_reconstruct", "scalar")) or _found(
            "numpy.core.multiarray", ("_reconstruct", "scalar")
        )
        allowed += [(function, f"{core}.{function.__name__}") for function in functions]
    # From numpy 1.25 on, each dtype is an instance of a class of its own.
    kinds = {type(numpy.dtype(name)) for name in _NUMPY_SCALARS} - {numpy.dtype}
    allowed += [(kind, f"{kind.__module__}.{kind.__qualname__}") for kind in kinds]
    for module, names in _OMEGACONF.items():
        allowed += [(thing, f"{module}.{thing.__name__}") for thing in _found(module, names)]
    for thing in _found("fairseq.logging.meters", _METERS):
        # fairseq 0.8, which the authors' release builds on, pickles its meters under the first name.
        allowed += [(thing, f"{home}.{thing.__name__}") for home in ("fairseq.meters", thing.__module__)]
    for thing in _found("fairseq.distributed.utils", ("_TensorPlaceholder",)):  # rank 0 sends a checkpoint with it
        allowed.append((thing, "fairseq.distributed.utils._TensorPlaceholder"))
    return allowed


def allow_fairseq_checkpoints() -> None:
    """Lets ``torch.load`` read fairseq checkpoints with ``weights_only`` on; repeating the call changes nothing."""
    if has_native_allow_list():
        torch.serialization.add_safe_globals([*fairseq_globals()])


def load_checkpoint(path: Union[str, Path], mmap: bool = False) -> Dict[str, Any]:
    """Reads a checkpoint onto the CPU and runs no code from it.

    Args:
        path: file written by ``torch.save``.
        mmap: map the tensors into memory and read them when they are used. Ignored by torch before 2.6, and for
            files written before torch 1.6.

    Raises:
        pickle.UnpicklingError: the file holds something else than tensors, plain data and what fairseq puts there.
        ValueError: the file is damaged or no checkpoint at all.
    """
    path = str(path)
    zipped = zipfile.is_zipfile(path)  # FileNotFoundError comes from torch.load below
    try:
        if has_native_allow_list():
            allow_fairseq_checkpoints()
            options = {"mmap": True} if mmap and zipped else {}
            state = torch.load(path, map_location="cpu", weights_only=True, **options)
        else:
            state = _load_restricted(path, zipped)
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"{path} was refused: {_reason(error)}") from error
    except (EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or no checkpoint: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, not a checkpoint")
    return state


def _reason(error: pickle.UnpicklingError) -> str:
    """What torch found, without its advice to switch the protection off."""
    name = re.search(r"GLOBAL (\S+)", str(error))
    if name:
        return f"{name.group(1)} is not allowed in a checkpoint"
    return str(error).split("WeightsUnpickler error:")[-1].strip().split("\n")[0]


def restricted_unpickler(allowed: Dict[str, Any], kind: str = "checkpoint") -> Type[pickle.Unpickler]:
    """An unpickler that knows nothing but what is allowed, by its full name."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            # torch writes protocol 2, in which Python's own things have their Python 2 names
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
            full = f"{module}.{name}"
            if full not in allowed:
                raise pickle.UnpicklingError(f"{full} is not allowed in a {kind}")
            return allowed[full]

    return Unpickler


def _load_restricted(path: str, zipped: bool) -> Any:
    """``torch.load`` of a torch without allow-list, through an unpickler that has one."""
    if zipped:
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise pickle.UnpicklingError("it is a TorchScript archive")
    allowed = {name: thing for thing, name in fairseq_globals()}
    allowed.update({"collections.OrderedDict": collections.OrderedDict, "_codecs.encode": _encode_latin1})
    allowed.update({"torch.Size": torch.Size, "torch.device": torch.device})
    allowed.update({"torch._utils." + name: getattr(torch._utils, name) for name in _REBUILD})
    allowed.update({str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)})
    storages = {name: kind for name, kind in vars(torch).items() if name.endswith("Storage")}
    allowed.update({"torch." + name: kind for name, kind in storages.items()})

    Unpickler = restricted_unpickler(allowed)

    def load(file: Any, **options: Any) -> Any:
        return Unpickler(file, **options).load()

    module: Any = types.ModuleType("restricted_pickle")
    module.Unpickler, module.load = Unpickler, load
    return torch.load(path, map_location="cpu", pickle_module=module)


def _encode_latin1(text: str, encoding: str) -> bytes:
    """``_codecs.encode`` as pickle uses it for bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed in a checkpoint")
    return text.encode("latin1")
