"""Scores the finished trainings in a folder, as ``reproduce`` asks for it.

A translation model is averaged over its last epochs and decodes the test set; of a language model the checkpoint with
the lowest validation loss is measured.
"""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

from powernorm_fairseq.console import UserError, program, say
from powernorm_fairseq.experiments import average, checks, evaluate, evaluate_lm, recipes, train
from powernorm_fairseq.files import read_json

AVERAGED = "averaged.pt"


def averaged(folder: Path, experiment: Dict[str, Any]) -> Path:
    """The average of as many epochs as a recipe keeps, or of those there are."""
    epochs = [file for file in folder.glob("checkpoint*.pt") if file.stem[len("checkpoint") :].isdigit()]
    if not epochs:
        return folder / "checkpoint_last.pt"  # not one epoch was finished
    output = folder / AVERAGED
    if output.exists() and output.stat().st_mtime > max(file.stat().st_mtime for file in epochs):
        return output
    recipe = recipes.recipe(experiment["preset"], experiment["norm"], 1)
    count = min(len(epochs), int(recipe["--keep-last-epochs"][0]))
    words = ["--inputs", str(folder), "--num-epoch-checkpoints", str(count), "--output", str(output)]
    if average.main([*words, "--overwrite"]) != 0:
        raise UserError("its checkpoints could not be averaged")
    return output


def score(folder: Path, experiment: Dict[str, Any], data: str, flags: Sequence[str]) -> None:
    """Scores the test set, unless that was done."""
    words = ["--data", data, "--out", str(folder / train.SCORES), "--overwrite"]
    if checks.is_language_model(recipes.recipe(experiment["preset"], experiment["norm"], 1)):
        program, words = evaluate_lm.main, [*words, "--checkpoint", str(folder / "checkpoint_best.pt")]
        words += ["--leaking"] if "--no-causal-mask" in experiment["flags"] else []  # the training asked for it
    else:
        checkpoint = averaged(folder, experiment)
        program, words = evaluate.main, [*words, "--preset", experiment["preset"], "--checkpoint", str(checkpoint)]
    if program([*words, *(["--", *flags] if flags else [])]) != 0:
        raise UserError("its test set could not be scored")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Score the finished trainings in a folder.",
        epilog="Flags after -- go to fairseq-generate or fairseq-eval-lm.",
    )
    parser.add_argument("--dir", required=True, type=Path, help="folder of the trainings, each in one of its own")
    parser.add_argument("--data", required=True, metavar="BIN", help="output folder of fairseq-preprocess")
    return parser


@program("score")
def main(argv: Sequence[str]) -> int:
    """Scores as the command line says; the exit status tells whether every training has a score."""
    args = recipes.parse_args(build_parser(), argv)
    found = sorted(args.dir.glob("*/experiment.json"))
    if not found:
        raise UserError(f"{args.dir} has no training")
    failed = 0
    for file in found:
        folder, state = file.parent, read_json(file.with_name("status.json")).get("state", "none")
        try:
            if state != "finished":
                raise UserError(f"its training is {state}")
            with contextlib.redirect_stdout(sys.stderr):
                score(folder, read_json(file), args.data, args.flags)
        except (OSError, ValueError) as error:
            say("score", f"{folder.name} has no score: {error}")
            failed += 1
    return 1 if failed else 0
