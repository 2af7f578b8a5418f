"""The command line: a subcommand for each corpus."""

import argparse
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, List, Optional

from data_prep import lm
from data_prep.demo_corpus import write_corpus
from data_prep.errors import DataPrepError
from data_prep.manifest import writing_folder
from data_prep.pipeline import Options, Pipeline
from data_prep.recipes import LM_RECIPES, SPLITS, WMT14_RECIPES, Recipe, Steps, iwslt14, lm_text, multi30k, text, wmt14

_WMT14_HELP = (
    " The published texts have 1,920,209 pairs (Europarl v7), 2,399,123 (Common Crawl), 270,769 (News Commentary v12) "
    "or 201,288 (v9), 3,000 (newstest2013) and 3,003 (newstest2014); another number is pointed out."
)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="data_prep", description="Prepare a corpus, from download to fairseq's data.")
    commands = parser.add_subparsers(dest="corpus", metavar="CORPUS", required=True)

    def add(name: str, summary: str, make: Callable, more: str = "", archives: bool = True) -> argparse.ArgumentParser:
        after = "A second run goes on after the last finished stage."
        command = commands.add_parser(name, help=summary, description=summary + more, epilog=after)
        Options.add_to(command, leave_out=() if archives else _OF_ARCHIVES)
        command.set_defaults(make=make)
        return command

    add("iwslt14", _summary(iwslt14), lambda args: _pipeline(iwslt14(), args))
    wmt = add("wmt14", _summary(wmt14), lambda args: _pipeline(wmt14(args.recipe), args), _WMT14_HELP)
    wmt.add_argument(
        "--recipe",
        choices=WMT14_RECIPES,
        default="release",
        help="release: as the PowerNorm paper's, valid is newstest2013, 1 to 80 tokens, 32,764 merges; "
        "fairseq: as prepare-wmt14en2de.sh, every 100th line is valid, 40,000 merges are learned on uncleaned "
        "text, then 1 to 250 subwords and ratio 1.5; fairseq-icml17: that with v9 (default: %(default)s)",
    )
    multi = add("multi30k", _summary(multi30k), lambda args: _pipeline(multi30k(args.test_set), args))
    multi.add_argument(
        "--test-set", choices=("2016", "2017"), default="2016", help="Flickr test set (default: %(default)s)"
    )
    _add_text_options(add("text", _summary(text), _own_text, archives=False))
    summary = "The demo's German-English, made up by a grammar: 8,000 / 400 / 400 pairs."
    demo = add("demo", summary, lambda args: _pipeline(_demo(args), args), archives=False)
    demo.add_argument("--pairs", type=int, default=8000, metavar="N", help="of train (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=1, metavar="S", help="another one, another corpus (default: 1)")
    about = "Prepare text for language modelling."
    _add_lm(commands.add_parser("lm", help="Text for language modelling.", description=about))
    return parser


#: What a corpus without archives cannot be told.
_OF_ARCHIVES = ("source", "mirrors", "subwords")


def _summary(recipe: object) -> str:
    return (recipe.__doc__ or "").splitlines()[0]


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a corpus of one's own."""
    _add_files(parser, "{}: a file of the source and one of the target language, plain or .gz; or several such pairs")
    parser.add_argument("--source-lang", metavar="LANG", help="(default: the ending of the first file, without .gz)")
    parser.add_argument("--target-lang", metavar="LANG", help="(default: the ending of the second file)")
    parser.add_argument(
        "--recipe",
        choices=("moses", "sentencepiece"),
        default="moses",
        help="moses: tokens, then BPE; sentencepiece: pieces of the plain text (default: %(default)s)",
    )
    parser.add_argument("--lowercase", action="store_true", help="lower-case the text")
    parser.add_argument("--normalize", action="store_true", help="normalise punctuation")
    parser.add_argument("--aggressive", action="store_true", help="split words at hyphens (moses)")
    parser.add_argument(
        "--max-length", type=int, default=250, metavar="N", help="most tokens of a training pair (default: %(default)s)"
    )
    ratio = "greatest quotient of its lengths (default: %(default)s)"
    parser.add_argument("--max-ratio", type=float, default=1.5, metavar="R", help=ratio)


def _add_files(parser: argparse.ArgumentParser, explained: str) -> None:
    """Adds an option for the files of each split."""
    for split in SPLITS:
        parser.add_argument(
            "--" + split, type=Path, nargs="+", required=True, metavar="FILE", help=explained.format(split)
        )


def _add_lm(parser: argparse.ArgumentParser) -> None:
    """Adds a subcommand for each text of language modelling."""
    commands = parser.add_subparsers(dest="recipe", metavar="CORPUS", required=True)
    of_text = ("tokenize", "lowercase", "min_count", "max_words", "bpe_tokens")
    for name, recipe in LM_RECIPES.items():
        command = commands.add_parser(name, help=_summary(recipe), description=_summary(recipe))
        lm.Options.add_to(command, leave_out=of_text)
        command.set_defaults(make=lambda args: lm.LMPipeline(LM_RECIPES[args.recipe](), lm.Options.of(args)))
    command = commands.add_parser("text", help=_summary(lm_text), description=_summary(lm_text))
    lm.Options.add_to(command, leave_out=_OF_ARCHIVES)
    _add_files(command, "text for {}, plain or .gz")
    command.set_defaults(make=lambda args: lm.LMPipeline(lm_text(_files(args)), lm.Options.of(args)))


def _files(args: argparse.Namespace) -> Any:
    return {split: getattr(args, split) for split in SPLITS}


def _pipeline(recipe: Recipe, args: argparse.Namespace, **own: Any) -> Pipeline:
    return Pipeline(recipe, Options.of(args, **own))


def _ending(path: Path) -> str:
    """The language that a file's name ends with."""
    name = path.name[: -len(".gz")] if path.name.endswith(".gz") else path.name
    ending = name.rpartition(".")[2] if "." in name else ""
    if not ending:
        raise DataPrepError(f"{path} does not end with a language; give --source-lang and --target-lang")
    return ending


def _own_text(args: argparse.Namespace) -> Pipeline:
    """What prepares a corpus of one's own."""
    files = {}
    for split, paths in _files(args).items():
        if len(paths) % 2:
            raise DataPrepError(f"--{split} has {len(paths)} files; give one of each language, in turn")
        files[split] = list(zip(paths[::2], paths[1::2]))
    langs = (args.source_lang or _ending(args.train[0]), args.target_lang or _ending(args.train[1]))
    if langs[0] == langs[1]:
        raise DataPrepError(f"both languages are {langs[0]}; give --source-lang and --target-lang")
    for pair in [pair for pairs in files.values() for pair in pairs]:
        if not args.source_lang and not args.target_lang and tuple(map(_ending, pair)) != langs:
            raise DataPrepError(f"{pair[0]} and {pair[1]} do not end with {langs[0]} and {langs[1]}")
    for lang in langs:
        if not re.fullmatch(r"[\w-]+", lang):
            raise DataPrepError(f"{lang!r} is no code of a language, which has letters, digits, - and _ only")
    if not (args.max_length >= 1 and args.max_ratio >= 1):  # nan is not
        raise DataPrepError("--max-length and --max-ratio make no sense below 1")
    steps = Steps(
        normalize=args.normalize,
        aggressive=args.aggressive,
        clean=(1, args.max_length, args.max_ratio),
        lower_last=args.lowercase,
    )
    subwords = "sentencepiece" if args.recipe == "sentencepiece" else "subword-nmt"
    return _pipeline(text(files, langs, steps), args, subwords=subwords)


def _demo(args: argparse.Namespace) -> Recipe:
    """The recipe of the demo's corpus, which is written first; it has tokens already."""
    if args.pairs < 1:
        raise DataPrepError(f"--pairs {args.pairs} makes no sense; give 1 or more")
    folder = args.out / "text" / f"{args.pairs}-{args.seed}"
    if not args.dry_run and not folder.exists():
        with writing_folder(folder) as part:
            write_corpus(part, {"train": args.pairs, "valid": 400, "test": 400}, args.seed)
    files = {split: [(folder / (split + ".de"), folder / (split + ".en"))] for split in SPLITS}
    return replace(text(files, ("de", "en"), Steps(tokenize=False)), name="demo", bpe_tokens=500)


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S")
    pipeline = args.make(args)
    if args.dry_run:
        print("\n".join(pipeline.plan()))
        return 0
    pipeline.run()
    print(args.out)
    return 0
