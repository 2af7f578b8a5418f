"""Imports go one way: scripts -> experiments, figures -> diagnostics, checkpoints, scoring -> models -> norms."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "powernorm_fairseq"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
UPPER = ("experiments", "figures", "cli", "__main__")
ENTRY_POINTS = sorted((TOP / "scripts").rglob("*.py"))


def room(parts):
    """The part of the package that a module is in: ``experiments.tables``; ``norms`` and its kernels are one."""
    folder, names = PACKAGE, []
    for part in parts:
        if (folder / part).is_dir() or not names:
            names.append(part)
        folder = folder / part
    return "norms" if names[0] == "norms" else ".".join(names)


def imported(path):
    """Names of everything that a file imports, within functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def rooms():
    """Room -> the rooms that it imports from."""
    graph = {}
    for path in MODULES:
        own = room(path.relative_to(PACKAGE).with_suffix("").parts)
        names = [name.split(".")[1:] for name in imported(path) if name.startswith("powernorm_fairseq.")]
        graph.setdefault(own, set()).update({room(parts) for parts in names} - {own})
    return graph


def test_no_room_imports_itself_in_a_circle():
    graph = rooms()
    assert {"experiments", "experiments.slurm", "experiments.tables", "figures", "norms"} <= set(graph)
    while graph:
        leaves = {name for name, others in graph.items() if not others & set(graph)}
        assert leaves, f"these import each other: {graph}"
        graph = {name: others for name, others in graph.items() if name not in leaves}


def test_norms_import_nothing_of_the_rest_and_nothing_imports_the_experiments():
    graph = rooms()
    assert graph["norms"] == set()
    for name, others in graph.items():
        upper = {other for other in others if other.split(".")[0] in UPPER}
        assert not upper or name.split(".")[0] in UPPER, f"{name} imports {upper}"
    assert not any(other.startswith("experiments") for other in graph["figures"])


@pytest.mark.parametrize("path", [PACKAGE / "__init__.py", *MODULES, *ENTRY_POINTS], ids=str)
def test_no_file_changes_the_search_path(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("sys", "path"), f"{path}:{node.lineno}"


def test_layers_load_neither_experiments_nor_figures():
    code = "import sys, powernorm_fairseq.norms; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], universal_newlines=True, cwd=str(TOP)).split()
    assert "powernorm_fairseq.norms" in loaded
    assert not [name for name in loaded if "experiments" in name or "figures" in name or "matplotlib" in name]
