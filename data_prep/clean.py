"""Which sentence pairs stay in the training data: clean-corpus-n.perl."""

import re
from typing import Optional, Tuple

from data_prep.errors import DataPrepError

#: Pairs with a longer word are dropped (``-max-word-length`` of the script, in characters).
MAX_WORD_LENGTH = 1000

_SPACES = re.compile("[^\\S\x1c-\x1f]+")
_BLANK_FACTOR = re.compile(r"[ |]\|")


def _squeeze(line: str, factored: bool) -> str:
    """Drops factor bars and superfluous white space, which is Perl's: without U+001C to U+001F."""
    if not factored and "|" in line:
        line = line.replace("|", "")
    if "\x1c" in line or "\x1d" in line or "\x1e" in line or "\x1f" in line:
        return _SPACES.sub(" ", line).strip(" ")
    return " ".join(line.split())


def clean_pair(
    source: str, target: str, minimum: int, maximum: int, ratio: float = 9.0, factored: bool = False
) -> Optional[Tuple[str, str]]:
    """Returns the pair as clean-corpus-n.perl writes it, or ``None`` if it drops the pair.

    A pair stays if both sides have ``minimum`` to ``maximum`` tokens, neither has more than ``ratio`` times the
    tokens of the other, and no token is longer than ``MAX_WORD_LENGTH``. The sides that stay have single blanks
    between tokens.

    Args:
        source: first side, without line feed.
        target: second side.
        minimum: fewest tokens.
        maximum: most tokens.
        ratio: greatest quotient of the two lengths. Default: 9.0
        factored: whether ``|`` separates factors of a token; the script assumes so for the whole corpus if its first
            line has one, and otherwise deletes them. Default: ``False``
    """
    source, target = _squeeze(source, factored), _squeeze(target, factored)
    if not source or not target:
        return None
    count_source, count_target = source.count(" ") + 1, target.count(" ") + 1
    if not (minimum <= count_source <= maximum and minimum <= count_target <= maximum):
        return None
    if count_source / count_target > ratio or count_target / count_source > ratio:
        return None
    for side in (source, target):
        if len(side) > MAX_WORD_LENGTH:
            tokens = side.replace("|", " ").split(" ") if factored else side.split(" ")
            if max(map(len, tokens)) > MAX_WORD_LENGTH:
                return None
        if factored and _BLANK_FACTOR.search(side):
            raise DataPrepError(f"there is a blank factor in the line {side!r}")
    return source, target
