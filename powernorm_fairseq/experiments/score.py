"""Scores translations; the package ``scoring`` says what each metric is."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq import scoring
from powernorm_fairseq.console import program
from powernorm_fairseq.scoring.comet import DEFAULT_MODEL


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="BLEU of tokenised text: as multi-bleu.perl, the same with compounds split at hyphens, and as "
        "sacreBLEU after detokenising; chrF, TER and COMET. With one --metric the line is the one that the original "
        "tool prints. Files may be compressed by gzip; - is standard input.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--sys", required=True, metavar="HYP", help="hypotheses, tokenised, one per line")
    parser.add_argument(
        "--ref", required=True, nargs="+", metavar="REF", help="references, the same way; several for each hypothesis"
    )
    parser.add_argument(
        "--metric",
        action="append",
        choices=scoring.METRICS,
        help="may be repeated; without it, those of {} that fit".format(", ".join(scoring.DEFAULT_METRICS)),
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case (multi-bleu.perl -lc: ASCII letters)")
    parser.add_argument("--lang", default="en", help="language of the text, for tokenising and detokenising")
    parser.add_argument(
        "--plain", action="store_true", help="--sys and --ref are plain text, not tokens: tokenise them where necessary"
    )
    published = parser.add_mutually_exclusive_group()
    published.add_argument(
        "--raw-ref",
        nargs="+",
        default=[],
        metavar="REF",
        help="references as published, for compound-split and the metrics of detokenised text; by default --ref "
        "detokenised",
    )
    published.add_argument(
        "--test-set", metavar="SET/PAIR", help="the same from sacreBLEU, which fetches it: wmt14/full/en-de"
    )
    parser.add_argument("--source", metavar="SRC", help="source text as published, for comet")
    parser.add_argument("--comet-model", default=DEFAULT_MODEL, metavar="MODEL", help="checkpoint, or published name")
    parser.add_argument(
        "--remove-bpe",
        nargs="?",
        const="auto",
        choices=("auto", *scoring.BPE_KINDS),
        help="join subwords first; alone it finds out which kind they are",
    )
    parser.add_argument("--baseline", metavar="HYP2", help="compare with these by sacreBLEU's paired bootstrap")
    parser.add_argument("--samples", type=int, default=1000, help="samples of the bootstrap")
    parser.add_argument("--json", action="store_true", help="print JSON: metric -> score and its parts")
    return parser


def read_text(path: str, bpe: Optional[str]) -> scoring.Text:
    """Reads a file and joins its subwords where asked to."""
    text = scoring.Text.read(path)
    if bpe == "auto":
        words = (word for line in text.lines for word in line.decode("utf-8", "replace").split(" "))
        bpe = scoring.find_bpe_kind(words)
    return text.without_bpe(bpe) if bpe else text


def published_references(test_set: str) -> List[scoring.Text]:
    """The references of one of sacreBLEU's test sets, which are named ``SET/PAIR``."""
    from sacrebleu.utils import get_reference_files

    name, _, pair = test_set.rpartition("/")
    try:
        files = get_reference_files(name, pair)
    except (Exception, SystemExit) as error:  # it exits where there is no network
        raise scoring.ScoringError(f"sacreBLEU cannot give the test set {test_set}: {error}") from None
    return [scoring.Text.read(file) for file in files]


def score(args: argparse.Namespace) -> Dict[str, Tuple[scoring.Score, Optional[scoring.Comparison]]]:
    """Scores what the command line names; metric -> its score, and the comparison with the baseline if there is one."""
    system = read_text(args.sys, args.remove_bpe)
    raw = published_references(args.test_set) if args.test_set else [scoring.Text.read(path) for path in args.raw_ref]
    scorer = scoring.Scorer(
        [read_text(path, args.remove_bpe) for path in args.ref],
        lang=args.lang,
        lowercase=args.lowercase,
        tokenized=not args.plain,
        raw_references=raw,
        source=scoring.Text.read(args.source) if args.source else None,
        model=args.comet_model,
    )
    baseline = read_text(args.baseline, args.remove_bpe) if args.baseline else None
    results: Dict[str, Tuple[scoring.Score, Optional[scoring.Comparison]]] = {}
    for metric in dict.fromkeys(args.metric or scoring.DEFAULT_METRICS):
        try:
            found = scorer.score(metric, system)
            comparison = scorer.compare(metric, system, baseline, args.samples) if baseline else None
        except scoring.ScoringError as error:
            if args.metric or not results:
                raise
            print(f"score: left out {metric}: {error}", file=sys.stderr)
        else:
            results[metric] = found, comparison
    return results


@program("score")
def main(argv: Sequence[str]) -> int:
    """Scores as the command line says; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.samples < 2:
        parser.error(f"--samples {args.samples} is too few; give at least 2")
    if [args.sys, args.baseline, args.source, *args.ref, *args.raw_ref].count("-") > 1:
        parser.error("only one text can be standard input")
    results = score(args)
    if args.json:
        plain = {metric: found.as_json() for metric, (found, _) in results.items()}
        for metric, (_, comparison) in results.items():
            plain[metric].update({"bootstrap": asdict(comparison)} if comparison else {})
        print(json.dumps(plain, indent=2))
        return 0
    for metric, lines in results.items():
        name = "" if len(results) == 1 else metric + ": "  # needed where there are several
        for line in lines:
            if line is not None:
                print(name + line.text)
    return 0
