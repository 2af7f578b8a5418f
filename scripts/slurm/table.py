"""A table of trainings, norms x seeds, in a folder: which there are, how far they are, what came out."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from scripts.tables.log import Log

TABLE = "table.json"
AVERAGED, SCORES = "averaged.pt", "test"


@dataclass
class Table:
    """What was asked for; ``jobs`` are the ids that Slurm gave: ``train`` of the array, ``score`` of what follows."""

    preset: str
    norms: List[str]
    seeds: List[int]
    data: str
    flags: List[str] = field(default_factory=list)
    jobs: Dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes the table under a temporary name and renames it."""
        aside = folder / (TABLE + ".part")
        aside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        aside.replace(folder / TABLE)


@dataclass
class Training:
    """One training of a table."""

    norm: str
    seed: int
    folder: Path
    index: Optional[int] = None  # in the job array

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

    def progress(self) -> Dict[str, Any]:
        """The latest numbers that the log names: ``updates``, ``loss``, ``valid_loss``."""
        log = Log(self.folder / "train.log").update()
        if not log.updates:
            return {}
        latest = {"updates": log.updates, "loss": log.latest.get("loss")}
        return {**latest, "valid_loss": log.valid[-1].get("loss")} if log.valid else latest


def load(folder: Path) -> Optional[Table]:
    """The table that submit.py noted in a folder, if it did."""
    content = read_json(folder / TABLE)
    return Table(**content) if content else None


def trainings(folder: Path) -> List[Training]:
    """The trainings of a table: those asked for, and any others that are there."""
    table = load(folder)
    found: List[Training] = []
    if table is not None:
        pairs = [(norm, seed) for norm in table.norms for seed in table.seeds]
        found = [Training(norm, seed, folder / f"{norm}-{seed}", index) for index, (norm, seed) in enumerate(pairs)]
    known = {training.folder for training in found}
    for file in sorted(folder.glob("*/experiment.json")):
        if file.parent not in known:
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
