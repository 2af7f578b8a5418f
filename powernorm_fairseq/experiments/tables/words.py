"""What a table shows, in a few sentences: what is missing, which order was measured and published, what is chosen."""

from itertools import combinations
from typing import List, Sequence

from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.results import RowResult, TableResult, differences, mean, order
from powernorm_fairseq.experiments.tables.seeds import correct, paired
from powernorm_fairseq.labels import label

LEVEL_WITH = 0.005  # no difference at two decimals


def findings(result: TableResult) -> List[str]:
    """All sentences of a table, the important ones first."""
    found = []
    lacking = [f"{name} ({state})" for row in result.rows for name, state in row.lacking.items()]
    if lacking:
        total, runs = len(result.rows) * len(result.seeds), ", ".join(lacking)
        found.append(f"This table is not complete: {len(lacking)} of {total} runs have no result yet: {runs}.")
    if result.table.choose:
        return [*found, *_choice(result)]
    leaking = [row.row.label for row in result.rows if row.leaks]
    if leaking:
        found.append(
            f"Without causal mask: {', '.join(leaking)}. These models see the words that they are to predict, so their "
            "perplexities are not those of language models and compare with no others."
        )
    found += _order(result) if result.table.axis is None else _positions(result)
    return found or ["There is only one row, so nothing to compare."]


def _order(result: TableResult) -> List[str]:
    """The measured order, and how it differs from the published one."""
    scored = [(row, result.score(row) or 0.0) for row in result.scored()]
    if len(scored) < 2:
        return []
    shown = order([(row.row.label, score) for row, score in scored], 2, result.sign)
    sentences = [f"Measured order, mean {result.unit} of the test set: {shown}."]
    known = [(row, result.published(row)) for row, _ in scored]
    ranked = sorted(((row, score) for row, score in known if score), key=lambda pair: -result.sign * pair[1])
    if len(ranked) < 2:
        return sentences
    shown = order([(row.row.label, score) for row, score in ranked], 1, result.sign)
    corpus = CORPORA[result.dataset]
    where = "" if corpus.published else f" on {CORPORA[corpus.reference].title}, as there is none for {corpus.title}"
    return [*sentences, f"Published order{where}: {shown}.", _swapped(result, [row for row, _ in ranked])]


def _swapped(result: TableResult, ranked: Sequence[RowResult]) -> str:
    """Which of the rows, best first as published, change places."""
    pairs = list(combinations(ranked, 2))
    tests = [paired(differences(*(row.scores(result.metric) for row in pair))) for pair in pairs]
    correct(tests)
    real = [test is not None and test.significant for test in tests]
    swapped, clear = [], []
    for (better, worse), significant in zip(pairs, real):
        ahead = result.sign * ((result.score(better) or 0.0) - (result.score(worse) or 0.0))
        if result.published(better) != result.published(worse) and ahead < LEVEL_WITH:
            relation, note = "level with" if ahead > -LEVEL_WITH else "over", " (significant)" if significant else ""
            swapped.append(f"{worse.row.label} {relation} {better.row.label}{note}")
            clear.append(significant)
    if swapped:
        sentence = f"The measured order differs from the published one: {', '.join(swapped)}."
    else:
        sentence, clear = "The measured order is the published one.", real
    if all(test is None for test in tests):
        return sentence + " With one seed, nothing is known about the spread."
    if any(clear):
        return sentence
    return sentence + f" None of {'these' if swapped else 'the'} differences is significant."


def _positions(result: TableResult) -> List[str]:
    """Of a table with an x axis: the order at each of its positions, and each norm against the baseline over all."""
    shown = " > ".join(label(norm) for norm in result.table.published_order)
    sentences = [f"The paper's figure shows {shown} on IWSLT14."]
    for position in sorted({row.row.position for row in result.rows}):
        here = [row for row in result.scored() if row.row.position == position]
        if len(here) > 1:
            pairs = [(label(row.row.norm), result.score(row) or 0.0) for row in here]
            sentences.append(f"Measured at {position:.0f} tokens: {order(pairs, 2, result.sign)}.")
    for norm in dict.fromkeys(row.row.norm for row in result.rows):
        better = result.improvement([row for row in result.rows if row.row.norm == norm])
        if better:
            sentences.append(
                f"A run of {label(norm)} is better than one of LN under the same conditions with probability {better}, "
                "mean over the positions."
            )
    return sentences


def _choice(result: TableResult) -> List[str]:
    """What validation data prefers, and what the test set then says of it."""
    if not result.chosen:
        return ["No setting is chosen yet: that takes the validation loss of all runs."]
    sentences = []
    for row in result.chosen.values():
        text = f"Validation data prefers {row.row.label}: perplexity {mean(list(row.valid().values())):.2f}"
        usual = row.reference
        if usual is None:
            text += ". It is the default"
        else:
            text += f", against {mean(list(usual.valid().values())):.2f} by default"
            if row.test is not None:
                text += f", {'' if row.significant else 'not '}significant (p = {row.test.adjusted:.3f})"
            scores = [result.score(row), result.score(usual)]
            if None not in scores:
                text += ". On the test set: {:.2f} against {:.2f} ".format(*scores) + result.unit
        sentences.append(text + ".")
    return sentences
