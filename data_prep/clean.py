"""Which sentence pairs stay in the training data: clean-corpus-n.perl."""

import re
from typing import Optional, Tuple

#: Pairs with a longer word are dropped (``-max-word-length`` of the script, in characters).
MAX_WORD_LENGTH = 1000

_SPACES = re.compile("[^\\S\x1c-\x1f]+")


def _squeeze(line: str) -> str:
    """Drops bars and superfluous white space, which is Perl's: without U+001C to U+001F."""
    if "|" in line:
        line = line.replace("|", "")
    if "\x1c" in line or "\x1d" in line or "\x1e" in line or "\x1f" in line:
        return _SPACES.sub(" ", line).strip(" ")
    return " ".join(line.split())


def clean_pair(
    source: str, target: str, minimum: int, maximum: int, ratio: float = 9.0
) -> Optional[Tuple[str, str]]:
    """Returns the pair as clean-corpus-n.perl writes it, or ``None`` if it drops the pair.

    A pair stays if both sides have ``minimum`` to ``maximum`` tokens, neither has more than ``ratio`` times the
    tokens of the other, and no token is longer than ``MAX_WORD_LENGTH``. The sides that stay have single blanks
    between tokens and no ``|``, which to the script separates factors; escaped tokens have none.

    Args:
        source: first side, without line feed.
        target: second side.
        minimum: fewest tokens.
        maximum: most tokens.
        ratio: greatest quotient of the two lengths. Default: 9.0
    """
    source, target = _squeeze(source), _squeeze(target)
    if not source or not target:
        return None
    count_source, count_target = source.count(" ") + 1, target.count(" ") + 1
    if not (minimum <= count_source <= maximum and minimum <= count_target <= maximum):
        return None
    if count_source / count_target > ratio or count_target / count_source > ratio:
        return None
    for side in (source, target):
        if len(side) > MAX_WORD_LENGTH and max(map(len, side.split(" "))) > MAX_WORD_LENGTH:
            return None
    return source, target
