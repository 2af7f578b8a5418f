"""A resumed training forgets how long ``--patience`` has been waiting.

fairseq keeps it as attributes of a function, and in no checkpoint. A second training of one process (hydra's multirun)
finds what the first one left there, and its best loss. Mended by saving it, and by forgetting it at a training's start.
"""

import sys
from typing import Any, Dict

from powernorm_fairseq.around import around


def early_stopping() -> Dict[str, Any]:
    """What ``--patience`` remembers in the program that runs: ``python -m fairseq_cli.train`` has a copy of its own."""
    for name in ("__main__", "fairseq_cli.train"):
        function = getattr(sys.modules.get(name), "should_stop_early", None)
        if function is not None:
            return vars(function)
    return {}


def install() -> None:
    """Makes checkpoints remember it, too."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    @around(checkpoint_utils, "load_checkpoint")
    def load(fairseq_load: Any, cfg: Any, trainer: Any, **more: Any) -> Any:
        early_stopping().clear()
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        extra_state, epoch_itr = fairseq_load(cfg, trainer, **more)
        if trainer.get_num_updates() > 0 and not cfg.reset_meters:
            early_stopping().update(extra_state.get("early_stopping", {}))
        return extra_state, epoch_itr

    @around(Trainer, "save_checkpoint")
    def save(fairseq_save: Any, self: Any, filename: str, extra_state: Dict[str, Any]) -> Any:
        return fairseq_save(self, filename, {**extra_state, "early_stopping": dict(early_stopping())})
