"""What evaluations have in common: arguments, and a folder with what was asked and what came out.

The same request again finds the result; another one is refused without ``--overwrite``.
"""

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import powernorm_fairseq
from powernorm_fairseq import files, scoring
from powernorm_fairseq.experiments import recipes

USER_DIR = Path(powernorm_fairseq.__file__).resolve().parent
RESULT = "result.json"


def new_parser(about: str, program: str) -> argparse.ArgumentParser:
    """A command line with what every evaluation needs; ``program`` gets the flags after ``--``."""
    parser = argparse.ArgumentParser(
        description=about,
        epilog=f"Flags after -- go to {program} as they are, and win. Run again with nothing changed, the finished "
        "result is printed at once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", required=True, type=Path, metavar="BIN", help="output folder of fairseq-preprocess")
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="FILE", help="what to evaluate")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results; by default beside the checkpoint")
    parser.add_argument("--subset", default="test", help="which part of the data")
    parser.add_argument("--overwrite", action="store_true", help="replace results of another checkpoint or other flags")
    return parser


def parse_args(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; what follows ``--`` becomes ``flags``."""
    args = recipes.parse_args(parser, argv)
    if args.out is None:
        kind = getattr(args, "preset", "lm")
        args.out = args.checkpoint.with_name(f"{args.checkpoint.stem}.{kind}.{args.subset}")
    args.out = args.out.absolute()
    if not args.checkpoint.is_file():
        raise scoring.ScoringError(f"{args.checkpoint} is no checkpoint file")
    if not args.data.is_dir():
        raise scoring.ScoringError(f"--data {args.data} is no folder")
    return args


def find_bpe(dictionary: Path) -> Optional[str]:
    """Which subwords a fairseq dictionary holds."""
    with open(str(dictionary), encoding="utf-8", newline="\n") as file:
        return scoring.find_bpe_kind(line.rsplit(" ", 1)[0] for line in file)


def describe(args: argparse.Namespace, used: Sequence[Path], **more: Any) -> Dict[str, Any]:
    """Everything a result depends on; equal descriptions mean that nothing has to be evaluated again."""
    stats = {str(file.resolve()): file.stat() for file in (args.checkpoint, *used)}
    return {
        "checkpoint": str(args.checkpoint.resolve()),
        "subset": args.subset,
        "fairseq_flags": args.flags,
        **more,
        # by which another content is noticed; lists, as JSON gives them back
        "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
    }


def result(
    args: argparse.Namespace, request: Dict[str, Any], evaluate: Callable[[Path], Dict[str, Any]]
) -> Dict[str, Any]:
    """The result that ``--out`` holds for this request, or else that of ``evaluate``, which is given a folder."""
    found = files.read_json(args.out / RESULT)
    if found.get("request") == request:
        return found
    if args.out.exists():
        if not args.overwrite:
            raise scoring.ScoringError(
                f"{args.out} holds results of another checkpoint, other data or other flags; --overwrite replaces them"
            )
        if not found and any(args.out.iterdir()):
            raise scoring.ScoringError(f"{args.out} was not written by an evaluation; choose another --out")
    with files.folder_aside(args.out) as folder:
        found = {"request": request, **evaluate(folder)}
        files.write(folder / RESULT, found)
    return found


def data_files(folder: Path, names: List[str], maker: str) -> List[Path]:
    """Files that must be there; an error names what is missing."""
    for name in names:
        if not (folder / name).is_file():
            raise scoring.ScoringError(f"{folder / name} is missing; {maker} makes it")
    return [folder / name for name in names]
