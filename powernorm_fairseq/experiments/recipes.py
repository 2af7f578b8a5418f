"""The recipes of ``configs/`` as flags of ``fairseq-train``, and the arguments that name one."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments import batches
from powernorm_fairseq.experiments.corpora import CORPORA

CONFIGS = Path(__file__).resolve().parents[1] / "configs"  # in a checkout a link to its configs/
PRESETS = tuple(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
# The flag that chooses an implementation, by the part of the configuration that holds its settings.
CHOICES = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
Flags = Dict[str, List[str]]


def norm_names() -> List[str]:
    """The norms that there are configurations for; known without importing torch."""
    return sorted(path.stem for path in (CONFIGS / "norm").glob("*.yaml"))


def compose(preset: str, norm: str) -> Dict[str, Any]:
    """The configuration of an experiment, put together as hydra does it: a dictionary."""
    from omegaconf import OmegaConf  # here, so that submit.py runs with any Python

    main: Any = OmegaConf.load(str(CONFIGS / (preset + ".yaml")))
    defaults = list(main.pop("defaults"))
    whole: Any = OmegaConf.create(main)
    for part in defaults[1:]:  # the first is the file itself
        name = part if isinstance(part, str) else "norm/" + norm
        whole = OmegaConf.merge(whole, OmegaConf.load(str(CONFIGS / (name + ".yaml"))))
    if preset in CORPORA and norm in CORPORA[preset].synchronised:
        whole.model.sync_norm = True
    if "norm" in whole.model:  # a language model, whose one norm needs no file
        whole.model.norm = norm
    found: Any = OmegaConf.to_container(whole)
    return found


def parts(preset: str, norm: str) -> Dict[str, Flags]:
    """The flags of an experiment by the part of the configuration that they come from."""
    found: Dict[str, Flags] = {}
    for part, settings in compose(preset, norm).items():
        if part == "hydra":
            continue
        found[part] = {}
        for name, value in settings.items():
            if name in ("data", "user_dir") or value is None or value is False:
                continue
            flag = CHOICES[part] if name == "_name" else "--" + name.replace("_", "-")
            found[part][flag] = [] if value is True else [_text(value)]
    return found


def recipe(preset: str, norm: str, processes: Optional[int] = None, began: Optional[int] = None) -> Flags:
    """The flags of an experiment on so many processes; :mod:`.batches` says how they share an update.

    Args:
        preset: the experiment.
        norm: the encoder's norm; a language model's.
        processes: how many take part in the training, over all machines; by default as many as the recipe is for.
        began: tokens in a batch of each process with which a training began that now goes on.

    Returns:
        Flag -> its values, in the order of the configuration.
    """
    flags: Flags = {}
    for own in parts(preset, norm).values():
        flags.update(own)
    usual = usual_processes(preset)
    tokens, frequency = batches.divide(int(flags["--max-tokens"][0]), usual, processes or usual, began)
    flags["--max-tokens"], flags["--update-freq"] = [str(tokens)], [str(frequency)]
    flags["--log-format"] = ["json"]  # what other programs read
    return flags


def usual_processes(preset: str) -> int:
    """How many processes a recipe is for."""
    return CORPORA[preset].processes if preset in CORPORA else 1


def merge(preset: str, norm: str, flags: Flags, extra: Flags) -> Flags:
    """The flags of a recipe with those of the user, which win.

    A switch of the recipe is taken back by its name with ``no`` in front (``--no-share-all-embeddings``). Another
    criterion, optimizer or scheduler comes without the settings of the recipe's.
    """
    merged = dict(flags)
    for part in ("criterion", "optimizer", "lr_scheduler"):
        choice = CHOICES[part]
        if choice in extra and extra[choice] != flags.get(choice):
            for flag in parts(preset, norm).get(part, {}):
                merged.pop(flag, None)
    for flag, values in extra.items():
        switch = "--" + flag[len("--no-") :]
        if flag.startswith("--no-") and not values and flags.get(switch) == []:
            merged.pop(switch, None)
        else:
            merged[flag] = values
    return merged


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def split_flags(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """A command line cut at ``--``: a program's own words, and the flags that it hands on."""
    cut = words.index("--") if "--" in words else len(words)
    return list(words[:cut]), list(words[cut + 1 :])


def parse_args(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parses a program's own words; what follows ``--`` becomes ``flags``."""
    own, flags = split_flags(argv)
    args = parser.parse_args(own)
    args.flags = flags
    return args


def parse_flags(words: Sequence[str]) -> Flags:
    """Flag -> values, of flags as they are typed; a negative number is a value."""
    flags: Flags = {}
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            flag, equals, value = word.partition("=")
            flags.pop(flag, None)  # given twice, the last one counts, and the values that follow are its own
            flags[flag] = [value] if equals else []
        elif not flags:
            raise UserError(f"{word} is no flag; after -- come flags of fairseq-train")
        else:
            flags[next(reversed(list(flags)))].append(word)
    return flags


def to_words(flags: Flags) -> List[str]:
    """The flags as they are typed."""
    return [word for flag, values in flags.items() for word in (flag, *values)]


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """What names a training; known without importing torch."""
    parser.add_argument("--preset", required=True, help="the recipe: " + ", ".join(PRESETS))
    names = ", ".join(norm_names())
    parser.add_argument("--norm", required=True, help="the encoder's norm, or the language model's: " + names)
    parser.add_argument("--data", required=True, metavar="BIN", help="output folder of fairseq-preprocess")
    parser.add_argument("--save-dir", required=True, type=Path, metavar="DIR", help="checkpoints, logs and records")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of weights, dropout, data order (default: 1)")


def check_names(args: argparse.Namespace) -> None:
    """Refuses a recipe or a norm that there is not."""
    for flag, given, known in (("--preset", args.preset, PRESETS), ("--norm", args.norm, norm_names())):
        if given not in known:
            raise UserError("{} {} is not known; choose from {}".format(flag, given, ", ".join(known)))


def program(name: str) -> str:
    """A program of fairseq, the one beside this Python where there is one."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise UserError(f"{name} is neither beside {sys.executable} nor on PATH; see scripts/setup.sh")
    return found
