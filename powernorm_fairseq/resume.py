"""Going on with a stopped training: from a checkpoint that is whole, to the very end of the run and no further.

fairseq resumes from ``checkpoint_last.pt`` and fails if that is damaged. When it resumes, it

- composes other batches if the first epoch is over (versions after 0.12.2),
- leaves out what the scheduler of the learning rate does at the end of an epoch,
- forgets how long ``--patience`` has been waiting,
- makes one update more if the training had made its last one.

:func:`install` mends all of this.
"""

import functools
import logging
import math
import pickle
import re
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

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
    """Makes fairseq resume with this module; repeating the call changes nothing.

    A patch, because a model and a task are asked nothing between the start of a training and the loading.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    fairseq_load, fairseq_save = checkpoint_utils.load_checkpoint, Trainer.save_checkpoint
    if getattr(fairseq_load, "mends", False):
        return

    @functools.wraps(fairseq_load)
    def load(cfg: Any, trainer: Any, **more: Any) -> Any:
        if cfg.restore_file == LAST and not cfg.no_last_checkpoints and not trainer.checkpoint_suffix:
            if trainer.data_parallel_rank == 0:
                mend_last_checkpoint(Path(cfg.save_dir), logger.warning)
            _wait_for_all_ranks(trainer)
        _keep_batches(trainer.task)
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        if trainer.get_num_updates() > 0:  # nothing was reset to the start
            _end_epoch(cfg, trainer, extra_state)
            if not cfg.reset_meters:
                _early_stopping().update(extra_state.get("early_stopping", {}))
            _end_if_done(cfg, trainer)
        return extra_state, epoch_itr

    @functools.wraps(fairseq_save)
    def save(self: Any, filename: str, extra_state: Dict[str, Any]) -> Any:
        return fairseq_save(self, filename, {**extra_state, "early_stopping": dict(_early_stopping())})

    load.mends = True
    checkpoint_utils.load_checkpoint = load
    Trainer.save_checkpoint = save


def _keep_batches(task: Any) -> None:
    """Makes ``task`` compose the batches of a resumed run as the run did that it resumes.

    A run composes its batches in its first epoch and only shuffles them in the others. But newer versions of fairseq
    do it with a seed that depends on the epoch, which is another one after a resume.
    """
    get_batch_iterator = task.get_batch_iterator
    if getattr(get_batch_iterator, "keeps_batches", False):
        return

    @functools.wraps(get_batch_iterator)
    def kept(dataset: Any, *args: Any, epoch: int = 1, **more: Any) -> Any:
        new_each_epoch = more.get("disable_iterator_cache") or more.get("update_epoch_batch_itr")
        new_each_epoch = new_each_epoch or getattr(task.cfg, "rebuild_batches", False)
        if not new_each_epoch and task.can_reuse_epoch_itr(dataset):
            epoch = 1  # what is kept goes to the right epoch by itself, after a resume by the state of the iterator
        return get_batch_iterator(dataset, *args, epoch=epoch, **more)

    kept.keeps_batches = True
    task.get_batch_iterator = kept


def _end_epoch(cfg: Any, trainer: Any, extra_state: Dict[str, Any]) -> None:
    """Tells the scheduler the loss of an epoch that ended with the checkpoint, which fairseq does after saving."""
    position = extra_state["train_iterator"]
    if position["iterations_in_epoch"] == 0 and not cfg.reset_lr_scheduler and not cfg.reset_dataloader:
        trainer.lr_step(position["epoch"] - 1, extra_state["val_loss"])


def _early_stopping() -> Dict[str, Any]:
    """What ``--patience`` remembers: fairseq keeps it as attributes of a function, and in no checkpoint."""
    module = sys.modules.get("fairseq_cli.train")
    return {} if module is None else vars(module.should_stop_early)


def _end_if_done(cfg: Any, trainer: Any) -> None:
    """Ends a run before its first update if it has made its last one already: fairseq looks only after an update."""
    updates, optimization = trainer.get_num_updates(), trainer.cfg.optimization
    without_progress = _early_stopping().get("num_runs", 0)
    if updates >= (optimization.max_update or math.inf) or without_progress >= (max(cfg.patience, 0) or math.inf):
        logger.info("nothing is left to do: the training has ended after %s updates", updates)
        optimization.max_epoch = -1  # read by fairseq's loop over the epochs, right after this; 0 would mean no limit


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
