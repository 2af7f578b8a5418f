"""Every block of Python in docs/layers.md, and that of the README, runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOP = Path(__file__).resolve().parents[1]
PAGES = (TOP / "docs/layers.md", TOP / "README.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)

pytestmark = pytest.mark.skipif(not NEW_TORCH, reason="the page is written for torch >= 2.6")


def blocks() -> list:
    """Each block with its place and the heading above it."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            heading = re.findall(r"^## (.*)$", text[: match.start()], re.MULTILINE)[-1]
            line = text[: match.start()].count("\n") + 2
            found.append(pytest.param(page, line, match.group(1), id=f"{page.name}, {heading}, line {line}"))
    return found


def test_there_are_blocks():
    assert len(blocks()) >= 13


@pytest.mark.parametrize("page, line, code", blocks())
def test_block_runs(page, line, code, tmp_path):
    for extra in ("transformers", "onnxscript"):
        if extra in code:
            pytest.importorskip(extra)
    torch.manual_seed(0)
    if "init_process_group" not in code:
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "docs"})
        return
    script = tmp_path / "block.py"
    script.write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, cwd=str(TOP)
    )
    assert result.returncode == 0, result.stdout
