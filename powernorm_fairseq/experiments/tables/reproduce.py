"""Runs what is missing of one of the paper's tables and prints it beside what was published.

``catalogue.py`` says what the tables are. A run is a folder, ``DIR/DATASET/RUN``, with command,
environment, log, checkpoints, translations and ``result.json``; the reports lie beside the runs, as Markdown and as one
HTML page. The same command goes on with whatever was interrupted.
"""

import argparse
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.console import UserError, program
from powernorm_fairseq.experiments import checks, ranks, recipes, train
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.slurm import submit
from powernorm_fairseq.experiments.tables import catalogue, data, local, report, slurm
from powernorm_fairseq.experiments.tables.catalogue import TABLES, Row, Table
from powernorm_fairseq.experiments.tables.export import export
from powernorm_fairseq.experiments.tables.local import say
from powernorm_fairseq.experiments.tables.results import gather, mean
from powernorm_fairseq.experiments.tables.run import RESULT, Run, duration
from powernorm_fairseq.files import read_json


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Run what is missing of one of the paper's tables, and print it beside what was published.",
        epilog="Flags after -- go to fairseq-train for every run, as in scripts/train.sh.",
    )
    parser.add_argument("table", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--dataset", required=True, choices=sorted(CORPORA), help="corpus, and the recipe for it")
    parser.add_argument("--norms", help="rows, separated by commas (default: the table's)")
    parser.add_argument("--seeds", default="1", help="numbers, separated by commas (default: 1)")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="each run is in DIR/DATASET/RUN (default: runs)")
    parser.add_argument("--data", type=Path, metavar="BIN", help="output folder of fairseq-preprocess; without it, "
                        "data_prep makes data/DATASET")  # fmt: skip
    parser.add_argument("--from", dest="archives", type=Path, metavar="DIR", help="archives already downloaded, for "
                        "data_prep")  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="trainings side by side on this machine, which share its "
                        "cores (default: one for each GPU, one without; with wmt14 one on all GPUs)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would run, with an estimate of time and disk")
    parser.add_argument("--no-training", action="store_true", help="score what is trained, and report; train nothing")
    parser.add_argument("--report-only", action="store_true", help="write the report from the results there are")
    parser.add_argument("--status", action="store_true", help="print how far each run is, and do nothing")
    parser.add_argument("--export", type=Path, metavar="DIR", help="copy results, logs and the report to DIR "
                        "for publication: no checkpoints, no text of the data set or like it, no paths")  # fmt: skip
    parser.add_argument("--tried", type=Path, action="append", default=[], metavar="DIR", help="another --dir, whose "
                        "runs the report shows under what was tried on validation data; may be repeated")  # fmt: skip
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local", help="where trainings run")
    submit.add_cluster_arguments(parser.add_argument_group("with --launcher slurm"))
    return parser


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; what follows ``--`` becomes ``flags``."""
    args = recipes.parse_args(build_parser(), argv)
    args.table = catalogue.find_table(args.table, args.dataset)
    args.norms = args.norms.split(",") if args.norms else list(args.table.norms)
    args.user_flags = recipes.parse_flags(args.flags)
    try:
        args.seeds = list(dict.fromkeys(int(seed) for seed in args.seeds.split(",")))
    except ValueError:
        raise UserError(f"--seeds {args.seeds} are no numbers separated by commas") from None
    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs {args.jobs} is too few; give at least 1")
    args.dir = args.dir.absolute()
    args.folder = args.dir / args.dataset
    args.made_data = (Path("data") / args.dataset).absolute()
    if args.data is not None:
        args.data = args.data.absolute()
        if not args.data.is_dir():
            raise UserError(f"--data {args.data} is no folder; without --data, data_prep makes one")
    return args


def make_runs(args: argparse.Namespace, rows: Sequence[Row], bin_folder: Path) -> List[Run]:
    """The runs of a table, seed by seed: an early look at the table has all rows."""
    return [Run(args.folder, args.dataset, row, seed, bin_folder, args.flags) for seed in args.seeds for row in rows]


def wants_scores(table: Table, run: Run, chosen: Sequence[Row]) -> bool:
    """Whether the test set is to be scored: not for settings that are still to be chosen from."""
    return not table.choose or not run.row.variant or run.row in chosen


def run_here(args: argparse.Namespace, rows: Sequence[Row], runs: Sequence[Run]) -> Dict[str, str]:
    """Does what is missing on this machine; returns why runs failed."""
    gpus = 0 if "--cpu" in args.user_flags else ranks.count_gpus()
    envs = local.environments(args.jobs or local.default_jobs(args.dataset, gpus), args.dataset, gpus)
    with local.noting_signals() as signals:
        wanted = [(each, wants_scores(args.table, each, [])) for each in runs]
        failures = local.run_all(wanted, envs, signals, not args.no_training)
        if args.table.choose and not failures:
            found = gather(args.table, args.dataset, args.folder, rows, args.seeds, {})
            chosen = [row.row for row in found.chosen.values()]
            wanted = [(each, wants_scores(args.table, each, chosen)) for each in runs]
            failures = local.run_all(wanted, envs, signals, not args.no_training)
    return failures


def dry_run(args: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Prints what would be done, and what is known about how long it takes and how much it needs."""
    bin_folder = args.data or args.made_data / "bin"
    if not bin_folder.is_dir():
        words = data.command(args.dataset, args.made_data, args.archives)
        print("data: " + (" ".join(words) or f"the demo's corpus in {args.made_data}"))
    runs = make_runs(args, rows, bin_folder)
    times, sizes = [], []  # type: List[Optional[float]], List[int]
    for run in runs:
        if bin_folder.is_dir():
            run.check()
        if run.done(wants_scores(args.table, run, [])):
            print(f"{run.name}: finished")
            continue
        run.log.update()
        seconds, source = estimate(args, run)
        times.append(seconds)
        size = checks.all_checkpoints_bytes(str(run.data), run.flags) if bin_folder.is_dir() else None
        sizes += [size] if size is not None else []
        needed = "" if size is None else f", {size / 1e9:.2f} GB"
        print(f"{run.name}: {run.state()}, {duration(seconds)}{source}{needed}")
    jobs = args.jobs or local.default_jobs(args.dataset, ranks.count_gpus())
    known = [seconds for seconds in times if seconds is not None]
    if not times:
        print("nothing to do but the report")
        return
    text = f"{len(times)} of {len(runs)} runs to do, {jobs} side by side: "
    text += duration(sum(known) / jobs) if len(known) == len(times) else "unknown time (no finished run to go by)"
    free = checks.free_space(args.folder)
    text += f"; {sum(sizes) / 1e9:.2f} GB of checkpoints" if sizes else "; disk unknown until the data is there"
    print(f"{text}, {free / 1e9:.0f} GB free")


def estimate(args: argparse.Namespace, run: Run) -> Tuple[Optional[float], str]:
    """Seconds that a run still takes, and what that is taken from."""
    if run.trained:
        return 0.0, " (to be scored)"
    if run.seconds_left is not None:
        return run.seconds_left, " (at its own pace)"
    length = train.length(run.flags)
    results = [read_json(file) for file in args.folder.glob(f"*/{RESULT}")]
    alike = [result for result in results if result and result["seconds"] and result["length"] == length]
    same = [result["seconds"] for result in alike if result["norm"] == run.row.norm]
    if same:
        return mean(same), " (as other runs of this norm)"
    return mean([result["seconds"] for result in alike]), " (as other runs here)" if alike else ""


def finish(args: argparse.Namespace, rows: Sequence[Row], reasons: Dict[str, str]) -> int:
    """Writes the report, exports if that is wanted, and prints the table; the status says whether it is complete."""
    result = gather(args.table, args.dataset, args.folder, rows, args.seeds, reasons)
    if not any(row.results for row in result.rows):
        raise UserError(f"{args.folder} has no result of this table")
    page, text = report.write(result, args.folder, [folder / args.dataset for folder in args.tried])
    print(text)
    say(f"report: {page}")
    if args.export is not None:
        target = args.export.absolute()
        names = export(args.folder, target)
        for folder in args.tried:
            export(folder / args.dataset, target / report.TRIED / folder.name)
        page, _ = report.write(gather(args.table, args.dataset, target, rows, args.seeds, reasons), target)
        say(f"exported {len(names)} runs: {page}")
    return 1 if any(row.lacking for row in result.rows) else 0


@program("reproduce")
def main(argv: Sequence[str]) -> int:
    """Runs what is missing and reports; returns the exit status: 0 if the table is complete, 130 if stopped."""
    args = parse_args(argv)
    rows = catalogue.table_rows(args.table, args.dataset, args.norms, args.user_flags)
    if args.dry_run and args.launcher == "local":
        dry_run(args, rows)
        return 0
    if args.status:
        print(slurm.status(make_runs(args, rows, args.data or args.made_data / "bin")))
        return 0
    if args.report_only:
        return finish(args, rows, {})
    bin_folder = args.data or data.prepare(args.dataset, args.made_data, args.archives)
    runs = make_runs(args, rows, bin_folder)
    for each in runs:
        each.check()
    if args.launcher == "local":
        return finish(args, rows, run_here(args, rows, runs))
    missing = [each for each in runs if not each.done(wants_scores(args.table, each, []))]
    print("\n".join(slurm.launch(missing, args, args.folder, report_words(args, bin_folder))))
    return 0


def report_words(args: argparse.Namespace, bin_folder: Path) -> List[str]:
    """The arguments of this program that score what is trained and report."""
    words = [args.table.name, "--dataset", args.dataset, "--norms", ",".join(args.norms)]
    words += ["--seeds", ",".join(map(str, args.seeds)), "--data", str(bin_folder), "--dir", str(args.dir)]
    words += ["--export", str(args.export.absolute())] if args.export else []
    for folder in args.tried:
        words += ["--tried", str(folder.absolute())]
    return [*words, "--no-training", *(["--", *args.flags] if args.flags else [])]
