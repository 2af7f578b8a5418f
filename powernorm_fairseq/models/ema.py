"""fairseq's --store-ema averages every entry of a model's state; counters are whole numbers and have to be copied."""

import functools
from typing import Any

from fairseq.models.ema.ema import EMA


def keep_counters_out_of_ema() -> None:
    """Makes every average of a model that is begun from now on copy what is not floating-point."""
    init = EMA.__init__
    if getattr(init, "copies_counters", False):
        return

    @functools.wraps(init)
    def init_with_counters(self: EMA, model: Any, *args: Any, **kwargs: Any) -> None:
        init(self, model, *args, **kwargs)
        whole = {key for key, value in model.state_dict().items() if not value.is_floating_point()}
        self.skip_keys = self.skip_keys | whole

    init_with_counters.copies_counters = True
    EMA.__init__ = init_with_counters
