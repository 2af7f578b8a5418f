"""What a table shows, in sentences: what is missing, which order was measured and published, what the spread allows."""

from itertools import combinations
from typing import List, Optional

from powernorm_fairseq.experiments.tables import catalogue
from powernorm_fairseq.experiments.tables.catalogue import DATASETS, LABELS
from powernorm_fairseq.experiments.tables.results import RowResult, TableResult, compare_valid, mean, order
from powernorm_fairseq.experiments.tables.student import Test, correct

LEVEL_WITH = 0.005  # no difference at two decimals


def findings(result: TableResult) -> List[str]:
    """All sentences of a table, the important ones first."""
    found = [*_missing(result), *_leaks(result), *_order(result), *_differences(result), *_choice(result)]
    return found or ["There is only one row, so nothing to compare."]


def _missing(result: TableResult) -> List[str]:
    lacking = {name: state for row in result.rows for name, state in row.lacking.items()}
    if not lacking:
        return []
    runs = ", ".join(f"{name} ({state})" for name, state in lacking.items())
    total = len(result.rows) * len(result.seeds)
    return [f"This table is not complete: {len(lacking)} of {total} runs have no result yet: {runs}."]


def _leaks(result: TableResult) -> List[str]:
    leaking = [row.row.label for row in result.rows if row.leaks]
    if not leaking:
        return []
    return [
        f"Without causal mask: {', '.join(leaking)}. These models see the words that they are to predict, so their "
        "perplexities are not those of language models and compare with no others."
    ]


def _paper(dataset: str) -> str:
    return DATASETS[DATASETS[dataset].reference].title


def _order(result: TableResult) -> List[str]:
    """The measured order beside the published one."""
    if result.table.choose:
        return []
    scored = result.scored()
    sentences = []
    if len(scored) > 1 and result.table.axis is None:
        pairs = [(row.row.label, result.score(row) or 0.0) for row in scored]
        shown = order(pairs, 2, result.sign > 0)
        sentences.append(f"Measured order, mean {result.table.metric.label} of the test set: {shown}.")
    if result.table.published:
        sentences += _published_order(result, scored)
    elif result.table.published_order:
        shown = " > ".join(LABELS[norm] for norm in result.table.published_order)
        sentences.append(f"The paper's figure shows {shown} on IWSLT14.")
        sentences += _order_by_position(result)
    return sentences


def _published_order(result: TableResult, scored: List[RowResult]) -> List[str]:
    known = [row for row in scored if result.published(row) is not None]
    if len(known) < 2:
        return []
    ranked = sorted(known, key=lambda row: -result.sign * (result.published(row) or 0.0))
    shown = order([(row.row.label, result.published(row) or 0.0) for row in ranked], 1, result.sign > 0)
    if DATASETS[result.dataset].published:
        sentences = [f"Published order: {shown}."]
    else:
        sentences = [f"The paper has no numbers for {DATASETS[result.dataset].title}; on {_paper(result.dataset)} its "
                     f"order is {shown}."]  # fmt: skip
    tests = {(better.row, worse.row): result.compare(better, worse) for better, worse in combinations(ranked, 2)}
    correct(list(tests.values()))
    swapped, clear = [], 0
    for index, better in enumerate(ranked):
        for worse in ranked[index + 1 :]:
            ahead = result.sign * ((result.score(better) or 0.0) - (result.score(worse) or 0.0))
            if result.published(better) == result.published(worse) or ahead >= LEVEL_WITH:
                continue
            test = tests[better.row, worse.row]
            clear += test is not None and test.significant
            relation = "level with" if ahead > -LEVEL_WITH else "over"
            note = f" (significant, p = {test.adjusted:.3f})" if test is not None and test.significant else ""
            swapped.append(f"{worse.row.label} {relation} {better.row.label}{note}")
    if not swapped:
        return [*sentences, "The measured order is the published one."]
    sentence = f"The measured order differs from the published one: {', '.join(swapped)}."
    if not clear:
        several = any(test is not None for test in tests.values())
        sentence += (
            " None of these differences is significant (paired t over the seeds, Holm over the pairs)."
            if several
            else " With one seed, nothing is known about the spread."
        )
    return [*sentences, sentence]


def _order_by_position(result: TableResult) -> List[str]:
    """Of a table with an x axis: the order at each of its positions."""
    sentences = []
    for position in sorted({row.row.position for row in result.rows if row.row.position is not None}):
        here = [row for row in result.scored() if row.row.position == position]
        if len(here) > 1:
            pairs = [(LABELS[row.row.norm], result.score(row) or 0.0) for row in here]
            expected = [norm for norm in result.table.published_order if norm in [row.row.norm for row in here]]
            same = [row.row.norm for row in here if row.row.norm in expected] == expected
            verdict = "the published order" if same else "not the published order"
            sentences.append(f"Measured at {position:.0f} tokens: {order(pairs, 2, result.sign > 0)}; {verdict}.")
    return sentences


def _differences(result: TableResult) -> List[str]:
    """Each row against the baseline, unless there are too many of them for sentences."""
    sentences: List[str] = []
    if result.table.axis is not None:
        return _over_positions(result)
    for row in result.rows:
        difference = result.difference(row)
        if difference is None or row.baseline is None:
            continue
        sentences.append(_difference(result, row, row.baseline, difference))
    return sentences


def _over_positions(result: TableResult) -> List[str]:
    """Of a table with an x axis: each norm against the baseline, over all positions together."""
    sentences = []
    for norm in dict.fromkeys(row.row.norm for row in result.rows):
        rows = [row for row in result.rows if row.row.norm == norm]
        better = result.improvement(rows)
        if better is not None and len(result.seeds) > 1:
            label = LABELS[catalogue.BASELINE]
            sentences.append(
                f"A run of {LABELS[norm]} is better than one of {label} under the same conditions with probability "
                f"{better.show()}, mean over the positions."
            )
    return sentences


def _difference(result: TableResult, row: RowResult, base: RowResult, difference: float) -> str:
    unit = result.table.metric.label
    where = "above" if difference > 0 else "below"
    text = f"{row.row.label} is {abs(difference):.2f} {unit} {where} {base.row.label}"
    if abs(difference) < LEVEL_WITH:
        text = f"{row.row.label} is level with {base.row.label}"
    ours, theirs = result.published(row), result.published(base)
    if ours is not None and theirs is not None:
        text += f" (paper, {_paper(result.dataset)}: {ours - theirs:+.1f})"
    text += "; one seed, so nothing is known about the spread" if row.test is None else _significance(row.test)
    better = result.improvement([row])
    if better is not None and len(result.seeds) > 1:
        text += f"; probability of improvement {better.show()}"
    if row.test_set is not None:
        values = ", ".join(f"{p:.3f}" for p in row.p_values.values())
        text += f"; paired bootstrap of the test set: p = {row.test_set:.3f} (each seed: {values})"
    return text + "."


def _significance(test: Test) -> str:
    verdict = "significant" if test.significant else "not significant"
    low, high = test.interval
    return f", {verdict}: 95 % interval {low:+.2f} to {high:+.2f}, p = {test.adjusted:.3f} over {test.seeds} seeds"


def _choice(result: TableResult) -> List[str]:
    """What validation data prefers, and what the test set then says of it."""
    if not result.table.choose:
        return []
    if not result.chosen:
        return ["No setting is chosen yet: that takes the validation loss of all runs."]
    sentences = []
    for norm, row in result.chosen.items():
        usual = next((other for other in result.rows if other.row.norm == norm and not other.row.variant), None)
        text = f"Validation data prefers {row.row.label}: perplexity {_number(mean(list(row.valid('ppl').values())))}"
        if usual is row:
            sentences.append(text + ". It is the default.")
            continue
        if usual is not None:
            text += f", against {_number(mean(list(usual.valid('ppl').values())))} by default"
            test = compare_valid(result.rows).get(row.row.run_name(0))
            text += "" if test is None else _significance(test)
            if result.score(row) is not None and result.score(usual) is not None:
                text += f". On the test set: {_number(result.score(row))} against {_number(result.score(usual))} "
                text += result.table.metric.label
        sentences.append(text + ".")
    return sentences


def _number(value: Optional[float]) -> str:
    return "?" if value is None else f"{value:.2f}"
