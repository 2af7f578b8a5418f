"""What was tried on validation data: every run with a changed setting beside the run of the plain recipe."""

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from scripts.slurm.table import read_json
from scripts.tables.document import Block, Grid, Paragraph
from scripts.tables.results import chance, mean, pooled_spread
from scripts.tables.run import RESULT

Result = Dict[str, Any]
HEADER = ("setting", "seeds", "updates", "valid perplexity", "plain recipe", "difference", "by chance")


def best_ppl(result: Result, updates: int) -> Optional[float]:
    """Perplexity at the validation with the lowest loss, of those within so many updates."""
    points = [point for point in result["curves"]["valid"] if point["loss"] is not None]
    early = [point for point in points if point["update"] <= updates]
    return min(early, key=lambda point: point["loss"])["ppl"] if early else None


def tried(folders: Sequence[Path], dataset: str) -> Optional[List[Block]]:
    """A table of all changed settings in some folders of runs; None if there are none.

    A run is compared with the plain one of its own folder; if it is shorter, with that as it was after as many updates.
    How far seeds lie apart is known from its own folder, or else from the first.
    """
    rows = []
    first: List[Result] = []
    for folder in folders:
        found = [read_json(file) for file in sorted(folder.glob(f"*/{RESULT}"))]
        results = [result for result in found if result.get("dataset") == dataset]
        plain = [result for result in results if not result["variant"]]
        first = first or plain
        groups: Dict[str, List[Result]] = {}
        for result in results:
            if result["variant"] and "--update-freq" not in result["changes"]:  # those are the batch-size ablation's
                groups.setdefault(result["label"], []).append(result)
        for label, group in groups.items():
            updates = max(result["updates"] for result in group)
            deviation = _spread(plain, updates) or _spread(first, updates)
            rows.append(_row(label, group, _ppls(plain, updates), updates, deviation))
    if not rows:
        return None
    rows.sort(key=lambda row: (row[0].split(",")[0], int(row[2]), float(row[5] or "inf")))  # norm, length, effect
    clear = [index for index, row in enumerate(rows) if row[6] and abs(float(row[5])) > float(row[6])]
    text = (
        "Settings that were changed one by one, compared by the lowest validation loss alone; the test set played no "
        "part. A run that is shorter than that of the plain recipe is compared with it after as many updates. By "
        "chance: what a difference may come to without any effect, twice its standard error, from how far plain runs "
        "of one norm with different seeds lie apart after as many updates; rows with more than that stand out."
    )
    return [Grid(HEADER, rows, clear), Paragraph(text)]


def _ppls(results: Sequence[Result], updates: int) -> Dict[Tuple[str, int], float]:
    """Norm and seed -> perplexity after so many updates."""
    found = {(result["norm"], result["seed"]): best_ppl(result, updates) for result in results}
    return {key: ppl for key, ppl in found.items() if ppl is not None}


def _spread(plain: Sequence[Result], updates: int) -> Optional[float]:
    """The standard deviation over the seeds, from all norms together."""
    groups: Dict[str, List[float]] = {}
    for (norm, _), ppl in _ppls(plain, updates).items():
        groups.setdefault(norm, []).append(ppl)
    return pooled_spread(list(groups.values()))


def _row(
    label: str, group: Sequence[Result], plain: Dict[Tuple[str, int], float], updates: int, deviation: Optional[float]
) -> List[str]:
    """One setting: its seeds, and the plain runs of the same norm and seeds."""
    ours = _ppls(group, updates)
    theirs = {key: plain[key] for key in ours if key in plain}
    difference = mean([ours[key] - theirs[key] for key in theirs])
    limit = chance(len(theirs), len(theirs), deviation)
    return [
        label,
        ", ".join(str(run["seed"]) for run in group),
        str(updates),
        *(_shown(mean(list(each.values()))) for each in (ours, theirs)),
        "" if difference is None else f"{round(difference, 2) + 0.0:+.2f}",  # never -0.00
        _shown(limit),
    ]


def _shown(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.2f}"
