"""Averages checkpoints into one, with fairseq's own interface; :mod:`powernorm_fairseq.checkpoints` does the work."""

import argparse
import os
import sys
from pathlib import Path
from typing import Sequence

from powernorm_fairseq.checkpoints import average_checkpoints, select_checkpoints
from powernorm_fairseq.console import program
from powernorm_fairseq.safe_save import save_file


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Average the models of several checkpoints into a new checkpoint. Norm statistics are averaged "
        "too, the norms' counters are the newest checkpoint's, all other settings the first one's."
    )
    parser.add_argument("--inputs", required=True, nargs="+", metavar="PATH", help="a folder, or checkpoint files")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the averaged checkpoint")
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--num-epoch-checkpoints", type=int, metavar="N", help="take the last N named checkpointE.pt (epoch E)"
    )
    number.add_argument(
        "--num-update-checkpoints", type=int, metavar="N", help="take the last N named checkpoint_E_U.pt (update U)"
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="K", help="take none after epoch K (or after update K)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    return parser


@program("average_checkpoints", ValueError)
def main(argv: Sequence[str]) -> int:
    """Averages as the command line says; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    count = args.num_epoch_checkpoints if args.num_update_checkpoints is None else args.num_update_checkpoints
    if count is None and args.checkpoint_upper_bound is not None:
        parser.error("--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints")
    folders = [path for path in args.inputs if os.path.isdir(path)]
    if count is None and folders:
        parser.error(
            f"{folders[0]} is a folder: say how many of its checkpoints with --num-epoch-checkpoints or "
            "--num-update-checkpoints"
        )
    if args.output.exists() and not args.overwrite:
        parser.error(f"{args.output} exists; --overwrite replaces it")
    inputs = args.inputs
    if count is not None:
        inputs = select_checkpoints(inputs, count, args.num_update_checkpoints is not None, args.checkpoint_upper_bound)
    print("averaging {}".format(", ".join(inputs)), file=sys.stderr)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(average_checkpoints(inputs), args.output)
    print(f"wrote {args.output}, the average of {len(inputs)} checkpoints")
    return 0
