"""What figures are made of: the folders and files of runs, read into plain rows."""

import csv
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from powernorm_fairseq.console import UserError
from powernorm_fairseq.diagnostics import storage
from powernorm_fairseq.files import read_json
from powernorm_fairseq.labels import LABELS, label
from powernorm_fairseq.norms import NORMS, BatchNorm
from powernorm_fairseq.training_log import Log

TORCH = ("BatchNorm1d", "BatchNorm2d")
CENTRED = {*TORCH, *(kind.__name__ for kind in NORMS.values() if issubclass(kind, BatchNorm))}  # others divide by psi
CLASSES = {**dict.fromkeys(TORCH, "BN"), **{kind.__name__: label(name) for name, kind in NORMS.items()}}
LOG, CHECKPOINTS = "train.log", "checkpoints"


class Source(NamedTuple):
    """A run as it was named on the command line: a label, or none, and a path."""

    label: Optional[str]
    path: Path

    @property
    def name(self) -> str:
        """What tells it from others."""
        return self.path.parent.name if self.path.name == CHECKPOINTS else self.path.name

    def training(self) -> "Source":
        """Of a run of reproduce.py, the folder of the training in it; anything else as it is."""
        inside = self.path / CHECKPOINTS
        return Source(self.label, inside) if (inside / "experiment.json").exists() else self


def parse_source(text: str) -> Source:
    """``LABEL=PATH`` or ``PATH``."""
    label, sign, path = text.partition("=")
    source = Source(label, Path(path)) if sign else Source(None, Path(text))
    if not source.path.exists():
        raise UserError(f"--runs {text}: there is no {source.path}")
    return source


def labelled(sources: Sequence[Source], found: Sequence[str]) -> List[str]:
    """Labels of runs: those given, else those found; equal ones get the name of the folder as well."""
    labels = [source.label or label for source, label in zip(sources, found)]
    return [f"{label} ({source.name})" if labels.count(label) > 1 else label for label, source in zip(labels, sources)]


def experiment_norm(folder: Path) -> Optional[str]:
    """The norm of a folder that train.sh has made."""
    norm = read_json(folder / "experiment.json").get("norm")
    return LABELS.get(norm, norm)


class StatsRun(NamedTuple):
    """Records of a run and its label."""

    label: str
    run: storage.Run


def read_stats(sources: Sequence[Source]) -> List[StatsRun]:
    """The norm statistics of every run."""
    runs = [storage.read(source.path) for source in sources]
    found = [
        run.header.get("label") or experiment_norm(source.path) or CLASSES.get(run.layers[0].kind, source.path.name)
        for run, source in zip(runs, sources)
    ]
    return [StatsRun(label, run) for label, run in zip(labelled(sources, found), runs)]


def choose_layers(run: storage.Run, wanted: str) -> List[int]:
    """Positions of the layers that ``--layer`` asks for: ``first``, ``all``, a number from 0, or a name."""
    names = [layer.name for layer in run.layers]
    known = {"all": list(range(len(names))), "first": [0], **{name: [index] for index, name in enumerate(names)}}
    known.update({str(index): [index] for index in range(len(names))})
    if wanted not in known:
        raise UserError(
            "--layer {} is not known; give first, all, a number below {} or one of {}".format(
                wanted, len(names), ", ".join(names)
            )
        )
    return known[wanted]


def short_name(layer: str) -> str:
    """``encoder.layers.0.self_attn_layer_norm`` as ``enc 1 attention``."""
    found = re.fullmatch(r"(enc|dec)oder\.(?:layers\.(\d+)\.)?(\w+)", layer)
    if not found:
        return layer
    side, number, norm = found.groups()
    if number is None:
        return f"{side} end"
    part = {"self_attn_layer_norm": "attention", "encoder_attn_layer_norm": "cross", "final_layer_norm": "ffn"}
    return f"{side} {int(number) + 1} {part.get(norm, norm)}"


def log(folder: Path) -> Log:
    """What a training's log says."""
    file = folder / LOG if folder.is_dir() else folder
    if not file.exists():
        raise UserError(f"{file} is missing; was {folder} made by train.sh?")
    return Log(file).update()


def scores(sources: Sequence[Source]) -> List[Dict[str, Any]]:
    """Norm, tokens in a mini-batch, BLEU and seed of many runs.

    A source is a CSV file with the columns ``norm``, ``tokens`` and ``bleu`` (and ``seed``), a ``result.json``, or a
    folder that is searched for those. A ``result.json`` without a norm, tokens or score is passed over.
    """
    rows: List[Dict[str, Any]] = []
    for source in sources:
        if source.path.suffix == ".csv":
            rows += _csv_scores(source.path)
        else:
            files = sorted(source.path.rglob("result.json")) if source.path.is_dir() else [source.path]
            rows += [row for row in map(_json_score, files) if row is not None]
    if not rows:
        raise UserError(
            "{}: neither a CSV with norm, tokens and bleu nor a result.json with a score was found".format(
                ", ".join(str(source.path) for source in sources)
            )
        )
    return rows


def _csv_scores(file: Path) -> List[Dict[str, Any]]:
    with open(str(file), newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    try:
        return [_score(row["norm"], row["tokens"], row["bleu"], row.get("seed") or 1) for row in rows]
    except (KeyError, ValueError) as error:
        raise UserError(f"{file}: each row needs a norm, tokens and bleu ({error})") from None


def _json_score(file: Path) -> Optional[Dict[str, Any]]:
    content = read_json(file)
    try:
        tokens = content.get("tokens") or content["configuration"]["--max-tokens"][0]
        bleu = content["scores"].get("tokenized") or content["scores"]["sacrebleu"]
        bleu = bleu["score"] if isinstance(bleu, dict) else bleu
        return _score(content["norm"], tokens, bleu, content.get("seed", 1))
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _score(norm: str, tokens: Any, bleu: Any, seed: Any) -> Dict[str, Any]:
    return {"norm": LABELS.get(norm, norm), "tokens": int(tokens), "bleu": float(bleu), "seed": int(seed)}
