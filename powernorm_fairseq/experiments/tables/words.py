"""What a table shows, in a few sentences: what is missing, which order was measured and published, what is chosen."""

from itertools import combinations
from typing import List, Optional, Sequence

from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.results import RowResult, TableResult, compare_valid, mean, order
from powernorm_fairseq.experiments.tables.student import correct
from powernorm_fairseq.labels import label

LEVEL_WITH = 0.005  # no difference at two decimals


def findings(result: TableResult) -> List[str]:
    """All sentences of a table, the important ones first."""
    if result.table.choose:
        return [*_missing(result), *_choice(result)]
    by_position = result.table.axis is not None
    found = [*_missing(result), *_leaks(result), *(_positions(result) if by_position else _order(result))]
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


def _order(result: TableResult) -> List[str]:
    """The measured order, and how it differs from the published one."""
    scored = result.scored()
    if len(scored) < 2:
        return []
    shown = order([(row.row.label, result.score(row) or 0.0) for row in scored], 2, result.sign > 0)
    sentences = [f"Measured order, mean {result.table.metric.label} of the test set: {shown}."]
    known = [row for row in scored if result.published(row) is not None]
    if len(known) < 2:
        return sentences
    ranked = sorted(known, key=lambda row: -result.sign * (result.published(row) or 0.0))
    shown = order([(row.row.label, result.published(row) or 0.0) for row in ranked], 1, result.sign > 0)
    corpus = CORPORA[result.dataset]
    where = "" if corpus.published else f" on {CORPORA[corpus.reference].title}, as there is none for {corpus.title}"
    return [*sentences, f"Published order{where}: {shown}.", _swapped(result, ranked)]


def _swapped(result: TableResult, ranked: Sequence[RowResult]) -> str:
    """Which of the rows, best first as published, change places."""
    pairs = list(combinations(ranked, 2))
    tests = [result.compare(better, worse) for better, worse in pairs]
    correct(tests)
    swapped, clear = [], 0
    for (better, worse), test in zip(pairs, tests):
        ahead = result.sign * ((result.score(better) or 0.0) - (result.score(worse) or 0.0))
        if result.published(better) == result.published(worse) or ahead >= LEVEL_WITH:
            continue
        beyond = test is not None and test.significant
        clear += beyond
        relation = "level with" if ahead > -LEVEL_WITH else "over"
        note = " (significant)" if beyond else ""
        swapped.append(f"{worse.row.label} {relation} {better.row.label}{note}")
    sentence = f"The measured order differs from the published one: {', '.join(swapped)}."
    if not swapped:
        sentence = "The measured order is the published one."
        clear = sum(test is not None and test.significant for test in tests)
    if all(test is None for test in tests):
        return sentence + " With one seed, nothing is known about the spread."
    return sentence if clear else sentence + f" None of {'these' if swapped else 'the'} differences is significant."


def _positions(result: TableResult) -> List[str]:
    """Of a table with an x axis: the order at each of its positions, and each norm against the baseline over all."""
    shown = " > ".join(label(norm) for norm in result.table.published_order)
    sentences = [f"The paper's figure shows {shown} on IWSLT14."]
    for position in sorted({row.row.position for row in result.rows if row.row.position is not None}):
        here = [row for row in result.scored() if row.row.position == position]
        if len(here) > 1:
            pairs = [(label(row.row.norm), result.score(row) or 0.0) for row in here]
            sentences.append(f"Measured at {position:.0f} tokens: {order(pairs, 2, result.sign > 0)}.")
    for norm in dict.fromkeys(row.row.norm for row in result.rows):
        better = result.improvement([row for row in result.rows if row.row.norm == norm])
        if better is not None and len(result.seeds) > 1:
            sentences.append(
                f"A run of {label(norm)} is better than one of LN under the same conditions with probability "
                f"{better.show()}, mean over the positions."
            )
    return sentences


def _choice(result: TableResult) -> List[str]:
    """What validation data prefers, and what the test set then says of it."""
    if not result.chosen:
        return ["No setting is chosen yet: that takes the validation loss of all runs."]
    sentences = []
    for norm, row in result.chosen.items():
        usual = next((other for other in result.rows if other.row.norm == norm and not other.row.variant), None)
        ours = list(row.valid("ppl").values())
        text = f"Validation data prefers {row.row.label}: perplexity {_number(mean(ours))}"
        if usual is row:
            text += ". It is the default"
        elif usual is not None:
            theirs = list(usual.valid("ppl").values())
            text += f", against {_number(mean(theirs))} by default"
            test = compare_valid(result.rows).get(row.row.run_name(0))
            if test is not None:
                text += f", {'' if test.significant else 'not '}significant (p = {test.adjusted:.3f})"
            if result.score(row) is not None and result.score(usual) is not None:
                text += f". On the test set: {_number(result.score(row))} against {_number(result.score(usual))} "
                text += result.table.metric.label
        sentences.append(text + ".")
    return sentences


def _number(value: Optional[float]) -> str:
    return "?" if value is None else f"{value:.2f}"
