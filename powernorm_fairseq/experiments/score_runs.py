"""Averages and scores the finished trainings in a folder, for ``reproduce.py``."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from powernorm_fairseq.experiments import average, evaluate, recipes
from powernorm_fairseq.experiments.trainings import AVERAGED, SCORES, Training, trainings


def say(text: str) -> None:
    """A line of progress."""
    print("score: " + text, file=sys.stderr, flush=True)


def checkpoint(training: Training) -> Path:
    """What to score a training with: the average of as many epochs as its recipe keeps, or of those there are."""
    epochs = [file for file in training.folder.glob("checkpoint*.pt") if file.stem[len("checkpoint") :].isdigit()]
    if not epochs:
        return training.folder / "checkpoint_last.pt"  # not one epoch was finished
    averaged = training.folder / AVERAGED
    if averaged.exists() and averaged.stat().st_mtime > max(file.stat().st_mtime for file in epochs):
        return averaged
    recipe = recipes.recipe(str(training.preset), training.norm, 1)
    count = min(len(epochs), int(recipe["--keep-last-epochs"][0]))
    words = ["--inputs", str(training.folder), "--num-epoch-checkpoints", str(count), "--output", str(averaged)]
    if average.main([*words, "--overwrite"]) != 0:
        raise ValueError("its checkpoints could not be averaged")
    return averaged


def score(training: Training, data: str, flags: Sequence[str]) -> None:
    """Decodes the test set and scores it, unless that was done."""
    words = ["--data", data, "--preset", str(training.preset), "--checkpoint", str(checkpoint(training))]
    words += ["--out", str(training.folder / SCORES), "--overwrite", *(["--", *flags] if flags else [])]
    if evaluate.main(words) != 0:
        raise ValueError("its test set could not be decoded and scored")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Average and score the finished trainings in a folder.",
        epilog="Flags after -- go to fairseq-generate.",
    )
    parser.add_argument("--dir", required=True, type=Path, help="folder of the trainings, each in one of its own")
    parser.add_argument("--data", required=True, metavar="BIN", help="output folder of fairseq-preprocess")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Scores as the command line says; the exit status tells whether every training has a score."""
    own, flags = recipes.split_flags(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(own)
    failed = []
    for training in trainings(args.dir):
        if training.state != "finished":
            say(f"{training.folder.name} is left out: {training.state}")
            failed.append(training)
            continue
        try:
            score(training, args.data, flags)
        except (OSError, ValueError) as error:
            say(f"{training.folder.name} has no score: {error}")
            failed.append(training)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
