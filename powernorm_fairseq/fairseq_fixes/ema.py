"""fairseq's ``--store-ema`` multiplies every entry of a model's state by its decay, and fails on counters.

The number of updates of a norm is a whole number. Mended where an average begins: what is not floating-point is copied.
"""

import functools
from typing import Any


def install() -> None:
    """Makes averages of models copy counters; other entries are averaged as before."""
    from fairseq.models.ema.ema import EMA

    fairseq_init = EMA.__init__

    @functools.wraps(fairseq_init)
    def init(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        fairseq_init(self, model, *args, **kwargs)
        whole = {key for key, value in model.state_dict().items() if not value.is_floating_point()}
        self.skip_keys = self.skip_keys | whole

    EMA.__init__ = init
