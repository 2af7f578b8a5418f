#!/usr/bin/env python3
"""Scores tokenised translations; ``powernorm_fairseq/scoring.py`` says what each metric is."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from powernorm_fairseq import scoring


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="BLEU of tokenised text: as multi-bleu.perl, the same with compounds split at hyphens, and as "
        "sacreBLEU after detokenising. With one --metric the line is the one that the original tool prints.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--sys", required=True, metavar="HYP", help="hypotheses, tokenised, one per line")
    parser.add_argument("--ref", required=True, metavar="REF", help="references, the same way")
    parser.add_argument(
        "--metric", action="append", choices=scoring.METRICS, help="may be repeated; without it, all that fit"
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case (multi-bleu.perl -lc: ASCII letters)")
    parser.add_argument("--lang", default="en", help="language of the text, for detokenising")
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
    try:
        text = scoring.Text.read(path)
    except OSError as error:
        raise scoring.ScoringError("{} cannot be read: {}".format(path, error.strerror)) from None
    if bpe == "auto":
        words = (word for line in text.lines for word in line.decode("utf-8", "replace").split(" "))
        bpe = scoring.find_bpe_kind(words)
    return text.without_bpe(bpe) if bpe else text


def run(args: argparse.Namespace) -> Dict[str, Dict[str, Any]]:
    """Scores what the command line names; metric -> {"bleu": ..., "comparison": ... or None}."""
    system, reference = read_text(args.sys, args.remove_bpe), read_text(args.ref, args.remove_bpe)
    baseline = read_text(args.baseline, args.remove_bpe) if args.baseline else None
    for text in (system, reference, baseline):
        if text and not text.terminated and "tokenized" in (args.metric or scoring.METRICS):
            note = "{}: no line feed at the end; multi-bleu.perl then drops the last character, and so does tokenized"
            print("score: " + note.format(text.name), file=sys.stderr)
    options = {"lowercase": args.lowercase, "lang": args.lang}
    results: Dict[str, Dict[str, Any]] = {}
    scoring.check_same_length(system, reference)
    for metric in dict.fromkeys(args.metric or scoring.METRICS):
        try:
            bleu = scoring.score(metric, system, reference, **options)
            comparison = None
            if baseline:
                comparison = scoring.compare(metric, system, baseline, reference, samples=args.samples, **options)
        except scoring.ScoringError as error:
            if args.metric or metric != "sacrebleu":
                raise
            print("score: left out sacrebleu: {}".format(error), file=sys.stderr)
        else:
            results[metric] = {"bleu": bleu, "comparison": comparison}
    return results


def to_json(results: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    """The results as plain data."""
    plain = {}
    for metric, result in results.items():
        plain[metric] = result["bleu"].as_json()
        if result["comparison"]:
            plain[metric]["bootstrap"] = asdict(result["comparison"])
    return plain


def to_lines(results: Dict[str, Dict[str, Any]]) -> List[str]:
    """The results as text, each line with the name of its metric where there are several."""
    lines = []
    for metric, result in results.items():
        name = "" if len(results) == 1 else metric + ": "
        lines.append(name + result["bleu"].text)
        if result["comparison"]:
            lines.append(name + result["comparison"].text)
    return lines


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Scores as the command line says; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.samples < 2:
        parser.error("--samples {} is too few; give at least 2".format(args.samples))
    try:
        results = run(args)
    except scoring.ScoringError as error:
        print("score: {}".format(error), file=sys.stderr)
        return 1
    print(json.dumps(to_json(results), indent=2) if args.json else "\n".join(to_lines(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
