"""Punctuation, non-printing characters and case, against literal output of the Moses scripts (Perl 5.36)."""

import shutil
import subprocess
from typing import Dict, List, Tuple

import pytest

from data_prep.normalize import lowercase, normalize_punctuation, remove_non_printing

# language -> [(line, what normalize-punctuation.perl prints)]
PUNCTUATION: Dict[str, List[Tuple[str, str]]] = {
    "en": [
        ("Hello ( world ) .", "Hello (world)."),
        ("(a) b( c )d", " (a) b (c) d"),
        ("5 % of 5 % %", "5% of 5% %"),
        ("a : b ; c", "a: b; c"),
        ("``x'' `y' ''z''", ' " x " \'y\' " z " '),
        ("\u201ea\u201c \u201db\u201d \u2018c\u2019 \u201ad\u2018", '"a" "b" \'c" \'d\''),
        ("it\u2019s a\u2018b a\u2019b\u2019c\u2019d \u2019x x\u2019", "it's a'b a'b\"c'd \"x x\""),
        ("1\u20132 a\u2014b \u00b4c\u00b4 \u00b4\u00b4 \u2026", "1-2 a - b 'c' \" ..."),
        ("\u00ab\u00a0a\u00a0\u00bb \u00a0\u00ab\u00a0b\u00a0\u00bb\u00a0 \u00abc\u00bb", '"a" "b" "c"'),
        (
            "5\u00a0% n\u00ba\u00a05 a\u00a0: 20\u00a0\u00baC 5\u00a0cm a\u00a0? b\u00a0! c\u00a0; d,\u00a0e",
            "5% n\u00ba 5 a: 20 \u00baC 5 cm a? b! c; d, e",
        ),
        ('"a", "b". "c"... "d",.', '"a," "b." "c..." "d,."'),
        ("1\u00a0000 1\u00a02\u00a03 a\u00a0b", "1.000 1.2\u00a03 a\u00a0b"),
        ("a\rb\r", "ab"),
        ("a    b  ( c", "a b (c"),
        ("", ""),
        ("  ", " "),
        ("\u0663\u00a0\u0664 \u0663 %", "\u0663\u00a0\u0664 \u0663 %"),
    ],
    "de": [
        ('"a," "b." "c..." "d."', '"a", "b". "c"... "d".'),
        ('Er sagte "ja."', 'Er sagte "ja".'),
        ('Er sagte "ja."<x> "nein." <y>', 'Er sagte "ja."<x> "nein". <y>'),
        ('"."."x', '"".."x'),
        ('a." \t b."\u00a0c', 'a". \t b".\u00a0c'),
        ("1\u00a0000 1\u00a02\u00a03\u00a04", "1,000 1,2\u00a03,4"),
        ("\u201eJa\u201c, \u201aso\u2018 \u2019n \u2013 gut\u2026", '"Ja", \'so\' "n - gut...'),
    ],
    "cs": [
        ('"a," "b". 1\u00a0000', '"a," "b". 1,000'),
    ],
    "fr": [
        ('\u00ab\u00a0Oui\u00a0\u00bb, dit-il. 1\u00a0000 "a." b', '"Oui", dit-il. 1,000 "a". b'),
    ],
    "xx": [
        ('1\u00a0000 "a." b, "c",', '1.000 "a". b, "c",'),
    ],
}
# what remove-non-printing-char.perl prints
PRINTING = [
    ("a\tb\x00c\x7fd\u0085e\u200bf\ufeffg\u00adh", "a b c d e f g h"),
    ("\ue000\U000f0000\U0010ffff\ufffe\u0378x\U0001faf0y\U0001fae8z", "     x\U0001faf0y z"),
    ("\u00a0 \u2028 keeps", "\u00a0 \u2028 keeps"),
]
# what lowercase.perl prints
LOWER = [
    (
        "ÄÖÜ ß \u1e9e I\u0130\u0131 \u039f\u0394\u039f\u03a3 \u03a3 "
        "\u01c5 \u2160 \u24b6 \U00010400 \ua64a \u2126 \u212a",
        "äöü ß ß ii\u0307\u0131 \u03bf\u03b4\u03bf\u03c3 \u03c3 \u01c6 \u2170 \u24d0 \U00010428 \ua64b \u03c9 k",
    ),
    ("A&QUOT;B", "a&quot;b"),
]
PAIRS = [(lang, line, expected) for lang, pairs in PUNCTUATION.items() for line, expected in pairs]


@pytest.mark.parametrize(("lang", "line", "expected"), PAIRS)
def test_punctuation_equals_the_script(lang: str, line: str, expected: str) -> None:
    assert normalize_punctuation(line, lang) == expected


@pytest.mark.parametrize("lang", PUNCTUATION)
def test_many_lines_at_once_are_each_line_alone(lang: str) -> None:
    lines = [line for pairs in PUNCTUATION.values() for line, _ in pairs]
    alone = [normalize_punctuation(line, lang) for line in lines]
    assert normalize_punctuation("\n".join(lines), lang).split("\n") == alone


def test_a_quote_at_the_end_of_a_file_without_line_feed_stays() -> None:
    text = 'Er sagte "ja."\nEr sagte "ja."'
    assert normalize_punctuation(text, "de", ends_with_newline=False) == 'Er sagte "ja".\nEr sagte "ja."'
    assert normalize_punctuation(text, "de") == 'Er sagte "ja".\nEr sagte "ja".'


@pytest.mark.parametrize(("line", "expected"), PRINTING)
def test_characters_that_do_not_print_become_blanks(line: str, expected: str) -> None:
    assert remove_non_printing(line) == expected


def test_line_feeds_stay() -> None:
    assert remove_non_printing("a\x01\nb\tc\n") == "a \nb c\n"


@pytest.mark.parametrize(("line", "expected"), LOWER)
def test_lower_case_is_that_of_perl(line: str, expected: str) -> None:
    assert lowercase(line) == expected


def test_there_is_no_final_sigma() -> None:
    assert lowercase("\u039f\u03a3") == "\u03bf\u03c3"
    assert "\u039f\u03a3".lower() == "\u03bf\u03c2"  # why str.lower alone is not enough


@pytest.mark.parametrize("lang", PUNCTUATION)
def test_the_punctuation_script_itself_says_so(lang: str, perl) -> None:
    lines, expected = zip(*PUNCTUATION[lang])
    assert perl("tokenizer/normalize-punctuation.perl", ["-l", lang], lines) == list(expected)


@pytest.mark.parametrize(
    ("script", "pairs"), [("tokenizer/remove-non-printing-char.perl", PRINTING), ("tokenizer/lowercase.perl", LOWER)]
)
def test_the_other_scripts_themselves_say_so(script: str, pairs: List[Tuple[str, str]], perl) -> None:
    lines, expected = zip(*pairs)
    assert perl(script, [], lines) == list(expected)


def test_lower_case_is_that_of_unicode_14_whatever_python_has() -> None:
    """Perl 5.36 maps these; Python 3.8 to 3.10 know 40 to 43 of them not at all."""
    for upper, lower in (("\u2c2f", "\u2c5f"), ("\ua7c7", "\ua7c8"), ("\U00010570", "\U00010597")):
        assert lowercase("A" + upper) == "a" + lower
    vithkuqi = [chr(code) for code in range(0x10570, 0x10596)]
    assert sum(lowercase(char) != char for char in vithkuqi) == 35


@pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")
def test_lower_case_of_every_letter_is_perls() -> None:
    command = ["perl", "-e", "use Unicode::UCD; print Unicode::UCD::UnicodeVersion()"]
    version = subprocess.run(command, stdout=subprocess.PIPE).stdout
    if version != b"14.0.0":
        pytest.skip(f"this Perl has Unicode {version.decode()}")
    program = r"""binmode(STDOUT, ":utf8"); for (0 .. 0xd7ff, 0xe000 .. 0x1ffff) { $c = chr($_); utf8::upgrade($c);
        $l = lc($c); print "$_ ", join(",", map { ord } split(//, $l)), "\n" if $l ne $c }"""
    printed = subprocess.run(["perl", "-e", program], stdout=subprocess.PIPE, check=True).stdout.decode()
    expected = {int(line.split()[0]): line.split()[1] for line in printed.splitlines()}
    for code in [*range(0xD800), *range(0xE000, 0x20000)]:
        ours = ",".join(str(ord(char)) for char in lowercase(chr(code)))
        assert ours == expected.get(code, str(code)), hex(code)
