"""Averages checkpoints, with the meaning of fairseq's ``scripts/average_checkpoints.py``.

What averaging means for each tensor of the model:

=====================================  ==============================================================================
weights, norm statistics               the mean; ``float16`` and ``bfloat16`` are summed in ``float32``. As in
                                       fairseq, ``float16`` comes out as ``float32``; every other dtype is kept
counters of the norms, booleans        the value of the newest checkpoint
other integers                         the sum, floor-divided, as in fairseq
=====================================  ==============================================================================

The newest checkpoint is the one with the most updates (``optimizer_history``); where a file does not say, the one with
the highest number in its name (``checkpoint_3_500.pt``, ``checkpoint12.pt``); and where a name has none either, the
highest value of each counter counts, since counters only grow.

Everything outside the model (settings, optimizer state, ...) is the first checkpoint's, as in fairseq.
"""

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from powernorm_fairseq.safe_load import load_checkpoint

EPOCH_NAME = re.compile(r"checkpoint(\d+)\.pt")
UPDATE_NAME = re.compile(r"checkpoint_\d+_(\d+)\.pt")
# Ours, torch's own BatchNorm, and the authors' release.
COUNTERS = ("num_updates", "num_batches_tracked", "iters")

State = Dict[str, Any]


class DifferentKeysError(KeyError, ValueError):
    """Checkpoints of different models; a ``KeyError`` because fairseq raises one here."""

    def __str__(self) -> str:
        """The sentence itself: ``KeyError`` alone would show it in quotes."""
        return str(self.args[0])


def select_checkpoints(
    paths: Sequence[Union[str, Path]], count: int, update_based: bool, upper_bound: Optional[int] = None
) -> List[str]:
    """The ``count`` newest checkpoints by the number in their names, newest first.

    Args:
        paths: a folder, or checkpoint files to choose from.
        count: how many.
        update_based: names like ``checkpoint_3_500.pt`` (epoch 3, update 500) instead of ``checkpoint3.pt``.
        upper_bound: highest update (or epoch) to take.
    """
    if count < 1:
        raise ValueError(f"cannot average {count} checkpoints; ask for at least 1")
    pattern, shown = (UPDATE_NAME, "checkpoint_E_U.pt") if update_based else (EPOCH_NAME, "checkpointE.pt")
    files: List[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        files += path.iterdir() if path.is_dir() else [path]
    matches = [(pattern.fullmatch(file.name), file) for file in files]
    numbered = [(int(match.group(1)), file) for match, file in matches if match]
    found = sorted(((number, file) for number, file in numbered if upper_bound is None or number <= upper_bound))
    if len(found) < count:
        raise ValueError(
            "found {} checkpoints named {}{} in {}, but {} are asked for{}".format(
                len(found),
                shown,
                "" if upper_bound is None else f" up to {upper_bound}",
                ", ".join(map(str, paths)),
                count,
                "".join(f"\n  {file}" for _, file in found),
            )
        )
    return [str(file) for _, file in reversed(found[-count:])]


def average_checkpoints(inputs: Sequence[Union[str, Path]]) -> State:
    """Averages checkpoint files; the module's docstring says what that means for each tensor.

    One checkpoint at a time is mapped into memory beside the running sum, so that memory stays at about two models
    however many there are. Tensors that share memory (tied embeddings) share it in the result too.

    Args:
        inputs: paths of the checkpoints.

    Returns:
        The first checkpoint with the averaged ``model``.
    """
    paths = [str(path) for path in inputs]
    if not paths:
        raise ValueError("no checkpoints to average")
    average = _Average(paths[0])
    for path in paths:
        state = load_checkpoint(path, mmap=True)
        if not isinstance(state.get("model"), dict):
            raise ValueError("{} holds no model; its keys are {}".format(path, ", ".join(map(str, state))))
        average.add(path, state["model"], _age(path, state))
        del state  # unmaps the file before the next one
    # Read once more rather than kept: without mmap, optimizer states would stay in memory all the while.
    result = load_checkpoint(paths[0], mmap=True)
    result["model"] = average.result()
    return result


def _age(path: str, state: State) -> Optional[Tuple[int, int]]:
    """What orders checkpoints by age, as (kind of number, number): updates done, else the number in the name."""
    history = state.get("optimizer_history")
    if history and isinstance(history[-1], dict) and "num_updates" in history[-1]:
        return 2, int(history[-1]["num_updates"])
    for kind, pattern in ((1, UPDATE_NAME), (0, EPOCH_NAME)):
        match = pattern.fullmatch(Path(path).name)
        if match:
            return kind, int(match.group(1))
    return None


def _place(tensor: Tensor) -> Hashable:
    """The same for two tensors exactly when they are one in memory."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


class _Average:
    """The running sum over models, and the latest value of what is not summed."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.count = 0
        self.sums: "OrderedDict[str, Tensor]" = OrderedDict()
        self.dtypes: Dict[str, torch.dtype] = {}
        self.shapes: Dict[str, torch.Size] = {}
        self.tied: Dict[str, str] = {}  # name -> an earlier name of the same tensor
        self.latest: Dict[str, List[Tuple[Optional[Tuple[int, int]], Tensor]]] = {}

    def add(self, path: str, model: Dict[str, Tensor], age: Optional[Tuple[int, int]]) -> None:
        """Adds the model of the checkpoint ``path``."""
        if self.count == 0:
            self._start(model)
        self._check(path, model)
        for name in [name for name, other in self.tied.items() if _place(model[name]) != _place(model[other])]:
            self.sums[name] = self.sums[self.tied.pop(name)].clone()  # tied so far, but not in this checkpoint
        for name, value in model.items():
            if name in self.latest:
                self.latest[name].append((age, value.clone()))
            elif name not in self.tied:
                if self.count == 0:
                    # float16 sums lose the small digits of the mean
                    half = value.dtype in (torch.float16, torch.bfloat16)
                    self.sums[name] = value.float() if half else value.clone()
                else:
                    self.sums[name] += value
        self.count += 1

    def result(self) -> "OrderedDict[str, Tensor]":
        """The averaged model, with names in the order of the first checkpoint."""
        for name, total in self.sums.items():
            if total.is_floating_point() or total.is_complex():
                total.div_(self.count)
                if self.dtypes[name] == torch.bfloat16:
                    self.sums[name] = total.bfloat16()
            else:
                total.copy_(torch.div(total, self.count, rounding_mode="floor"))
        averaged: "OrderedDict[str, Tensor]" = OrderedDict()
        for name in self.dtypes:
            averaged[name] = self._newest(name) if name in self.latest else self.sums[self.tied.get(name, name)]
        return averaged

    def _start(self, model: Dict[str, Tensor]) -> None:
        seen: Dict[Hashable, str] = {}
        for name, value in model.items():
            self.dtypes[name], self.shapes[name] = value.dtype, value.shape
            counter = name.rsplit(".", 1)[-1] in COUNTERS and value.numel() == 1
            if counter or value.dtype == torch.bool:
                self.latest[name] = []
            elif value.numel() and _place(value) in seen:
                self.tied[name] = seen[_place(value)]
            else:
                seen[_place(value)] = name

    def _check(self, path: str, model: Dict[str, Tensor]) -> None:
        if list(model) != list(self.dtypes):
            missing = [name for name in self.dtypes if name not in model]
            added = [name for name in model if name not in self.dtypes]
            details = ["lacks " + ", ".join(missing)] if missing else []
            details += ["adds " + ", ".join(added)] if added else []
            raise DifferentKeysError(
                "{} has other parameters than {}: it {}".format(
                    path, self.first, " and ".join(details) or "has them in another order"
                )
            )
        for name, value in model.items():
            if value.shape != self.shapes[name]:
                raise ValueError(
                    f"{path} differs in shape from {self.first}: {name} is {list(value.shape)}, not "
                    f"{list(self.shapes[name])}"
                )
            if value.is_floating_point() != self.dtypes[name].is_floating_point:
                raise ValueError(
                    f"{path} differs in type from {self.first}: {name} is {value.dtype}, not {self.dtypes[name]}"
                )

    def _newest(self, name: str) -> Tensor:
        """The value in the newest checkpoint, or the highest where their ages cannot be compared."""
        values = self.latest[name]
        kinds = {age[0] if age else None for age, _ in values}
        if len(kinds) == 1 and None not in kinds:
            return max(values, key=lambda pair: pair[0][1])[1]
        if values[0][1].dtype == torch.bool:
            return values[-1][1]
        return max((value for _, value in values), key=lambda value: value.item())
