"""A training that has made its last update makes one more when it is started again: fairseq looks only after updates.

Mended by ending it before the first one.
"""

import logging
import math
from typing import Any

from powernorm_fairseq.around import around
from powernorm_fairseq.fairseq_fixes.patience import early_stopping

logger = logging.getLogger(__name__)


def install() -> None:
    """Ends a training after loading if nothing is left to do."""
    from fairseq import checkpoint_utils

    @around(checkpoint_utils, "load_checkpoint")
    def load(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        updates, limits = trainer.get_num_updates(), trainer.cfg.optimization
        over = (
            updates >= (limits.max_update or math.inf)
            or epoch_itr.next_epoch_idx > (limits.max_epoch or math.inf)
            or early_stopping().get("num_runs", 0) >= (max(cfg.patience, 0) or math.inf)
        )
        if updates > 0 and over:
            logger.info("nothing is left to do: the training has ended after %s updates", updates)
            limits.max_epoch = -1  # read by fairseq's loop over the epochs, right after this; 0 means no limit
        return extra_state, epoch_itr
