"""What a few seeds allow to say: Student's t, Holm's correction, p-values put together, and a bootstrap over the seeds.

Resampling the sentences of a test set knows nothing of seeds. The bootstrap here resamples the seeds, as Agarwal et al.
(2021, arXiv:2108.13264; ``rliable``) define it: within each stratum, the scores of one setting's seeds, so that every
setting keeps its number of runs.
"""

import functools
import math
import random
from dataclasses import dataclass
from statistics import mean, quantiles, stdev, variance
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

LEVEL = 0.95
SAMPLES = 2000
#: With fewer seeds there are too few different resamples for an interval to mean anything: three of two seeds.
FEWEST = 3

Strata = Sequence[Sequence[float]]


@dataclass
class Test:
    """A mean difference, its 95 % interval by Student's t, and how often chance alone makes one as large.

    Attributes:
        difference: the mean.
        interval: of Student's t.
        p: two-sided.
        seeds: that were compared.
        adjusted: ``p`` after Holm's correction, once the other comparisons are known.
    """

    __test__ = False  # pytest takes the name for its own

    difference: float
    interval: Tuple[float, float]
    p: float
    seeds: int
    adjusted: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether it is more than chance makes in one of twenty tables."""
        return self.adjusted < 1 - LEVEL


class Spread(NamedTuple):
    """A standard deviation over seeds and its degrees of freedom."""

    deviation: float
    df: int


def two_sided(t: float, df: float) -> float:
    """The probability of a t as far from zero, with ``df`` degrees of freedom."""
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5) if math.isfinite(t) else 0.0


@functools.lru_cache(maxsize=None)
def quantile(df: float) -> float:
    """The t that chance exceeds, in either direction, with probability 1 - ``LEVEL``."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > 1 - LEVEL else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    value = 1.0
    for m in range(100, 0, -1):  # from the inside out
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + odd / (1 + even / value)
    return front / value


def paired(differences: Sequence[float], spread: Optional[Spread] = None) -> Optional[Test]:
    """Whether differences seed by seed are zero on average; None where their spread is not known.

    Args:
        differences: of the seeds that both have.
        spread: of one run over the seeds, from other runs, where too few seeds were run to know it from these.
    """
    count = len(differences)
    if count < (2 if spread is None else 1):
        return None
    deviation, df = (stdev(differences), count - 1) if spread is None else (spread.deviation * math.sqrt(2), spread.df)
    difference, error = mean(differences), deviation / math.sqrt(count)
    t = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    half, p = quantile(df) * error, two_sided(t, df)
    return Test(difference, (difference - half, difference + half), p, count, p)


def mean_interval(values: Sequence[float]) -> Optional[Tuple[float, float]]:
    """The 95 % interval of a mean over seeds; None of fewer than two."""
    test = paired(values)  # against zero
    return test.interval if test else None


def pooled_spread(groups: Sequence[Sequence[float]]) -> Optional[Spread]:
    """The standard deviation over the seeds, from all groups together; None if none has two."""
    several = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in several)
    squares = sum((len(group) - 1) * variance(group) for group in several)
    return Spread(math.sqrt(squares / df), df) if df else None


def holm(p_values: Sequence[float]) -> List[float]:
    """p-values of one table such that with probability 0.95 not one chance difference has less than 0.05."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def correct(tests: Sequence[Optional[Test]]) -> None:
    """Fills in ``adjusted`` of all comparisons that were made together."""
    made = [test for test in tests if test is not None]
    for test, p in zip(made, holm([test.p for test in made])):
        test.adjusted = p


def combine(p_values: Sequence[float]) -> Optional[float]:
    """One p-value of several: twice their mean, which holds however they depend (Vovk and Wang, 2020).

    The seeds' bootstraps do depend on each other: they resample the same test set.
    """
    if len(p_values) < 2:
        return p_values[0] if p_values else None
    return min(1.0, 2 * mean(p_values))


def probability_of_improvement(ours: Strata, theirs: Strata, sign: int = 1) -> float:
    """How likely a run of ours is better than a run of theirs, both drawn at random; ties count half.

    Args:
        ours: for each setting the scores of its seeds.
        theirs: the same settings of the other side, in the same order.
        sign: -1 where a lower score is better.
    """
    chances = []
    for first, second in zip(ours, theirs):
        wins = sign * sum((x > y) - (x < y) for x in first for y in second)
        chances.append((wins / (len(first) * len(second)) + 1) / 2)
    return sum(chances) / len(chances)


def bootstrap(statistic: Callable[..., float], *sides: Strata) -> Optional[Tuple[float, float]]:
    """The stratified bootstrap interval of a statistic of one side or two (percentiles, 2,000 samples); None of few."""
    if any(len(stratum) < FEWEST for side in sides for stratum in side):
        return None
    generator = random.Random(1)
    values = [
        statistic(*([generator.choices(stratum, k=len(stratum)) for stratum in side] for side in sides))
        for _ in range(SAMPLES)
    ]
    low, *_, high = quantiles(values, n=round(2 / (1 - LEVEL)), method="inclusive")
    return low, high
