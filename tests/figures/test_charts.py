"""Charts of the reports, as SVG."""

import re

import pytest

pytest.importorskip("matplotlib")

from powernorm_fairseq.figures import charts


def texts(svg):
    return re.findall(r">([^<>]+)</text>", svg)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_single_point_can_be_drawn(logarithmic):
    svg = charts.lines_chart("t", [charts.Line("a", ((5.0, 3.0),))], "x", "y", log_x=logarithmic, log_y=logarithmic)
    assert svg.startswith("<svg ") and svg.endswith("</svg>") and "nan" not in svg


def test_lines_of_one_name_have_one_colour_and_one_entry():
    lines = [charts.Line(name, ((1.0, 2.0), (2.0, value))) for name, value in (("LN", 3.0), ("PN", 4.0), ("LN", 5.0))]
    svg = charts.lines_chart("title <1>", lines, "updates", "ppl")
    assert texts(svg).count("LN") == 1 and texts(svg).count("PN") == 1 and {"updates", "ppl"} <= set(texts(svg))
    colours = [re.search(r"stroke: (#\w+)", part).group(1) for part in svg.split('id="curve-')[1:]]
    assert colours[0] == colours[2] != colours[1]
    assert 'aria-label="title &lt;1&gt;"' in svg
    assert svg == charts.lines_chart("title <1>", lines, "updates", "ppl")  # the same again


def test_ticks_stand_at_the_points_of_a_logarithmic_axis():
    line = charts.Line("a", ((512.0, 3.0), (1024.0, 4.0), (4096.0, 5.0)))
    assert {"512", "1,024", "4,096"} <= set(texts(charts.lines_chart("t", [line], "x", "y", log_x=True)))


@pytest.mark.parametrize("high", [160.0, 900.0])
def test_a_logarithmic_axis_has_ticks_whatever_its_range(high):
    svg = charts.lines_chart("t", [charts.Line("a", ((0.5, 140.0), (0.6, high)))], "x", "y", log_y=True)
    assert len([text for text in texts(svg) if text.isdigit() and 100 <= int(text) <= 1000]) >= 2


def test_dots_are_as_many_as_values_and_a_name_may_have_none():
    svg = charts.dots_chart("t", [("a", [2.0, 2.0]), ("b", []), ("c", [3.0])], "x")
    assert {"a", "b", "c"} <= set(texts(svg))
    assert [part.split("</g>")[0].count("<use") for part in svg.split('id="curve-')[1:]] == [2, 0, 1]
