"""Decodes a test set with a checkpoint and scores it: ``powernorm evaluate``, or ``scripts/evaluate.sh``."""

import argparse
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq import files, scoring
from powernorm_fairseq.console import program
from powernorm_fairseq.experiments import evaluation, recipes, references
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.safe_load import load_checkpoint

LOG, MESSAGES, HYPOTHESES, REFERENCES = "generate.log", "messages.log", "hyp.txt", "ref.txt"
PRESETS = {name: corpus for name, corpus in CORPORA.items() if corpus.beam is not None}


def find_languages(args: argparse.Namespace) -> Tuple[str, str]:
    """The languages: what the flags say, else the checkpoint, else the names of the data files."""
    languages: Tuple[Any, ...] = (args.source_lang, args.target_lang)
    if not all(languages):
        state = load_checkpoint(args.checkpoint, mmap=True)
        task = (state.get("cfg") or {}).get("task") or state.get("args") or {}
        saved = task if hasattr(task, "get") else vars(task)
        languages = tuple(flag or saved.get(name) for flag, name in zip(languages, ("source_lang", "target_lang")))
    if not all(languages):
        pairs = sorted({path.name.split(".")[1] for path in args.data.glob(args.subset + ".*-*.*.idx")})
        if not pairs:
            raise scoring.ScoringError(f"{args.data} has no {args.subset} data")
        if len(pairs) > 1:
            raise scoring.ScoringError(
                "{} has several language pairs ({}); give --source-lang and --target-lang".format(
                    args.data, ", ".join(pairs)
                )
            )
        languages = tuple(known or found for known, found in zip(languages, pairs[0].split("-")))
    return languages


def data_files(data: Path, subset: str, source: str, target: str) -> List[Path]:
    """The files of a subset and the dictionaries; an error names what is missing."""
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        stems = [f"{subset}.{pair}.{lang}" for lang in (source, target)]
        if (data / (stems[1] + ".idx")).exists():
            break
    else:
        raise scoring.ScoringError(f"{data} has no {subset} data for {source} to {target}")
    names = [stem + end for stem in stems for end in (".bin", ".idx")]
    return evaluation.data_files(data, [*names, *map("dict.{}.txt".format, (source, target))], "fairseq-preprocess")


def generate_command(args: argparse.Namespace, source: str, target: str, results: Path) -> List[str]:
    """The call of ``fairseq-generate``, the one beside this Python where there is one."""
    preset = PRESETS[args.preset]
    command = [recipes.program("fairseq-generate"), str(args.data), "--user-dir", str(evaluation.USER_DIR)]
    command += ["--path", str(args.checkpoint)]
    command += ["--source-lang", source, "--target-lang", target, "--gen-subset", args.subset]
    command += ["--beam", str(preset.beam), "--lenpen", str(preset.lenpen), "--results-path", str(results)]
    # fairseq's default of 8 loses the last batch in fairseq-fixed 0.12.3: batch_by_size drops it if it is not full.
    command += ["--required-batch-size-multiple", "1"]
    command += ["--batch-size", str(args.batch_size)] if args.batch_size is not None else []
    command += ["--max-tokens", str(args.max_tokens)] if args.max_tokens is not None else []
    return command + args.flags


def count_sentences(index: Path) -> Optional[int]:
    """How many sentences an index of ``fairseq-preprocess`` lists, where it has the usual (mmap) format."""
    with open(str(index), "rb") as file:
        header = file.read(26)
    return struct.unpack("<Q", header[18:])[0] if header[:9] == b"MMIDIDX\x00\x00" and len(header) == 26 else None


def run_visibly(command: Sequence[str], output: Path, messages: Path, total: Optional[int]) -> None:
    """Runs ``fairseq-generate``; shows how many sentences are done, and its own messages only if it fails."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done, position, shown = 0, 0, -1
    with open(str(messages), "wb") as log, subprocess.Popen(
        command, stdout=log, stderr=log, env=environment
    ) as process:
        while process.poll() is None:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                pass
            if output.exists():
                with open(str(output), "rb") as file:
                    file.seek(position)
                    new = file.read()
                complete = new[: new.rfind(b"\n") + 1]
                position += len(complete)
                done += sum(line.startswith(b"T-") for line in complete.split(b"\n"))
            if done != shown:
                print("decoded {} of {} sentences".format(done, total or "?"), file=sys.stderr, flush=True)
                shown = done
    if process.returncode != 0:
        lines = messages.read_bytes().decode("utf-8", "replace").splitlines()
        print("\n".join(line[:500] for line in lines[-30:]), file=sys.stderr)
        raise scoring.ScoringError(f"fairseq-generate failed with exit status {process.returncode}; see above")


def decode(
    args: argparse.Namespace, command: Sequence[str], folder: Path, total: Optional[int]
) -> Tuple[List[str], List[str]]:
    """Runs ``fairseq-generate``; returns its hypotheses and references in corpus order, without BPE."""
    print("running {}".format(" ".join(command)), file=sys.stderr, flush=True)
    output = folder / f"generate-{args.subset}.txt"
    run_visibly(command, output, folder / MESSAGES, total)
    output.replace(folder / LOG)
    with open(str(folder / LOG), encoding="utf-8", newline="\n") as file:
        hypotheses, printed = scoring.parse_generate_log(file, "the output of fairseq-generate", total)
    if args.bpe != "none":
        hypotheses, printed = ([scoring.remove_bpe(line, args.bpe) for line in text] for text in (hypotheses, printed))
    return hypotheses, printed


def evaluate(
    args: argparse.Namespace, command: Sequence[str], folder: Path, total: Optional[int], lang: str
) -> Dict[str, Any]:
    """Decodes into ``folder``, scores, and returns what goes into the result file."""
    lines, printed = decode(args, command, folder, total)
    hypotheses = scoring.Text.of("the hypotheses", lines)
    prepared, published = references.read(args.references, printed)
    for name, text in ((HYPOTHESES, hypotheses), (REFERENCES, prepared[0])):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in text.lines))
    preset = PRESETS[args.preset]
    scorer = scoring.Scorer(
        prepared,
        lang=lang,
        lowercase=preset.lowercase or args.references.lowercased,
        tokenized=args.references.tokenized,
        raw_references=published,
    )
    scores = {}
    for metric in preset.metrics:
        score = scorer.score(metric, hypotheses)
        scores[metric] = {**score.as_json(), "text": score.text}
    flags = recipes.parse_flags(command[2:])  # those after -- win
    return {
        "beam": int(flags["--beam"][0]),
        "lenpen": float(flags["--lenpen"][0]),
        "sentences": len(prepared[0].lines),
        "scores": scores,
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = evaluation.new_parser(
        "Decode a test set with a preset's beam and length penalty, put the hypotheses in corpus order, join subwords, "
        "and score: hyp.txt, ref.txt and result.json.",
        "fairseq-generate",
    )
    about = ["{}: beam {}, length penalty {}, {}{}".format(name, preset.beam, preset.lenpen, ", ".join(preset.metrics),
             " lower-cased" * preset.lowercase) for name, preset in PRESETS.items()]  # fmt: skip
    parser.add_argument("--preset", required=True, choices=sorted(PRESETS), help="; ".join(about))
    parser.add_argument("--batch-size", type=int, metavar="N", help="sentences in a batch")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens in a batch; 12000 if neither is given")
    parser.add_argument("--source-lang", metavar="LANG", help="by default the checkpoint's")
    parser.add_argument("--target-lang", metavar="LANG", help="by default the checkpoint's")
    kinds = (*scoring.BPE_KINDS, "none")
    parser.add_argument("--bpe", choices=kinds, help="subwords to join; by default what the dictionary holds")
    many: Dict[str, Any] = {"type": Path, "nargs": "+", "default": [], "metavar": "FILE"}
    parser.add_argument("--ref", **many, help="references, prepared as the data; by default tok/ beside it")
    parser.add_argument("--raw-ref", **many, help="the same as published, for sacreBLEU; by default ref/ beside it")
    parser.add_argument("--dry-run", action="store_true", help="only print the call of fairseq-generate")
    return parser


@program("evaluate", ValueError)
def main(argv: Sequence[str]) -> int:
    """Evaluates as the command line says, or finds that it was done before, and prints the scores."""
    args = evaluation.parse_args(build_parser(), argv)
    source, target = find_languages(args)
    used = data_files(args.data, args.subset, source, target)
    args.bpe = args.bpe or evaluation.find_bpe(args.data / f"dict.{target}.txt") or "none"
    args.references = references.find(args.data, args.subset, target, args.ref, args.raw_ref)
    command = generate_command(args, source, target, files.folder_beside(args.out))
    if args.dry_run:
        print(" ".join(command))
        return 0
    request = evaluation.describe(
        args,
        [*used, *args.references.prepared, *args.references.published],
        preset=args.preset,
        source_lang=source,
        target_lang=target,
        bpe=args.bpe,
        references=args.references.describe(),
    )
    total = count_sentences(used[3])
    result = evaluation.result(args, request, lambda folder: evaluate(args, command, folder, total, target))
    for metric, bleu in result["scores"].items():
        print("{}: {}".format(metric, bleu["text"]))
    print(f"results: {args.out}", file=sys.stderr)
    return 0
