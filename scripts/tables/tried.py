"""What was tried on validation data: every run with a changed setting beside the run of the plain recipe."""

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from scripts.slurm.table import read_json
from scripts.tables.document import Block, Grid, Paragraph
from scripts.tables.results import mean
from scripts.tables.run import RESULT

Result = Dict[str, Any]


def best_ppl(result: Result, updates: Optional[int] = None) -> Optional[float]:
    """Perplexity at the validation with the lowest loss, of those within so many updates."""
    points = [point for point in result["curves"]["valid"] if point["loss"] is not None]
    early = [point for point in points if updates is None or point["update"] <= updates]
    return min(early, key=lambda point: point["loss"])["ppl"] if early else None


def tried(folders: Sequence[Path], dataset: str, seeds: Sequence[int]) -> Optional[List[Block]]:
    """A table of all changed settings in some folders of runs; None if there are none.

    A run that is shorter than the plain one is compared with it as it was after as many updates.
    """
    rows = []
    for folder in folders:
        found = [read_json(file) for file in sorted(folder.glob(f"*/{RESULT}"))]
        results = [result for result in found if result.get("dataset") == dataset]
        plain = {(result["norm"], result["seed"]): result for result in results if not result["variant"]}
        groups: Dict[str, List[Result]] = {}
        for result in results:
            if result["variant"] and "--update-freq" not in result["changes"]:  # those are the batch-size ablation's
                groups.setdefault(result["label"], []).append(result)
        for label, group in groups.items():
            rows.append(_row(label, group, plain))
    if not rows:
        return None
    rows.sort(key=lambda row: (row[0].split(",")[0], float(row[3] or "inf")))
    header = ["setting", "seeds", "updates", "valid perplexity", "plain recipe", "difference"]
    text = (
        "Settings that were changed one by one, compared by the lowest validation loss alone; the test set played no "
        "part. A run that is shorter than that of the plain recipe is compared with it after as many updates."
    )
    return [Grid(header, rows), Paragraph(text)]


def _row(label: str, group: Sequence[Result], plain: Dict[Any, Result]) -> List[str]:
    ours, theirs, differences = [], [], []  # type: List[float], List[float], List[float]
    for result in group:
        value = best_ppl(result)
        base = plain.get((result["norm"], result["seed"]))
        before = best_ppl(base, result["updates"]) if base else None
        if value is not None:
            ours.append(value)
        if value is not None and before is not None:
            theirs.append(before)
            differences.append(value - before)
    numbers = [mean(ours), mean(theirs), mean(differences)]
    shown = [f"{value:.2f}" if value is not None else "" for value in numbers[:2]]
    shown.append(f"{numbers[2]:+.2f}" if numbers[2] is not None else "")
    seeds = ", ".join(str(result["seed"]) for result in group)
    updates = ", ".join(dict.fromkeys(str(result["updates"]) for result in group))
    return [label, seeds, updates, *shown]
