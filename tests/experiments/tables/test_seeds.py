"""Student's t and Holm against published values and chance."""

import random

import pytest

from powernorm_fairseq.experiments.tables import seeds as of_seeds
from powernorm_fairseq.experiments.tables.catalogue import Row
from powernorm_fairseq.experiments.tables.results import RowResult, compare_rows

TABLES = 1000  # simulated; the deviation of a share of 0.05 is 0.007


@pytest.mark.parametrize("df, t", [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (120, 1.97993)])
def test_values_of_the_printed_tables(df, t):
    assert of_seeds.quantile(df) == pytest.approx(t, rel=1e-5)
    assert of_seeds.two_sided(t, df) == of_seeds.two_sided(-t, df) == pytest.approx(0.05, abs=1e-6)
    assert of_seeds.two_sided(0.0, df) == pytest.approx(1.0)


def test_p_falls_to_the_far_tail():
    assert of_seeds.two_sided(31.8205, 1) == pytest.approx(0.02, rel=1e-4)
    assert of_seeds.two_sided(6.86883, 5) == pytest.approx(0.001, rel=1e-4)
    assert 0 < of_seeds.two_sided(1000.0, 3) < 1e-8


def test_a_paired_test_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 3.4641 with two degrees of freedom."""
    test = of_seeds.paired([1.0, 2.0, 3.0])
    assert test.difference == 2.0 and test.seeds == 3 and test.p == pytest.approx(0.07418, abs=1e-5)
    assert test.interval == pytest.approx((2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), rel=1e-5)
    assert of_seeds.paired([1.0]) is None and of_seeds.mean_interval([1.0]) is None
    assert of_seeds.paired([0.0, 0.0]).p == 1.0 and of_seeds.paired([1.0, 1.0]).p == 0.0


def test_a_spread_of_other_runs():
    spread = of_seeds.pooled_spread([[1.0, 3.0], [5.0, 5.0, 5.0], [9.0]])
    assert spread.df == 3 and spread.deviation == pytest.approx((2 / 3) ** 0.5)
    assert of_seeds.pooled_spread([[1.0], [2.0]]) is None
    test = of_seeds.paired([1.5, 2.5], spread)  # t = 2 / 0.8165
    assert test.p == pytest.approx(of_seeds.two_sided(2 / (2 / 3) ** 0.5, 3)) and test.seeds == 2
    assert of_seeds.paired([], spread) is None and of_seeds.paired([1.0], None) is None


def test_holm_steps_down():
    assert of_seeds.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert of_seeds.holm([0.9, 0.8]) == [1.0, 1.0] and of_seeds.holm([]) == []


def test_combined_p_values():
    assert of_seeds.combine([]) is None and of_seeds.combine([0.03]) == 0.03
    assert of_seeds.combine([0.01, 0.03]) == pytest.approx(0.04) and of_seeds.combine([0.9, 0.8]) == 1.0


def simulated(generator, rows, seeds, shared):
    """A table without any effect; ``shared`` is how much of the deviation all rows of a seed have in common."""
    common = [generator.gauss(0, shared) for _ in range(seeds)]
    table = []
    for number in range(rows):
        values = [each + generator.gauss(0, 1 + number % 3) for each in common]  # norms need not vary alike
        results = {
            seed: {"scores": {"bleu": {"score": value}}, "best_valid": {"loss": value, "ppl": value}}
            for seed, value in enumerate(values, 1)
        }
        table.append(RowResult(Row("ln" if number == 0 else "pn", str(number), str(number or "")), results))
    for row in table[1:]:
        row.reference = table[0]
    return table


@pytest.mark.parametrize("rows, seeds", [(2, 2), (7, 2), (7, 3), (2, 5)])
@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_chance_is_called_real_in_at_most_one_table_of_twenty(rows, seeds, shared):
    """The rule of twice the standard error did so in 18 % of 2 x 2 and 29 % of 7 x 2."""
    generator = random.Random(rows * 100 + seeds)
    called = 0
    for _ in range(TABLES):
        table = simulated(generator, rows, seeds, shared)
        compare_rows(table, lambda row: row.scores("bleu"))
        called += any(row.significant for row in table)
    share = called / TABLES
    assert share <= 0.071  # 0.05 and three deviations
    assert share >= 0.029 or rows > 2  # a test that never calls anything real would pass otherwise


def test_settings_tried_are_corrected_as_well():
    generator = random.Random(5)
    called = 0
    for _ in range(TABLES):
        table = simulated(generator, 8, 3, 1.0)
        compare_rows(table, RowResult.valid)
        called += any(row.significant for row in table)
    assert 0 < called / TABLES <= 0.071


def test_tries_of_one_seed_against_a_spread():
    """Eight settings with a seed each beside a plain run; the spread is known from two norms with three seeds."""
    generator = random.Random(6)
    called = 0
    for _ in range(TABLES):
        plain = [[generator.gauss(0, 1) for _ in range(3)] for _ in range(2)]
        spread = of_seeds.pooled_spread(plain)
        tests = [of_seeds.paired([generator.gauss(0, 1) - plain[0][0]], spread) for _ in range(8)]
        of_seeds.correct(tests)
        called += any(test.significant for test in tests)
    assert 0.01 <= called / TABLES <= 0.071


def test_a_real_difference_is_found():
    generator = random.Random(7)
    tests = [of_seeds.paired([generator.gauss(1.0, 0.4) for _ in range(5)]) for _ in range(200)]
    assert sum(test.p < 0.05 for test in tests) > 180
