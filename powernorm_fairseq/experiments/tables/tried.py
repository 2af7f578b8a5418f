"""What was tried on validation data: every run with a changed setting beside the run of the plain recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.experiments.tables.catalogue import LEAKING_FLAG
from powernorm_fairseq.experiments.tables.document import Grid, Section, number
from powernorm_fairseq.experiments.tables.results import mean
from powernorm_fairseq.experiments.tables.run import RESULT
from powernorm_fairseq.experiments.tables.student import Spread, Test, against_spread, correct, pooled_spread
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
HEADER = ("setting", "seeds", "updates", "valid perplexity", "plain recipe", "difference", "p")


@dataclass(frozen=True)
class Try:
    """A changed setting.

    Attributes:
        label: of the row.
        runs: its results, one for each seed.
        ppls: perplexities of these runs.
        pairs: the same, each with that of the plain run after as many updates, where there is one.
        test: of the differences of the pairs.
    """

    label: str
    runs: Sequence[Result]
    ppls: Sequence[float]
    pairs: Sequence[Tuple[float, float]]
    test: Optional[Test]

    @property
    def difference(self) -> Optional[float]:
        """From the plain runs; as it is shown, and never -0."""
        difference = mean([ours - theirs for ours, theirs in self.pairs])
        return None if difference is None else round(difference, 2) + 0.0

    @property
    def rank(self) -> Tuple[str, int, float]:
        """Rows are sorted by norm, length and effect."""
        effect = float("inf") if self.difference is None else self.difference
        return self.runs[0]["norm"], longest(self.runs), effect

    def cells(self) -> List[str]:
        """The row."""
        seeds, updates = (dict.fromkeys(str(run[name]) for run in self.runs) for name in ("seed", "updates"))
        plain = mean([theirs for _, theirs in self.pairs])
        numbers = [number(mean(self.ppls)), number(plain), number(self.difference, sign=True)]
        numbers += [number(self.test.adjusted if self.test else None, 3)]
        return [self.label, ", ".join(seeds), ", ".join(updates), *numbers]


def longest(runs: Sequence[Result]) -> int:
    """The most updates of some runs."""
    return max(run["updates"] for run in runs)


def best_ppl(result: Result, updates: int) -> Optional[float]:
    """Perplexity at the validation with the lowest loss, of those within so many updates."""
    points = [point for point in result["curves"]["valid"] if point["loss"] is not None]
    early = [point for point in points if point["update"] <= updates]
    return min(early, key=lambda point: point["loss"])["ppl"] if early else None


def tried(folders: Sequence[Path], dataset: str) -> Optional[Section]:
    """A section with all changed settings in some folders of runs; None if there are none.

    A run is compared with the plain one of its own folder; if it is shorter, with that as it was after as many updates.
    How far seeds lie apart is known from its own folder, or else from the first.
    """
    tries: List[Try] = []
    first: List[Result] = []
    for folder in folders:
        found = [read_json(file) for file in sorted(folder.glob(f"*/{RESULT}"))]
        results = [result for result in found if result.get("dataset") == dataset]
        plain = [result for result in results if not result["variant"]]
        first = first or plain
        groups: Dict[str, List[Result]] = {}
        for result in results:
            if result["variant"] and not TABLES_OWN & set(result["changes"]):
                groups.setdefault(result["label"], []).append(result)
        for label, group in groups.items():
            spread = _spread(plain, longest(group)) or _spread(first, longest(group))
            tries.append(_try(label, group, plain, spread))
    if not tries:
        return None
    tries.sort(key=lambda each: each.rank)
    correct([each.test for each in tries])
    strong = [index for index, each in enumerate(tries) if each.test is not None and each.test.significant]
    grid = Grid(HEADER, [each.cells() for each in tries], strong)
    return Section("What was tried on validation data", grid=grid, text=TEXT)


def _try(label: str, group: Sequence[Result], plain: Sequence[Result], spread: Optional[Spread]) -> Try:
    """One setting: its seeds, and the plain runs of the same norm and seeds, each after as many updates."""
    bases = {(run["norm"], run["seed"]): run for run in plain}
    ppls, pairs = [], []  # type: List[float], List[Tuple[float, float]]
    for run in group:
        ours, base = best_ppl(run, run["updates"]), bases.get((run["norm"], run["seed"]))
        theirs = best_ppl(base, run["updates"]) if base else None
        if ours is not None:
            ppls.append(ours)
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    return Try(label, group, ppls, pairs, against_spread([ours - theirs for ours, theirs in pairs], spread))


def _spread(plain: Sequence[Result], updates: int) -> Optional[Spread]:
    """How far the perplexity lies apart over the seeds, from all norms together."""
    groups: Dict[str, List[float]] = {}
    for run in plain:
        ppl = best_ppl(run, updates)
        if ppl is not None:
            groups.setdefault(run["norm"], []).append(ppl)
    return pooled_spread(list(groups.values()))
