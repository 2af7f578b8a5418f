"""What a few seeds allow to say, as Agarwal et al. (2021, arXiv:2108.13264; ``rliable``) define it.

Resampling the sentences of a test set knows nothing of seeds; here the seeds are what is resampled. A stratum is the
scores of one setting's seeds; resampling is done within each, so that every setting keeps its number of runs.
"""

import random
from dataclasses import dataclass
from typing import Callable, List, Sequence, Tuple

SAMPLES = 2000
LEVEL = 0.95
#: With fewer seeds there are too few different resamples for an interval to mean anything: three of two seeds.
FEWEST = 3

Strata = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Estimate:
    """A number and, where the seeds suffice, its stratified bootstrap confidence interval."""

    value: float
    interval: Tuple[float, ...] = ()

    def show(self, decimals: int = 2) -> str:
        """``0.83 (0.50 to 1.00)``."""
        text = f"{self.value:.{decimals}f}"
        if not self.interval:
            return text
        return text + " ({:.{d}f} to {:.{d}f})".format(*self.interval, d=decimals)


def probability_of_improvement(ours: Strata, theirs: Strata, higher_is_better: bool = True) -> float:
    """How likely a run of ours is better than a run of theirs, both drawn at random; ties count half.

    Args:
        ours: for each setting the scores of its seeds.
        theirs: the same settings of the other side, in the same order.
        higher_is_better: whether a higher score is an improvement.
    """
    chances = []
    for first, second in zip(ours, theirs):
        wins = sum((x > y) - (x < y) for x in first for y in second) * (1 if higher_is_better else -1)
        chances.append((wins / (len(first) * len(second)) + 1) / 2)
    return sum(chances) / len(chances)


def estimate(statistic: Callable[..., float], *sides: Strata) -> Estimate:
    """A statistic of one side or two, with its stratified bootstrap interval (percentiles, 2,000 samples).

    Args:
        statistic: of as many strata.
        sides: for each side its strata.
    """
    value = statistic(*sides)
    if any(len(stratum) < FEWEST for side in sides for stratum in side):
        return Estimate(value)
    generator = random.Random(1)
    values: List[float] = sorted(
        statistic(*([generator.choices(stratum, k=len(stratum)) for stratum in side] for side in sides))
        for _ in range(SAMPLES)
    )
    return Estimate(value, (_quantile(values, (1 - LEVEL) / 2), _quantile(values, (1 + LEVEL) / 2)))


def _quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, between the two nearest."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
