"""The report of a table: the same blocks as Markdown and as a page."""

import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq import files
from powernorm_fairseq.experiments.tables import words
from powernorm_fairseq.experiments.tables.catalogue import DATASETS, LABELS
from powernorm_fairseq.experiments.tables.compare import SAMPLES
from powernorm_fairseq.experiments.tables.document import (
    Block,
    Code,
    Figure,
    Grid,
    Heading,
    Items,
    Paragraph,
    Plots,
    number,
    to_html,
    to_markdown,
)
from powernorm_fairseq.experiments.tables.export import public_variables, short_platform
from powernorm_fairseq.experiments.tables.plot import Line, dots_plot, lines_plot
from powernorm_fairseq.experiments.tables.progress import duration
from powernorm_fairseq.experiments.tables.results import TableResult, compare_valid, mean, spread
from powernorm_fairseq.experiments.tables.seeds import FEWEST
from powernorm_fairseq.experiments.tables.tried import tried

TRIED = "tried"
HIDDEN_FLAGS = ("--seed", "--encoder-norm", "--norm", "--tensorboard-logdir", "--log-format", "--log-interval", "--cpu",
                "--distributed-world-size", "--ddp-backend")  # fmt: skip


def write(result: TableResult, folder: Path, tried_folders: Sequence[Path] = ()) -> Tuple[Path, str]:
    """Writes ``TABLE.md`` and ``TABLE.html``; returns the page and what to print.

    Args:
        result: what there is.
        folder: of the dataset's runs, where the report goes.
        tried_folders: further folders of runs, for what was tried on validation data; those in ``tried/`` always count.
    """
    title = f"{result.table.title} on {DATASETS[result.dataset].title}"
    blocks = build(result, [folder, *tried_folders, *sorted(folder.glob(f"{TRIED}/*"))])
    files.write(folder / f"{result.table.name}.md", to_markdown(title, blocks))
    page = folder / f"{result.table.name}.html"
    files.write(page, to_html(title, blocks))
    end = next(number for number, block in enumerate(blocks) if isinstance(block, Items)) + 1
    return page, to_markdown(title, blocks[:end])


def build(result: TableResult, folders: Sequence[Path]) -> List[Block]:
    """The whole report."""
    blocks: List[Block] = [Paragraph(_introduction(result)), main_grid(result), Items(words.findings(result))]
    blocks += [Paragraph(_legend(result))]
    figures = _figures(result)
    blocks += [Plots(figures)] if figures else []
    if any(row.results for row in result.rows):
        blocks += [Heading("Throughput and memory"), _costs(result), Paragraph(_costs_legend())]
    found = tried(folders, result.dataset)
    if found is not None and not result.table.choose:
        blocks += [Heading("What was tried on validation data"), *found]
    if any(row.results for row in result.rows):
        blocks += [Heading("Runs"), _runs(result), *_signatures(result)]
        blocks += [Heading("Recipe"), Code(_recipe(result))]
        blocks += [Heading("Environment"), Items(_environment(result))]
    blocks += [Heading("Again"), Code(_command(result))]
    return blocks


def _introduction(result: TableResult) -> str:
    seeds = ", ".join(map(str, result.seeds))
    return f"{result.table.about} {'Seeds' if len(result.seeds) > 1 else 'Seed'} {seeds}."


def _with_spread(values: Sequence[float], decimals: int = 2) -> str:
    middle, deviation = mean(values), spread(values)
    return number(middle, decimals) + (f" ± {deviation:.{decimals}f}" if deviation is not None else "")


def main_grid(result: TableResult) -> Grid:
    """The table itself."""
    return _choice_grid(result) if result.table.choose else _score_grid(result)


def _norm(result: TableResult) -> str:
    """What the norms of the rows are norms of, as a heading."""
    return "encoder norm" if result.metric == "tokenized" else "norm"


def _score_grid(result: TableResult) -> Grid:
    unit = result.table.metric.label
    several = len(result.seeds) > 1
    header = [_norm(result), unit, *(["95 % interval", "each seed"] if several else []), "difference to LN"]
    header += ["its 95 % interval", "p", "P(better than LN)"] if several else []
    translates = result.metric == "tokenized"
    header += [*(["p, test set", "sacreBLEU"] if translates else []), "valid perplexity"]
    dataset = DATASETS[result.dataset]
    paper = "paper" if dataset.published else f"paper, {DATASETS[dataset.reference].title}"
    if result.table.published:
        header.insert(1, paper)
    rows = []
    for row in result.rows:
        scores = row.scores(result.metric)
        cells = [row.row.label]
        cells += [number(result.published(row), 1)] if result.table.published else []
        cells += [_with_spread(list(scores.values()))]
        if several:
            cells += [_interval(result.interval(row)), ", ".join(number(score) for score in scores.values())]
        cells += [number(result.difference(row), sign=True)]
        if several:
            better, test = result.improvement([row]), row.test
            cells += [_interval(test.interval, sign=True), f"{test.adjusted:.3f}"] if test else ["", ""]
            cells += [better.show() if better else ""]
        if translates:
            cells += [number(row.test_set, 3)]
            cells += [_with_spread(list(row.scores("sacrebleu").values()))]
        cells += [_with_spread(list(row.valid("ppl").values()))]
        rows.append(cells)
    return Grid(header, rows, [index for index, row in enumerate(result.rows) if row.test and row.test.significant])


def _interval(ends: Optional[Tuple[float, float]], sign: bool = False) -> str:
    return " to ".join(number(end, sign=sign) for end in ends) if ends else ""


def _choice_grid(result: TableResult) -> Grid:
    header = ["setting", "valid perplexity", "each seed", "difference to default", "p"]
    header += [f"test {result.table.metric.label}"]
    rows, strong, tests = [], [], compare_valid(result.rows)
    for index, row in enumerate(result.rows):
        usual = next((other for other in result.rows if other.row.norm == row.row.norm and not other.row.variant), None)
        ours, theirs = row.valid("ppl"), usual.valid("ppl") if usual is not None and usual is not row else {}
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        test = tests.get(row.row.run_name(0))
        preferred = any(row is chosen for chosen in result.chosen.values())
        rows.append([
            row.row.label + (" (preferred)" if preferred else ""),
            _with_spread(list(ours.values())),
            ", ".join(number(value) for value in ours.values()),
            number(mean(both), sign=True),
            number(test.adjusted if test else None, 3),
            _with_spread(list(row.scores(result.metric).values())),
        ])  # fmt: skip
        strong += [index] if test is not None and test.significant else []
    return Grid(header, rows, strong)


def _legend(result: TableResult) -> str:
    text = "±: standard deviation over the seeds. " if len(result.seeds) > 1 else ""
    text += "Valid perplexity: at the validation with the lowest loss"
    text += "; the last checkpoints are averaged for the test. " if result.metric == "tokenized" else ". "
    if result.table.choose:
        return text + (
            "Preferred: the setting with the lowest validation loss. p: Student's t over the seeds, of differences to "
            "the default seed by seed, corrected for the number of settings (Holm); rows with less than 0.05 stand out."
        )
    text += "Difference: mean over the seeds that both have. "
    if len(result.seeds) > 1:
        text += (
            "Intervals and p: Student's t over the seeds, of differences seed by seed; p is corrected for the number "
            "of rows (Holm), and rows with less than 0.05 stand out: in one table of twenty, chance makes one do so. "
            "P(better than LN): how likely one run is better than one of LN, both with a seed drawn at random; its "
            f"interval is a stratified bootstrap over the seeds (arXiv:2108.13264), of {FEWEST} seeds or more. "
        )
    if result.metric != "tokenized":
        return text
    return text + (
        f"{result.table.metric.label}: tokenised, as multi-bleu.perl. p, test set: sacreBLEU's paired bootstrap of "
        f"this score ({SAMPLES} samples) against the LN run with the same seed, how often a difference as large arises "
        "by resampling the test set alone; of several seeds twice the mean, corrected for the number of rows (Holm)."
    )


def _figures(result: TableResult) -> List[Figure]:
    figures = []
    unit = result.table.metric.label
    scored = [(row.row.label, list(row.scores(result.metric).values())) for row in result.rows]
    if any(values for _, values in scored):
        if result.table.axis is None and not result.table.choose:
            caption = f"{unit} of the test set: each seed, and the mean"
            figures.append(Figure(caption, dots_plot(caption, scored, unit)))
        elif result.table.axis is not None:
            caption = f"{unit} of the test set, mean over the seeds"
            lines = _lines_by_position(result)
            svg = lines_plot(caption, lines, result.table.axis, unit, log_x=True, markers=True)
            figures.append(Figure(caption, svg))
    if result.table.choose:
        rows = [(row.row.label.replace(", alpha", ""), list(row.valid("ppl").values())) for row in result.rows]
        if any(values for _, values in rows):
            caption = "Perplexity on validation data: each seed, and the mean"
            figures.append(Figure(caption, dots_plot(caption, rows, "perplexity")))
    for kind, words_ in (("valid", "on validation data"), ("train", "in training")):
        lines = _curves(result, kind)
        if lines:
            caption = f"Perplexity {words_}, every seed"
            figures.append(Figure(caption, lines_plot(caption, lines, "updates", "perplexity", log_y=True)))
    late = [_second_half(line) for line in _curves(result, "valid")]
    if all(len(line.points) > 1 for line in late) and late:
        caption = "Perplexity on validation data, second half of training"
        figures.append(Figure(caption, lines_plot(caption, late, "updates", "perplexity")))
    return figures


def _lines_by_position(result: TableResult) -> List[Line]:
    lines = []
    for norm in dict.fromkeys(row.row.norm for row in result.rows):
        points = [(row.row.position, result.score(row)) for row in result.rows if row.row.norm == norm]
        known = tuple((x, y) for x, y in points if x is not None and y is not None)
        if known:
            lines.append(Line(LABELS[norm], known))
    return lines


def _curves(result: TableResult, kind: str) -> List[Line]:
    lines = []
    for row in result.rows:
        for each in row.results.values():
            points = [(point["update"], point["ppl"]) for point in each["curves"][kind] if point["ppl"]]
            if points:
                lines.append(Line(row.row.label, tuple(points)))
    return lines


def _second_half(line: Line) -> Line:
    end = line.points[-1][0]
    return Line(line.name, tuple(point for point in line.points if point[0] >= end / 2))


def _costs(result: TableResult) -> Grid:
    header = [_norm(result), "parameters", "updates", "tokens/s", "against LN", "peak memory", "training time"]
    rows = []
    for row in result.rows:
        fastest, base = row.fastest(), row.baseline.fastest() if row.baseline else None
        speed, memory = fastest.get("words_per_second"), mean(row.numbers("peak_memory"))
        updates, parameters = mean(row.numbers("updates")), mean(row.numbers("parameters"))
        rows.append([
            row.row.label,
            "" if parameters is None else f"{parameters:,.0f}",
            "" if updates is None else f"{updates:,.0f}",
            "" if speed is None else f"{speed:,.0f}",
            "" if speed is None or not base else f"{speed / base['words_per_second']:.2f}x",
            "" if memory is None else f"{memory / 2**20:,.0f} MiB",
            duration(fastest["seconds"]) if fastest.get("seconds") else "",
        ])  # fmt: skip
    return Grid(header, rows)


def _costs_legend() -> str:
    return (
        "Tokens/s is the median over the epochs, in target tokens, as logged. It and the time are those of the fastest "
        "seed, because whatever else the machine does can only slow a training down; benchmarks/ compares speeds under "
        "equal conditions. Memory: the largest process of the training, without that of a GPU, mean over the seeds."
    )


def _runs(result: TableResult) -> Grid:
    shown = {"tokenized": "BLEU", "sacrebleu": "sacreBLEU"}
    if result.metric not in shown:
        shown = {result.metric: f"test {result.table.metric.label}"}
    header = ["run", "updates", "epochs", "valid perplexity", *shown.values(), "revision"]
    rows = []
    for row in result.rows:
        for each in row.results.values():
            best = each["best_valid"] or {}
            scores = [number(each["scores"].get(name, {}).get("score")) for name in shown]
            revision = (each["git_revision"] or "")[:10] + ("+" if "+" in (each["git_revision"] or "") else "")
            rows.append([each["run"], str(each["updates"]), str(each["epochs"]), number(best.get("ppl")),
                         *scores, revision])  # fmt: skip
    return Grid(header, rows)


def _signatures(result: TableResult) -> List[Block]:
    found: Dict[str, None] = {}
    for each in _results(result):
        for name, score in each["scores"].items():
            found[f"{name}: {score['signature']}"] = None
    decoding = {
        f"beam {each['decoding']['beam']}, length penalty {each['decoding']['lenpen']}, "
        f"{each['decoding']['sentences']} sentences": None
        for each in _results(result)
        if each["decoding"]
    }
    return [Items([*decoding, *found])] if found else []


def _results(result: TableResult) -> List[Dict[str, Any]]:
    return [each for row in result.rows for each in row.results.values()]


def _recipe(result: TableResult) -> str:
    """The flags of fairseq-train that all runs share."""
    configurations = [each["configuration"] for each in _results(result)]
    shared = {
        flag: values
        for flag, values in configurations[0].items()
        if flag not in HIDDEN_FLAGS and all(other.get(flag) == values for other in configurations)
    }
    return " ".join(" ".join((flag, *values)) for flag, values in shared.items())


def _environment(result: TableResult) -> List[str]:
    """What the runs were made with; several values where they differ."""
    kinds: Dict[str, Dict[str, None]] = {}
    variables = [public_variables(each["environment"]) for each in _results(result)]
    names = sorted({name for own in variables for name in own})
    for each, own in zip(_results(result), variables):
        environment = each["environment"]
        facts = {
            "Python": str(environment.get("python", "")).split(" ")[0],
            "system": short_platform(str(environment.get("platform", ""))),
            "processor": environment.get("processor", ""),
            "cores": environment.get("cores", ""),
            "GPUs": ", ".join(re.sub(r" \(UUID.*", "", gpu) for gpu in environment.get("gpus", [])),
            "processes of a training": environment.get("processes", {}).get("all", ""),
            "norm kernels": environment.get("norm_kernels", ""),
            "git revision": (each["git_revision"] or "").replace("+changes", " with changes"),
            **environment.get("packages", {}),
            **{name: own.get(name, "not set") for name in names},
        }
        for name, fact in facts.items():
            if fact not in ("", None):
                kinds.setdefault(name, {})[str(fact)] = None
    return [f"{name}: {', '.join(facts)}" for name, facts in kinds.items()]


def _command(result: TableResult) -> str:
    norms = ",".join(dict.fromkeys(row.row.norm for row in result.rows))
    seeds = ",".join(map(str, result.seeds))
    return f"scripts/reproduce.py {result.table.name} --dataset {result.dataset} --norms {norms} --seeds {seeds}"
