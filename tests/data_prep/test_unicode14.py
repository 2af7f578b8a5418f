"""The property tables against the Unicode data of Python, where that is the same version."""

import re
import unicodedata

import pytest

from data_prep import unicode14

same_version = pytest.mark.skipif(
    unicodedata.unidata_version != "14.0.0", reason="this Python has another Unicode version than 14"
)
EVERYTHING = [chr(code) for code in range(0x110000)]


@same_version
@pytest.mark.parametrize(
    ("prop", "start"), [(unicode14.NUMBER, "N"), (unicode14.DECIMAL, "Nd"), (unicode14.OTHER, "C")]
)
def test_a_property_is_a_general_category(prop: str, start: str) -> None:
    expected = {char for char in EVERYTHING if unicodedata.category(char).startswith(start)}
    assert unicode14.members(prop) == expected


@same_version
def test_lower_case_letters_are_category_ll() -> None:
    expected = {char for char in EVERYTHING if unicodedata.category(char) == "Ll"}
    assert unicode14.members(unicode14.SMALL_LETTER) == expected


@same_version
def test_lower_case_is_what_python_calls_so() -> None:
    assert unicode14.members(unicode14.LOWERCASE) == {char for char in EVERYTHING if char.islower()}


@same_version
def test_alphabetic_has_all_letters_and_no_number_but_letter_numbers() -> None:
    alphabetic = unicode14.members(unicode14.ALPHABETIC)
    categories = {char: unicodedata.category(char) for char in EVERYTHING}
    assert alphabetic >= {char for char, category in categories.items() if category[0] == "L" or category == "Nl"}
    assert {categories[char] for char in alphabetic} <= {"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Mn", "Mc", "So"}


def test_characters_newer_than_version_14_are_unassigned() -> None:
    assert "\U0001fae8" in unicode14.members(unicode14.OTHER)  # shaking face, Unicode 15
    assert "\U0001fae0" not in unicode14.members(unicode14.OTHER)  # melting face, Unicode 14


def test_char_class_matches_the_members_in_its_limits() -> None:
    pattern = re.compile("[" + unicode14.char_class(unicode14.DECIMAL, first=0x31, last=0x660) + "]")
    assert "".join(filter(pattern.match, EVERYTHING)) == "123456789\u0660"
