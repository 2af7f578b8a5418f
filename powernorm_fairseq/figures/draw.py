"""Draws the rows of a figure with matplotlib: the paper's axes, readable in grey."""

import functools
import io
import statistics
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from powernorm_fairseq.figures.sources import short_name
from powernorm_fairseq.figures.tables import Rows

# From dark to light, and each with a dash and a marker of its own: they stay apart in grey and for the colour-blind.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")
WIDTH, HEIGHT = 4.4, 3.2  # inches of a panel
MOST_INSIDE = 4  # lines whose legend fits into a panel

FORWARD = {
    "mean": r"$\mathrm{dist}(\mu_B, \mu)$",
    "variance": r"$\mathrm{dist}(\sigma_B^2, \sigma^2)$",
    "divisor": r"$\mathrm{dist}(\sigma_B^2, \sigma^2)$ or $\mathrm{dist}(\psi_B^2, \psi^2)$",
}
BACKWARD = {
    "mean": r"$\|g_\mu\| / d$",
    "variance": r"$\|g_{\sigma^2}\| / d$",
    "divisor": r"$\|g_{\sigma^2}\| / d$ or $\|g_{\psi^2}\| / d$",
}
NU = {"largest": r"$\max_i |\nu_i|$", "norm": r"$\|\nu\| / d$"}
LOSS = {"training": "training loss (bits per token)", "validation": "validation loss (bits per token)"}
TITLES = {
    "mean": "mean",
    "variance": "variance",
    "divisor": "what the norm divides by",
    "training": "training",
    "validation": "validation",
}
X_LABELS = {"epoch": "epochs", "update": "updates"}


def style(index: int) -> Dict[str, Any]:
    """Of the line ``index``."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _ordered(values: Iterable[Any]) -> List[Any]:
    """Each value once, in the order of appearance."""
    return list(dict.fromkeys(values))


def _grid(panels: int) -> Tuple[Figure, List[Axes]]:
    figure = Figure(figsize=(WIDTH * panels, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis in axes:
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _plot(axis: Axes, rows: Rows, x: str, name: str, index: int) -> None:
    """A line."""
    axis.plot(
        [row[x] for row in rows],
        [row["value"] for row in rows],
        label=name,
        linewidth=1.1,
        markersize=3.5,
        markerfacecolor="white",
        markevery=max(1, len(rows) // 12),
        **style(index),
    )


def _lines(rows: Rows, log_y: bool, y_labels: Dict[str, str]) -> Figure:
    """Panels side by side with a line for each run and layer."""
    panels = [panel for panel in y_labels if any(row["panel"] == panel for row in rows)]
    x = next(name for name in ("epoch", "update") if name in rows[0])
    keys = _ordered((row["run"], row.get("layer")) for row in rows)
    layers = _ordered(layer for _, layer in keys)
    one_each = len(keys) == len({run for run, _ in keys})
    figure, axes = _grid(len(panels))
    for axis, panel in zip(axes, panels):
        for index, (run, layer) in enumerate(keys):
            own = [row for row in rows if (row["panel"], row["run"], row.get("layer")) == (panel, run, layer)]
            if not own:
                continue
            name = run if one_each else f"{run}, {short_name(layer)}"
            if panel == "divisor":
                name += {"var": r": $\sigma^2$", "psi2": r": $\psi^2$"}[own[0]["number"].split("_")[1]]
            elif not own[0].get("own", 1):
                name += " (not used by it)"
            _plot(axis, own, x, name, index)
        axis.set_xlabel(X_LABELS[x])
        axis.set_ylabel(y_labels[panel])
        if panel in TITLES:
            axis.set_title(TITLES[panel], fontsize=10)
        if log_y:
            axis.set_yscale("log")
        elif panel not in LOSS:
            axis.set_ylim(bottom=0)
        if len(keys) <= MOST_INSIDE:
            axis.legend(fontsize=7, frameon=False)
    if len(keys) > MOST_INSIDE:  # it would hide lines
        axes[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if one_each and layers[0]:
        figure.supxlabel("norm: " + ", ".join(layers), fontsize=7)
    return figure


def gamma_psi(rows: Rows, log_y: bool) -> Figure:
    """A box for each layer: quartiles, 5 % and 95 % as whiskers, smallest and largest as dots; and the line at 1."""
    runs = _ordered(row["run"] for row in rows)
    figure, axes = _grid(len(runs))
    for axis, run in zip(axes, runs):
        own = [row for row in rows if row["run"] == run]
        names = {"med": "q50", "q1": "q25", "q3": "q75", "whislo": "q05", "whishi": "q95"}
        boxes = [
            {"fliers": [row["min"], row["max"]], **{ours: row[name] for ours, name in names.items()}} for row in own
        ]
        axis.bxp(boxes, flierprops={"marker": ".", "markersize": 4}, medianprops={"color": "black"})
        axis.axhline(1.0, color="#d55e00", linestyle="--", linewidth=1.2)
        axis.annotate(r"$\gamma = \psi_B$", (1.01, 1.0), xycoords=("axes fraction", "data"), va="center", fontsize=8)
        axis.set_xticks(range(1, len(own) + 1))
        axis.set_xticklabels([short_name(row["layer"]) for row in own], rotation=45, ha="right", fontsize=7)
        axis.set_ylabel(r"$|\gamma| / \psi_B$")
        axis.set_title("{}, update {}".format(run, own[0]["update"]), fontsize=10)
        axis.set_ylim(bottom=0)
        if log_y:
            axis.set_yscale("log")
    return figure


def _count(value: float, position: Any = None) -> str:
    """512, 1K, 4K."""
    return f"{value / 1024:g}K" if value >= 1024 and value % 512 == 0 else f"{value:g}"


def batch_size(rows: Rows, log_y: bool) -> Figure:
    """BLEU against the tokens of a mini-batch; several seeds as their mean with its standard deviation."""
    figure, (axis,) = _grid(1)
    for index, norm in enumerate(_ordered(row["norm"] for row in rows)):
        own = [row for row in rows if row["norm"] == norm]
        tokens = sorted({row["tokens"] for row in own})
        groups = [[row["bleu"] for row in own if row["tokens"] == count] for count in tokens]
        spread = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in groups]
        means = [statistics.mean(group) for group in groups]
        axis.errorbar(
            tokens, means, yerr=spread if any(spread) else None, label=norm, capsize=3, markersize=5, **style(index)
        )
    ticks = sorted({row["tokens"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter(FuncFormatter(_count))
    axis.set_xlabel("batch size (tokens that statistics are taken over)")
    axis.set_ylabel("BLEU")
    axis.legend(fontsize=8, frameon=False)
    return figure


def scores(rows: Rows, log_y: bool) -> Figure:
    """BLEU of each norm: a dot for each run, and a line at the mean."""
    figure, (axis,) = _grid(1)
    norms = _ordered(row["norm"] for row in rows)
    for place, norm in enumerate(norms):
        own = [row["bleu"] for row in rows if row["norm"] == norm]
        axis.plot([place] * len(own), own, color="#0072b2", linestyle="none", marker="o", markersize=5)
        axis.hlines(statistics.mean(own), place - 0.3, place + 0.3, color="black", linewidth=1.4)
    axis.set_xticks(range(len(norms)))
    axis.set_xticklabels(norms)
    axis.set_ylabel("BLEU")
    return figure


def embedding_svd(rows: Rows, log_y: bool) -> Figure:
    """Singular values, the largest as 1."""
    figure, (axis,) = _grid(1)
    for index, run in enumerate(_ordered(row["run"] for row in rows)):
        own = [row for row in rows if row["run"] == run]
        _plot(axis, own, "index", run, index)
    axis.set_xlabel("index of the singular value")
    axis.set_ylabel("singular value, largest = 1")
    axis.set_ylim(bottom=None if log_y else 0)
    if log_y:
        axis.set_yscale("log")
    axis.legend(fontsize=8, frameon=False)
    return figure


DRAWINGS: Dict[str, Callable[[Rows, bool], Figure]] = {
    "forward-stats": functools.partial(_lines, y_labels=FORWARD),
    "backward-stats": functools.partial(_lines, y_labels=BACKWARD),
    "batch-size": batch_size,
    "embedding-svd": embedding_svd,
    "gamma-psi": gamma_psi,
    "learning-curves": functools.partial(_lines, y_labels=LOSS),
    "nu": functools.partial(_lines, y_labels=NU),
    "scores": scores,
}


def draw(name: str, rows: Rows, title: Sequence[str], log_y: bool) -> Figure:
    """The figure ``name`` of these rows; ``title`` are lines above it."""
    figure = DRAWINGS[name](rows, log_y)
    if title:
        figure.suptitle("\n".join(title), fontsize=10)
    return figure


def encoded(figure: Figure) -> Dict[str, bytes]:
    """The figure as PNG and as SVG; the same figure always gives the same bytes."""
    found = {}
    with matplotlib.rc_context({"svg.hashsalt": "powernorm-fairseq"}):
        for end, metadata in (("png", {}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=end, dpi=160, metadata=metadata)
            found[end] = buffer.getvalue()
    return found
