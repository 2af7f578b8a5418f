"""Draws the paper's figures from any run: PNG and SVG, and the numbers as CSV beside them."""

import argparse
import csv
import functools
import io
import logging
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from powernorm_fairseq.console import UserError, program
from powernorm_fairseq.figures import sources, tables
from powernorm_fairseq.figures.sources import StatsRun
from powernorm_fairseq.files import write

OF_STATS, OF_SCORES, OF_TRAININGS = "--norm-stats runs", "batch-size", "trainings"


class Figure(NamedTuple):
    """What a figure shows, what it is made of, and its rows from that, the layer and the x axis that are wanted."""

    about: str
    source: str
    rows: Callable[[Any, str, str], tables.Rows]


FIGURES = {
    "forward-stats": Figure(
        "distances between the batch's and the running statistics (Figures 2 and 4); --norm-stats runs",
        OF_STATS,
        functools.partial(tables.moments, ("dist_mu", "dist_var", "dist_psi2")),
    ),
    "backward-stats": Figure(
        "norms of the gradient's terms from these statistics (Figures 3 and 4); --norm-stats runs",
        OF_STATS,
        functools.partial(tables.moments, ("g_mu", "g_var", "g_psi2")),
    ),
    "batch-size": Figure(
        "BLEU against tokens of a mini-batch; a CSV with norm, tokens, bleu[, seed], or result.json files",
        OF_SCORES,
        tables.scores,
    ),
    "embedding-svd": Figure(
        "singular values of the embedding, the largest as 1; checkpoints, or folders with them",
        OF_TRAININGS,
        tables.embedding_svd,
    ),
    "gamma-psi": Figure(
        "gamma / psi_B in each layer, and the line at 1 (Lemma 1); --norm-stats runs", OF_STATS, tables.gamma_psi
    ),
    "learning-curves": Figure(
        "losses of training and validation; folders of train.sh or reproduce.py", OF_TRAININGS, tables.learning_curves
    ),
    "nu": Figure("the running mean of PN's backward (Theorem 1); --norm-stats runs", OF_STATS, tables.nu),
    "scores": Figure(
        "BLEU of each norm, a dot for each seed and a line for the mean; sources as for batch-size",
        OF_SCORES,
        tables.scores,
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join(f"  {name:<16} {figure.about}" for name, figure in FIGURES.items())
    parser = argparse.ArgumentParser(
        description="Draw a figure of the paper from runs of this project.",
        epilog="figures:\n" + listed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figure", metavar="FIGURE", help="one of the figures below")
    parser.add_argument("--runs", required=True, nargs="+", metavar="[LABEL=]PATH", help="what to draw; see below")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="PREFIX", help="writes PREFIX.png, PREFIX.svg and PREFIX.csv"
    )
    parser.add_argument(
        "--layer", default="first", metavar="L", help="first (default), all, a number from 0, or the name of a norm"
    )
    parser.add_argument("--x", default="auto", choices=("auto", "epoch", "update"), help="the horizontal axis")
    parser.add_argument("--log-y", action="store_true", help="a logarithmic vertical axis")
    parser.add_argument("--title", default="", help="a line above the figure")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    return parser


def drawing() -> Any:
    """The module that needs matplotlib."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq, once imported, lets every library talk
    try:
        from powernorm_fairseq.figures import draw
    except ImportError as error:
        if "matplotlib" not in str(error):
            raise
        raise UserError("figures need matplotlib: pip install 'powernorm-fairseq[figures]'") from None
    return draw


def title_of(args: argparse.Namespace, runs: Sequence[StatsRun]) -> List[str]:
    """The user's title, and what a run wants said of its data."""
    notes = dict.fromkeys(stats.run.header["note"] for stats in runs if stats.run.header.get("note"))
    return [line for line in (args.title, *notes) if line]


@program("plot", ValueError)
def main(argv: Sequence[str]) -> int:
    """Draws as the command line says; returns the exit status."""
    args = build_parser().parse_args(argv)
    if args.figure not in FIGURES:
        raise UserError("{} is not known; choose from {}".format(args.figure, ", ".join(FIGURES)))
    draw, kind = drawing(), FIGURES[args.figure]
    files: Dict[str, Path] = {end: args.out.with_name(args.out.name + "." + end) for end in ("png", "svg", "csv")}
    for file in files.values():
        if file.exists() and not args.overwrite:
            raise UserError(f"{file} exists; --overwrite replaces it")
    given = [sources.parse_source(text) for text in args.runs]
    if kind.source != OF_SCORES:
        given = [source.training() for source in given]
    runs = sources.read_stats(given) if kind.source == OF_STATS else []
    rows = kind.rows(runs or given, args.layer, args.x)
    if not rows:
        raise UserError("{} has nothing to draw in {}".format(args.figure, ", ".join(args.runs)))
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure = draw.draw(args.figure, rows, title_of(args, runs), args.log_y)
    contents = {"csv": table.getvalue(), **draw.encoded(figure)}
    for end, file in files.items():
        write(file, contents[end])
    print("\n".join(str(file) for file in files.values()))
    return 0
