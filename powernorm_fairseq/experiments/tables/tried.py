"""What was tried on validation data: every run with a changed setting beside the run of the plain recipe."""

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.experiments.tables.catalogue import LEAKING_FLAG
from powernorm_fairseq.experiments.tables.document import Grid, Section, number
from powernorm_fairseq.experiments.tables.results import mean
from powernorm_fairseq.experiments.tables.run import RESULT
from powernorm_fairseq.experiments.tables.seeds import Spread, Test, correct, paired, pooled_spread
from powernorm_fairseq.files import read_json

Result = Dict[str, Any]
TEXT = (
    "Settings that were changed one by one, compared by the lowest validation loss alone; the test set played no part. "
    "A run that is shorter than that of the plain recipe is compared with it after as many updates. p: Student's t, "
    "with the standard deviation of plain runs of one norm with different seeds after as many updates, corrected for "
    "the number of settings (Holm); rows with less than 0.05 stand out."
)
# Changes that are no tries: those of the batch-size ablation, and of models that see the words they are to predict.
TABLES_OWN = {"--update-freq", LEAKING_FLAG}


def best_ppl(result: Result, updates: int) -> Optional[float]:
    """Perplexity at the validation with the lowest loss, of those within so many updates."""
    points = [point for point in result["curves"]["valid"] if point["loss"] is not None and point["update"] <= updates]
    return min(points, key=lambda point: point["loss"])["ppl"] if points else None


def tried(folders: Sequence[Path], dataset: str) -> Optional[Section]:
    """A section with all changed settings in some folders of runs; None if there are none.

    A run is compared with the plain one of its own folder; if it is shorter, with that as it was after as many updates.
    How far seeds lie apart is known from its own folder, or else from the first.
    """
    tries: List[Tuple[Any, Dict[str, str], Optional[Test]]] = []
    first: List[Result] = []
    for folder in folders:
        found = [read_json(file) for file in sorted(folder.glob(f"*/{RESULT}"))]
        results = [result for result in found if result.get("dataset") == dataset]
        plain = [result for result in results if not result["variant"]]
        first = first or plain
        changed = [result for result in results if result["variant"] and not TABLES_OWN & set(result["changes"])]
        for label in dict.fromkeys(result["label"] for result in changed):
            tries.append(_try(label, [result for result in changed if result["label"] == label], plain, first))
    if not tries:
        return None
    tries.sort(key=lambda each: each[0])
    tests = [test for _, _, test in tries]
    correct(tests)
    rows = [{**cells, "p": number(test.adjusted, 3) if test else ""} for _, cells, test in tries]
    grid = Grid.of(rows, [test is not None and test.significant for test in tests])
    return Section("What was tried on validation data", grid=grid, text=TEXT)


def _try(
    label: str, runs: Sequence[Result], plain: Sequence[Result], first: Sequence[Result]
) -> Tuple[Any, Dict[str, str], Optional[Test]]:
    """One setting with its seeds: what rows are sorted by (norm, length, effect), the cells, and the test."""
    bases = {(run["norm"], run["seed"]): run for run in plain}
    ppls, pairs = [], []  # type: List[float], List[Tuple[float, float]]
    for run in runs:
        ours, base = best_ppl(run, run["updates"]), bases.get((run["norm"], run["seed"]))
        theirs = best_ppl(base, run["updates"]) if base else None
        ppls += [ours] if ours is not None else []
        pairs += [(ours, theirs)] if ours is not None and theirs is not None else []
    longest = max(run["updates"] for run in runs)
    spread = _spread(plain, longest) or _spread(first, longest)
    difference = mean([ours - theirs for ours, theirs in pairs])
    shown = None if difference is None else round(difference, 2) + 0.0  # never -0
    cells = {
        "setting": label,
        "seeds": ", ".join(dict.fromkeys(str(run["seed"]) for run in runs)),
        "updates": ", ".join(dict.fromkeys(str(run["updates"]) for run in runs)),
        "valid perplexity": number(mean(ppls)),
        "plain recipe": number(mean([theirs for _, theirs in pairs])),
        "difference": number(shown, sign=True),
    }
    effect = float("inf") if shown is None else shown
    test = paired([ours - theirs for ours, theirs in pairs], spread) if spread else None
    return (runs[0]["norm"], longest, effect), cells, test


def _spread(plain: Sequence[Result], updates: int) -> Optional[Spread]:
    """How far the perplexity lies apart over the seeds, from all norms together."""
    groups: Dict[str, List[float]] = {}
    for run in plain:
        ppl = best_ppl(run, updates)
        if ppl is not None:
            groups.setdefault(run["norm"], []).append(ppl)
    return pooled_spread(list(groups.values()))
