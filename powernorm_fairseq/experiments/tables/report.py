"""The report of a table: the same sections as Markdown and as a page."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq import files
from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables import words
from powernorm_fairseq.experiments.tables.compare import SAMPLES
from powernorm_fairseq.experiments.tables.document import Grid, Section, number, to_html, to_markdown
from powernorm_fairseq.experiments.tables.export import public_variables, short_platform
from powernorm_fairseq.experiments.tables.progress import duration
from powernorm_fairseq.experiments.tables.results import RowResult, TableResult, compare_valid, mean, spread
from powernorm_fairseq.experiments.tables.seeds import FEWEST
from powernorm_fairseq.experiments.tables.tried import tried
from powernorm_fairseq.labels import label

TRIED = "tried"
HIDDEN_FLAGS = ("--seed", "--encoder-norm", "--norm", "--tensorboard-logdir", "--log-format", "--log-interval", "--cpu",
                "--distributed-world-size", "--ddp-backend")  # fmt: skip
COSTS = (
    "Tokens/s is the median over the epochs, in target tokens, as logged. It and the time are those of the fastest "
    "seed, because whatever else the machine does can only slow a training down; benchmarks/ compares speeds under "
    "equal conditions. Memory: the largest process of the training, without that of a GPU, mean over the seeds."
)
VALID = "Valid perplexity: at the validation with the lowest loss."
SPREAD = (
    "±: standard deviation over the seeds. Difference: mean over the seeds that both have. Intervals and p: Student's "
    "t over the seeds, of differences seed by seed; p is corrected for the number of rows (Holm), and rows with less "
    "than 0.05 stand out: chance makes one do so in at most one table of twenty. P(better than LN): how likely one run "
    "is better than one of LN, both with a seed drawn at random; its interval is a stratified bootstrap over the seeds "
    f"(arXiv:2108.13264), of {FEWEST} seeds or more."
)
CHOICE = (
    "Preferred: the setting with the lowest validation loss. p: Student's t over the seeds, of differences to the "
    "default seed by seed, corrected for the number of settings (Holm); rows with less than 0.05 stand out."
)
BLEU = (
    "BLEU: tokenised, as multi-bleu.perl, of the average of the last checkpoints. p, test set: sacreBLEU's paired "
    f"bootstrap ({SAMPLES} samples) against the LN run with the same seed, how often a difference as large arises by "
    "resampling the test set alone; of several seeds twice the mean, corrected for the number of rows (Holm)."
)


def write(result: TableResult, folder: Path, tried_folders: Sequence[Path] = ()) -> Tuple[Path, str]:
    """Writes ``TABLE.md`` and ``TABLE.html``; returns the page and what to print.

    Args:
        result: what there is.
        folder: of the dataset's runs, where the report goes.
        tried_folders: further folders of runs, for what was tried on validation data; those in ``tried/`` always count.
    """
    title = f"{result.table.title} on {CORPORA[result.dataset].title}"
    sections = build(result, [folder, *tried_folders, *sorted(folder.glob(f"{TRIED}/*"))])
    text, page = to_markdown(title, sections), folder / f"{result.table.name}.html"
    files.write(page, to_html(title, sections))
    files.write(page.with_suffix(".md"), text)
    return page, text[: text.index(sections[0].text)] if sections[0].text else text


def build(result: TableResult, folders: Sequence[Path]) -> List[Section]:
    """The whole report."""
    seeds = ("Seeds " if len(result.seeds) > 1 else "Seed ") + ", ".join(map(str, result.seeds))
    grid = choice_grid(result) if result.table.choose else score_grid(result)
    intro, items = f"{result.table.about} {seeds}.", words.findings(result)
    sections = [Section("", intro, grid, items, _legend(result), _figures(result))]
    found = _results(result)
    if found:
        sections.append(Section("Throughput and memory", grid=_costs(result), text=COSTS))
    tries = tried(folders, result.dataset)
    if tries is not None and not result.table.choose:
        sections.append(tries)
    if found:
        sections.append(Section("Runs", grid=_runs(result), items=_signatures(found)))
        sections.append(Section("Recipe", code=_recipe(found)))
        sections.append(Section("Environment", items=_environment(found)))
    norms = ",".join(dict.fromkeys(row.row.norm for row in result.rows))
    numbers = ",".join(map(str, result.seeds))
    again = f"powernorm reproduce {result.table.name} --dataset {result.dataset} --norms {norms} --seeds {numbers}"
    return [*sections, Section("Again", code=again)]


def _with_spread(values: Sequence[float]) -> str:
    deviation = spread(values)
    return number(mean(values)) + (f" ± {deviation:.2f}" if deviation is not None else "")


def _listed(values: Sequence[float], decimals: int = 2) -> str:
    return ", ".join(number(value, decimals) for value in values)


def _interval(ends: Optional[Tuple[float, float]], sign: bool = False) -> str:
    return " to ".join(number(end, sign=sign) for end in ends) if ends else ""


def _norm(result: TableResult) -> str:
    """What the norms of the rows are norms of, as a heading."""
    return "norm" if result.table.language_model else "encoder norm"


def score_grid(result: TableResult) -> Grid:
    """Scores of the test set; a column that says nothing here is left out."""
    corpus = CORPORA[result.dataset]
    paper = result.table.source + ("" if corpus.published else f", {CORPORA[corpus.reference].title}")
    several = len(result.seeds) > 1
    wanted = {
        paper: result.table.published,
        **{name: several for name in ("95 % interval", "each seed", "its 95 % interval", "p", "P(better than LN)")},
        "p, test set": not result.table.language_model,
        "sacreBLEU": not result.table.language_model,
    }
    rows = [_score_cells(result, row, paper) for row in result.rows]
    header = [name for name in rows[0] if wanted.get(name, True)]
    strong = [index for index, row in enumerate(result.rows) if row.test is not None and row.test.significant]
    return Grid(header, [[cells[name] for name in header] for cells in rows], strong)


def _score_cells(result: TableResult, row: RowResult, paper: str) -> Dict[str, str]:
    scores = list(row.scores(result.metric).values())
    better, test = result.improvement([row]), row.test
    return {
        _norm(result): row.row.label,
        paper: number(result.published(row), 1),
        result.table.metric.label: _with_spread(scores),
        "95 % interval": _interval(result.interval(row)),
        "each seed": _listed(scores),
        "difference to LN": number(result.difference(row), sign=True),
        "its 95 % interval": _interval(test.interval, sign=True) if test else "",
        "p": number(test.adjusted if test else None, 3),
        "P(better than LN)": better.show() if better else "",
        "p, test set": number(row.test_set, 3),
        "sacreBLEU": _with_spread(list(row.scores("sacrebleu").values())),
        "valid perplexity": _with_spread(list(row.valid("ppl").values())),
    }


def choice_grid(result: TableResult) -> Grid:
    """Settings that validation data chooses from."""
    header = ["setting", "valid perplexity", "each seed", "difference to default", "p"]
    header += [f"test {result.table.metric.label}"]
    chosen, tests = list(map(id, result.chosen.values())), compare_valid(result.rows)
    rows, strong = [], []
    for index, row in enumerate(result.rows):
        usual = next((other for other in result.rows if other.row.norm == row.row.norm and not other.row.variant), None)
        ours, theirs = row.valid("ppl"), usual.valid("ppl") if usual is not None and usual is not row else {}
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        values, scores = list(ours.values()), list(row.scores(result.metric).values())
        test = tests.get(row.row.run_name(0))
        name = row.row.label + (" (preferred)" if id(row) in chosen else "")
        numbers = [number(mean(both), sign=True), number(test.adjusted if test else None, 3)]
        rows.append([name, _with_spread(values), _listed(values), *numbers, _with_spread(scores)])
        strong += [index] if test is not None and test.significant else []
    return Grid(header, rows, strong)


def _legend(result: TableResult) -> str:
    if result.table.choose:
        return f"{VALID} {CHOICE}"
    several = len(result.seeds) > 1
    parts = [VALID, SPREAD if several else "", "" if result.table.language_model else BLEU]
    return " ".join(part for part in parts if part)


def _figures(result: TableResult) -> List[Tuple[str, str]]:
    """Captions and charts."""
    if find_spec("matplotlib") is None:
        raise UserError("reports need matplotlib: pip install 'powernorm-fairseq[figures]'")
    from powernorm_fairseq.figures.charts import Line, dots_chart, lines_chart

    figures = []
    unit = result.table.metric.label
    if result.table.axis is not None:
        caption = f"{unit} of the test set, mean over the seeds"
        lines = [Line(name, points) for name, points in _by_position(result) if points]
        if lines:
            figures.append((caption, lines_chart(caption, lines, result.table.axis, unit, log_x=True)))
    else:
        choose = result.table.choose
        what, axis = ("Perplexity on validation data", "perplexity") if choose else (f"{unit} of the test set", unit)
        values = [row.valid("ppl") if choose else row.scores(result.metric) for row in result.rows]
        names = [row.row.label.replace(", alpha", "") for row in result.rows]
        caption = f"{what[0].upper()}{what[1:]}: each seed, and the mean"
        if any(values):
            dots = [(name, list(own.values())) for name, own in zip(names, values)]
            figures.append((caption, dots_chart(caption, dots, axis)))
    for kind, where in (("valid", "on validation data"), ("train", "in training")):
        lines = [Line(name, points) for name, points in _curves(result, kind)]
        if lines:
            caption = f"Perplexity {where}, every seed"
            figures.append((caption, lines_chart(caption, lines, "updates", "perplexity", log_y=True)))
    late = [
        Line(name, tuple(point for point in points if point[0] >= points[-1][0] / 2))
        for name, points in _curves(result, "valid")
    ]
    if late and all(len(line.points) > 1 for line in late):
        caption = "Perplexity on validation data, second half of training"
        figures.append((caption, lines_chart(caption, late, "updates", "perplexity")))
    return figures


def _by_position(result: TableResult) -> List[Tuple[str, Tuple[Tuple[float, float], ...]]]:
    lines = []
    for norm in dict.fromkeys(row.row.norm for row in result.rows):
        points = [(row.row.position, result.score(row)) for row in result.rows if row.row.norm == norm]
        lines.append((label(norm), tuple((x, y) for x, y in points if x is not None and y is not None)))
    return lines


def _curves(result: TableResult, kind: str) -> List[Tuple[str, Tuple[Tuple[float, float], ...]]]:
    curves = [(row.row.label, each["curves"][kind]) for row in result.rows for each in row.results.values()]
    found = [(name, [(point["update"], point["ppl"]) for point in curve if point["ppl"]]) for name, curve in curves]
    return [(name, tuple(points)) for name, points in found if points]


def _costs(result: TableResult) -> Grid:
    header = [_norm(result), "parameters", "updates", "tokens/s", "against LN", "peak memory", "training time"]
    rows = []
    for row in result.rows:
        fastest, base = row.fastest(), row.baseline.fastest() if row.baseline else None
        speed, memory = fastest.get("words_per_second"), mean(row.numbers("peak_memory"))
        counts = [mean(row.numbers("parameters")), mean(row.numbers("updates")), speed]
        rows.append([
            row.row.label,
            *("" if count is None else f"{count:,.0f}" for count in counts),
            "" if speed is None or not base else f"{speed / base['words_per_second']:.2f}x",
            "" if memory is None else f"{memory / 2**20:,.0f} MiB",
            duration(fastest["seconds"]) if fastest.get("seconds") else "",
        ])  # fmt: skip
    return Grid(header, rows)


def _runs(result: TableResult) -> Grid:
    shown = {"tokenized": "BLEU", "sacrebleu": "sacreBLEU"}
    if result.table.language_model:
        shown = {result.metric: f"test {result.table.metric.label}"}
    rows = []
    for each in _results(result):
        scores = [number(each["scores"].get(name, {}).get("score")) for name in shown]
        revision = (each["git_revision"] or "")[:10] + ("+" if "+" in (each["git_revision"] or "") else "")
        best = number((each["best_valid"] or {}).get("ppl"))
        rows.append([each["run"], str(each["updates"]), str(each["epochs"]), best, *scores, revision])
    return Grid(["run", "updates", "epochs", "valid perplexity", *shown.values(), "revision"], rows)


def _results(result: TableResult) -> List[Dict[str, Any]]:
    return [each for row in result.rows for each in row.results.values()]


def _signatures(results: Sequence[Dict[str, Any]]) -> List[str]:
    decodings = [each["decoding"] for each in results if each["decoding"]]
    found = ["beam {beam}, length penalty {lenpen}, {sentences} sentences".format(**each) for each in decodings]
    found += [f"{name}: {score['signature']}" for each in results for name, score in each["scores"].items()]
    return list(dict.fromkeys(found))


def _recipe(results: Sequence[Dict[str, Any]]) -> str:
    """The flags of fairseq-train that all runs share."""
    configurations = [each["configuration"] for each in results]
    shared = {
        flag: values
        for flag, values in configurations[0].items()
        if flag not in HIDDEN_FLAGS and all(other.get(flag) == values for other in configurations)
    }
    return " ".join(" ".join((flag, *values)) for flag, values in shared.items())


def _environment(results: Sequence[Dict[str, Any]]) -> List[str]:
    """What the runs were made with; several values where they differ."""
    kinds: Dict[str, Dict[str, None]] = {}
    variables = [public_variables(each["environment"]) for each in results]
    names = sorted({name for own in variables for name in own})
    for each, own in zip(results, variables):
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
