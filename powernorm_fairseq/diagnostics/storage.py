"""The file of a run's records: lines of JSON that are only ever appended.

Each start of a training appends a header (which norms, after how many updates it begins); then every record is one
line, written by one call. A training that is killed leaves whole lines and at most one torn one at the end, which
readers skip. One that goes on from update U says so in its header: records of later updates that stand before it, made
by the earlier life after its last checkpoint, count no longer.
"""

import json
import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

FILE = "norm_stats.jsonl"
FORMAT = 1
DIGITS = 5

Columns = Dict[str, List[Optional[float]]]


class Layer(NamedTuple):
    """A norm of a model: its name there, its class, and its width."""

    name: str
    kind: str
    width: int


class Record(NamedTuple):
    """What was measured at one update.

    Attributes:
        update: number of the update, from 1.
        kind: ``train``, or ``valid`` for means over a validation, ``valid1`` and so on for further sets of data.
        columns: name of a number -> its value for each layer of the run; None where it was not measured.
        vectors: layer -> |gamma| / psi_B of every feature; in few records.
        extra: numbers of the update as a whole.
    """

    update: int
    kind: str
    columns: Columns
    vectors: Dict[str, List[float]]
    extra: Dict[str, float]


class Run(NamedTuple):
    """All valid records of a file, in the order of their updates, and the newest header."""

    layers: List[Layer]
    header: Dict[str, Any]
    records: List[Record]

    def column(self, name: str, layer: int, kind: str = "train") -> List[Any]:
        """Pairs of update and value of one number of one layer, where it was measured."""
        pairs = [
            (record.update, record.columns[name][layer])
            for record in self.records
            if record.kind == kind and name in record.columns
        ]
        return [(update, value) for update, value in pairs if value is not None]


class Writer:
    """Appends to the file of one run.

    Args:
        path: the file; made with its folder if missing.
        layers: the norms that records are about.
        update: number of updates made so far; records of later ones are superseded.
        **about: more for the header, for example the interval.
    """

    def __init__(self, path: Path, layers: Sequence[Layer], update: int = 0, **about: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.layers = list(layers)
        self._torn = _ends_torn(path)
        self._append({"format": FORMAT, "after": update, **about, "layers": self.layers})

    def write(
        self,
        update: int,
        kind: str,
        numbers: Dict[str, Dict[str, float]],
        vectors: Optional[Dict[str, List[float]]] = None,
        **extra: float,
    ) -> None:
        """Appends one record.

        Args:
            update: number of the update, from 1.
            kind: ``train`` or ``valid``.
            numbers: layer -> name -> number, as the probes give them.
            vectors: layer -> |gamma| / psi_B of every feature.
            **extra: numbers of the update as a whole.

        Raises:
            OSError: it could not be written; the next record can be, once there is room.
        """
        names = dict.fromkeys(name for of_layer in numbers.values() for name in of_layer)
        columns = {name: [_coded(numbers.get(layer.name, {}).get(name)) for layer in self.layers] for name in names}
        line: Dict[str, Any] = {"update": update, "kind": kind, "extra": {k: _coded(v) for k, v in extra.items()}}
        line["columns"] = columns
        if vectors:
            line["vectors"] = {name: [_coded(value) for value in vector] for name, vector in vectors.items()}
        self._append(line)

    def _append(self, content: Dict[str, Any]) -> None:
        line = json.dumps(content, separators=(",", ":")).encode("utf-8") + b"\n"
        with open(str(self.path), "ab", buffering=0) as file:
            whole = b"\n" + line if self._torn else line
            self._torn = True  # until it is written
            self._torn = file.write(whole) != len(whole)
        if self._torn:
            raise OSError(f"{self.path} could not be written: the disk is full")


def read(path: Union[str, Path]) -> Run:
    """The records of a file, without torn lines and without what a later life of the run has superseded.

    Raises:
        ValueError: it is not such a file.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    if not path.exists():
        raise ValueError(f"{path} is missing; was the training run with --norm-stats?")
    header: Optional[Dict[str, Any]] = None
    found: Dict[Any, Record] = {}
    for line in path.read_bytes().split(b"\n"):
        content = _parsed(line)
        if content is None:
            continue
        if "format" in content:
            if content["format"] != FORMAT:
                raise ValueError("{} has format {}; this version reads {}".format(path, content["format"], FORMAT))
            header = content
            found = {key: record for key, record in found.items() if record.update <= header["after"]}
        elif header is not None:
            record = _record(content)
            found[record.update, record.kind] = record
    if header is None:
        raise ValueError(f"{path} has no header of norm statistics; is it another file?")
    layers = [Layer(*layer) for layer in header["layers"]]
    return Run(layers, header, sorted(found.values(), key=lambda record: (record.update, record.kind)))


def _record(content: Dict[str, Any]) -> Record:
    columns = {name: [_decoded(value) for value in values] for name, values in content["columns"].items()}
    vectors = {name: [_decoded(value) for value in vector] for name, vector in content.get("vectors", {}).items()}
    extra = {name: _decoded(value) for name, value in content["extra"].items()}
    return Record(content["update"], content["kind"], columns, vectors, extra)


def _parsed(line: bytes) -> Optional[Dict[str, Any]]:
    """The object on a line; None for an empty or torn one."""
    try:
        content = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _coded(value: Optional[float]) -> Any:
    """A number in few digits; JSON has no word for one that is not finite, so it becomes a string."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(float(value))
    short = float("{:.{}g}".format(value, DIGITS))
    return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short


def _decoded(value: Any) -> Optional[float]:
    return None if value is None else float(value)


def _ends_torn(path: Path) -> bool:
    """Whether the last line of a file is not complete."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(str(path), "rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
