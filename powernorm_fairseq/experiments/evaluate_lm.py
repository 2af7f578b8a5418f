"""Measures the perplexity of a language model, as ``fairseq-eval-lm`` does, and writes down how.

Perplexity is per word, the end of a line being a word, as in the published tables; where the data are subwords, the
probability of a word is the product of its parts'. By default the text is cut into blocks of the length that the model
was trained with and each block is predicted from its own beginning on, the setting of the tables; ``--context-window``
gives every word at least so many words of context, at the price of more computation. A model that was trained with
``--no-causal-mask`` sees the words it is to predict; it is refused without ``--leaking``, and its result is marked.
"""

import argparse
import logging
import math
import re
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from powernorm_fairseq import scoring
from powernorm_fairseq.console import program
from powernorm_fairseq.experiments import evaluation
from powernorm_fairseq.safe_load import load_checkpoint

# Settings of the task that decide what is predicted from what; the checkpoint's, unless the user says otherwise.
TASK_FLAGS = ("tokens_per_sample", "sample_break_mode", "output_dictionary_size")
LEAKING = "LEAKING: without causal mask the model sees the words that it is to predict"


class Listener(logging.Handler):
    """Hears from fairseq's log what its result does not say."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0
        self.skipped = False

    def emit(self, record: logging.LogRecord) -> None:
        """Takes note of a message."""
        found = re.match(r"Evaluated ([\d,]+) tokens", str(record.msg))
        if found:
            self.tokens = int(found.group(1).replace(",", ""))
        self.skipped |= str(record.msg).startswith("skipping tokens")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = evaluation.new_parser("Measure the perplexity of a language model.", "fairseq-eval-lm")
    parser.add_argument("--tokens-per-sample", type=int, metavar="N", help="length of a block; by default the model's")
    parser.add_argument(
        "--context-window", type=int, default=0, metavar="N", help="context that every word has at least, in tokens"
    )
    parser.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="tokens in a batch")
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    parser.add_argument(
        "--leaking", action="store_true", help="measure a model that was trained with --no-causal-mask all the same"
    )
    return parser


def saved_settings(checkpoint: Path) -> Tuple[Dict[str, Any], int, bool]:
    """Settings of a checkpoint's task, the longest context its model can take, and whether that lacks a mask."""
    config = load_checkpoint(checkpoint, mmap=True).get("cfg") or {}
    task, model = config.get("task") or {}, config.get("model") or {}
    if task.get("_name") != "language_modeling":
        raise scoring.ScoringError(f"{checkpoint} is no checkpoint of a language model")
    longest = model.get("max_target_positions") or model.get("tokens_per_sample") or task["tokens_per_sample"]
    settings = {name: task[name] for name in (*TASK_FLAGS, "add_bos_token")}
    return settings, int(longest), bool(model.get("no_causal_mask"))


def count(data: Path, subset: str) -> Tuple[int, int, int, Optional[str]]:
    """Tokens, words and unknown tokens of a subset, the ends of lines counted, and the kind of its subwords."""
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(data / "dict.txt"))
    kind = evaluation.find_bpe(data / "dict.txt")
    lines = data_utils.load_indexed_dataset(str(data / subset), dictionary, None)
    words_of = {  # whether a token is the one of its word that is counted
        "subword-nmt": lambda token: not token.endswith("@@"),
        "sentencepiece": lambda token: token.startswith(scoring.SENTENCEPIECE_SPACE) or token in ("</s>", "<unk>"),
        None: lambda token: True,
    }
    counted = [words_of[kind](dictionary[index]) for index in range(len(dictionary))]
    tokens = words = unknown = 0
    for line in lines:
        indices = line.tolist()
        tokens += len(indices)
        words += sum(counted[index] for index in indices)
        unknown += indices.count(dictionary.unk())
    return tokens, words, unknown, kind


def eval_lm(args: argparse.Namespace, settings: Dict[str, Any]) -> Tuple[float, int]:
    """Runs ``fairseq-eval-lm`` in this process; returns the loss of a token in nats, and how many there were."""
    # before fairseq's own, so that its messages go where progress belongs
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s | %(name)s | %(message)s")
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import eval_lm as program

    flags = [str(args.data), "--user-dir", str(evaluation.USER_DIR), "--path", str(args.checkpoint)]
    flags += ["--gen-subset", args.subset]
    flags += ["--context-window", str(args.context_window), "--max-tokens", str(args.max_tokens), "--num-workers", "0"]
    for name in TASK_FLAGS:
        flags += ["--" + name.replace("_", "-"), str(settings[name])]
    flags += ["--add-bos-token"] if settings["add_bos_token"] else []
    flags += ["--cpu"] if args.cpu else []
    flags += ["--model-overrides", "{'leaking_evaluation': True}"] if args.leaking else []
    listener, level = Listener(), program.logger.level
    program.logger.addHandler(listener)
    program.logger.setLevel(logging.INFO)
    try:
        parsed = options.parse_args_and_arch(options.get_eval_lm_parser(), flags + args.flags)
        result = program.main(convert_namespace_to_omegaconf(parsed))
    finally:
        program.logger.removeHandler(listener)
        program.logger.setLevel(level)
    if listener.skipped:
        raise scoring.ScoringError("the model gives some words no probability at all, and fairseq left them out")
    return float(result["loss"]) * math.log(2), listener.tokens


def evaluate(args: argparse.Namespace, settings: Dict[str, Any]) -> Dict[str, Any]:
    """Evaluates and returns what goes into the result file."""
    tokens, words, unknown, kind = count(args.data, args.subset)
    loss, evaluated = eval_lm(args, settings)
    if evaluated != tokens:
        raise scoring.ScoringError(
            f"fairseq evaluated {evaluated} of {tokens} tokens, which says nothing about the others"
        )
    if not math.isfinite(loss):
        raise scoring.ScoringError(f"the loss of {args.checkpoint} is {loss}")
    perplexity = math.exp(loss * tokens / words)
    how = "per word, blocks of {}, context window {}, {} words".format(
        settings["tokens_per_sample"], args.context_window, words
    )
    if args.leaking:
        how = f"{LEAKING}; {how}"
    return {
        "scores": {"ppl": {"score": perplexity, "signature": how}},  # where every result has its scores
        "loss": loss * tokens / words,
        "ppl": perplexity,
        "ppl_per_token": math.exp(loss),
        "tokens": tokens,
        "words": words,
        "unknown": unknown,
        "subwords": kind,
        "tokens_per_sample": settings["tokens_per_sample"],
        "sample_break_mode": settings["sample_break_mode"],
        "context_window": args.context_window,
        "leaking": args.leaking,
    }


@program("evaluate_lm", ValueError)
def main(argv: Sequence[str]) -> int:
    """Evaluates as the command line says, or finds that it was done before, and prints the perplexity."""
    args = evaluation.parse_args(build_parser(), argv)
    used = evaluation.data_files(args.data, ["dict.txt", args.subset + ".idx", args.subset + ".bin"], "data_prep lm")
    settings, longest, leaks = saved_settings(args.checkpoint)
    if leaks and not args.leaking:
        raise scoring.ScoringError(
            f"{args.checkpoint} was trained with --no-causal-mask: it sees the words that it is to predict, so its "
            "perplexity says nothing; --leaking measures it all the same"
        )
    args.leaking = leaks
    if args.tokens_per_sample is not None:
        settings["tokens_per_sample"] = args.tokens_per_sample
    block = settings["tokens_per_sample"]
    if not 1 <= block <= longest:  # fairseq would leave out what does not fit, and say nothing
        raise scoring.ScoringError(f"--tokens-per-sample {block} does not fit the model; give 1 to {longest}")
    if not 0 <= args.context_window < block:
        raise scoring.ScoringError(
            f"--context-window {args.context_window} leaves nothing to predict; give 0 to {block - 1}"
        )
    request = evaluation.describe(args, used, settings=settings, context_window=args.context_window)
    result = evaluation.result(args, request, lambda folder: evaluate(args, settings))
    print(
        "perplexity {ppl:.2f} per word ({words} words, {tokens} tokens; blocks of {tokens_per_sample}, "
        "context window {context_window})".format(**result)
    )
    if leaks:
        print(LEAKING)
    print(f"results: {args.out}", file=sys.stderr)
    return 0
