"""Cleaning against what clean-corpus-n.perl does."""

import os
import random
import subprocess
from pathlib import Path
from typing import List, Optional, Tuple

import pytest

from data_prep.pairs import clean_pair, clean_sides

# source, target, what the script writes with ratio 1.5, 1 to 5 tokens
CASES: List[Tuple[str, str, Optional[Tuple[str, str]]]] = [
    ("a b", "c d", ("a b", "c d")),
    ("  a \t b\u00a0c ", "d\u2003e f\r", ("a b c", "d e f")),
    ("", "a", None),
    (" \t", "a", None),
    ("a", "\u00a0", None),
    ("a b c d e f", "a b c d e", None),
    ("a b c d e", "a b c d e", ("a b c d e", "a b c d e")),
    ("a b c", "a b", ("a b c", "a b")),
    ("a b c d", "a b", None),
    ("a b", "a b c d", None),
    ("a|b |", "c |", ("ab", "c")),
    ("|", "c", None),
    ("x" * 1000, "y", ("x" * 1000, "y")),
    ("x" * 1001, "y", None),
    ("a\x1cb c", "d e", ("a\x1cb c", "d e")),
    ("A B", "C D", ("A B", "C D")),
]


@pytest.mark.parametrize(("source", "target", "expected"), CASES)
def test_equals_the_script(source: str, target: str, expected: Optional[Tuple[str, str]]) -> None:
    assert clean_pair(source, target, 1, 5, 1.5) == expected


def test_the_default_ratio_is_nine() -> None:
    assert clean_pair("a", " ".join("b" * 9), 1, 80) is not None
    assert clean_pair("a", " ".join("b" * 10), 1, 80) is None


def test_the_lower_bound_counts() -> None:
    assert clean_pair("a", "b", 2, 80) is None
    assert clean_pair("a b", "b c", 2, 80) is not None


def test_plain_text_is_kept_as_it_is() -> None:
    sides = [["a | b\u00a0c", "x", "|"], ["d  e", "y " * 9, "|"]]
    assert clean_sides(sides, (1, 80, 2.0), plain=True) == [["a | b\u00a0c", "|"], ["d  e", "|"]]
    assert clean_sides(sides, (1, 80, 2.0)) == [["a b c"], ["d e"]]


@pytest.mark.parametrize("ratio", ["1.5", "9"])
def test_the_script_itself_says_so(ratio: str, tmp_path: Path, perl) -> None:
    generator = random.Random(3)
    words = ["a", "b\u00e4", "c", "|", "x" * 1001, " ", "\t", "\u00a0", "\u2028", "\x1c", "\r", "\x85"] + ["w"] * 20
    pairs = [("a b", "c d")] + [
        tuple(" ".join(generator.choice(words) for _ in range(generator.randint(0, 12))) for _ in range(2))
        for _ in range(3000)
    ]
    pairs += [(source, target) for source, target, _ in CASES]
    for index, lang in enumerate(("de", "en")):
        text = "".join(pair[index] + "\n" for pair in pairs)
        (tmp_path / f"in.{lang}").write_bytes(text.encode("utf-8"))
    script = os.path.join(os.environ["MOSES_SCRIPTS"], "training/clean-corpus-n.perl")
    command = ["perl", script, "-ratio", ratio, str(tmp_path / "in"), "de", "en", str(tmp_path / "out"), "1", "8"]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    kept = [pair for pair in (clean_pair(a, b, 1, 8, float(ratio)) for a, b in pairs) if pair]
    for index, lang in enumerate(("de", "en")):
        expected = (tmp_path / f"out.{lang}").read_bytes().decode("utf-8").split("\n")[:-1]
        assert [pair[index] for pair in kept] == expected
