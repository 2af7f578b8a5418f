"""What can be known to go wrong before a training starts, each in one sentence."""

import fcntl
import hashlib
import itertools
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


def dictionaries(data: str, flags: Flags) -> List[Path]:
    """One for text in one language, else one for each."""
    names = [".txt"] if is_language_model(flags) else [f".{language}.txt" for language in languages(flags)]
    return [Path(data.split(":")[0]) / ("dict" + name) for name in names]


def data_files(data: str, flags: Flags) -> List[Path]:
    """The files that training reads: dictionaries, and all sides of train and valid; an error names what lacks."""
    text, (source, target) = is_language_model(flags), languages(flags)
    files = dictionaries(data, flags)
    for number, folder in enumerate(map(Path, data.split(":"))):  # fairseq trains on one of them after the other
        if not folder.is_dir():
            maker = "data_prep lm" if text else "data_prep/"
            raise UserError(f"--data {folder} is no folder; {maker} makes one")
        for split in ["train"] if number else ["train", "valid"]:
            pairs = ["{}.{}-{}.".format(split, *pair) for pair in ((source, target), (target, source))]
            possible = [[split]] if text else [[pair + source, pair + target] for pair in pairs]
            found = next((names for names in possible if (folder / (names[0] + ".idx")).exists()), None)
            if found is None and text:
                raise UserError(f"--data {folder} has no {split} text; data_prep lm prepares text for language models")
            if found is None:
                raise UserError(f"--data {folder} has no {split} data for {source} to {target}")
            files += [folder / (name + end) for name in found for end in (".bin", ".idx")]
    for file in files:
        if not file.exists():
            raise UserError(f"{file} is missing; was fairseq-preprocess interrupted?")
    return files


def check_dictionaries(data: str, flags: Flags) -> None:
    """Shared embeddings need one dictionary for both languages."""
    if "--share-all-embeddings" in flags:
        source, target = dictionaries(data, flags)
        if source.read_bytes() != target.read_bytes():
            raise UserError(
                f"{source} and {target} differ, but --share-all-embeddings needs one dictionary for both languages "
                "(fairseq-preprocess --joined-dictionary)"
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
        raise UserError(f"--save-dir {folder} is no folder")
    if not has_checkpoint(folder):
        return
    before = began_with(folder)
    if before is None:
        raise UserError(f"{folder} holds checkpoints that train.sh did not write; choose another --save-dir")
    for key, now in experiment.items():
        if key in before and before[key] != now:
            raise UserError(f"{_difference(folder, key, before[key], now)}; choose another --save-dir")


def _difference(folder: Path, key: str, before: Any, now: Any) -> str:
    what = f"other {key} ({before}, not {now})"
    if key in ("data", "dictionaries"):
        what = f"other {key}"
    elif key == "batch" and before["statistics"] != now["statistics"]:
        what = "statistics over {} tokens, not {}".format(before["statistics"], now["statistics"])
    elif key == "batch":
        what = "batches of {} tokens, not {}".format(before["tokens"], now["tokens"])
    return f"{folder} is the folder of an experiment with {what}"


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
        raise UserError(f"{file} cannot be read; choose another --save-dir, or remove it") from None


def set_aside(folder: Path) -> Optional[Path]:
    """Moves what an earlier training left in a folder into one of its own there; None if there was nothing."""
    old = [file for file in folder.iterdir() if file.name != "lock" and not file.name.startswith(("before-", "slurm"))]
    if not old:
        return None
    names = (folder / f"before-{number}" for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
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
                f"--precision bf16 needs a GPU with bfloat16 (A100 or later), which {torch.cuda.get_device_name()} is "
                "not; choose fp32 or fp16"
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
    needed = all_checkpoints_bytes(data, flags, max(existing, default=None)) - sum(existing)
    free = free_space(folder)
    if free < needed:
        raise UserError(
            f"the checkpoints need about {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free in {folder}; "
            "--keep-last-epochs after -- keeps fewer"
        )


def free_space(folder: Path) -> int:
    """Bytes free on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(str(folder)).free


def all_checkpoints_bytes(data: str, flags: Flags, each: Optional[int] = None) -> int:
    """About how much a training keeps: numbered checkpoints, the best, the last, and one that is being written."""
    kept = max(int(value(flags, "--keep-last-epochs", "-1")), 0) or 10
    kept += max(int(value(flags, "--keep-interval-updates", "-1")), 0)
    return (each or checkpoint_bytes(data, flags)) * (kept + 3)


def checkpoint_bytes(data: str, flags: Flags) -> int:
    """About how large a checkpoint will be: the weights and both moments of Adam, in float32."""
    language_model = is_language_model(flags)
    words = dictionaries(data, flags)[0].read_bytes().count(b"\n")
    parameters = 0
    for side, attentions in (("decoder", 1),) if language_model else (("encoder", 1), ("decoder", 2)):
        layers, width, inner = (
            int(value(flags, f"--{side}-{size}", default))
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
        raise UserError(f"another training is running in {folder}") from None
    except OSError:  # a file system without locks
        pass
    return file
