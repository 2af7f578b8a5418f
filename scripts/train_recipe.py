"""The recipes of ``configs/`` as flags of ``fairseq-train``."""

from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TRANSLATION = ("iwslt14", "wmt14", "multi30k", "demo")
LANGUAGE_MODELS = ("ptb", "wikitext103", "lm_tiny")
PRESETS = TRANSLATION + LANGUAGE_MODELS
# How many processes a recipe's tokens are for; on fewer, gradients are accumulated, on more, batches are divided.
PROCESSES = {"wmt14": 128}
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

    main = OmegaConf.load(str(CONFIGS / "{}_{}.yaml".format(preset, norm)))
    parts = OmegaConf.to_container(main).pop("defaults")
    whole = OmegaConf.create({})
    for part in parts:
        if part == "_self_":
            own = OmegaConf.create({key: value for key, value in main.items() if key != "defaults"})
        else:
            name = part if isinstance(part, str) else "/".join(next(iter(part.items())))
            own = OmegaConf.load(str(CONFIGS / (name + ".yaml")))
        whole = OmegaConf.merge(whole, own)
    return OmegaConf.to_container(whole)


def recipe(preset: str, norm: str, processes: int) -> Flags:
    """The flags of an experiment on so many processes.

    The learning rate fits a number of tokens in an update, so that number stays what it is in the recipe.

    Args:
        preset: the experiment.
        norm: the encoder's norm; a language model's.
        processes: how many take part in the training, over all machines.

    Returns:
        Flag -> its values, in the order of the configuration.
    """
    flags: Flags = {}
    for group, settings in compose(preset, norm).items():
        if group == "hydra":
            continue
        for name, value in settings.items():
            if name == "data" or value is None or value is False:
                continue
            flag = CHOICES[group] if name == "_name" else "--" + name.replace("_", "-")
            flags[flag] = [] if value is True else [_text(value)]
    del flags["--user-dir"]
    usual = PROCESSES.get(preset, 1)
    if processes <= usual:
        flags["--update-freq"] = [str(max(1, round(usual / processes)))]
    else:
        flags["--max-tokens"] = [str(int(flags["--max-tokens"][0]) * usual // processes)]
    flags["--log-format"] = ["json"]  # what status.py and other programs read
    return flags


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def split_flags(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """A command line cut at ``--``: a program's own words, and the flags that it hands on."""
    cut = words.index("--") if "--" in words else len(words)
    return list(words[:cut]), list(words[cut + 1 :])


def parse_flags(words: Sequence[str]) -> Flags:
    """Flag -> values, of flags as they are typed; a negative number is a value."""
    flags: Flags = {}
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            flag, equals, value = word.partition("=")
            flags.pop(flag, None)  # given twice, the last one counts, and the values that follow are its own
            flags[flag] = [value] if equals else []
        elif not flags:
            raise ValueError("{} is no flag; after -- come flags of fairseq-train".format(word))
        else:
            flags[next(reversed(list(flags)))].append(word)
    return flags


def to_words(flags: Flags) -> List[str]:
    """The flags as they are typed."""
    return [word for flag, values in flags.items() for word in (flag, *values)]
