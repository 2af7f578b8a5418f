"""The trainings in a folder: which there are, how far they are, what came out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

AVERAGED, SCORES = "averaged.pt", "test"


@dataclass
class Training:
    """One training of a table."""

    norm: str
    seed: int
    folder: Path

    @property
    def state(self) -> str:
        """As train.sh noted it: running, stopped, finished or failed; none before the start."""
        return str(read_json(self.folder / "status.json").get("state", "none"))

    @property
    def preset(self) -> Optional[str]:
        """The recipe."""
        return read_json(self.folder / "experiment.json").get("preset")

    @property
    def scores(self) -> Dict[str, float]:
        """Metric -> BLEU on the test set; empty before it is scored."""
        found = read_json(self.folder / SCORES / "result.json").get("scores", {})
        return {metric: bleu["score"] for metric, bleu in found.items()}


def trainings(folder: Path) -> List[Training]:
    """The trainings in a folder, each in one of its own."""
    found = []
    for file in sorted(folder.glob("*/experiment.json")):
        experiment = read_json(file)
        found.append(Training(experiment.get("norm", "?"), experiment.get("seed", 0), file.parent))
    return found


def read_json(file: Path) -> Dict[str, Any]:
    """A JSON file's content; nothing if it is not there or not whole."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
