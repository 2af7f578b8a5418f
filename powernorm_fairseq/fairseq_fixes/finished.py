"""A training that has made its last update makes one more when it is started again: fairseq looks only after updates.

Mended by ending it before the first one.
"""

import functools
import logging
import math
from typing import Any

from powernorm_fairseq.fairseq_fixes.patience import early_stopping

logger = logging.getLogger(__name__)


def install() -> None:
    """Ends a training after loading if nothing is left to do."""
    from fairseq import checkpoint_utils

    fairseq_load = checkpoint_utils.load_checkpoint

    @functools.wraps(fairseq_load)
    def load(cfg: Any, trainer: Any, **more: Any) -> Any:
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        updates, optimization = trainer.get_num_updates(), trainer.cfg.optimization
        without_progress = early_stopping().get("num_runs", 0)
        last = updates >= (optimization.max_update or math.inf)
        if updates > 0 and (last or without_progress >= (max(cfg.patience, 0) or math.inf)):
            logger.info("nothing is left to do: the training has ended after %s updates", updates)
            optimization.max_epoch = -1  # read by fairseq's loop over the epochs, right after this; 0 means no limit
        return extra_state, epoch_itr

    checkpoint_utils.load_checkpoint = load
