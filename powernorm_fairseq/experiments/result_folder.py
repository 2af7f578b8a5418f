"""The folder that an evaluation leaves: what it answers, whether it is there already, and how it gets to its place."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from powernorm_fairseq.scoring import ScoringError

RESULT = "result.json"


def stamps(files: Sequence[Path]) -> Dict[str, List[int]]:
    """Size and time of files, by which another content is noticed; lists, as JSON gives them back."""
    stats = {str(file.resolve()): file.stat() for file in files}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def finished(out: Path, request: Dict[str, Any], overwrite: bool) -> Optional[Dict[str, Any]]:
    """The result that ``out`` already holds for this request; another content is an error without ``overwrite``."""
    if not out.exists():
        return None
    try:
        result = json.loads((out / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        result = {}
    if result.get("request") == request:
        return result
    if not overwrite:
        raise ScoringError(
            "{} holds results of another checkpoint, other data or other flags; --overwrite replaces them".format(out)
        )
    if not result and any(out.iterdir()):
        raise ScoringError("{} was not written by evaluate.sh or evaluate_lm.py; choose another --out".format(out))
    return None


@contextlib.contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """A new folder beside ``out`` that takes its place at the end, or vanishes if something goes wrong."""
    aside = beside(out)
    try:
        aside.mkdir(parents=True)
        yield aside
        old = aside.with_name(aside.name + ".old")
        if out.exists():
            out.replace(old)
        aside.replace(out)
        shutil.rmtree(str(old), ignore_errors=True)
    finally:
        shutil.rmtree(str(aside), ignore_errors=True)


def beside(out: Path) -> Path:
    """Where :func:`written_aside` makes its folder."""
    return out.with_name("{}.{}.tmp".format(out.name, os.getpid()))


def write(folder: Path, result: Dict[str, Any]) -> None:
    """Writes the result file."""
    (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
