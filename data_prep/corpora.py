"""The command line: a subcommand for each corpus."""

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import List, Optional

from data_prep import lm
from data_prep.demo_corpus import write_corpus
from data_prep.errors import DataPrepError
from data_prep.manifest import writing_folder
from data_prep.pipeline import STAGES, SUBWORDS, Options, Pipeline
from data_prep.recipes import WMT14_RECIPES, Recipe, Steps, iwslt14, multi30k, text, wmt14
from data_prep.stages import SPLITS, add_common_options


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="data_prep", description="Prepare a corpus, from download to fairseq's data.")
    commands = parser.add_subparsers(dest="corpus", metavar="CORPUS", required=True)

    def add(name: str, summary: str, more: str = "", archives: bool = True) -> argparse.ArgumentParser:
        after = "A second run goes on after the last finished stage."
        command = commands.add_parser(name, help=summary, description=summary + more, epilog=after)
        _add_options(command, archives)
        command.set_defaults(make=_pipeline)
        return command

    add("iwslt14", _summary(iwslt14))
    add("wmt14", _summary(wmt14), _WMT14_HELP).add_argument(
        "--recipe",
        choices=WMT14_RECIPES,
        default="release",
        help="release: as the PowerNorm paper's, valid is newstest2013, 1 to 80 tokens, 32,764 merges; "
        "fairseq: as prepare-wmt14en2de.sh, every 100th line is valid, 40,000 merges are learned on uncleaned "
        "text, then 1 to 250 subwords and ratio 1.5; fairseq-icml17: that with v9 (default: %(default)s)",
    )
    add("multi30k", _summary(multi30k)).add_argument(
        "--test-set", choices=("2016", "2017"), default="2016", help="Flickr test set (default: %(default)s)"
    )
    _add_text_options(add("text", _summary(text), archives=False))
    demo = add("demo", "The demo's German-English, made up by a grammar: 8,000 / 400 / 400 pairs.", archives=False)
    demo.add_argument("--pairs", type=int, default=8000, metavar="N", help="of train (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=1, metavar="S", help="another one, another corpus (default: 1)")
    lm.add_corpora(commands.add_parser("lm", help="Text for language modelling.", description=lm.DESCRIPTION))
    return parser


def _summary(recipe: object) -> str:
    return (recipe.__doc__ or "").splitlines()[0]


_WMT14_HELP = (
    " The published texts have 1,920,209 pairs (Europarl v7), 2,399,123 (Common Crawl), 270,769 (News Commentary v12) "
    "or 201,288 (v9), 3,000 (newstest2013) and 3,003 (newstest2014); another number is pointed out."
)


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a corpus of one's own."""
    for split in SPLITS:
        parser.add_argument(
            "--" + split,
            type=Path,
            nargs="+",
            required=True,
            metavar="FILE",
            help=f"{split}: a file of the source and one of the target language, plain or .gz; or several such pairs",
        )
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
    parser.add_argument(
        "--max-ratio",
        type=float,
        default=1.5,
        metavar="R",
        help="greatest quotient of its lengths (default: %(default)s)",
    )


def _add_options(parser: argparse.ArgumentParser, archives: bool) -> None:
    """Adds the options that all parallel corpora have."""
    add_common_options(parser, STAGES, archives)
    if archives:
        parser.add_argument(
            "--bpe",
            choices=SUBWORDS,
            default="subword-nmt",
            help="subword-nmt on Moses tokens, or sentencepiece on plain text (default: %(default)s)",
        )
    parser.add_argument(
        "--bpe-tokens", type=int, metavar="N", help="merges, or pieces of sentencepiece (default: the recipe's)"
    )
    parser.add_argument(
        "--vocabulary-threshold",
        type=int,
        default=0,
        metavar="N",
        help="split pieces further that a language has less often in training, as subword-nmt (default: do not)",
    )
    parser.add_argument(
        "--glossaries", nargs="+", default=[], metavar="REGEX", help="words that are not split, as subword-nmt has them"
    )
    parser.add_argument(
        "--bpe-dropout", type=float, default=0.0, metavar="P", help="leave out merges in train (default: %(default)s)"
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="accept empty lines, carriage returns and byte order marks, as the Perl recipe does",
    )


def _ending(path: Path) -> str:
    """The language that a file's name ends with."""
    name = path.name[: -len(".gz")] if path.name.endswith(".gz") else path.name
    ending = name.rpartition(".")[2] if "." in name else ""
    if not ending:
        raise DataPrepError(f"{path} does not end with a language; give --source-lang and --target-lang")
    return ending


def _own_text(args: argparse.Namespace) -> Recipe:
    """The recipe of a corpus of one's own."""
    files = {}
    for split in SPLITS:
        paths = getattr(args, split)
        if len(paths) % 2:
            raise DataPrepError(f"--{split} has {len(paths)} files; give one of each language, in turn")
        files[split] = list(zip(paths[::2], paths[1::2]))
    langs = (args.source_lang or _ending(args.train[0]), args.target_lang or _ending(args.train[1]))
    if langs[0] == langs[1]:
        raise DataPrepError(f"both languages are {langs[0]}; give --source-lang and --target-lang")
    for pair in [pair for pairs in files.values() for pair in pairs]:
        if not args.source_lang and not args.target_lang and tuple(map(_ending, pair)) != langs:
            raise DataPrepError(f"{pair[0]} and {pair[1]} do not end with {langs[0]} and {langs[1]}")
    if args.max_length < 1 or args.max_ratio < 1:
        raise DataPrepError("--max-length and --max-ratio make no sense below 1")
    steps = Steps(
        normalize=args.normalize,
        aggressive=args.aggressive,
        clean=(1, args.max_length, args.max_ratio),
        lower_last=args.lowercase,
    )
    return text(files, langs, steps)


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


def _pipeline(args: argparse.Namespace) -> Pipeline:
    """What prepares a parallel corpus."""
    subwords = getattr(args, "bpe", "subword-nmt")
    if args.corpus == "wmt14":
        recipe = wmt14(args.recipe)
    elif args.corpus == "multi30k":
        recipe = multi30k(args.test_set)
    elif args.corpus == "text":
        recipe, subwords = _own_text(args), {"moses": "subword-nmt"}.get(args.recipe, args.recipe)
    else:
        recipe = _demo(args) if args.corpus == "demo" else iwslt14()
    options = Options.of(
        args,
        subwords=subwords,
        bpe_tokens=args.bpe_tokens,
        vocabulary_threshold=args.vocabulary_threshold,
        glossaries=tuple(args.glossaries),
        bpe_dropout=args.bpe_dropout,
        lenient=args.lenient,
    )
    return Pipeline(recipe, options)


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
