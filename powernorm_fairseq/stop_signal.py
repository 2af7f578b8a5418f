"""Stops a training after the update it is at, with a checkpoint, when a file appears: for pre-emption and time limits.

fairseq has no way to be asked for a checkpoint. What it has is ``--stop-time-hours``, looked at after each update: a
training whose time is up saves and ends. The processes of a training have to agree on that update, or those that go on
wait for the others for ever; so each process adds what it sees to the numbers that fairseq sums over all processes
after each update anyway, and all read the sum.
"""

import functools
import logging
import os
from pathlib import Path
from typing import Any

from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

logger = logging.getLogger(__name__)

VARIABLE = "POWERNORM_STOP_FILE"
HEEDED = ".heeded"  # appended to the file's name: the training did stop because of it
_KEY = "stop_requested"


def stop_on_request(task: FairseqTask, cfg: Any) -> None:
    """Makes the training of ``task`` stop when the file that POWERNORM_STOP_FILE names is there.

    The checkpoint is ``checkpoint_last.pt``, written without a validation: there may be little time, and one that the
    uninterrupted training does not have would count for ``--patience`` and for the best checkpoint. The last update of
    an epoch, and of the training, ends as it always does.

    Args:
        task: whose training it is.
        cfg: the model's settings, a part of the training's whole configuration.
    """
    path = os.environ.get(VARIABLE)
    training = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    if not path or training is None or "optimization" not in training:
        return
    if getattr(task.train_step, "asks_to_stop", False):
        return
    train_step, reduce_metrics = task.train_step, task.reduce_metrics
    updates = 0

    @functools.wraps(train_step)
    def asking(sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, **more: Any) -> Any:
        nonlocal updates
        updates = update_num + 1
        loss, sample_size, logging_output = train_step(sample, model, criterion, optimizer, update_num, **more)
        logging_output[_KEY] = float(os.path.exists(path))
        return loss, sample_size, logging_output

    @functools.wraps(reduce_metrics)
    def heeding(logging_outputs: Any, criterion: Any) -> None:
        asked = any(float(log.get(_KEY, 0)) > 0 for log in logging_outputs)
        last = 0 < (training.optimization.max_update or 0) <= updates
        if asked and not last and not _epoch_is_over(task):
            _stop(training, Path(path))
        reduce_metrics(logging_outputs, criterion)

    asking.asks_to_stop = True
    task.train_step, task.reduce_metrics = asking, heeding


def _epoch_is_over(task: FairseqTask) -> bool:
    """Whether this is an epoch's last update, as far as fairseq's iterator over the training data can be asked."""
    iterator = getattr(task, "dataset_to_epoch_iter", {}).get(task.datasets.get("train"))
    return iterator is not None and iterator.end_of_epoch()


def _stop(training: Any, path: Path) -> None:
    """Lets the training's time be up."""
    logger.info("stopping after this update with a checkpoint, because %s is there", path)
    training.optimization.stop_time_hours = 1e-9
    training.dataset.disable_validation = True
    path.with_name(path.name + HEEDED).touch()
