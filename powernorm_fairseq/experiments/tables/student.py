"""Tests for a few seeds: Student's t, Holm's correction for many comparisons, and p-values put together."""

import functools
import math
import statistics
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

LEVEL = 0.95
SIGNIFICANCE = 1 - LEVEL


@dataclass
class Test:
    """A mean difference, its 95 % interval, and how often chance alone makes one as large.

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
        return self.adjusted < SIGNIFICANCE


def two_sided(t: float, df: float) -> float:
    """The probability of a t as far from zero, with ``df`` degrees of freedom."""
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5) if math.isfinite(t) else 0.0


@functools.lru_cache(maxsize=None)
def quantile(df: float, level: float = LEVEL) -> float:
    """The t that chance exceeds, in either direction, with probability 1 - ``level``."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > 1 - level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > 1 - level else (low, middle)
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


def mean_interval(values: Sequence[float]) -> Optional[Tuple[float, float]]:
    """The 95 % interval of a mean over seeds; None of fewer than two."""
    if len(values) < 2:
        return None
    half = quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def paired(differences: Sequence[float]) -> Optional[Test]:
    """Whether differences seed by seed are zero on average; None of fewer than two."""
    if len(differences) < 2:
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return _test(statistics.mean(differences), error, len(differences) - 1, len(differences))


def against_spread(differences: Sequence[float], spread: Optional["Spread"]) -> Optional[Test]:
    """The same where too few seeds were run to know their spread, which is taken from other runs instead."""
    if spread is None or not differences:
        return None
    error = spread.deviation * math.sqrt(2 / len(differences))
    return _test(statistics.mean(differences), error, spread.df, len(differences))


def _test(difference: float, error: float, df: int, seeds: int) -> Test:
    half = quantile(df) * error
    t = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    p = two_sided(t, df)
    return Test(difference, (difference - half, difference + half), p, seeds, p)


@dataclass(frozen=True)
class Spread:
    """A standard deviation over seeds and its degrees of freedom."""

    deviation: float
    df: int


def pooled_spread(groups: Sequence[Sequence[float]]) -> Optional[Spread]:
    """The standard deviation over the seeds, from all groups together; None if none has two."""
    several = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in several)
    squares = sum((len(group) - 1) * statistics.variance(group) for group in several)
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
    return min(1.0, 2 * statistics.mean(p_values))
