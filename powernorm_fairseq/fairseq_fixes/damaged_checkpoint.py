"""A damaged ``checkpoint_last.pt`` cannot be resumed from, though whole checkpoints lie beside it.

Mended by looking at the file first, and by going on from the newest whole checkpoint. What a killed training was
writing, or had only left to delete, is removed.
"""

import logging
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, Callable, List, Optional

from powernorm_fairseq.around import around
from powernorm_fairseq.safe_load import load_checkpoint
from powernorm_fairseq.safe_save import copy_file

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
# What a training saves; averages of checkpoints have other names, and nothing can be resumed from them.
_NUMBERED = re.compile(r"checkpoint(\d+|_\d+_\d+)\.pt")
_OF_TRAINING = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.*)\.pt")


def readable(path: Path) -> bool:
    """Whether a checkpoint is whole: neither cut off nor altered, by the checksums that torch puts into it.

    Raises:
        pickle.UnpicklingError: it is whole, and holds what a checkpoint must not hold.
    """
    return _updates(path) is not None and _has_its_checksums(path)


def mend_last_checkpoint(folder: Path, say: Callable[[str], None]) -> Optional[Path]:
    """Makes sure that fairseq, which resumes from ``checkpoint_last.pt``, finds a file there that it can read.

    A damaged one is replaced by the newest whole checkpoint of the folder, or removed if there is none. A missing one
    is replaced too if the training has saved numbered checkpoints: it was stopped in its first save. Temporary files
    of a killed training are removed.

    Args:
        folder: where a training saves its checkpoints.
        say: is told, in one sentence, what was done.

    Returns:
        The checkpoint from which training goes on; None if it starts anew.

    Raises:
        pickle.UnpicklingError: ``checkpoint_last.pt`` would run code.
    """
    _remove_temporary_files(folder)
    last = folder / LAST
    damaged = last.exists()
    if damaged and readable(last):
        return last
    if not damaged and not any(_NUMBERED.fullmatch(path.name) for path in folder.glob("checkpoint*.pt")):
        return None
    trouble = f"{last} is {'damaged' if damaged else 'missing'}"
    for path in _newest_first(folder):
        if _has_its_checksums(path):
            copy_file(path, last)
            say(f"{trouble}; training goes on from {path.name}")
            return path
    if damaged:
        last.unlink()
    say(f"{trouble} and there is no other whole checkpoint; training starts anew")
    return None


def install() -> None:
    """Makes fairseq look at the last checkpoint before it resumes."""
    from fairseq import checkpoint_utils

    @around(checkpoint_utils, "load_checkpoint")
    def load(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        if cfg.restore_file == LAST and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix:
            if trainer.data_parallel_rank == 0:
                folder = Path(cfg.save_dir)
                if mend_last_checkpoint(folder, logger.warning) == folder / LAST:
                    _remove_old_checkpoints(cfg)
            _wait_for_all_ranks(trainer)
        return fairseq_load(cfg, trainer, **more)


def _wait_for_all_ranks(trainer: Any) -> None:
    """Returns when every rank has come here."""
    if trainer.data_parallel_world_size > 1:
        import torch
        from fairseq.distributed import utils

        utils.all_reduce(torch.zeros(1, device=trainer.device), group=trainer.data_parallel_process_group)


def _updates(path: Path) -> Optional[int]:
    """After how many updates a checkpoint was saved; None if it cannot be read. Raises as :func:`readable`."""
    try:
        return int(load_checkpoint(path, mmap=True)["optimizer_history"][-1]["num_updates"])
    except pickle.UnpicklingError as error:
        if zipfile.is_zipfile(str(path)) or "not allowed" in str(error):
            raise
        return None
    except Exception:  # what a damaged file makes of the reader cannot be foreseen
        return None


def _has_its_checksums(path: Path) -> bool:
    """Whether a file has the content that was written; without the zip format of torch 1.6 there is no telling."""
    if not zipfile.is_zipfile(str(path)):
        return True
    try:
        with zipfile.ZipFile(str(path)) as archive:
            return archive.testzip() is None
    except Exception:  # as above
        return False


def _newest_first(folder: Path) -> List[Path]:
    """The checkpoints of a folder from which a training can go on, newest first; of equals, numbered ones first."""
    found = []
    for path in folder.glob("checkpoint*.pt"):
        if path.name != LAST and _OF_TRAINING.fullmatch(path.name):
            try:
                updates = _updates(path)
            except pickle.UnpicklingError:
                continue
            if updates is not None:
                found.append((updates, bool(_NUMBERED.fullmatch(path.name)), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _remove_temporary_files(folder: Path) -> None:
    """Removes what a killed training was writing."""
    for path in folder.glob("checkpoint*.pt.tmp"):
        if _OF_TRAINING.fullmatch(path.stem):
            path.unlink()


def _remove_old_checkpoints(cfg: Any) -> None:
    """Deletes what fairseq deletes after a save: a training that was killed in between may never save again."""
    from fairseq.checkpoint_utils import checkpoint_paths

    kept = [(r"checkpoint(\d+)\.pt", cfg.keep_last_epochs)]
    if cfg.keep_interval_updates_pattern == -1:
        kept.append((r"checkpoint_\d+_(\d+)\.pt", cfg.keep_interval_updates))
    for pattern, number in kept:
        if number > 0:
            for path in checkpoint_paths(cfg.save_dir, pattern=pattern)[number:]:
                os.remove(path)
