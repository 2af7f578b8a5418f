"""What came out of a table's runs: means, spreads, differences, orders, and which setting validation data chooses."""

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.experiments.tables import catalogue
from powernorm_fairseq.experiments.tables.catalogue import Row, Table
from powernorm_fairseq.experiments.tables.compare import Comparisons
from powernorm_fairseq.experiments.tables.run import Run
from powernorm_fairseq.experiments.tables.seeds import (
    Strata,
    Test,
    bootstrap,
    combine,
    correct,
    holm,
    paired,
    probability_of_improvement,
)

Values = Dict[int, float]  # of each seed


@dataclass
class RowResult:
    """A row and the results of its seeds.

    Attributes:
        row: norm and settings.
        results: seed -> result.json.
        lacking: name -> state of each run without a result.
        baseline: LN under the same conditions.
        reference: the row it is compared with: that, or where a setting is to be chosen, its norm's plain setting.
        test: of the difference to the reference, over the seeds that both have.
        test_set: the p of all seeds' bootstraps against the baseline together, corrected as that of the test.
    """

    row: Row
    results: Dict[int, Dict[str, Any]]
    lacking: Dict[str, str] = field(default_factory=dict)
    baseline: Optional["RowResult"] = None
    reference: Optional["RowResult"] = None
    test: Optional[Test] = None
    test_set: Optional[float] = None

    def scores(self, metric: str) -> Values:
        """Scores of the test set."""
        found = {seed: result["scores"].get(metric) for seed, result in self.results.items()}
        return {seed: score["score"] for seed, score in found.items() if score}

    def valid(self, name: str = "ppl") -> Values:
        """Perplexities (or losses) of the best validation."""
        found = {seed: (result["best_valid"] or {}).get(name) for seed, result in self.results.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def leaks(self) -> bool:
        """Whether a run of it saw the words that it was to predict."""
        return any(catalogue.LEAKING_FLAG in result["configuration"] for result in self.results.values())

    @property
    def significant(self) -> bool:
        """Whether it differs from its reference by more than chance."""
        return self.test is not None and self.test.significant


def mean(values: Sequence[float]) -> Optional[float]:
    """None of nothing."""
    return statistics.mean(values) if values else None


def differences(ours: Values, theirs: Values) -> List[float]:
    """For each seed that both have."""
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


@dataclass
class TableResult:
    """All rows of a table.

    Attributes:
        table: which.
        dataset: corpus.
        seeds: that were asked for.
        rows: their results.
        chosen: the setting of each norm that validation data prefers, if the table chooses and all runs are there.
    """

    table: Table
    dataset: str
    seeds: List[int]
    rows: List[RowResult]
    chosen: Dict[str, RowResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metric, self.unit, self.sign = self.table.metric

    def values(self, row: RowResult) -> Values:
        """What rows are compared by: validation data where a setting is to be chosen, else the test set."""
        return row.valid() if self.table.choose else row.scores(self.metric)

    def score(self, row: RowResult) -> Optional[float]:
        """The mean over the seeds, of the test set."""
        return mean(list(row.scores(self.metric).values()))

    def difference(self, row: RowResult) -> Optional[float]:
        """From the reference, in means over the seeds that both have."""
        return mean(differences(self.values(row), self.values(row.reference))) if row.reference else None

    def improvement(self, rows: Sequence[RowResult]) -> str:
        """The probability that a run of these rows is better than one of their baselines: ``0.83 (0.50 to 1.00)``."""
        pairs = [(row.scores(self.metric), row.baseline.scores(self.metric)) for row in rows if row.baseline]
        shared = [[(ours[seed], theirs[seed]) for seed in ours if seed in theirs] for ours, theirs in pairs]
        sides = [[[both[side] for both in stratum] for stratum in shared if stratum] for side in (0, 1)]
        if len(self.seeds) < 2 or not sides[0]:
            return ""

        def chance(ours: Strata, theirs: Strata) -> float:
            return probability_of_improvement(ours, theirs, self.sign)

        interval = bootstrap(chance, *sides)
        return f"{chance(*sides):.2f}" + (" ({:.2f} to {:.2f})".format(*interval) if interval else "")

    def scored(self) -> List[RowResult]:
        """Rows with a score, best first."""
        found = [row for row in self.rows if self.score(row) is not None]
        return sorted(found, key=lambda row: -self.sign * (self.score(row) or 0.0))

    def published(self, row: RowResult) -> Optional[float]:
        """The paper's score for a row, or the one for orientation."""
        name = row.row.norm if row.row.variant == catalogue.LEAK else row.row.name
        return catalogue.published(name, self.dataset) if self.table.published else None


def compare_rows(rows: Sequence[RowResult], values: Callable[[RowResult], Values]) -> None:
    """Tests each row against its reference on the seeds that both have, with Holm's correction over the rows."""
    for row in rows:
        row.test = paired(differences(values(row), values(row.reference))) if row.reference else None
    correct([row.test for row in rows])


def choose(rows: Sequence[RowResult]) -> Dict[str, RowResult]:
    """Norm -> its setting with the lowest mean validation loss, of the norms that have several and all results."""
    chosen = {}
    for norm in dict.fromkeys(row.row.norm for row in rows):
        candidates = [row for row in rows if row.row.norm == norm]
        if len(candidates) > 1 and all(not row.lacking and row.valid("loss") for row in candidates):
            chosen[norm] = min(candidates, key=lambda row: statistics.mean(row.valid("loss").values()))
    return chosen


def gather(
    table: Table, dataset: str, folder: Path, rows: Sequence[Row], seeds: Sequence[int], reasons: Dict[str, str]
) -> TableResult:
    """Reads the results of a table.

    Args:
        table: which.
        dataset: corpus.
        folder: of the dataset's runs.
        rows: of the table.
        seeds: of each row.
        reasons: name -> why a run has no result, where that is known better than from its folder.
    """
    comparisons = Comparisons(folder)
    found: Dict[Row, RowResult] = {}
    for row in rows:
        runs = {seed: Run(folder, dataset, row, seed, None) for seed in seeds}
        results = {seed: run.result() for seed, run in runs.items()}
        lacking = {run.name: reasons.get(run.name, run.state()) for seed, run in runs.items() if not results[seed]}
        found[row] = RowResult(row, {seed: result for seed, result in results.items() if result}, lacking)
    whole = TableResult(table, dataset, list(seeds), list(found.values()))
    for row, result in found.items():
        base = catalogue.baseline(row, rows)
        usual = next((other for other in rows if other.norm == row.norm and not other.variant), row)
        result.baseline = found[base] if base else None
        result.reference = result.baseline if not table.choose else found[usual] if usual != row else None
        shared = [seed for seed in result.results if base and seed in found[base].results]
        compared = [comparisons.get(row.run_name(seed), base.run_name(seed), whole.metric) for seed in shared]
        if None not in compared:  # all seeds or none: which translations are at hand must not choose
            result.test_set = combine([each["p_value"] for each in compared])
    compare_rows(whole.rows, whole.values)
    resampled = [row for row in whole.rows if row.test_set is not None]
    for each, p in zip(resampled, holm([row.test_set or 0.0 for row in resampled])):
        each.test_set = p
    for each in whole.rows:
        if each.leaks:
            each.row = replace(each.row, label=each.row.label + catalogue.LEAKS)
    whole.chosen = choose(whole.rows) if table.choose else {}
    return whole


def order(rows: Sequence[Tuple[str, float]], decimals: int, sign: int) -> str:
    """``A 3.0 > B 2.0 = C 2.0``, of rows that are sorted, the best first."""
    shown = [(name, f"{value:.{decimals}f}") for name, value in rows]
    text = "{} {}".format(*shown[0])
    for (_, before), (name, value) in zip(shown, shown[1:]):
        text += (" = " if value == before else " > " if sign > 0 else " < ") + f"{name} {value}"
    return text
