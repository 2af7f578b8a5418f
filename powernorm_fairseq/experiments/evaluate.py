"""Decodes a test set with a checkpoint and scores it; call it as ``scripts/evaluate.sh``."""

import argparse
import os
import pickle
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import powernorm_fairseq
from powernorm_fairseq import scoring
from powernorm_fairseq.experiments import recipes, references, result_folder
from powernorm_fairseq.safe_load import load_checkpoint

USER_DIR = Path(powernorm_fairseq.__file__).resolve().parent
LOG, MESSAGES, HYPOTHESES, REFERENCES = "generate.log", "messages.log", "hyp.txt", "ref.txt"


@dataclass(frozen=True)
class Preset:
    """How a corpus is decoded and scored; values from the table of training recipes in the paper's notes."""

    beam: int
    lenpen: float
    metrics: Tuple[str, ...] = ("tokenized", "sacrebleu")
    lowercase: bool = False


PRESETS = {
    "iwslt14": Preset(beam=5, lenpen=1.0, lowercase=True),
    "wmt14": Preset(beam=4, lenpen=0.6, metrics=("tokenized", "compound-split", "sacrebleu")),
    "multi30k": Preset(beam=5, lenpen=1.0, lowercase=True),
    "demo": Preset(beam=5, lenpen=1.0),
    "text": Preset(beam=5, lenpen=1.0, metrics=("tokenized", "sacrebleu", "chrf")),
}


def saved_languages(checkpoint: Path) -> Tuple[Optional[str], Optional[str]]:
    """Source and target language that a checkpoint was trained for, as far as it says."""
    state = load_checkpoint(checkpoint, mmap=True)
    config = state.get("cfg") or {}
    task = config.get("task") or state.get("args") or {}
    settings = task if hasattr(task, "get") else vars(task)
    return settings.get("source_lang"), settings.get("target_lang")


def find_languages(args: argparse.Namespace) -> Tuple[str, str]:
    """The languages: what the flags say, else the checkpoint, else the names of the data files."""
    languages = (args.source_lang, args.target_lang)
    if not all(languages):
        languages = tuple(flag or saved for flag, saved in zip(languages, saved_languages(args.checkpoint)))
    if not all(languages):
        pairs = sorted({path.name.split(".")[1] for path in args.data.glob(args.subset + ".*-*.*.idx")})
        if not pairs:
            raise scoring.ScoringError("{} has no {} data".format(args.data, args.subset))
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
    for pair in ("{}-{}".format(source, target), "{}-{}".format(target, source)):
        stems = ["{}.{}.{}".format(subset, pair, lang) for lang in (source, target)]
        if (data / (stems[1] + ".idx")).exists():
            break
    else:
        raise scoring.ScoringError("{} has no {} data for {} to {}".format(data, subset, source, target))
    files = [data / (stem + end) for stem in stems for end in (".bin", ".idx")]
    files += [data / "dict.{}.txt".format(lang) for lang in (source, target)]
    for file in files:
        if not file.exists():
            raise scoring.ScoringError("{} is missing".format(file))
    return files


def find_bpe(dictionary: Path) -> Optional[str]:
    """Which subwords a fairseq dictionary holds."""
    with open(str(dictionary), encoding="utf-8", newline="\n") as file:
        return scoring.find_bpe_kind(line.rsplit(" ", 1)[0] for line in file)


def describe(args: argparse.Namespace, source: str, target: str, files: Sequence[Path]) -> Dict[str, Any]:
    """Everything the result depends on; equal descriptions mean that nothing has to be decoded again."""
    return {
        "checkpoint": str(args.checkpoint.resolve()),
        "preset": args.preset,
        "subset": args.subset,
        "source_lang": source,
        "target_lang": target,
        "bpe": args.bpe,
        "fairseq_flags": args.fairseq_flags,
        "references": args.references.describe(),
        "files": result_folder.stamps(
            [args.checkpoint, *files, *args.references.prepared, *args.references.published]
        ),
    }


def generate_command(args: argparse.Namespace, source: str, target: str, results: Path) -> List[str]:
    """The call of ``fairseq-generate``, the one beside this Python where there is one."""
    preset = PRESETS[args.preset]
    beside = Path(sys.executable).parent / "fairseq-generate"
    program = str(beside) if beside.exists() else shutil.which("fairseq-generate")
    if program is None:
        raise scoring.ScoringError("fairseq-generate is not installed beside {} nor on PATH".format(sys.executable))
    command = [program, str(args.data), "--user-dir", str(USER_DIR), "--path", str(args.checkpoint)]
    command += ["--source-lang", source, "--target-lang", target, "--gen-subset", args.subset]
    command += ["--beam", str(preset.beam), "--lenpen", str(preset.lenpen), "--results-path", str(results)]
    # fairseq's default of 8 loses the last batch in fairseq-fixed 0.12.3: batch_by_size drops it if it is not full.
    command += ["--required-batch-size-multiple", "1"]
    if args.batch_size is not None:
        command += ["--batch-size", str(args.batch_size)]
    if args.max_tokens is not None:
        command += ["--max-tokens", str(args.max_tokens)]
    return command + args.fairseq_flags


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
        raise scoring.ScoringError("fairseq-generate failed with exit status {}; see above".format(process.returncode))


def decode(
    args: argparse.Namespace, command: Sequence[str], folder: Path, total: Optional[int]
) -> Tuple[List[str], List[str]]:
    """Runs ``fairseq-generate``; returns its hypotheses and references in corpus order, without BPE."""
    print("running {}".format(" ".join(command)), file=sys.stderr, flush=True)
    output = folder / "generate-{}.txt".format(args.subset)
    run_visibly(command, output, folder / MESSAGES, total)
    output.replace(folder / LOG)
    with open(str(folder / LOG), encoding="utf-8", newline="\n") as file:
        hypotheses, printed = scoring.parse_generate_log(file, "the output of fairseq-generate", total)
    if args.bpe != "none":
        hypotheses, printed = ([scoring.remove_bpe(line, args.bpe) for line in text] for text in (hypotheses, printed))
    return hypotheses, printed


def write_text(path: Path, text: scoring.Text) -> None:
    """Writes a text, each line with a line feed."""
    path.write_bytes(b"".join(line + b"\n" for line in text.lines))


def evaluate(
    args: argparse.Namespace, request: Dict[str, Any], command: Sequence[str], folder: Path, total: Optional[int]
) -> Dict[str, Any]:
    """Decodes into ``folder``, scores, and returns what goes into the result file."""
    lines, printed = decode(args, command, folder, total)
    hypotheses = scoring.Text.of("the hypotheses", lines)
    prepared, published = references.read(args.references, printed)
    write_text(folder / HYPOTHESES, hypotheses)
    write_text(folder / REFERENCES, prepared[0])
    preset = PRESETS[args.preset]
    scorer = scoring.Scorer(
        prepared,
        lang=request["target_lang"],
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
        "request": request,
        "beam": int(flags["--beam"][0]),
        "lenpen": float(flags["--lenpen"][0]),
        "sentences": len(prepared[0].lines),
        "scores": scores,
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="evaluate.sh",
        description="Decode a test set with a preset's beam and length penalty, and score it.",
        epilog="Flags after -- go to fairseq-generate as they are, and win over the preset.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", required=True, type=Path, metavar="BIN", help="output folder of fairseq-preprocess")
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="FILE", help="what to decode with")
    parser.add_argument("--preset", required=True, choices=sorted(PRESETS), help="beam, length penalty and metrics")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results; by default beside the checkpoint")
    parser.add_argument("--subset", default="test", help="which part of the data")
    parser.add_argument("--batch-size", type=int, metavar="N", help="sentences in a batch")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens in a batch; 12000 if neither is given")
    parser.add_argument("--source-lang", metavar="LANG", help="by default the checkpoint's")
    parser.add_argument("--target-lang", metavar="LANG", help="by default the checkpoint's")
    parser.add_argument(
        "--bpe", choices=(*scoring.BPE_KINDS, "none"), help="subwords to join; by default what the dictionary holds"
    )
    parser.add_argument(
        "--ref", type=Path, nargs="+", default=[], metavar="FILE", help="references, prepared; by default tok/"
    )
    parser.add_argument(
        "--raw-ref", type=Path, nargs="+", default=[], metavar="FILE", help="the same as published; by default ref/"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results of another checkpoint or other flags")
    parser.add_argument("--dry-run", action="store_true", help="only print the call of fairseq-generate")
    return parser


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; what follows ``--`` becomes ``fairseq_flags``."""
    own, flags = recipes.split_flags(argv)
    args = build_parser().parse_args(own)
    args.fairseq_flags = flags
    if args.out is None:
        args.out = args.checkpoint.with_name("{}.{}.{}".format(args.checkpoint.stem, args.preset, args.subset))
    return args


def run(args: argparse.Namespace) -> Dict[str, Any]:
    """Evaluates as the command line says, or finds that it was done before."""
    if not args.checkpoint.is_file():
        raise scoring.ScoringError("{} is no checkpoint file".format(args.checkpoint))
    if not args.data.is_dir():
        raise scoring.ScoringError("{} is no folder".format(args.data))
    source, target = find_languages(args)
    files = data_files(args.data, args.subset, source, target)
    args.bpe = args.bpe or find_bpe(args.data / "dict.{}.txt".format(target)) or "none"
    args.references = references.find(args.data, args.subset, target, args.ref, args.raw_ref)
    request = describe(args, source, target, files)
    out = args.out.absolute()
    command = generate_command(args, source, target, result_folder.beside(out))
    if args.dry_run:
        return {"command": command}
    result = result_folder.finished(out, request, args.overwrite)
    if result is None:
        with result_folder.written_aside(out) as folder:
            result = evaluate(args, request, command, folder, count_sentences(files[-3]))
            result_folder.write(folder, result)
    return result


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Evaluates and prints the scores; returns the exit status."""
    args = parse_args(sys.argv[1:] if argv is None else argv)
    try:
        result = run(args)
    except (OSError, ValueError, pickle.UnpicklingError) as error:
        print("evaluate: {}".format(error), file=sys.stderr)
        return 1
    if args.dry_run:
        print(" ".join(result["command"]))
        return 0
    for metric, bleu in result["scores"].items():
        print("{}: {}".format(metric, bleu["text"]))
    print("results: {}".format(args.out), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
