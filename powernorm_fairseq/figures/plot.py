"""Draws the paper's figures from any run: PNG and SVG, and the numbers as CSV beside them."""

import argparse
import csv
import io
import logging
from pathlib import Path
from typing import Any, Dict, List, Sequence

from powernorm_fairseq.console import Arguments, UserError, run_main
from powernorm_fairseq.figures import sources, tables
from powernorm_fairseq.figures.sources import Source, StatsRun
from powernorm_fairseq.files import write

FIGURES = {
    "forward-stats": "distances between the batch's and the running statistics (Figures 2 and 4); --norm-stats runs",
    "backward-stats": "norms of the gradient's terms from these statistics (Figures 3 and 4); --norm-stats runs",
    "batch-size": "BLEU against tokens of a mini-batch; a CSV with norm, tokens, bleu[, seed], or result.json files",
    "embedding-svd": "singular values of the embedding, the largest as 1; checkpoints, or folders with them",
    "gamma-psi": "gamma / psi_B in each layer, and the line at 1 (Lemma 1); --norm-stats runs",
    "learning-curves": "losses of training and validation; folders of train.sh or reproduce.py",
    "nu": "the running mean of PN's backward (Theorem 1); --norm-stats runs",
    "scores": "BLEU of each norm, a dot for each seed and a line for the mean; sources as for batch-size",
}
OF_STATS = ("forward-stats", "backward-stats", "gamma-psi", "nu")
OF_SCORES = ("batch-size", "scores")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join("  {:<16} {}".format(name, about) for name, about in FIGURES.items())
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


def rows_of(args: argparse.Namespace, given: Sequence[Source], runs: Sequence[StatsRun]) -> tables.Rows:
    """The numbers of the figure."""
    if args.figure == "gamma-psi":
        return tables.gamma_psi(runs)
    if args.figure in OF_STATS:
        table: Any = {"forward-stats": tables.forward_stats, "backward-stats": tables.backward_stats, "nu": tables.nu}
        return table[args.figure](runs, args.layer, tables.x_axis(runs, args.x))
    table = {
        "batch-size": tables.batch_size,
        "embedding-svd": tables.embedding_svd,
        "learning-curves": tables.learning_curves,
        "scores": tables.batch_size,
    }
    return table[args.figure](given)


def title_of(args: argparse.Namespace, runs: Sequence[StatsRun]) -> List[str]:
    """The user's title, and what a run wants said of its data."""
    notes = dict.fromkeys(stats.run.header["note"] for stats in runs if stats.run.header.get("note"))
    return [line for line in (args.title, *notes) if line]


def as_csv(rows: tables.Rows) -> bytes:
    """The rows as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def run(args: argparse.Namespace) -> int:
    """Reads, draws and writes."""
    if args.figure not in FIGURES:
        raise UserError("{} is not known; choose from {}".format(args.figure, ", ".join(FIGURES)))
    draw = drawing()
    files: Dict[str, Path] = {end: args.out.with_name(args.out.name + "." + end) for end in ("png", "svg", "csv")}
    for file in files.values():
        if file.exists() and not args.overwrite:
            raise UserError("{} exists; --overwrite replaces it".format(file))
    given = [sources.parse_source(text) for text in args.runs]
    if args.figure not in OF_SCORES:
        given = [source.training() for source in given]
    runs = sources.read_stats(given) if args.figure in OF_STATS else []
    rows = rows_of(args, given, runs)
    if not rows:
        raise UserError("{} has nothing to draw in {}".format(args.figure, ", ".join(args.runs)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure = draw.draw(args.figure, rows, title_of(args, runs), args.log_y)
    contents = {"csv": as_csv(rows), **draw.encoded(figure)}
    for end, file in files.items():
        write(file, contents[end])
    print("\n".join(str(file) for file in files.values()))
    return 0


def main(argv: Arguments = None) -> int:
    """Draws as the command line says; returns the exit status."""
    return run_main("plot", lambda words: run(build_parser().parse_args(words)), argv, ValueError)
