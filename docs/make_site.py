"""What mkdocs does not do by itself: pages from outside of ``docs``, and docstrings in Sphinx's dialect as Markdown."""

import os
import re
from pathlib import Path
from typing import Any, Dict

import griffe
from mkdocs.structure.files import File, Files

TOP = Path(__file__).resolve().parents[1]
# File of the project -> page of the site.
OUTSIDE: Dict[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "results/multi30k/README.md": "results/multi30k/README.md",
    "results/europarl-lm/README.md": "results/europarl-lm/README.md",
    "results/layer-scale/README.md": "results/layer-scale/README.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(TOP / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Makes links those of the site; what is no page of it, such as a source file, keeps its text alone."""
    own = page.file.src_uri
    source = next((source for source, uri in OUTSIDE.items() if uri == own), "docs/" + own)

    def link(found: "re.Match[str]") -> str:
        mark, text, target, anchor = found.groups()
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path in OUTSIDE:
            uri = OUTSIDE[path]
        elif path.startswith("docs/") and (TOP / path).is_file():
            uri = path[len("docs/") :]
        else:
            return text
        return f"{mark}[{text}]({os.path.relpath(uri, os.path.dirname(own) or '.')}{anchor or ''})"

    return LINK.sub(link, markdown)


class MarkdownDocstrings(griffe.Extension):
    """Roles, formulas and links of Sphinx as Markdown has them."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrites the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with ``:math:``, ``:class:``, ``.. math::`` and links, as Markdown."""
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r":(?:class|func|mod|meth|data):`[~.]*([^`]*)`", _code, text)
    text = re.sub(r"`([^`<]+?) <(https?:[^>]+)>`_", r"[\1](\2)", text)
    return re.sub(r"^([ ]*)\.\. math::[ ]*\n?((?:.*\n?)(?:\1[ ]+\S.*\n?)*)", _formula, text, flags=re.MULTILINE)


def _code(found: "re.Match[str]") -> str:
    """The last part of a name."""
    return "`{}`".format(found.group(1).split(".")[-1])


def _formula(found: "re.Match[str]") -> str:
    """A formula in a paragraph of its own."""
    indent, formula = found.groups()
    return "{0}$$\n{0}{1}\n{0}$$\n".format(indent, " ".join(formula.split()))
