"""The demo: Table 1 with LN and PN on a made-up corpus, in minutes on a CPU.

It is a call of ``reproduce`` in a folder of its own, so it can be stopped at any time, and the same command goes on.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Sequence

from powernorm_fairseq.console import program
from powernorm_fairseq.experiments import recipes
from powernorm_fairseq.experiments.tables import catalogue, data, reproduce

NEXT = """
Where to go next:
  your own text:   powernorm prep text --out data/mine --train A.de A.en --valid B.de B.en --test C.de C.en
                   powernorm train --preset multi30k --norm pn --data data/mine/bin --save-dir checkpoints/mine
  another norm:    powernorm demo --norms bn,rms
  paper's table:   powernorm reproduce table1 --dataset multi30k --jobs 2 --dry-run
  the rest:        README.md, and docs/ for one subject each
powernorm is in .venv/bin of a checkout."""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train small models on a made-up corpus, and print their BLEU.",
        epilog="Flags after -- go to fairseq-train.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where everything is written")
    parser.add_argument("--norms", default="ln,pn", help="encoder norms to train, separated by commas")
    parser.add_argument("--pairs", type=int, default=8000, help="sentence pairs to train on")
    parser.add_argument("--bpe-tokens", type=int, default=500, help="BPE merges")
    parser.add_argument("--gpu", action="store_true", help="train and decode on GPUs")
    return parser


@program("demo")
def main(argv: Sequence[str]) -> int:
    """Runs what is missing of the demo; returns the exit status."""
    args, start = recipes.parse_args(build_parser(), argv), time.monotonic()
    norms = args.norms.split(",")
    catalogue.table_rows(catalogue.TABLES["table1"], "demo", norms, {})  # refuses what is no norm
    made = data.prepare(
        "demo", args.dir / "data", options=["--pairs", str(args.pairs), "--bpe-tokens", str(args.bpe_tokens)]
    )
    words = ["table1", "--dataset", "demo", "--norms", args.norms, "--data", str(made), "--dir", str(args.dir)]
    words += ["--jobs", str(min(len(norms), os.cpu_count() or 1))]
    flags = ["--log-interval", "10", "--num-workers", "0", *args.flags, *([] if args.gpu else ["--cpu"])]
    status = reproduce.main([*words, "--", *flags])
    if status == 0:
        print(f"One seed, too few sentences: too small to rank norms. Finished in {time.monotonic() - start:.0f} s.")
        print(NEXT)
    return status
