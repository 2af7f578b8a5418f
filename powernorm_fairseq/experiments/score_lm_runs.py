"""Measures the test perplexity of the finished language models in a folder, as reproduce.py asks for it."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Optional, Sequence

from powernorm_fairseq.experiments import evaluate_lm, recipes
from powernorm_fairseq.experiments.trainings import SCORES, trainings

BEST = "checkpoint_best.pt"  # of all validations


def say(text: str) -> None:
    """A line of progress."""
    print("score: " + text, file=sys.stderr, flush=True)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure the test perplexity of the finished language models in a folder.",
        epilog="Flags after -- are those of evaluate_lm.py.",
    )
    parser.add_argument("--dir", required=True, type=Path, help="folder with a folder for each training")
    parser.add_argument("--data", required=True, metavar="BIN", help="output folder of data_prep/lm.sh")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Scores as the command line says; the exit status tells whether every training has a score."""
    own, flags = recipes.split_flags(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(own)
    found = trainings(args.dir)
    failed = 0 if found else 1
    if not found:
        say(f"{args.dir} has no training")
    for training in found:
        if training.state != "finished":
            say(f"{training.folder.name} is left out: {training.state}")
            failed += 1
            continue
        words = ["--data", args.data, "--checkpoint", str(training.folder / BEST), "--overwrite", *flags]
        with contextlib.redirect_stdout(sys.stderr):
            failed += evaluate_lm.main([*words, "--out", str(training.folder / SCORES)])
        if training.scores:
            print(f"{training.norm}, seed {training.seed}: perplexity {training.scores['ppl']:.2f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
