"""Plots as SVG text: lines, and one row of dots for each name. They scale with the page and need nothing."""

import math
from dataclasses import dataclass
from html import escape
from typing import Callable, List, Sequence, Tuple

# Colours that stay apart for colour-blind readers (Okabe and Ito), and dashes for when there are more lines.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("", "6 3", "2 3")
WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 12, 42


@dataclass(frozen=True)
class Line:
    """A curve; lines with the same name have the same colour and one entry in the legend."""

    name: str
    points: Tuple[Tuple[float, float], ...]


def colour(name: str, names: Sequence[str]) -> str:
    """Of a name among all names of a plot."""
    return COLOURS[list(names).index(name) % len(COLOURS)]


def ticks(low: float, high: float, count: int = 5) -> List[float]:
    """Round numbers between two values."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1, 2, 2.5, 5, 10)), key=lambda value: abs(value - rough))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> List[float]:
    """Round numbers between two positive values, on a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 3, 4, 5, 6, 8)]
    inside = [value for value in found if low <= value <= high]
    if len(inside) > 7:
        inside = [value for value in inside if f"{value:e}"[0] in "125"]
    return inside if len(inside) > 1 else ticks(low, high)


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def lines_plot(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, log_x: bool = False, log_y: bool = False,
    markers: bool = False,
) -> str:  # fmt: skip
    """Curves with a legend below them.

    Args:
        title: for those who cannot see it.
        lines: at least one point altogether.
        x_label: name of the x axis.
        y_label: name of the y axis.
        log_x: logarithmic x axis.
        log_y: logarithmic y axis.
        markers: a dot at each point.
    """
    points = [point for line in lines for point in line.points]
    (x_low, x_high), (y_low, y_high) = ((min(values), max(values)) for values in zip(*points))
    if not log_y:
        margin = 0.05 * (y_high - y_low) or 0.5
        y_low, y_high = y_low - margin, y_high + margin
    to_x = _scale(x_low, x_high, LEFT, WIDTH - RIGHT, log_x)
    to_y = _scale(y_low, y_high, HEIGHT - BOTTOM, TOP, log_y)
    parts = []
    for tick in log_ticks(y_low, y_high) if log_y else ticks(y_low, y_high):
        parts.append(f'<path class="grid" d="M{LEFT} {to_y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, to_y(tick) + 4, _number(tick), "end"))
    for tick in sorted({x for x, _ in points}) if log_x else ticks(x_low, x_high):
        parts.append(f'<path class="grid" d="M{to_x(tick):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(to_x(tick), HEIGHT - BOTTOM + 16, _number(tick)))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(_text(12, middle, y_label, more=f' transform="rotate(-90 12 {middle:.0f})"'))
    names = list(dict.fromkeys(line.name for line in lines))
    for line in lines:
        style = f'stroke="{colour(line.name, names)}" stroke-dasharray="{_dash(line.name, names)}"'
        path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line" points="{path}" {style}/>')
        if markers:
            parts += [f'<circle cx="{to_x(x):.1f}" cy="{to_y(y):.1f}" r="3.5" fill="{colour(line.name, names)}"/>'
                      for x, y in line.points]  # fmt: skip
    legend, height = _legend(names)
    return _svg(title, [*parts, *legend], HEIGHT + height)


def dots_plot(title: str, rows: Sequence[Tuple[str, Sequence[float]]], x_label: str) -> str:
    """A row for each name: its values as dots, and their mean as a bar.

    Args:
        title: for those who cannot see it.
        rows: name and values, at least one altogether.
        x_label: name of the x axis.
    """
    left = 16 + 7.2 * max(len(name) for name, _ in rows)
    values = [value for _, found in rows for value in found]
    margin = 0.08 * (max(values) - min(values)) or 0.5
    low, high = min(values) - margin, max(values) + margin
    to_x = _scale(low, high, left, WIDTH - RIGHT, False)
    bottom = TOP + 26 * len(rows)
    parts = []
    for tick in ticks(low, high):
        parts.append(f'<path class="grid" d="M{to_x(tick):.1f} {TOP}V{bottom}"/>')
        parts.append(_text(to_x(tick), bottom + 16, _number(round(tick, 6))))
    parts.append(_text((left + WIDTH - RIGHT) / 2, bottom + 34, x_label))
    for index, (name, found) in enumerate(rows):
        y = TOP + 26 * index + 13
        shade = COLOURS[index % len(COLOURS)]
        parts.append(_text(left - 8, y + 4, name, "end"))
        for value in found:
            parts.append(f'<circle cx="{to_x(value):.1f}" cy="{y}" r="4" fill="{shade}" fill-opacity="0.6"/>')
        if found:
            mean = to_x(sum(found) / len(found))
            parts.append(f'<path d="M{mean:.1f} {y - 9}V{y + 9}" stroke="{shade}" stroke-width="2.5"/>')
    return _svg(title, parts, bottom + 42)


def _scale(low: float, high: float, start: float, end: float, logarithmic: bool) -> Callable[[float], float]:
    if logarithmic:
        linear = _scale(math.log(low), math.log(high), start, end, False)
        return lambda value: linear(math.log(value))
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _dash(name: str, names: Sequence[str]) -> str:
    return DASHES[list(names).index(name) // len(COLOURS) % len(DASHES)]


def _legend(names: Sequence[str]) -> Tuple[List[str], float]:
    """Entries below a plot, as many in a line as fit; with their height."""
    parts, x, y = [], float(LEFT), HEIGHT + 10.0  # type: List[str], float, float
    for name in names:
        width = 34 + 7.2 * len(name)
        if x + width > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 18
        style = f'stroke="{colour(name, names)}" stroke-dasharray="{_dash(name, names)}"'
        parts.append(f'<path class="line" d="M{x:.1f} {y - 4:.1f}h20" {style}/>')
        parts.append(_text(x + 25, y, name, "start"))
        x += width
    return parts, y - HEIGHT + 8
