"""The report of a table: the same sections as Markdown and as a page."""

import re
import statistics
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
from powernorm_fairseq.experiments.tables.results import RowResult, TableResult, mean
from powernorm_fairseq.experiments.tables.run import duration
from powernorm_fairseq.experiments.tables.seeds import FEWEST, mean_interval
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
    "resampling the test set alone; of several seeds twice the mean, corrected for the number of rows (Holm); left out "
    "where not all seeds could be compared."
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
    """The whole report of a table that has at least one result."""
    seeds = ",".join(map(str, result.seeds))
    intro = f"{result.table.about} Seed{'s' if len(result.seeds) > 1 else ''} {seeds.replace(',', ', ')}."
    grid = choice_grid(result) if result.table.choose else score_grid(result)
    found = [each for row in result.rows for each in row.results.values()]
    tries = None if result.table.choose else tried(folders, result.dataset)
    norms = ",".join(dict.fromkeys(row.row.norm for row in result.rows))
    again = f"powernorm reproduce {result.table.name} --dataset {result.dataset} --norms {norms} --seeds {seeds}"
    return [
        Section("", intro, grid, words.findings(result), _legend(result), _figures(result)),
        Section("Throughput and memory", grid=_costs(result), text=COSTS),
        *([tries] if tries is not None else []),
        Section("Runs", grid=_runs(result, found), items=_signatures(found)),
        Section("Recipe", code=_recipe(found)),
        Section("Environment", items=_environment(found)),
        Section("Again", code=again),
    ]


def _norm(result: TableResult) -> str:
    """What the norms of the rows are norms of, as a heading."""
    return "norm" if result.table.language_model else "encoder norm"


def _with_spread(values: Dict[int, float]) -> str:
    """Of the seeds: the mean, and the standard deviation of several."""
    deviation = f" ± {statistics.stdev(values.values()):.2f}" if len(values) > 1 else ""
    return number(mean(list(values.values()))) + deviation


def _interval(ends: Optional[Tuple[float, float]], sign: bool = False) -> str:
    return " to ".join(number(end, sign=sign) for end in ends) if ends else ""


def score_grid(result: TableResult) -> Grid:
    """Scores of the test set."""
    corpus, rows = CORPORA[result.dataset], []
    paper = result.table.source + ("" if corpus.published else f", {CORPORA[corpus.reference].title}")
    for row in result.rows:
        scores, test = row.scores(result.metric), row.test
        rows.append({
            _norm(result): row.row.label,
            paper: number(result.published(row), 1),
            result.unit: _with_spread(scores),
            "95 % interval": _interval(mean_interval(list(scores.values()))),
            "each seed": ", ".join(map(number, scores.values())) if len(result.seeds) > 1 else "",
            "difference to LN": number(result.difference(row), sign=True),
            "its 95 % interval": _interval(test.interval, sign=True) if test else "",
            "p": number(test.adjusted, 3) if test else "",
            "P(better than LN)": result.improvement([row]),
            "p, test set": number(row.test_set, 3),
            "sacreBLEU": _with_spread(row.scores("sacrebleu")),
            "valid perplexity": _with_spread(row.valid()),
        })  # fmt: skip
    return Grid.of(rows, [row.significant for row in result.rows])


def choice_grid(result: TableResult) -> Grid:
    """Settings that validation data chooses from."""
    rows = []
    for row in result.rows:
        preferred = any(row is chosen for chosen in result.chosen.values())
        rows.append({
            "setting": row.row.label + (" (preferred)" if preferred else ""),
            "valid perplexity": _with_spread(row.valid()),
            "each seed": ", ".join(map(number, row.valid().values())),
            "difference to default": number(result.difference(row), sign=True),
            "p": number(row.test.adjusted, 3) if row.test else "",
            f"test {result.unit}": _with_spread(row.scores(result.metric)),
        })  # fmt: skip
    return Grid.of(rows, [row.significant for row in result.rows])


def _legend(result: TableResult) -> str:
    if result.table.choose:
        return f"{VALID} {CHOICE}"
    parts = {VALID: True, SPREAD: len(result.seeds) > 1, BLEU: not result.table.language_model}
    return " ".join(part for part, wanted in parts.items() if wanted)


def _figures(result: TableResult) -> List[Tuple[str, str]]:
    """Captions and charts."""
    if find_spec("matplotlib") is None:
        raise UserError("reports need matplotlib: pip install 'powernorm-fairseq[figures]'")
    from powernorm_fairseq.figures.charts import Line, dots_chart, lines_chart

    figures = []
    if result.table.axis is not None:
        points = [(label(row.row.norm), row.row.position, result.score(row)) for row in result.rows]
        norms = dict.fromkeys(name for name, _, score in points if score is not None)
        lines = [Line(norm, tuple((x, y) for name, x, y in points if name == norm and y is not None)) for norm in norms]
        caption = f"{result.unit} of the test set, mean over the seeds"
        if lines:
            figures.append((caption, lines_chart(caption, lines, result.table.axis, result.unit, log_x=True)))
    else:
        choose = result.table.choose
        unit, what = ("perplexity", "on validation data") if choose else (result.unit, "of the test set")
        dots = [(row.row.label.replace(", alpha", ""), list(result.values(row).values())) for row in result.rows]
        caption = f"{unit[0].upper()}{unit[1:]} {what}: each seed, and the mean"
        if any(values for _, values in dots):
            figures.append((caption, dots_chart(caption, dots, unit)))

    curves: Dict[str, List[Line]] = {"valid": [], "train": []}
    for kind, lines in curves.items():
        for row in result.rows:
            for each in row.results.values():
                curve = tuple((point["update"], point["ppl"]) for point in each["curves"][kind] if point["ppl"])
                lines += [Line(row.row.label, curve)] if curve else []
    for kind, where in (("valid", "on validation data"), ("train", "in training")):
        caption = f"Perplexity {where}, every seed"
        if curves[kind]:
            figures.append((caption, lines_chart(caption, curves[kind], "updates", "perplexity", log_y=True)))
    late = [
        Line(name, tuple(point for point in points if point[0] >= points[-1][0] / 2))
        for name, points in curves["valid"]
    ]
    if late and all(len(line.points) > 1 for line in late):
        caption = "Perplexity on validation data, second half of training"
        figures.append((caption, lines_chart(caption, late, "updates", "perplexity")))
    return figures


def _costs(result: TableResult) -> Grid:
    rows = []
    for row in result.rows:
        parameters, updates, memory = (
            mean([each[name] for each in row.results.values() if each.get(name) is not None])
            for name in ("parameters", "updates", "peak_memory")
        )
        fastest, base = _fastest(row), _fastest(row.baseline) if row.baseline else {}
        speed, seconds = fastest.get("words_per_second"), fastest.get("seconds")
        rows.append({
            _norm(result): row.row.label,
            "parameters": "" if parameters is None else f"{parameters:,.0f}",
            "updates": "" if updates is None else f"{updates:,.0f}",
            "tokens/s": f"{speed:,.0f}" if speed else "",
            "against LN": f"{speed / base['words_per_second']:.2f}x" if speed and base else "",
            "peak memory": "" if memory is None else f"{memory / 2**20:,.0f} MiB",
            "training time": duration(seconds) if seconds else "",
        })  # fmt: skip
    return Grid.of(rows)


def _fastest(row: RowResult) -> Dict[str, Any]:
    """The result of the seed that trained fastest; empty if none says how fast it was."""
    timed = [result for result in row.results.values() if result.get("words_per_second")]
    return max(timed, key=lambda result: result["words_per_second"], default={})


def _runs(result: TableResult, found: Sequence[Dict[str, Any]]) -> Grid:
    shown = {"tokenized": "BLEU", "sacrebleu": "sacreBLEU"}
    if result.table.language_model:
        shown = {result.metric: f"test {result.unit}"}
    rows = []
    for each in found:
        revision = each["git_revision"] or ""
        rows.append({
            "run": each["run"],
            "updates": each["updates"],
            "epochs": each["epochs"],
            "valid perplexity": number((each["best_valid"] or {}).get("ppl")),
            **{name: number(each["scores"].get(metric, {}).get("score")) for metric, name in shown.items()},
            "revision": revision[:10] + ("+" if "+" in revision else ""),
        })  # fmt: skip
    return Grid.of(rows)


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
