#!/usr/bin/env python3
"""Training speed and memory of each encoder norm against `--encoder-norm ln`, by fairseq's own trainer.

Every norm gets a model, an optimizer and a trainer with the flags that `scripts/train.sh` gives `fairseq-train`, on the
same made-up corpus: 10,000 types, sentences of about 25 tokens. In one process all of them take `Trainer.train_step` on
the same batch, turn by turn, in changing order; the ratio is that of the median times for a token, and its range has
the quartiles of the ratios within each round. Peak memory is the resident memory of a process of its own for each norm
that trains on the same batches. The program starts itself again with a fixed allocator. With all norms and the model
`small` it takes some 25 minutes on two cores. `ptb` is the language model of the paper's size on the English side, with
`--norm` in place of `--encoder-norm`; `ptb-bf16` the same with `--autocast-bfloat16`.
"""

import argparse
import contextlib
import logging
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from benchmarks import interleave
from powernorm_fairseq.experiments import recipes
from powernorm_fairseq.norms import norm_names

USER_DIR = Path(__file__).resolve().parent.parent / "powernorm_fairseq"
REFERENCE = "ln"
# name here -> preset of the recipe, and flags besides its own
SIZES = {
    "demo": ("demo", {}),
    "small": ("iwslt14", {}),
    "ptb": ("ptb", {}),
    "ptb-bf16": ("ptb", {"--autocast-bfloat16": []}),
}
GOAL = ("small", "pn", 1.02)
MEMORY_STEPS = 2  # the optimizer's state is there in the second


def write_corpus(folder: Path, sentences: int, types: int) -> None:
    """Binarised pairs of random words: frequencies like Zipf's, lengths around 25 with a deviation of 15."""
    generator = random.Random(1)
    dictionary = Dictionary()
    for number in range(types):
        dictionary.add_symbol(f"w{number}", types - number)
    first = dictionary.nspecial
    weights = [1 / (rank + 1) for rank in range(types)]
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    lengths = [min(175, max(1, round(generator.gauss(25, 15)))) for _ in range(sentences)]
    for split, chosen in (("train", lengths), ("valid", lengths[:10])):
        for language, share in (("de", 1.0), ("en", 1.05)):
            prefix = str(folder / f"{split}.de-en.{language}")
            builder = indexed_dataset.make_builder(prefix + ".bin", impl="mmap", vocab_size=len(dictionary))
            for length in chosen:
                words = generator.choices(range(types), weights, k=max(1, round(share * length)))
                builder.add_item(torch.IntTensor([first + word for word in words] + [dictionary.eos()]))
            builder.finalize(prefix + ".idx")
    # what a language model reads: the English side alone
    shutil.copyfile(str(folder / "dict.en.txt"), str(folder / "dict.txt"))
    for split in ("train", "valid"):
        for end in ("bin", "idx"):
            shutil.copyfile(str(folder / f"{split}.de-en.en.{end}"), str(folder / f"{split}.{end}"))


class Training:
    """fairseq's trainer for one norm, with the flags of a recipe."""

    def __init__(self, data: Path, size: str, norm: str, args: argparse.Namespace) -> None:
        logging.disable(logging.INFO)  # fairseq says much
        preset, more = SIZES[size]
        flags = {**recipes.recipe(preset, norm, processes=1), **more}
        flags.update({"--user-dir": [str(USER_DIR)], "--cpu": [], "--num-workers": ["0"]})
        # past the warm-up of the norms, which are then as they are for most of a training
        flags.update({"--norm-warmup-updates": ["0"], "--log-format": ["none"], "--save-dir": [str(data / "none")]})
        flags.setdefault("--max-update", ["100000"])  # what prepbn wants to know
        if args.max_tokens:
            flags["--max-tokens"] = [str(args.max_tokens)]
        parser = options.get_training_parser()
        parsed = options.parse_args_and_arch(parser, [str(data), *recipes.to_words(flags)])
        cfg = convert_namespace_to_omegaconf(parsed)
        utils.set_torch_seed(cfg.common.seed)
        task = tasks.setup_task(cfg.task)
        model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
        self.trainer = Trainer(cfg, task, model, criterion)
        iterator = self.trainer.get_train_iterator(epoch=1)
        self.trainer.begin_epoch(1)
        self.batches = list(iterator.next_epoch_itr(shuffle=True))
        self.turn = 0

    def step(self) -> Dict[str, float]:
        """One update on the next batch; seconds for each token of the target."""
        batch = self.batches[self.turn % len(self.batches)]
        self.turn += 1
        now = interleave.stopwatch()
        start = now()
        if self.trainer.train_step([batch]) is None:
            raise RuntimeError("the trainer skipped an update")
        return {"step": (now() - start) / batch["ntokens"]}


def peak_memory(data: Path, size: str, norm: str, args: argparse.Namespace, rank: int, queue: Any) -> None:
    """In a process of its own: a few updates, then the highest resident memory in bytes."""
    torch.set_num_threads(args.threads)
    with contextlib.redirect_stdout(sys.stderr):
        training = Training(data, size, norm, args)
        for _ in range(MEMORY_STEPS):
            training.step()
    status = Path("/proc/self/status").read_text()
    queue.put(1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")))


def measure(size: str, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """All norms with the model of one size: one row of facts for each."""
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_corpus(data, args.sentences, args.types)
        memory = {norm: None for norm in args.norms}
        if Path("/proc/self/status").exists():
            memory = {norm: interleave.in_processes(peak_memory, 1, data, size, norm, args) for norm in args.norms}
        trainings = {norm: Training(data, size, norm, args) for norm in args.norms}
        for training in trainings.values():
            training.batches = trainings[REFERENCE].batches
        steps = {norm: training.step for norm, training in trainings.items()}
        times = interleave.interleave(steps, args.rounds, args.warmup_rounds)
    return [
        {
            "size": size,
            "norm": norm,
            "threads": args.threads,
            "tokens_per_second": 1 / statistics.median(times[norm]["step"]),
            "ratio": list(interleave.compare(times[norm]["step"], times[REFERENCE]["step"])),
            "peak_bytes": memory[norm],
            "peak_ratio": memory[norm] / memory[REFERENCE] if memory[norm] else None,
        }
        for norm in args.norms
    ]


def goals(facts: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The project's goal for a training step."""
    size, norm, limit = GOAL
    what = f"training step, {norm} to {REFERENCE}"
    rows = [row for row in facts["results"] if (row["size"], row["norm"]) == (size, norm)]
    return [interleave.goal(what, limit, {f"model `{size}`": row["ratio"][0]}) for row in rows]


def markdown(facts: Dict[str, Any]) -> str:
    """Everything as Markdown: the goal, and a table for each size."""
    parts = [interleave.describe(facts["machine"])]
    if facts["goals"]:
        parts.append(interleave.goals_table(facts["goals"]))
    for size in facts["sizes"]:
        rows = []
        for row in (row for row in facts["results"] if row["size"] == size):
            ratio = "1" if row["norm"] == REFERENCE else "{:.3f} ({:.3f}-{:.3f})".format(*row["ratio"])
            peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f} MiB"
            share = "-" if row["peak_ratio"] is None else f"{row['peak_ratio']:.2f}"
            rows.append([row["norm"], f"{row['tokens_per_second']:,.0f}", ratio, peak, share])
        header = ["encoder norm", "tokens/s", f"step time to {REFERENCE}", "peak memory", f"to {REFERENCE}"]
        parts += [f"**Model `{size}`, {facts['threads']} threads**", interleave.table(header, rows)]
    return "\n\n".join(parts)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = interleave.make_parser(__doc__, rounds=12, warmup=2)
    norms, sizes = interleave.choices(norm_names(), "norm"), interleave.choices(list(SIZES), "size")
    parser.add_argument("--norms", type=norms, metavar="A,B", help=f"default: all; {REFERENCE} is always there")
    parser.add_argument("--sizes", type=sizes, metavar="S,S", help="default: all")
    parser.add_argument(
        "--threads", type=interleave.number, default=interleave.cores(), help="default: the number of cores"
    )
    return parser


def measure_all(args: argparse.Namespace) -> Dict[str, Any]:
    """The numbers of all sizes and norms."""
    args.norms = [REFERENCE] + [norm for norm in args.norms or norm_names() if norm != REFERENCE]
    args.sizes = args.sizes or (["demo"] if args.quick else list(SIZES))
    args.max_tokens, args.sentences, args.types = (300, 100, 100) if args.quick else (None, 4000, 10000)
    facts: Dict[str, Any] = {"sizes": args.sizes, "threads": args.threads, "rounds": args.rounds, "results": []}
    for size in args.sizes:
        print(f"{size}: {', '.join(args.norms)} ...", file=sys.stderr, flush=True)
        with contextlib.redirect_stdout(sys.stderr):  # fairseq prints
            facts["results"] += measure(size, args)
    facts["goals"] = goals(facts)
    return facts


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measures and prints."""
    return interleave.run(build_parser(), argv, measure_all, markdown)


if __name__ == "__main__":
    interleave.fix_allocator()
    sys.exit(main())
