"""The reports in a real browser: Debian's chromium, without a window."""

import pytest

from powernorm_fairseq.experiments.tables import reproduce
from tests.experiments.tables import browser
from tests.experiments.tables.table_results import result, write_run

LAPTOP, PHONE = 1280, 390

pytestmark = pytest.mark.skipif(
    browser.program() is None, reason="chromium is not installed; make browser-deps installs it"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Table 3 with two seeds of each norm."""
    folder = tmp_path_factory.mktemp("page")
    for number, norm in enumerate(("ln", "bn", "brn", "mabn", "gn", "pnv", "pn")):
        for seed in (1, 2):
            bleu, ppl = 42 - number / 5 + seed / 7, 4.8 + number / 20
            write_run(folder / "multi30k", result("multi30k", norm, seed, bleu, ppl))
    words = ["table3", "--dataset", "multi30k", "--seeds", "1,2", "--report-only", "--dir", str(folder)]
    assert reproduce.main(words) == 0
    return (folder / "multi30k" / "table3.html").read_text()


def test_page_is_readable_on_a_laptop_and_on_a_phone(page):
    measured, console = browser.look(page, [LAPTOP, PHONE])
    assert console == []
    for width, facts in measured.items():
        assert facts["overflow"] <= 0, width  # nothing sticks out
        assert facts["plots"] == 4 and facts["lines"] >= 3 * 14 + 14, width
        assert facts["smallest"] >= 11 and facts["cut"] == [], width  # pixels
        for text in ("MABN", "42.21 ± 0.10", "Perplexity on validation data", "Throughput and memory", "Environment"):
            assert text in facts["text"], (width, text)
    assert measured[PHONE]["height"] > measured[LAPTOP]["height"]  # one column, not the same in small


def test_a_bad_page_would_be_noticed(page):
    wide = page.replace("<h1>", '<div style="width: 700px">wide</div><script>undefinedName()</script><h1>')
    measured, console = browser.look(wide, [PHONE])
    assert measured[PHONE]["overflow"] > 200
    assert any("undefinedName" in line for line in console)
