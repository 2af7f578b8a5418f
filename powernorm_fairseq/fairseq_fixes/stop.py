"""fairseq cannot be asked for a checkpoint: neither before a time limit or a pre-emption, nor every few minutes.

What it has is ``--stop-time-hours``, looked at after each update: a training whose time is up saves and ends. The
processes of a training have to agree on that update, or those that go on wait for the others for ever; so each process
adds what it wants to the numbers that fairseq sums over all processes after each update anyway, and all read the sum.

====================================  ===============================================================================
``POWERNORM_STOP_FILE`` names a file  when it appears, the training saves ``checkpoint_last.pt`` and ends
``POWERNORM_SAVE_MINUTES`` is a       the training saves ``checkpoint_last.pt`` so many minutes after it last saved
number
====================================  ===============================================================================

Both do so without a validation: there may be little time, and one that the undisturbed training does not have would
count for ``--patience`` and for the best checkpoint. The last update of an epoch, and of the training, ends as it
always does. Nothing of this is left in the settings that the checkpoint holds.
"""

import logging
import os
import time
from pathlib import Path
from typing import Any, Dict, Tuple

from powernorm_fairseq.around import around

logger = logging.getLogger(__name__)

FILE, MINUTES = "POWERNORM_STOP_FILE", "POWERNORM_SAVE_MINUTES"
HEEDED = ".heeded"  # appended to the file's name: the training did stop because of it
_STOP, _SAVE = "stop_requested", "save_requested"
_CHANGED = (("optimization", "stop_time_hours"), ("dataset", "disable_validation"))


def install() -> None:
    """Makes trainings look for such wishes, where there can be any."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    if not (os.environ.get(FILE) or minutes()):
        return

    @around(Trainer, "__init__")
    def init(fairseq_init: Any, self: Any, *args: Any, **more: Any) -> None:
        fairseq_init(self, *args, **more)
        self.wishes = Wishes(self)

    @around(Trainer, "get_train_iterator")
    def get_train_iterator(fairseq_iterator: Any, self: Any, *args: Any, **more: Any) -> Any:
        self.wishes.iterator = fairseq_iterator(self, *args, **more)
        return self.wishes.iterator

    @around(Trainer, "train_step")
    def train_step(fairseq_step: Any, self: Any, *args: Any, **more: Any) -> Any:
        result = fairseq_step(self, *args, **more)
        if self.wishes.save:
            checkpoint_utils.save_checkpoint(self.cfg.checkpoint, self, self.wishes.iterator, None)
        return result

    @around(Trainer, "state_dict")
    def state_dict(fairseq_state: Any, self: Any) -> Dict[str, Any]:
        state = fairseq_state(self)
        for (group, name), value in self.wishes.before.items():
            state["cfg"][group][name] = value
        return state

    @around(checkpoint_utils, "save_checkpoint")
    def save_checkpoint(fairseq_save: Any, cfg: Any, trainer: Any, *args: Any) -> Any:
        trainer.wishes.saved()
        return fairseq_save(cfg, trainer, *args)


def minutes() -> float:
    """How many minutes after a checkpoint the next one is due; 0 if that is not wanted.

    Raises:
        ValueError: the variable holds no such number.
    """
    text = os.environ.get(MINUTES) or "0"
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{MINUTES}={text} is no number of minutes; give one that is not negative")
    return number


class Wishes:
    """What is wanted of a training from outside, and whether all processes know it by now."""

    def __init__(self, trainer: Any) -> None:
        self.training = trainer.cfg
        self.path = os.environ.get(FILE)
        self.seconds = 60 * minutes()
        self.iterator: Any = None
        self.save = False
        self.before: Dict[Tuple[str, str], Any] = {}  # settings that were changed to make fairseq stop
        self.updates = 0
        self.saved()
        around(trainer.task, "train_step")(self.ask)
        around(trainer.task, "reduce_metrics")(self.heed)

    def saved(self) -> None:
        """A checkpoint is being written."""
        self.save = False
        self.time = time.monotonic()

    def ask(
        self, train_step: Any, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, **more: Any
    ) -> Any:
        """The task's training step, which adds what this process wants to what it logs."""
        self.updates = update_num + 1
        loss, sample_size, logging_output = train_step(sample, model, criterion, optimizer, update_num, **more)
        logging_output[_STOP] = float(bool(self.path) and os.path.exists(str(self.path)))
        logging_output[_SAVE] = float(0 < self.seconds < time.monotonic() - self.time)
        return loss, sample_size, logging_output

    def heed(self, reduce_metrics: Any, logging_outputs: Any, criterion: Any) -> None:
        """The task's reduction of what all processes log."""
        stop, save = (any(float(log.get(key, 0)) > 0 for log in logging_outputs) for key in (_STOP, _SAVE))
        last = 0 < (self.training.optimization.max_update or 0) <= self.updates
        if (stop or save) and not last and not self.iterator.end_of_epoch():
            if stop:
                self._stop(Path(str(self.path)))
            else:
                self.save = True
        reduce_metrics(logging_outputs, criterion)

    def _stop(self, path: Path) -> None:
        """Lets the training's time be up."""
        logger.info("stopping after this update with a checkpoint, because %s is there", path)
        for group, name in _CHANGED:
            self.before.setdefault((group, name), self.training[group][name])
        self.training.optimization.stop_time_hours = 1e-9
        self.training.dataset.disable_validation = True
        path.with_name(path.name + HEEDED).touch()
