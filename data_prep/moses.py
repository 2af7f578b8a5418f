"""The Moses tokeniser (tokenizer.perl of mosesdecoder's master branch), as a fast and exact port.

``MosesTokenizer.tokenize`` equals ``tokenizer.perl -l LANG [-a] [-no-escape]`` on every line of valid UTF-8. Three
things make it fast: the script's rules see only one whitespace-separated word and whether it opens or closes the
line, so each word is tokenised once and then looked up; plain words skip the rules; and only a word that ends in a
dot has to know its successor. Lines where a rule does reach across words (see ``_needs_whole_line``) go through
``tokenize_whole_line``, a direct transcription of the script, which the tests also use to check the fast way.

Abbreviations ("non-breaking prefixes") come from sacremoses, which ships Moses' own files. Character properties are
those of Perl 5.36 (Unicode 14, see ``unicode14``), whatever Python runs this.
"""

import functools
import logging
import re
from typing import Dict, List, Optional, Tuple, Union

from data_prep.parallel import WordCache
from data_prep.unicode14 import ALPHABETIC, DECIMAL, LOWERCASE, NUMBER, SMALL_LETTER, char_class, members

logger = logging.getLogger("data_prep")

_ALPHA = char_class(ALPHABETIC)
_ALNUM = char_class(ALPHABETIC, DECIMAL)
_NUM = char_class(NUMBER)
_LOWER = members(LOWERCASE)
_DIGITS = frozenset("0123456789")

_SIMPLE_ENDS = frozenset(".,;!?)")
# Perl's \s is Python's str.split() less U+001C-U+001F, which the script deletes with the other control characters.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f]+")
_PLAIN_WORD = re.compile(f"[{_ALNUM}]+").fullmatch
_HAS_ALPHA = re.compile(f"[{_ALPHA}]").search
_HYPHEN = re.compile(f"(?<=[{_ALNUM}])-(?=[{_ALNUM}])")
_DOTS = re.compile(r"\.(\.+)")
_COMMA_AFTER_OTHER = re.compile(f"([^{_NUM}]),")
_COMMA_BEFORE_OTHER = re.compile(f",([^{_NUM}])")
_COMMA_AT_END = re.compile(f"([{_NUM}]),$")

_ESCAPES = str.maketrans(
    {
        "&": "&amp;",
        "|": "&#124;",
        "<": "&lt;",
        ">": "&gt;",
        "'": "&apos;",
        '"': "&quot;",
        "[": "&#91;",
        "]": "&#93;",
    }
)

# Moses' files have blanks after these abbreviations, so the script never recognises them; sacremoses strips the blanks.
_UNREACHABLE = {
    "as": ("\u09ad\u09bf",),
    "bn": ("\u09ad\u09bf",),
    "es": ("Fil", "gr", "p\u00c3\u00a1g"),
    "it": ("Amn", "Arch", "a.c", "all", "es"),
    "ml": ("\u0d2a\u0d3f",),
    "mni": ("\u09ad\u09bf",),
    "nl": ("Nrs",),
    "sk": ("Pf",),
    "sv": ("\u00d6",),
}

_Rules = List[Tuple["re.Pattern[str]", str]]


def _apostrophe_rules(lang: str) -> Optional[_Rules]:
    """Returns the substitutions for apostrophes, in order; ``None`` where every apostrophe stands alone."""
    alpha, other = f"([{_ALPHA}])", f"([^{_ALPHA}])"
    alone = r"\1 ' \2"
    if lang == "en":
        other_no_number = f"([^{_ALPHA}{_NUM}])"
        rules = [
            (other + "'" + other, alone),
            (other_no_number + "'" + alpha, alone),
            (alpha + "'" + other, alone),
            (alpha + "'" + alpha, r"\1 '\2"),
            (f"([{_NUM}])'(s)", r"\1 '\2"),
        ]
    elif lang in ("fr", "it", "ga", "ca", "so", "tdt"):
        rules = [(other + "'" + other, alone), (other + "'" + alpha, alone), (alpha + "'" + other, alone)]
        if lang not in ("so", "tdt"):  # those two keep the glottal stop inside a word
            rules.append((alpha + "'" + alpha, r"\1' \2"))
    else:
        return None
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


def _special_rules(lang: str) -> _Rules:
    """Returns the substitutions that set symbols apart, in order."""
    kept = {"fi": ":", "sv": ":", "ca": "\u00b7"}.get(lang, "")
    rules = [(f"([^{_ALNUM}\\s.'`,{kept}-])", r" \1 ")]
    not_lower_next = f"(?=$|[^{char_class(SMALL_LETTER)}])"
    if lang in ("fi", "sv"):
        rules.append(("(:)" + not_lower_next, r" \1 "))
    elif lang == "tdt":
        rules.append(("(')" + not_lower_next, r" \1 "))
    elif lang == "ca":
        # the script is read as Latin-1, so what it looks for is the two characters that UTF-8 makes of one
        rules.append(("(\u00c2\u00b7)" + not_lower_next, r" \1 "))
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


@functools.lru_cache(maxsize=None)
def nonbreaking_prefixes(lang: str) -> Dict[str, int]:
    """Returns the abbreviations of a language; English ones, with a warning as Perl's, where Moses has none for it.

    Args:
        lang: two-letter code.
    Returns: abbreviation without its dot -> 1, or 2 if it counts only in front of a number.
    """
    from sacremoses.corpus import NonbreakingPrefixes  # here: the import takes longer than a small file

    corpus = NonbreakingPrefixes()
    if lang not in corpus.available_langs.values():  # its keys have names as well, such as "german": not so Moses
        logger.warning("no known abbreviations for the language %r; those of English are taken", lang)
        lang = "en"
    prefixes = {}
    for line in corpus.words(lang):
        numeric = re.match(r"(.*)\s+#NUMERIC_ONLY#", line)
        prefixes[numeric.group(1) if numeric else line] = 2 if numeric else 1
    for prefix in _UNREACHABLE.get(lang, ()):
        prefixes.pop(prefix, None)
    return prefixes


class MosesTokenizer:
    """Splits lines into tokens as tokenizer.perl does.

    Args:
        lang: language code; decides apostrophes and abbreviations. Default: ``"en"``
        aggressive: split hyphenated words, ``-a`` of the script. Default: ``False``
        escape: write ``&``, ``|``, ``<``, ``>``, ``'``, ``"``, ``[`` and ``]`` as XML entities. Default: ``True``
    Example: ``MosesTokenizer("en").tokenize("It's 5 p.m.")`` gives ``"It &apos;s 5 p.m ."``
    """

    def __init__(self, lang: str = "en", aggressive: bool = False, escape: bool = True):
        self.lang = lang
        self.aggressive = aggressive
        self.escape = escape
        self._prefixes = nonbreaking_prefixes(lang)
        self._special = _special_rules(lang)
        self._apostrophe = _apostrophe_rules(lang)
        # what each word becomes at its place in the line
        self._inner = WordCache(lambda word: self._word(word, False, False))
        self._first = WordCache(lambda word: self._word(word, True, False))
        self._last = WordCache(lambda word: self._word(word, False, True))

    def tokenize(self, line: str) -> str:
        """Returns the tokens of a line, separated by blanks.

        Args:
            line: without its line feed. A line of white space comes back as it is, as from the script.
        """
        text = line if line.isprintable() else _CONTROL.sub("", line)  # a quick test that clears most lines
        words = text.split()
        if len(words) < 2 or self._needs_whole_line(text, words):
            return self.tokenize_whole_line(line)
        out = [self._first[words[0]], *map(self._inner.__getitem__, words[1:-1]), self._last[words[-1]]]
        try:
            return " ".join(out)
        except TypeError:  # some are not text yet: the next word decides
            for index, piece in enumerate(out):
                if not isinstance(piece, str):
                    small, digit, other = piece
                    # no rule puts a blank before a letter or digit that opens a word, so its first character decides
                    following = words[index + 1][0]
                    out[index] = small if following in _LOWER else digit if following in _DIGITS else other
            return " ".join(out)

    def tokenize_whole_line(self, line: str) -> str:
        """The same as ``tokenize``, rule by rule over the whole line as the script has them; slower."""
        text = _CONTROL.sub("", line)
        words = text.split()
        if not words:
            return line if text == line else ""
        words = self._rules(" ".join(words)).rstrip(" ").split(" ")
        for index, word in enumerate(words):
            if len(word) > 1 and word.endswith("."):
                following = words[index + 1][:1] if index + 1 < len(words) else None
                if following is None or not self._keeps_dot(word[:-1], following):
                    words[index] = word[:-1] + " ."
        text = re.sub(" +", " ", " ".join(words)).strip(" ")
        if text.endswith(".'"):
            text = text[:-2] + " . ' "
        if "DOTMULTI" in text:
            while "DOTDOTMULTI" in text:
                text = text.replace("DOTDOTMULTI", "DOTMULTI.")
            text = text.replace("DOTMULTI", ".")
        return text.translate(_ESCAPES) if self.escape else text

    def _needs_whole_line(self, line: str, words: List[str]) -> bool:
        """Whether a rule may reach across words.

        That happens where an apostrophe ends one word and another begins the next: both rules want the blank between.
        The other case is a text that contains the script's own place-holder for several dots.
        """
        if "DOTMULTI" in line:
            return True
        if self._apostrophe is None or "'" not in line:
            return False
        return any(left[-1] == "'" and right[0] == "'" for left, right in zip(words, words[1:]))

    def _rules(self, text: str) -> str:
        """Applies the substitutions of the script, up to the dots at the end of words."""
        for pattern, replacement in self._special:
            text = pattern.sub(replacement, text)
        if self.aggressive and "-" in text:
            text = _HYPHEN.sub(" @-@ ", text)
        if ".." in text:
            text = _DOTS.sub(r" DOTMULTI\1", text)
        while "DOTMULTI." in text:
            text = re.sub(r"DOTMULTI\.([^.])", r"DOTDOTMULTI \1", text)
            text = text.replace("DOTMULTI.", "DOTDOTMULTI")
        if "," in text:
            text = _COMMA_AFTER_OTHER.sub(r"\1 , ", text)
            text = _COMMA_BEFORE_OTHER.sub(r" , \1", text)
            text = _COMMA_AT_END.sub(r"\1 ,", text)
        if "'" in text:
            if self._apostrophe is None:
                text = text.replace("'", " ' ")
            else:
                for pattern, replacement in self._apostrophe:
                    text = pattern.sub(replacement, text)
        return text

    def _keeps_dot(self, word: str, following: str) -> bool:
        """Whether a word inside a line keeps its dot.

        Args:
            word: without its final dot.
            following: first character of the next word; empty where two blanks meet.
        """
        kind = 1 if "." in word and _HAS_ALPHA(word) else self._prefixes.get(word, 0)
        return kind == 1 or following in _LOWER or (kind == 2 and following in _DIGITS)

    def _word(self, word: str, first: bool, last: bool) -> Union[str, Tuple[str, ...]]:
        """Tokenises one word given its place in the line.

        Returns: the tokens. If the next word decides about its dot, there are three of them: before a small letter,
            before a digit, and before anything else.
        """
        if _PLAIN_WORD(word):
            return word
        end = word[-1]
        before, settled = "" if first else "A ", last or end != "."
        if settled and end in _SIMPLE_ENDS and _PLAIN_WORD(word, 0, len(word) - 1):
            # a word with one mark at its end, by far the most frequent kind: what the rules come to
            return word[:-1] + " " + end
        if settled:
            return self._between(before, word, "" if last else " A")
        forms = tuple(self._between(before, word, following) for following in (" a", " 0", " A"))
        return forms[0] if len(set(forms)) == 1 else forms

    def _between(self, before: str, word: str, after: str) -> str:
        """Tokenises a word between others, which stay as they are."""
        line = self.tokenize_whole_line(before + word + after)
        return line[len(before) : len(line) - len(after)]


@functools.lru_cache(maxsize=None)
def get_tokenizer(lang: str, aggressive: bool = False, escape: bool = True) -> MosesTokenizer:
    """Returns the tokeniser of this process for these settings, with the words it has seen."""
    return MosesTokenizer(lang, aggressive, escape)
