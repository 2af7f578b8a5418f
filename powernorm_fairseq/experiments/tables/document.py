"""A report as sections, and the two ways to write it down: Markdown, and one HTML page that needs nothing else."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.console import UserError

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Grid:
    """A table; ``strong`` are numbers of rows to stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Sequence[Dict[str, Any]], strong: Sequence[bool] = ()) -> "Grid":
        """From column -> cell of each row, and whether it stands out; a column without any content is left out."""
        header = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)]
        cells = [["" if row[name] is None else str(row[name]) for name in header] for row in rows]
        return cls(header, cells, [index for index, stands_out in enumerate(strong) if stands_out])


@dataclass(frozen=True)
class Section:
    """A part of a report, in this order.

    Attributes:
        heading: none for the first one.
        intro: a paragraph before the table.
        grid: the table.
        items: a list of sentences.
        text: a paragraph after the table.
        figures: caption and SVG of each; on the page only.
        code: a command.
    """

    heading: str = ""
    intro: str = ""
    grid: Optional[Grid] = None
    items: Sequence[str] = ()
    text: str = ""
    figures: Sequence[Tuple[str, str]] = ()
    code: str = ""


def number(value: Optional[float], decimals: int = 2, sign: bool = False) -> str:
    """A number in a cell; an empty cell for none."""
    return "" if value is None else f"{value:{'+' if sign else ''}.{decimals}f}"


def markdown_table(grid: Grid) -> str:
    """With aligned columns."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (grid.header, *grid.rows)]
    for index in grid.strong:
        rows[index + 1] = [f"**{cell}**" if cell else "" for cell in rows[index + 1]]
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The report as Markdown, without figures."""
    parts: List[str] = [f"# {title}"]
    for section in sections:
        parts += [
            section.heading and f"## {section.heading}",
            section.intro,
            markdown_table(section.grid) if section.grid else "",
            "\n".join(f"- {text}" for text in section.items),
            section.text,
            section.code and f"```\n{section.code}\n```",
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(title: str, sections: Sequence[Section]) -> str:
    """The report as one page: style and figures are in it, nothing is fetched."""
    if find_spec("jinja2") is None:
        raise UserError("reports need jinja2: pip install 'powernorm-fairseq[figures]'")
    import jinja2

    loader = jinja2.FileSystemLoader(str(Path(__file__).parent))
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(TEMPLATE).render(title=title, sections=sections)
