"""One training of a table as a folder: what it is, how far it is, and what came out.

``checkpoints/`` is the ``--save-dir`` of ``train.sh``, with its log and records; beside it lie ``hyp.txt``, ``ref.txt``
and ``result.json``, which holds everything a report needs.
"""

import fcntl
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from powernorm_fairseq import files
from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments import checks, recipes, train
from powernorm_fairseq.experiments.corpora import recipe_of
from powernorm_fairseq.experiments.tables.catalogue import LEAKING_FLAG, LEAKS, Row
from powernorm_fairseq.files import read_json
from powernorm_fairseq.training_log import Log, number, total_updates

CHECKPOINTS, RESULT, HYPOTHESES, REFERENCES = "checkpoints", "result.json", "hyp.txt", "ref.txt"
FORMAT = 1  # of result.json


class Run:
    """A row of a table with a seed, in a folder.

    Args:
        folder: of the dataset's runs; the run gets one in it.
        dataset: name of the corpus.
        row: norm and settings.
        seed: of weights, dropout and data order.
        data: output folder of fairseq-preprocess; None if only finished results are looked at.
        user_flags: further flags of fairseq-train; those of the row win.
    """

    def __init__(
        self, folder: Path, dataset: str, row: Row, seed: int, data: Optional[Path], user_flags: Sequence[str] = ()
    ) -> None:
        self.dataset = dataset
        self.preset = recipe_of(dataset)
        self.row = row
        self.seed = seed
        self.data = data
        self.name = row.run_name(seed)
        self.folder = folder / self.name
        self.checkpoints = self.folder / CHECKPOINTS
        self.extra = {**recipes.parse_flags(user_flags), **recipes.parse_flags(row.flags)}
        self.log = Log(self.checkpoints / "train.log")

    @cached_property
    def flags(self) -> recipes.Flags:
        """What fairseq-train is told, but for what depends on the machine."""
        recipe = recipes.recipe(self.preset, self.row.norm)
        return recipes.merge(self.preset, self.row.norm, recipe, self.extra)

    def train_words(self) -> List[str]:
        """The arguments of train.sh."""
        words = ["--preset", self.preset, "--norm", self.row.norm, "--seed", str(self.seed), "--data", str(self.data)]
        words += ["--save-dir", str(self.checkpoints)]
        return [*words, "--", *recipes.to_words(self.extra)] if self.extra else words

    def score_words(self) -> List[str]:
        """The arguments of the program that averages, decodes and scores what it finds in a folder."""
        words = ["--dir", str(self.folder), "--data", str(self.data)]
        return [*words, "--", "--cpu"] if "--cpu" in self.extra else words

    def check(self) -> None:
        """Refuses the folder of another experiment, and a result of another length."""
        try:
            flags = self.flags
            checks.check_dictionaries(str(self.data), flags)
            experiment = checks.describe(self.preset, self.row.norm, self.seed, str(self.data), flags, self.extra)
            checks.check_save_dir(self.checkpoints, experiment)
        except UserError as error:
            raise UserError(str(error).replace("--save-dir", "--dir")) from None
        result = self.result()
        if result and result["length"] != train.length(flags):
            lengths = (recipes.to_words(length) for length in (result["length"], train.length(flags)))
            before, now = (" ".join(words) or "no limit" for words in lengths)
            raise UserError(f"{self.folder} is finished with {before}, not {now}; choose another --dir")

    # How far it is

    @property
    def status(self) -> Dict[str, Any]:
        """What train.sh noted."""
        return read_json(self.checkpoints / train.STATUS)

    @property
    def trained(self) -> bool:
        """Whether training has come to its end."""
        status = self.status
        return status.get("state") == "finished" and status.get("flags") == train.length(self.flags)

    @property
    def scored(self) -> bool:
        """Whether the test set was decoded and scored."""
        return (self.checkpoints / train.SCORES / "result.json").exists()

    def result(self) -> Optional[Dict[str, Any]]:
        """What came out, once it has been collected."""
        return read_json(self.folder / RESULT) or None

    def done(self, with_scores: bool) -> bool:
        """Whether nothing is left to do."""
        result = self.result()
        return result is not None and (bool(result["scores"]) or not with_scores)

    @property
    def trains_elsewhere(self) -> bool:
        """Whether a train.sh that was started by other means holds the folder."""
        try:
            with open(str(self.checkpoints / "lock"), encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    @property
    def total_updates(self) -> Optional[int]:
        """How many updates training has at most, as far as that is known yet."""
        limits = [int(checks.value(self.flags, flag, "0")) for flag in ("--max-update", "--max-epoch")]
        return total_updates(self.log, *limits)

    @property
    def seconds_left(self) -> Optional[float]:
        """How long training takes from here, at its latest pace."""
        pace, total = number(self.log.latest.get("ups")), self.total_updates
        return max(total - self.log.updates, 0) / pace if pace and total else None

    def describe(self) -> str:
        """Where its training is, in one line."""
        log, best, total = self.log.update(), self.log.best(), self.total_updates
        if not log.updates:
            return f"{self.name}: starting"
        parts = [f"update {log.updates}" + (f" of {total}" if total else ""), f"loss {log.latest.get('loss', '?')}"]
        if best is not None:
            parts.append(f"best valid {best['loss']:.3f}" + (f" (ppl {best['ppl']:.2f})" if best["ppl"] else ""))
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return f"{self.name}: " + ", ".join(parts)

    def state(self) -> str:
        """In words, for people."""
        if self.done(with_scores=True):
            return "finished"
        if self.done(with_scores=False):
            return "trained"
        if self.trains_elsewhere:
            return "running"
        state = self.status.get("state")
        return {None: "not started", "finished": "trained", "running": "interrupted"}.get(state, str(state))

    # What came out

    def collect(self) -> Dict[str, Any]:
        """Writes ``result.json`` from the records of training and scoring, and puts the translations beside it."""
        log = self.log.update()
        scores = read_json(self.checkpoints / train.SCORES / "result.json")
        for name in (HYPOTHESES, REFERENCES):
            if scores and (self.checkpoints / train.SCORES / name).exists():
                files.write(self.folder / name, (self.checkpoints / train.SCORES / name).read_bytes())
        status, environment = self.status, read_json(self.checkpoints / train.ENVIRONMENT)
        commands = (self.checkpoints / train.COMMAND).read_text(encoding="utf-8").splitlines()[1:]
        result = {
            "format": FORMAT,
            "run": self.name,
            "dataset": self.dataset,
            "norm": self.row.norm,
            "variant": self.row.variant,
            "label": self.row.label + (LEAKS if LEAKING_FLAG in self.flags else ""),
            "seed": self.seed,
            "changes": self.extra,  # of the recipe
            "length": status["flags"],
            "command": commands[0],
            "configuration": configuration(commands[1]),
            "git_revision": environment.pop("git_revision", None),
            "environment": {**environment, "norm_kernels": log.norm_kernels or ""},
            "parameters": log.parameters,
            "updates": log.updates,
            "epochs": int(log.epochs[-1]["epoch"]) if log.epochs else 0,
            "seconds": log.seconds,
            "words_per_second": log.median("wps"),
            "updates_per_second": log.median("ups"),
            "peak_memory": status.get("peak_memory"),
            "best_valid": log.best(),
            "curves": {kind: log.curve(kind) for kind in ("train", "valid")},
            "scores": scores.get("scores", {}),
            "decoding": {name: scores[name] for name in ("beam", "lenpen", "sentences") if name in scores},
            "target_lang": scores.get("request", {}).get("target_lang"),
        }
        files.write(self.folder / RESULT, result)
        return result


def configuration(command: str) -> recipes.Flags:
    """The flags of a call of fairseq-train, but for folders."""
    words = shlex.split(command)
    flags = recipes.parse_flags(words[2:])
    return {flag: values for flag, values in flags.items() if flag not in ("--save-dir", "--user-dir")}


def duration(seconds: Optional[float]) -> str:
    """As people say it."""
    if seconds is None:
        return "unknown"
    minutes = int(round(seconds / 60))
    if minutes < 1:
        return f"{seconds:.0f} s"
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
