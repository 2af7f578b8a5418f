"""fairseq's ``--store-ema`` multiplies every entry of a model's state by its decay, and fails on counters.

The number of updates of a norm is a whole number. Mended where an average begins: what is not floating-point is copied.
"""

from typing import Any

from powernorm_fairseq.around import around


def install() -> None:
    """Makes averages of models copy counters; other entries are averaged as before."""
    from fairseq.models.ema.ema import EMA

    @around(EMA, "__init__")
    def init(fairseq_init: Any, self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        fairseq_init(self, model, *args, **kwargs)
        self.skip_keys = self.skip_keys | {
            key for key, value in model.state_dict().items() if not value.is_floating_point()
        }
