"""A report as blocks, and the two ways to write it down: Markdown, and one HTML page that needs nothing else."""

from dataclasses import dataclass
from html import escape
from typing import List, Optional, Sequence, Union


@dataclass(frozen=True)
class Heading:
    """Of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table; ``strong`` are numbers of rows to stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Sequence[int] = ()


def number(value: Optional[float], decimals: int = 2, sign: bool = False) -> str:
    """A number in a cell; an empty cell for none."""
    return "" if value is None else f"{value:{'+' if sign else ''}.{decimals}f}"


@dataclass(frozen=True)
class Plots:
    """Figures side by side, each an SVG and what it shows; they are on the page only."""

    figures: Sequence["Figure"]


@dataclass(frozen=True)
class Figure:
    """A plot."""

    caption: str
    svg: str


@dataclass(frozen=True)
class Code:
    """A command."""

    text: str


Block = Union[Heading, Paragraph, Items, Grid, Plots, Code]

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; color: #1d2329; background: #fff;
  font: 16px/1.5 system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-top: .8rem; border-top: 1px solid #d9dee3; }
p, ul { max-width: 52rem; margin: .5rem 0; }
li { margin: .25rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; margin: .8rem 0; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid #e3e7eb; vertical-align: top; }
th { border-bottom: 2px solid #9aa4ad; vertical-align: bottom; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; overflow-wrap: anywhere; }
tr.strong td { background: #f0f5fa; font-weight: 600; }
pre { background: #f4f6f8; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .2rem; }
svg { display: block; width: 100%; height: auto; max-width: 40rem; }
svg text { font: 12px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; fill: #3b444d; }
.grid { stroke: #e3e7eb; fill: none; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
@media (max-width: 640px) {
  body { padding: 1rem .9rem 3rem; }
  h1 { font-size: 1.35rem; }
  table, tbody, tr, td { display: block; width: 100%; }
  thead { display: none; }
  tr { border: 1px solid #d9dee3; border-radius: 6px; margin: 0 0 .7rem; padding: .3rem .2rem; }
  td, td.text { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .18rem .6rem;
    text-align: right; }
  td:empty { display: none; }
  td::before { content: attr(data-name); color: #66707a; text-align: left; flex: 0 0 40%; }
  td:first-child { font-weight: 600; text-align: left; }
  td:first-child::before { display: none; }
}
"""


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """The report as Markdown, without figures."""
    parts = [f"# {title}"]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"## {block.text}")
        elif isinstance(block, Paragraph):
            parts.append(block.text)
        elif isinstance(block, Items):
            parts.append("\n".join(f"- {text}" for text in block.texts))
        elif isinstance(block, Code):
            parts.append(f"```\n{block.text}\n```")
        elif isinstance(block, Grid):
            parts.append(_markdown_grid(block))
    return "\n\n".join(parts) + "\n"


def _markdown_grid(grid: Grid) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (grid.header, *grid.rows)]
    for number in grid.strong:
        rows[number + 1] = [f"**{cell}**" if cell else "" for cell in rows[number + 1]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The report as one page: style and figures are in it, nothing is fetched."""
    parts: List[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h2>{escape(block.text)}</h2>")
        elif isinstance(block, Paragraph):
            parts.append(f"<p>{escape(block.text)}</p>")
        elif isinstance(block, Items):
            parts.append("<ul>" + "".join(f"<li>{escape(text)}</li>" for text in block.texts) + "</ul>")
        elif isinstance(block, Code):
            parts.append(f"<pre>{escape(block.text)}</pre>")
        elif isinstance(block, Grid):
            parts.append(_html_grid(block))
        elif isinstance(block, Plots):
            figures = [
                f"<figure><figcaption>{escape(figure.caption)}</figcaption>{figure.svg}</figure>"
                for figure in block.figures
            ]
            parts.append(f'<div class="plots">{"".join(figures)}</div>')
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _html_grid(grid: Grid) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.header)
    body = []
    for number, row in enumerate(grid.rows):
        cells = []
        for name, cell in zip(grid.header, row):
            kind = ' class="text"' if len(cell) > 40 else ""
            cells.append(f'<td{kind} data-name="{escape(name)}">{escape(cell)}</td>')
        kind = ' class="strong"' if number in grid.strong else ""
        body.append(f"<tr{kind}>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
