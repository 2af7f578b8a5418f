"""The command line ``powernorm``: a table from subcommand to function."""

import importlib
import sys
from typing import Optional, Sequence

COMMANDS = {
    "train": ("powernorm_fairseq.experiments.train", "train by a recipe, or go on with a training"),
    "submit": ("powernorm_fairseq.experiments.slurm.submit", "train as a Slurm job"),
    "average": ("powernorm_fairseq.experiments.average", "average checkpoints into one"),
    "evaluate": ("powernorm_fairseq.experiments.evaluate", "decode a test set with a checkpoint, and score it"),
    "evaluate-lm": ("powernorm_fairseq.experiments.evaluate_lm", "measure the perplexity of a language model"),
    "score": ("powernorm_fairseq.experiments.score", "score translations"),
    "score-runs": ("powernorm_fairseq.experiments.score_runs", "average and score the finished trainings of a folder"),
    "reproduce": ("powernorm_fairseq.experiments.tables.reproduce", "run what is missing of a table, and report"),
    "demo": ("powernorm_fairseq.experiments.tables.demo", "train LN and PN on a made-up corpus, in minutes"),
    "plot": ("powernorm_fairseq.figures.plot", "draw a figure of the paper"),
    "image-stats": ("powernorm_fairseq.figures.image_stats", "record the norms of a ResNet on images"),
    "prep": ("data_prep.__main__", "prepare a corpus"),
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Calls what the first argument names with the others; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        sys.argv[0] = "powernorm " + words[0]  # as argparse names it
        return importlib.import_module(COMMANDS[words[0]][0]).main(words[1:])
    listed = "\n".join(f"  {name:<12} {about}" for name, (_, about) in COMMANDS.items())
    usage = "usage: powernorm COMMAND ...\n\ncommands, each with its own --help:\n" + listed
    if words in (["-h"], ["--help"]):
        print(usage)
        return 0
    what = f"{words[0]} is no command; " if words else ""
    print(f"{usage}\n\npowernorm: {what}choose one of them", file=sys.stderr)
    return 2
