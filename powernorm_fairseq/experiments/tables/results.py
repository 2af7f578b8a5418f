"""What came out of a table's runs: means, spreads, differences, orders, and which setting validation data chooses."""

import functools
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.experiments.tables import catalogue, student
from powernorm_fairseq.experiments.tables.catalogue import Row, Table
from powernorm_fairseq.experiments.tables.compare import Comparisons
from powernorm_fairseq.experiments.tables.run import Run
from powernorm_fairseq.experiments.tables.seeds import Estimate, estimate, probability_of_improvement
from powernorm_fairseq.experiments.tables.student import Test


@dataclass
class RowResult:
    """A row and the results of its seeds.

    Attributes:
        row: norm and settings.
        results: seed -> result.json.
        lacking: name -> state of each run without a result.
        baseline: row it is compared with.
        p_values: seed -> p of the paired bootstrap against the baseline's run with that seed.
        test: of the difference to the baseline, over the seeds that both have.
        test_set: the p of all seeds' bootstraps together, corrected as that of the test.
    """

    row: Row
    results: Dict[int, Dict[str, Any]]
    lacking: Dict[str, str] = field(default_factory=dict)
    baseline: Optional["RowResult"] = None
    p_values: Dict[int, float] = field(default_factory=dict)
    test: Optional[Test] = None
    test_set: Optional[float] = None

    def scores(self, metric: str) -> Dict[int, float]:
        """Seed -> score of the test set."""
        found = {seed: result["scores"].get(metric) for seed, result in self.results.items()}
        return {seed: score["score"] for seed, score in found.items() if score}

    def differences(self, metric: str) -> List[float]:
        """From the baseline, for each seed that both have."""
        if self.baseline is None:
            return []
        ours, theirs = self.scores(metric), self.baseline.scores(metric)
        return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]

    def valid(self, name: str = "loss") -> Dict[int, float]:
        """Seed -> loss (or ppl) of the best validation."""
        found = {seed: (result["best_valid"] or {}).get(name) for seed, result in self.results.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def numbers(self, name: str) -> List[float]:
        """What all results say under a name."""
        return [result[name] for result in self.results.values() if result.get(name) is not None]

    @property
    def leaks(self) -> bool:
        """Whether a run of it saw the words that it was to predict."""
        return any(catalogue.LEAKING_FLAG in result["configuration"] for result in self.results.values())

    def fastest(self) -> Dict[str, Any]:
        """The result of the seed that trained fastest; empty if none says how fast it was."""
        timed = [result for result in self.results.values() if result.get("words_per_second")]
        return max(timed, key=lambda result: result["words_per_second"], default={})


def mean(values: Sequence[float]) -> Optional[float]:
    """None of nothing."""
    return statistics.mean(values) if values else None


def spread(values: Sequence[float]) -> Optional[float]:
    """The standard deviation of several seeds; one has none."""
    return statistics.stdev(values) if len(values) > 1 else None


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

    @property
    def metric(self) -> str:
        """What rows are ordered by."""
        return self.table.metric.key

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1."""
        return 1 if self.table.metric.higher_is_better else -1

    def score(self, row: RowResult) -> Optional[float]:
        """The mean over the seeds."""
        return mean(list(row.scores(self.metric).values()))

    def difference(self, row: RowResult) -> Optional[float]:
        """From the baseline, in means over the seeds that both have."""
        return mean(row.differences(self.metric))

    def interval(self, row: RowResult) -> Optional[Tuple[float, float]]:
        """The 95 % interval of the mean over the seeds; None of fewer than two."""
        return student.mean_interval(list(row.scores(self.metric).values()))

    def improvement(self, rows: Sequence[RowResult]) -> Optional[Estimate]:
        """The probability that a run of these rows is better than one of their baselines, of the seeds both have.

        Args:
            rows: settings of one norm, each with a baseline under the same conditions.
        """
        pairs = [(row, row.baseline) for row in rows if row.baseline is not None]
        scores = []
        for ours, theirs in ((row.scores(self.metric), base.scores(self.metric)) for row, base in pairs):
            shared = [seed for seed in ours if seed in theirs]
            scores += [([ours[seed] for seed in shared], [theirs[seed] for seed in shared])] if shared else []
        if not scores:
            return None
        compare = functools.partial(probability_of_improvement, higher_is_better=self.sign > 0)
        return estimate(compare, [ours for ours, _ in scores], [theirs for _, theirs in scores])

    def compare(self, first: RowResult, second: RowResult) -> Optional[Test]:
        """Two rows on the seeds that both have, before any correction."""
        ours, theirs = first.scores(self.metric), second.scores(self.metric)
        return student.paired([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def scored(self) -> List[RowResult]:
        """Rows with a score, best first."""
        found = [row for row in self.rows if self.score(row) is not None]
        return sorted(found, key=lambda row: -self.sign * (self.score(row) or 0.0))

    def published(self, row: RowResult) -> Optional[float]:
        """The paper's score for a row, or the one for orientation."""
        name = row.row.norm if row.row.variant == catalogue.LEAK else row.row.name
        return catalogue.published(name, self.dataset) if self.table.published else None


def compare_rows(rows: Sequence[RowResult], metric: str) -> None:
    """Tests each row against its baseline on the seeds that both have, with Holm's correction over the rows."""
    for row in rows:
        row.test = student.paired(row.differences(metric))
        row.test_set = student.combine(list(row.p_values.values()))
    student.correct([row.test for row in rows])
    resampled = [row for row in rows if row.test_set is not None]
    for row, p in zip(resampled, student.holm([row.test_set or 0.0 for row in resampled])):
        row.test_set = p


def compare_valid(rows: Sequence[RowResult]) -> Dict[str, Test]:
    """Run name -> test of its validation perplexity against its norm's plain setting, corrected over all settings."""
    tests: Dict[str, Test] = {}
    for row in rows:
        usual = next((other for other in rows if other.row.norm == row.row.norm and not other.row.variant), None)
        if usual is None or usual is row:
            continue
        ours, theirs = row.valid("ppl"), usual.valid("ppl")
        test = student.paired([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
        if test is not None:
            tests[row.row.run_name(0)] = test
    student.correct(list(tests.values()))
    return tests


def choose(rows: Sequence[RowResult]) -> Dict[str, RowResult]:
    """Norm -> its setting with the lowest mean validation loss, of the norms that have several and all results."""
    chosen = {}
    for norm in dict.fromkeys(row.row.norm for row in rows):
        candidates = [row for row in rows if row.row.norm == norm]
        if len(candidates) > 1 and all(not row.lacking and row.valid() for row in candidates):
            chosen[norm] = min(candidates, key=lambda row: statistics.mean(row.valid().values()))
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
    found = []
    for row in rows:
        runs = {seed: Run(folder, dataset, row, seed, None) for seed in seeds}
        results = {seed: run.result() for seed, run in runs.items()}
        lacking = {run.name: reasons.get(run.name, run.state()) for seed, run in runs.items() if not results[seed]}
        found.append(RowResult(row, {seed: result for seed, result in results.items() if result}, lacking))
    for result in found:
        base = catalogue.baseline(result.row, rows)
        result.baseline = next((other for other in found if other.row == base), None) if base else None
        if result.baseline is not None:
            for seed in result.results:
                names = [each.row.run_name(seed) for each in (result, result.baseline)]
                compared = comparisons.get(names[0], names[1], table.metric.key)
                if compared is not None:
                    result.p_values[seed] = compared["p_value"]
    compare_rows(found, table.metric.key)
    for result in found:
        if result.leaks:
            result.row = replace(result.row, label=result.row.label + catalogue.LEAKS)
    chosen = choose(found) if table.choose else {}
    return TableResult(table, dataset, list(seeds), found, chosen)


def order(rows: Sequence[Tuple[str, float]], decimals: int, higher_is_better: bool = True) -> str:
    """``A 3.0 > B 2.0 = C 2.0``, of rows that are sorted, the best first."""
    text = ""
    previous = None
    sign = " > " if higher_is_better else " < "
    for label, value in rows:
        shown = f"{value:.{decimals}f}"
        text += ("" if previous is None else " = " if shown == previous else sign) + f"{label} {shown}"
        previous = shown
    return text
