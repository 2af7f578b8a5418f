"""Punctuation, non-printing characters and case, as three Moses scripts change them.

Every function takes a text of any number of lines separated by line feeds and changes each line as the script would.
"""

import re
from typing import Dict, Tuple

from data_prep.unicode14 import OTHER, char_class

_NBSP = "\u00a0"
_PERCENT = re.compile("(?<=[0-9]) %")
_LETTER, _DIGIT = "[a-zA-Z]", "[0-9]"


def _between(mark: str, chars: str) -> "re.Pattern[str]":
    """Returns a pattern for a mark between two characters of a class; its groups follow the mark's replacement.

    The script's pattern takes in the characters on both sides, so of ``a'b'c`` it changes only the first mark.
    Beginning with the mark itself lets the search skip everything else.
    """
    return re.compile(f"{mark}(?<={chars}{mark})({chars})({mark}(?={chars}))?")


_QUOTES_IN_WORDS = (_between("\u2018", _LETTER), _between("\u2019", _LETTER))
_NUMBER_GROUPS = _between(_NBSP, _DIGIT)
_AFTER_BRACKET = re.compile(r"\) ([.!:?;,])")
_QUOTE_BEFORE_STOP = re.compile('"([,.]+)')
# The script sees the line feed, which counts as the white space after a quote that closes the line.
_STOP_BEFORE_QUOTE = re.compile('(\\.+)"([\t\x0b\x0c ]*[^<\t-\r ]|[\t\x0b\x0c ]+|$)', re.MULTILINE)
_STOP_BEFORE_QUOTE_OPEN = re.compile('(\\.+)"([\t\x0b\x0c ]*[^<\t-\r ]|[\t\x0b\x0c ]+|(?=\n))')

_OTHER_BMP = re.compile(f"[{char_class(OTHER, last=0x9)}{char_class(OTHER, first=0xB, last=0xFFFF)}]")
_OTHER_ASTRAL = re.compile(f"[{char_class(OTHER, first=0x10000)}]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")

_BRACKETS = (("( ", "("), (" )", ")"))
_QUOTES = (
    (" :", ":"),
    (" ;", ";"),
    ("`", "'"),
    ("''", ' " '),
    ("\u201e", '"'),
    ("\u201c", '"'),
    ("\u201d", '"'),
    ("\u2013", "-"),
    ("\u2014", " - "),
)
_SINGLE_QUOTES = (("\u2018", "'"), ("\u201a", "'"), ("\u2019", '"'), ("''", '"'), ("\u2026", "..."))
_GUILLEMETS = (
    (_NBSP + "\u00ab" + _NBSP, ' "'),
    ("\u00ab" + _NBSP, '"'),
    ("\u00ab", '"'),
    (_NBSP + "\u00bb" + _NBSP, '" '),
    (_NBSP + "\u00bb", '"'),
    ("\u00bb", '"'),
)
_PSEUDO_SPACES = (
    (_NBSP + "%", "%"),
    ("n\u00ba" + _NBSP, "n\u00ba "),
    (_NBSP + ":", ":"),
    (_NBSP + "\u00baC", " \u00baC"),
    (_NBSP + "cm", " cm"),
    (_NBSP + "?", "?"),
    (_NBSP + "!", "!"),
    (_NBSP + ";", ";"),
    ("," + _NBSP, ", "),
)


def _replace(text: str, pairs: Tuple[Tuple[str, str], ...]) -> str:
    """Replaces one string after the other."""
    for old, new in pairs:
        if old in text:  # a search is several times faster than a replacement that finds nothing
            text = text.replace(old, new)
    return text


def _squeeze(text: str) -> str:
    """Turns each run of blanks into one."""
    while "  " in text:
        text = text.replace("  ", " ")
    return text


def normalize_punctuation(text: str, lang: str = "en", ends_with_newline: bool = True) -> str:
    """Does what ``normalize-punctuation.perl -l LANG`` does, in the version of November 2019 and later.

    That version writes the quotation marks U+2018 and U+201A as an apostrophe; earlier ones wrote them as a double
    quote. The script works on bytes, so its digits, letters and white space are ASCII, and only the no-break spaces
    that it names are touched.

    Args:
        text: one line or several, separated by line feeds.
        lang: ``en``, ``cs``, ``cz`` and others order quotes and stops differently. Default: ``"en"``
        ends_with_newline: whether a line feed follows the text; a quote that closes a file without a final line feed
            is left alone by the script. Default: ``True``
    """
    text = text.replace("\r", "")
    if "(" in text or ")" in text:
        text = _squeeze(text.replace("(", " (").replace(")", ") "))
        text = _AFTER_BRACKET.sub(r")\1", text)
        text = _replace(text, _BRACKETS)
    else:
        text = _squeeze(text)
    if " %" in text:
        text = _PERCENT.sub("%", text)
    text = _squeeze(_replace(text, _QUOTES))
    text = _replace(text, (("\u00b4", "'"),))
    for pattern in _QUOTES_IN_WORDS:
        text = pattern.sub(r"'\1\2", text)
    text = _replace(text, _SINGLE_QUOTES)
    if "\u00ab" in text or "\u00bb" in text:
        text = _replace(text, _GUILLEMETS)
    if _NBSP in text:
        text = _replace(text, _PSEUDO_SPACES)
    text = _squeeze(text)
    if lang == "en":
        text = _QUOTE_BEFORE_STOP.sub(r'\1"', text)
    elif lang not in ("cs", "cz"):
        text = text.replace(',"', '",')
        if '."' in text:
            text = (_STOP_BEFORE_QUOTE if ends_with_newline else _STOP_BEFORE_QUOTE_OPEN).sub(r'"\1\2', text)
    if _NBSP in text:
        text = _NUMBER_GROUPS.sub(r",\1\2" if lang in ("de", "es", "cz", "cs", "fr") else r".\1\2", text)
    return text


def remove_non_printing(text: str) -> str:
    r"""Does what ``remove-non-printing-char.perl`` does: each character of ``\p{C}`` becomes a blank.

    Unassigned characters belong to that class, those of Unicode 15 and later included (see ``unicode14``).
    """
    text = _OTHER_BMP.sub(" ", text)
    if _ASTRAL.search(text):
        text = _OTHER_ASTRAL.sub(" ", text)
    return text


def _newer_letters() -> Dict[int, str]:
    """Capital letters of Unicode 13 and 14 that this Python does not know to be such, and their small ones."""
    pairs = {0x2C2F: 0x2C5F}
    pairs.update({code: code + 1 for code in (0xA7C0, 0xA7C7, 0xA7C9, 0xA7D0, 0xA7D6, 0xA7D8, 0xA7F5)})
    pairs.update({code: code + 0x27 for code in range(0x10570, 0x10596) if code not in (0x1057B, 0x1058B, 0x10593)})
    return {upper: chr(lower) for upper, lower in pairs.items() if chr(upper).lower() == chr(upper)}


_NEWER_LETTERS = _newer_letters()
_HAS_NEWER = re.compile("[" + "".join(map(chr, _NEWER_LETTERS)) + "]").search if _NEWER_LETTERS else None


def lowercase(text: str) -> str:
    """Does what ``lowercase.perl`` does: Perl's ``lc`` of Unicode 14, which unlike ``lower`` knows no final sigma."""
    if _HAS_NEWER is not None and _HAS_NEWER(text):
        text = text.translate(_NEWER_LETTERS)
    return text.replace("\u03a3", "\u03c3").lower()
