"""The numbers of each figure, as rows: what its CSV file holds and what is drawn."""

from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from powernorm_fairseq.console import UserError
from powernorm_fairseq.diagnostics import metrics
from powernorm_fairseq.figures import sources
from powernorm_fairseq.figures.sources import Source, StatsRun
from powernorm_fairseq.labels import LABELS
from powernorm_fairseq.safe_load import load_checkpoint

Rows = List[Dict[str, Any]]

EMBEDDING = "encoder.embed_tokens.weight"
CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")


def _series(stats: StatsRun, layer: int, panel: str, column: str, x: str, own: bool = True) -> Rows:
    """One number of one layer over the training."""
    rows = []
    for record in stats.run.records:
        value = record.columns.get(column, [None] * (layer + 1))[layer] if record.kind == "train" else None
        if value is not None:
            at = record.update if x == "update" else record.extra["epoch"]
            rows.append(
                {
                    "panel": panel,
                    "run": stats.label,
                    "layer": stats.run.layers[layer].name,
                    "number": column,
                    "own": int(own),
                    x: at,
                    "value": value,
                }
            )
    return rows


def x_axis(runs: Sequence[StatsRun], wanted: str) -> str:
    """``epoch`` as in the paper where all records know it, else ``update``."""
    known = all("epoch" in record.extra for stats in runs for record in stats.run.records if record.kind == "train")
    if wanted == "epoch" and not known:
        raise UserError("--x epoch: not all records say which epoch they are from; use --x update")
    return wanted if wanted != "auto" else "epoch" if known else "update"


def _moments(runs: Sequence[StatsRun], layer: str, x: str, mean: str, var: str, psi2: str) -> Rows:
    """Panels for the mean, the variance, and the second moment that each norm itself divides by.

    The last is drawn when there is a run whose norm does not centre: its psi^2 against the sigma^2 of those that do.
    """
    rows: Rows = []
    uncentred = False
    for stats in runs:
        for index in sources.choose_layers(stats.run, layer):
            centred = stats.run.layers[index].kind in sources.CENTRED
            uncentred = uncentred or not centred
            rows += _series(stats, index, "mean", mean, x, own=centred)
            rows += _series(stats, index, "variance", var, x, own=centred)
            rows += _series(stats, index, "divisor", var if centred else psi2, x)
    return rows if uncentred else [row for row in rows if row["panel"] != "divisor"]


def forward_stats(runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """Figure 2 and the left of Figure 4: distances between the batch's and the running statistics."""
    return _moments(runs, layer, x, "dist_mu", "dist_var", "dist_psi2")


def backward_stats(runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """Figure 3 and the right of Figure 4: norms of the gradient's terms."""
    return _moments(runs, layer, x, "g_mu", "g_var", "g_psi2")


def nu(runs: Sequence[StatsRun], layer: str, x: str) -> Rows:
    """The running mean of PN's backward."""
    rows: Rows = []
    for stats in runs:
        for index in sources.choose_layers(stats.run, layer):
            rows += _series(stats, index, "largest", "nu_max", x)
            rows += _series(stats, index, "norm", "nu_norm", x)
    return rows


def gamma_psi(runs: Sequence[StatsRun]) -> Rows:
    """Quantiles of |gamma| / psi_B over the features, for each layer, at the newest record of each run."""
    rows: Rows = []
    for stats in runs:
        records = [record for record in stats.run.records if record.kind == "train"]
        if not records:
            continue
        for index, layer in enumerate(stats.run.layers):
            values = {name: records[-1].columns["gamma_psi_" + name][index] for name in metrics.QUANTILES}
            if None not in values.values():
                rows.append({"run": stats.label, "update": records[-1].update, "layer": layer.name, **values})
    return rows


def learning_curves(given: Sequence[Source]) -> Rows:
    """Loss of training and of validation, from the logs."""
    rows: Rows = []
    names = [sources.experiment_norm(source.path) or source.name for source in given]
    for label, source in zip(sources.labelled(given, names), given):
        log = sources.log(source.path)
        for panel, kind in (("training", "train"), ("validation", "valid")):
            points = [point for point in log.curve(kind) if point["loss"] is not None]
            rows += [{"panel": panel, "run": label, "update": at["update"], "value": at["loss"]} for at in points]
    return rows


def batch_size(given: Sequence[Source]) -> Rows:
    """BLEU of each run by norm, LN first, and by the tokens that statistics are taken over."""
    known = list(LABELS.values())

    def place(row: Dict[str, Any]) -> Tuple[int, str, int, int]:
        number = known.index(row["norm"]) if row["norm"] in known else len(known)
        return number, row["norm"], row["tokens"], row["seed"]

    return sorted(sources.scores(given), key=place)


def embedding_svd(given: Sequence[Source]) -> Rows:
    """Singular values of the encoder's embedding, divided by the largest."""
    rows: Rows = []
    folders = [source.path if source.path.is_dir() else source.path.parent for source in given]
    names = [sources.experiment_norm(folder) or source.path.stem for folder, source in zip(folders, given)]
    for label, source in zip(sources.labelled(given, names), given):
        file = _checkpoint(source.path)
        model = load_checkpoint(file, mmap=True)["model"]
        if EMBEDDING not in model:
            raise UserError("{} has no {}".format(file, EMBEDDING))
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
