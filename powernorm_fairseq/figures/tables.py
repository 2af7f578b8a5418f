"""The numbers of each figure, as rows: what its CSV file holds and what is drawn."""

from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from powernorm_fairseq.console import UserError
from powernorm_fairseq.diagnostics import metrics
from powernorm_fairseq.figures import sources
from powernorm_fairseq.figures.sources import Source, StatsRun
from powernorm_fairseq.labels import LABELS
from powernorm_fairseq.safe_load import load_checkpoint

Rows = List[Dict[str, Any]]

EMBEDDING = "encoder.embed_tokens.weight"
CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")


def _series(
    runs: Sequence[StatsRun], layer: str, wanted: str, panels: Callable[[bool], Sequence[Tuple[str, str, bool]]]
) -> Rows:
    """Numbers of layers over the training.

    Args:
        runs: whose.
        layer: as ``--layer`` says.
        wanted: the x axis: ``auto`` is ``epoch`` as in the paper where all records know it, else ``update``.
        panels: from whether a layer's norm centres to panel, number, and whether the norm itself uses that.
    """
    known = all("epoch" in record.extra for stats in runs for record in stats.run.records if record.kind == "train")
    if wanted == "epoch" and not known:
        raise UserError("--x epoch: not all records say which epoch they are from; use --x update")
    x = wanted if wanted != "auto" else "epoch" if known else "update"
    rows: Rows = []
    for stats in runs:
        for index in sources.choose_layers(stats.run, layer):
            for panel, number, own in panels(stats.run.layers[index].kind in sources.CENTRED):
                for record in stats.run.records:
                    values = record.columns.get(number) if record.kind == "train" else None
                    if values is not None and values[index] is not None:
                        at = record.update if x == "update" else record.extra["epoch"]
                        name = stats.run.layers[index].name
                        row = {"panel": panel, "run": stats.label, "layer": name, "number": number, "own": int(own)}
                        rows.append({**row, x: at, "value": values[index]})
    return rows


def moments(numbers: Tuple[str, str, str], runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """Panels for the mean, the variance, and the second moment that each norm itself divides by: Figures 2 to 4.

    The last is drawn when there is a run whose norm does not centre: its psi^2 against the sigma^2 of those that do.
    """
    mean, var, psi2 = numbers

    def panels(centred: bool) -> Sequence[Tuple[str, str, bool]]:
        divisor = var if centred else psi2
        return (("mean", mean, centred), ("variance", var, centred), ("divisor", divisor, True))

    rows = _series(runs, layer, x, panels)
    uncentred = any(row["panel"] == "divisor" and row["number"] == psi2 for row in rows)
    return rows if uncentred else [row for row in rows if row["panel"] != "divisor"]


def nu(runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """The running mean of PN's backward."""
    return _series(runs, layer, x, lambda centred: (("largest", "nu_max", True), ("norm", "nu_norm", True)))


def gamma_psi(runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """Quantiles of |gamma| / psi_B over the features, for each layer, at the newest record of each run."""
    rows: Rows = []
    for stats in runs:
        records = [record for record in stats.run.records if record.kind == "train"]
        if not records:
            continue
        for index, norm in enumerate(stats.run.layers):
            values = {name: records[-1].columns["gamma_psi_" + name][index] for name in metrics.QUANTILES}
            if None not in values.values():
                rows.append({"run": stats.label, "update": records[-1].update, "layer": norm.name, **values})
    return rows


def learning_curves(given: Sequence[Source], layer: str, x: str) -> Rows:
    """Loss of training and of validation, from the logs."""
    rows: Rows = []
    names = [sources.experiment_norm(source.path) or source.name for source in given]
    for label, source in zip(sources.labelled(given, names), given):
        log = sources.log(source.path)
        for panel, kind in (("training", "train"), ("validation", "valid")):
            points = [point for point in log.curve(kind) if point["loss"] is not None]
            rows += [{"panel": panel, "run": label, "update": at["update"], "value": at["loss"]} for at in points]
    return rows


def scores(given: Sequence[Source], layer: str, x: str) -> Rows:
    """BLEU of each run by norm, LN first, and by the tokens that statistics are taken over."""
    known = list(LABELS.values())

    def place(row: Dict[str, Any]) -> Tuple[int, str, int, int]:
        number = known.index(row["norm"]) if row["norm"] in known else len(known)
        return number, row["norm"], row["tokens"], row["seed"]

    return sorted(sources.scores(given), key=place)


def embedding_svd(given: Sequence[Source], layer: str, x: str) -> Rows:
    """Singular values of the encoder's embedding, divided by the largest."""
    rows: Rows = []
    folders = [source.path if source.path.is_dir() else source.path.parent for source in given]
    names = [sources.experiment_norm(folder) or source.path.stem for folder, source in zip(folders, given)]
    for label, source in zip(sources.labelled(given, names), given):
        file = _checkpoint(source.path)
        model = load_checkpoint(file, mmap=True)["model"]
        if EMBEDDING not in model:
            raise UserError(f"{file} has no {EMBEDDING}")
        values = metrics.singular_values(model[EMBEDDING]).tolist()
        rows += [{"run": label, "index": index, "value": value} for index, value in enumerate(values, 1)]
    return rows


def _checkpoint(path: Path) -> Path:
    """A checkpoint itself, or the best one of a folder."""
    if path.is_file():
        return path
    for name in CHECKPOINTS:
        if (path / name).exists():
            return path / name
    raise UserError("{} holds none of {}; name a checkpoint".format(path, ", ".join(CHECKPOINTS)))
