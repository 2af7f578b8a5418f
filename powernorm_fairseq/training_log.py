"""Reads ``train.log``: fairseq's numbers as JSON, one line each, over all starts of a training."""

import json
import math
import re
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Optional

NUMBERS = re.compile(r"\| (?P<kind>train_inner|train|valid) \| (?P<numbers>\{.*\})\s*$")
UPDATES = re.compile(r"grouped total_num_itrs = (\d+)")
KERNELS = re.compile(r"\| norms run on (.+)")
TIME = re.compile(r"(?P<start>train: )?(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ")  # of a start, or a line
PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")


def number(text: Any) -> Optional[float]:
    """A number as fairseq writes it; None for what is none, or not finite."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


class Log:
    """What a log says so far; :meth:`update` reads what is new.

    A training that goes on after a fault repeats the updates since its last checkpoint, and so does its log: of each
    update the latest word counts.

    Attributes:
        inner: numbers within the epochs.
        epochs: numbers of each epoch.
        valid: numbers on validation data.
        parameters: of the model.
        norm_kernels: what the norms ran on.
        updates_per_epoch: as many as the latest epoch has.
        seconds: time in training so far, validation and saving included, over all starts; fairseq's own "wall" is zero
            after a resume.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self.inner: List[Dict[str, Any]] = []
        self.epochs: List[Dict[str, Any]] = []
        self.valid: List[Dict[str, Any]] = []
        self.parameters: Optional[int] = None
        self.norm_kernels: Optional[str] = None
        self.updates_per_epoch: Optional[float] = None
        self.seconds: Optional[float] = None
        self._latest_time: Optional[datetime] = None

    def update(self) -> "Log":
        """Reads all whole lines that were added."""
        if not self.path.exists():
            return self
        with open(str(self.path), "rb") as file:
            file.seek(self.position)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self.position += len(complete)
        for line in complete.decode("utf-8", "replace").splitlines():
            self._add(line)
        return self

    def _add(self, line: str) -> None:
        self._add_time(line)
        parameters, kernels, updates = (pattern.search(line) for pattern in (PARAMETERS, KERNELS, UPDATES))
        if parameters and self.parameters is None:
            self.parameters = int(parameters.group(1).replace(",", ""))
        if kernels:
            self.norm_kernels = kernels.group(1)
        if updates:
            self.updates_per_epoch = float(updates.group(1))
        match = NUMBERS.search(line)
        if match is None:
            return
        try:
            read = json.loads(match.group("numbers"))
        except ValueError:  # cut off
            return
        kind = match.group("kind")
        prefix = "" if kind == "train_inner" else kind + "_"
        numbers = {(name[len(prefix) :] if name.startswith(prefix) else name): value for name, value in read.items()}
        update = number(numbers.get("num_updates"))
        if update is None:
            return
        numbers["num_updates"] = int(update)
        records = {"train_inner": self.inner, "train": self.epochs, "valid": self.valid}[kind]
        while records and _repeated(kind, records[-1], numbers):
            records.pop()
        records.append(numbers)

    def _add_time(self, line: str) -> None:
        match = TIME.match(line)
        if match is None:
            return
        time = datetime.strptime(match.group("time"), "%Y-%m-%d %H:%M:%S")
        if self._latest_time is not None and not match.group("start"):
            self.seconds = (self.seconds or 0.0) + (time - self._latest_time).total_seconds()
        self._latest_time = time

    @property
    def updates(self) -> int:
        """Updates that the log knows of."""
        ends = [records[-1]["num_updates"] for records in (self.inner, self.epochs, self.valid) if records]
        return max(ends, default=0)

    @property
    def latest(self) -> Dict[str, Any]:
        """The latest numbers of training."""
        ends = [records[-1] for records in (self.epochs, self.inner) if records]
        return max(ends, key=lambda numbers: numbers["num_updates"], default={})

    def median(self, name: str) -> Optional[float]:
        """Of a number over the epochs, or within the first: ``ups``, updates in a second, or ``wps``, target tokens."""
        values = [number(numbers.get(name)) for numbers in (self.epochs or self.inner)]
        found = [value for value in values if value is not None]
        return statistics.median(found) if found else None

    def best(self) -> Optional[Dict[str, Any]]:
        """The validation with the lowest loss: ``update``, ``epoch``, ``loss`` and ``ppl``."""
        points = [point for point in self.curve("valid") if point["loss"] is not None]
        return min(points, key=lambda point: point["loss"]) if points else None

    def curve(self, kind: str) -> List[Dict[str, Any]]:
        """``train`` (as fine as the log is) or ``valid``: points with ``update``, ``epoch``, ``loss`` and ``ppl``."""
        records = self.valid if kind == "valid" else (self.inner or self.epochs)
        return [
            {
                "update": numbers["num_updates"],
                "epoch": int(numbers.get("epoch", 0)),
                "loss": number(numbers.get("loss")),
                "ppl": number(numbers.get("ppl")),
            }
            for numbers in records
        ]


def _repeated(kind: str, before: Dict[str, Any], now: Dict[str, Any]) -> bool:
    """Whether numbers stand for the same as later ones; an epoch that was stopped also has some at its stop."""
    same_epoch = kind == "train" and before.get("epoch") == now.get("epoch")
    return same_epoch or before["num_updates"] >= now["num_updates"]


def total_updates(log: Log, max_update: Optional[int], max_epoch: Optional[int]) -> Optional[int]:
    """How many updates a training will have at most, as far as that can be said."""
    limits = [max_update] if max_update else []
    if max_epoch and log.updates_per_epoch:
        limits.append(math.ceil(max_epoch * log.updates_per_epoch))
    return min(limits) if limits else None
