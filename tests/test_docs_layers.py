"""Every block of Python in docs/layers.md runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[1] / "docs/layers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)

pytestmark = pytest.mark.skipif(not NEW_TORCH, reason="the page is written for torch >= 2.6")


def blocks() -> list:
    """Each block with its place and the heading above it."""
    text = PAGE.read_text()
    found = []
    for match in BLOCK.finditer(text):
        heading = re.findall(r"^## (.*)$", text[: match.start()], re.MULTILINE)[-1]
        line = text[: match.start()].count("\n") + 2
        found.append(pytest.param(line, match.group(1), id=f"{heading}, line {line}"))
    return found


def test_there_are_blocks():
    assert len(blocks()) >= 12


@pytest.mark.parametrize("line, code", blocks())
def test_block_runs(line, code, tmp_path):
    for extra in ("transformers", "onnxscript"):
        if extra in code:
            pytest.importorskip(extra)
    torch.manual_seed(0)
    if "init_process_group" not in code:
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), {"__name__": "docs"})
        return
    script = tmp_path / "block.py"
    script.write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, cwd=str(PAGE.parents[1])
    )
    assert result.returncode == 0, result.stdout
