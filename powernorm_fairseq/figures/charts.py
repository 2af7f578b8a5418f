"""Charts for a page, as SVG: curves, and a row of dots for each name."""

import io
import re
from html import escape
from typing import Any, Dict, NamedTuple, Sequence, Tuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from powernorm_fairseq.figures.draw import COLOURS, DASHES

WIDTH, HEIGHT = 4.6, 3.3  # inches; the page scales it
FONT = 9
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Noto Sans"],
    "font.size": FONT,
    "axes.labelsize": FONT,
    "legend.fontsize": FONT,
    "axes.edgecolor": "#999999",
}


class Line(NamedTuple):
    """A curve; lines with the same name have the same colour and one entry in the legend."""

    name: str
    points: Tuple[Tuple[float, float], ...]


def lines_chart(title: str, lines: Sequence[Line], x: str, y: str, log_x: bool = False, log_y: bool = False) -> str:
    """Curves, with a legend below them.

    Args:
        title: for those who cannot see it.
        lines: at least one point altogether.
        x: name of the x axis.
        y: name of the y axis.
        log_x: logarithmic, with a tick and a marker at each point.
        log_y: logarithmic.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    rows = -(-len(names) // 4)
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": title}):
        figure, axis = _axes(HEIGHT + 0.2 * rows)
        for index, line in enumerate(lines):
            number = names.index(line.name)
            shown = line.name if line.name not in [other.name for other in lines[:index]] else None
            dash = DASHES[number // len(COLOURS) % len(DASHES)]
            style: Dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linestyle": dash}
            style["marker"] = "o" if log_x else ""
            (drawn,) = axis.plot(*zip(*line.points), label=shown, linewidth=1.2, markersize=4, **style)
            drawn.set_gid(f"curve-{index}")
        if log_x:
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(FixedLocator(sorted({at for line in lines for at, _ in line.points})))
            axis.xaxis.set_minor_locator(NullLocator())
        if log_y:
            axis.set_yscale("log")
            low, high = axis.get_ylim()  # where few round numbers of the logarithm fit, others do
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else MaxNLocator(6))
            axis.yaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(_number))
        axis.yaxis.set_major_formatter(FuncFormatter(_number))
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        figure.legend(loc="outside lower center", ncols=min(4, len(names)), frameon=False)
        return _svg(figure, title)


def dots_chart(title: str, rows: Sequence[Tuple[str, Sequence[float]]], x: str) -> str:
    """A row for each name: its values as dots, and their mean as a bar.

    Args:
        title: for those who cannot see it.
        rows: name and values, at least one altogether.
        x: name of the x axis.
    """
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": title}):
        figure, axis = _axes(0.8 + 0.3 * len(rows))
        for index, (_, values) in enumerate(rows):
            colour = COLOURS[index % len(COLOURS)]
            (drawn,) = axis.plot(values, [index] * len(values), "o", color=colour, alpha=0.6, markersize=6)
            drawn.set_gid(f"curve-{index}")
            if values:
                middle = sum(values) / len(values)
                axis.plot([middle, middle], [index - 0.35, index + 0.35], color=colour, linewidth=2)
        axis.set_yticks(range(len(rows)))
        axis.set_yticklabels([name for name, _ in rows])
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.margins(x=0.08)
        axis.set_xlabel(x)
        return _svg(figure, title)


def _axes(height: float) -> Tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axis = figure.subplots()
    axis.grid(True, which="both", color="#e3e7eb", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(which="both", length=0)
    return figure, axis


def _number(value: float, position: Any = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _svg(figure: Figure, title: str) -> str:
    """Without what belongs to a file of its own; the same figure always gives the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return text[text.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1).strip()
