"""What can be known to go wrong before a training starts, each in one sentence."""

import fcntl
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from powernorm_fairseq.console import UserError
from powernorm_fairseq.experiments.recipes import Flags

EXPERIMENT = "experiment.json"
# Flags that may differ when a training goes on: how long, how much is kept, what is shown, how the work is divided.
CHANGEABLE = frozenset(
    "--max-update --max-epoch --patience --stop-time-hours --keep-last-epochs --keep-interval-updates "
    "--keep-best-checkpoints --save-interval --save-interval-updates --log-format --log-interval --log-file "
    "--tensorboard-logdir --num-workers --data-buffer-size --cpu --ddp-backend --bucket-cap-mb --heartbeat-timeout "
    "--validate-interval --validate-interval-updates --disable-validation --max-tokens-valid --batch-size-valid "
    "--norm-stats --norm-stats-interval".split()
)


def value(flags: Flags, flag: str, default: str = "") -> str:
    """The first value of a flag."""
    return (flags.get(flag) or [default])[0]


def languages(flags: Flags) -> Tuple[str, str]:
    """Source and target language."""
    return value(flags, "--source-lang"), value(flags, "--target-lang")


def is_language_model(flags: Flags) -> bool:
    """Whether a training is one of text in one language."""
    return value(flags, "--task") == "language_modeling"


def data_files(data: str, flags: Flags) -> List[Path]:
    """The files that training reads: dictionaries, and all sides of train and valid; an error names what lacks."""
    files = _text_files(data) if is_language_model(flags) else _pair_files(data, flags)
    for file in files:
        if not file.exists():
            raise UserError("{} is missing; was fairseq-preprocess interrupted?".format(file))
    return files


def _text_files(data: str) -> List[Path]:
    files = []
    for number, folder in enumerate(map(Path, data.split(":"))):
        if not folder.is_dir():
            raise UserError("--data {} is no folder; data_prep lm makes one".format(folder))
        if number == 0:
            files.append(folder / "dict.txt")
        for stem in ["train"] if number else ["train", "valid"]:
            if not (folder / (stem + ".idx")).exists():
                raise UserError(
                    "--data {} has no {} text; data_prep lm prepares text for language models".format(folder, stem)
                )
            files += [folder / (stem + end) for end in (".bin", ".idx")]
    return files


def _pair_files(data: str, flags: Flags) -> List[Path]:
    source, target = languages(flags)
    files = []
    for number, folder in enumerate(map(Path, data.split(":"))):  # fairseq trains on one of them after the other
        if not folder.is_dir():
            raise UserError("--data {} is no folder; data_prep/ makes one".format(folder))
        stems = ["train"] if number else ["train", "valid"]
        if number == 0:
            files += [folder / "dict.{}.txt".format(language) for language in (source, target)]
        for stem in stems:
            pairs = ["{}-{}".format(source, target), "{}-{}".format(target, source)]
            found = [pair for pair in pairs if (folder / "{}.{}.{}.idx".format(stem, pair, source)).exists()]
            if not found:
                raise UserError("--data {} has no {} data for {} to {}".format(folder, stem, source, target))
            names = ["{}.{}.{}".format(stem, found[0], language) for language in (source, target)]
            files += [folder / (name + end) for name in names for end in (".bin", ".idx")]
    return files


def check_dictionaries(data: str, flags: Flags) -> None:
    """Shared embeddings need one dictionary for both languages."""
    source, target = (Path(data.split(":")[0]) / "dict.{}.txt".format(language) for language in languages(flags))
    if "--share-all-embeddings" in flags and source.read_bytes() != target.read_bytes():
        raise UserError(
            "{} and {} differ, but --share-all-embeddings needs one dictionary for both languages "
            "(fairseq-preprocess --joined-dictionary)".format(source, target)
        )


def describe(preset: str, norm: str, seed: int, data: str, flags: Flags, extra: Flags) -> Dict[str, Any]:
    """What makes an experiment the same experiment; data counts by its content, so that it may be moved."""
    files = data_files(data, flags)
    return {
        "preset": preset,
        "norm": norm,
        "seed": seed,
        "data": {file.name: file.stat().st_size for file in files},
        "dictionaries": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.suffix == ".txt"],
        "flags": {flag: values for flag, values in sorted(extra.items()) if flag not in CHANGEABLE},
    }


def check_save_dir(folder: Path, experiment: Dict[str, Any]) -> None:
    """Refuses a folder with something else in it; a folder is nobody's before its first checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise UserError("--save-dir {} is no folder".format(folder))
    if not has_checkpoint(folder):
        return
    before = began_with(folder)
    if before is None:
        raise UserError("{} holds checkpoints that train.sh did not write; choose another --save-dir".format(folder))
    for key, now in experiment.items():
        if key in before and before[key] != now:
            raise UserError("{}; choose another --save-dir".format(_difference(folder, key, before[key], now)))


def _difference(folder: Path, key: str, before: Any, now: Any) -> str:
    if key == "batch":
        if before["statistics"] != now["statistics"]:
            return "{} is the folder of an experiment with statistics over {} tokens, not {}".format(
                folder, before["statistics"], now["statistics"]
            )
        return "{} is the folder of an experiment with batches of {} tokens, not {}".format(
            folder, before["tokens"], now["tokens"]
        )
    shown = "" if key in ("data", "dictionaries") else " ({}, not {})".format(before, now)
    return "{} is the folder of an experiment with other {}{}".format(folder, key, shown)


def has_checkpoint(folder: Path) -> bool:
    """Whether a training has saved something there."""
    return next(folder.glob("checkpoint*.pt"), None) is not None


def began_with(folder: Path) -> Optional[Dict[str, Any]]:
    """What train.sh noted of the experiment in a folder that has checkpoints; None if it noted nothing."""
    file = folder / EXPERIMENT
    if not has_checkpoint(folder) or not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError("{} cannot be read; choose another --save-dir, or remove it".format(file)) from None


def set_aside(folder: Path) -> Optional[Path]:
    """Moves what an earlier training left in a folder into one of its own there; None if there was nothing."""
    old = [file for file in folder.iterdir() if file.name != "lock" and not file.name.startswith(("before-", "slurm"))]
    if not old:
        return None
    number = 1
    while (folder / "before-{}".format(number)).exists():
        number += 1
    aside = folder / "before-{}".format(number)
    aside.mkdir()
    for file in sorted(old, key=lambda file: file.name == EXPERIMENT):  # last: until then, the folder is the old one's
        file.rename(aside / file.name)
    return aside


def check_precision(precision: str, gpus: int) -> None:
    """Refuses what the machine cannot do."""
    if precision == "fp16" and gpus == 0:
        raise UserError("--precision fp16 needs a GPU, and there is none; choose fp32 or bf16")
    if precision == "bf16" and gpus > 0:
        import torch

        if torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
            raise UserError(
                "--precision bf16 needs a GPU with bfloat16 (A100 or later), which {} is not; choose fp32 or "
                "fp16".format(torch.cuda.get_device_name())
            )


def check_backend(flags: Flags) -> None:
    """Refuses what would give all processes the statistics of the first one."""
    if "--broadcast-buffers" in flags:
        raise UserError(
            "--broadcast-buffers would replace each process's running statistics by the first one's; leave it out"
        )


def check_disk(folder: Path, data: str, flags: Flags) -> None:
    """Refuses a disk that the checkpoints will not fit on."""
    existing = [file.stat().st_size for file in folder.glob("checkpoint*.pt")] if folder.exists() else []
    each = max(existing) if existing else checkpoint_bytes(data, flags)
    kept = max(int(value(flags, "--keep-last-epochs", "-1")), 0) or 10
    kept += max(int(value(flags, "--keep-interval-updates", "-1")), 0)
    needed = each * (kept + 3) - sum(existing)  # the best, the last, and one that is being written
    place = folder
    while not place.exists():
        place = place.absolute().parent
    free = shutil.disk_usage(str(place)).free
    if free < needed:
        raise UserError(
            "the checkpoints need about {:.1f} GB, but only {:.1f} GB are free in {}; --keep-last-epochs after -- "
            "keeps fewer".format(needed / 1e9, free / 1e9, place)
        )


def checkpoint_bytes(data: str, flags: Flags) -> int:
    """About how large a checkpoint will be: the weights and both moments of Adam, in float32."""
    language_model = is_language_model(flags)
    dictionary = "dict.txt" if language_model else "dict.{}.txt".format(languages(flags)[0])
    with open(str(Path(data.split(":")[0]) / dictionary), "rb") as file:
        words = sum(1 for _ in file)
    parameters = 0
    for side, attentions in (("decoder", 1),) if language_model else (("encoder", 1), ("decoder", 2)):
        layers, width, inner = (
            int(value(flags, "--{}-{}".format(side, size), default))
            for size, default in (("layers", "6"), ("embed-dim", "512"), ("ffn-embed-dim", "2048"))
        )
        parameters += layers * (4 * attentions * width * width + 2 * width * inner)
        if language_model:  # multi-linear attention has a weight for each pair of positions
            parameters += layers * width * int(value(flags, "--tokens-per-sample", "0")) ** 2
        if side == "encoder" or language_model or "--share-all-embeddings" not in flags:
            parameters += words * width
    return parameters * 4 * 3


def lock(folder: Path) -> Optional[Any]:
    """Makes sure that one training at a time writes to a folder; holds as long as the returned file is open."""
    file = open(str(folder / "lock"), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError("another training is running in {}".format(folder)) from None
    except OSError:  # a file system without locks
        pass
    return file
