"""The tokeniser against literal output of tokenizer.perl (mosesdecoder master, Perl 5.36).

Each expected line was printed by the script. Where MOSES_SCRIPTS names the ``scripts`` folder of a mosesdecoder clone,
the script itself is run again, on these lines and on random ones.
"""

import random
from typing import List, Tuple

import pytest

from data_prep.moses import MosesTokenizer, nonbreaking_prefixes
from data_prep.parallel import CACHE_WORDS

# claim, language, aggressive, [(line, what tokenizer.perl prints)]
CASES: List[Tuple[str, str, bool, List[Tuple[str, str]]]] = [
    (
        "the abbreviation that ends a line is split, the same one inside is not",
        "de",
        False,
        [
            ("Das gilt für Äpfel, Birnen usw.", "Das gilt für Äpfel , Birnen usw ."),
            ("Äpfel usw. und Birnen bzw. Quitten.", "Äpfel usw. und Birnen bzw. Quitten ."),
            ("Am 3. Mai um 5. Abs. 2 gilt Nr. 7 usw. Ende.", "Am 3. Mai um 5. Abs . 2 gilt Nr. 7 usw. Ende ."),
            ("Er kam z.B. um 8.30 Uhr an.", "Er kam z.B. um 8.30 Uhr an ."),
            ("Dr. Müller und Prof. Dr. Meier", "Dr. Müller und Prof. Dr. Meier"),
            ("so weit. So gut. weiter.", "so weit . So gut. weiter ."),
            ("Am Ende ein Punkt .", "Am Ende ein Punkt ."),
            ("A.", "A ."),
            ("...", "..."),
        ],
    ),
    (
        "English abbreviations",
        "en",
        False,
        [
            ("We met at 5 p.m.", "We met at 5 p.m ."),
            (
                "At 5 p.m. we met Mr. Smith, Dr. Who and No. 5. No. Not him.",
                "At 5 p.m. we met Mr. Smith , Dr. Who and No. 5 . No . Not him .",
            ),
            (
                "See pp. 12 and pp. Twelve, Art. 3 and Art. Deco.",
                "See pp. 12 and pp . Twelve , Art. 3 and Art . Deco .",
            ),
            ("U.S. troops, e.g. those of the U.S.", "U.S. troops , e.g. those of the U.S ."),
            ("The end. the beginning. The end", "The end. the beginning . The end"),
            ("Rs. 500 by Jan. 3", "Rs. 500 by Jan. 3"),
        ],
    ),
    (
        "apostrophes, also at the ends of a line",
        "en",
        False,
        [
            ("It's John's, isn't it?", "It &apos;s John &apos;s , isn &apos;t it ?"),
            ("'Tis the '90s' end'", "&apos;Tis the &apos; 90s &apos; end&apos;"),
            ("in the 1990's they said 'yes.'", "in the 1990 &apos;s they said &apos; yes . &apos; "),
            ("he said: 'no.", "he said : &apos; no ."),
            ("dogs' tails and rock 'n' roll", "dogs &apos; tails and rock &apos; n &apos; roll"),
            ("5' '5 and 5' 5'", "5 &apos; &apos;5 and 5 &apos; 5&apos;"),
            ("it .'", "it  . &apos; "),
            ("don''t '' 'a' '", "don &apos; &apos; t &apos; &apos; &apos; a &apos; &apos;"),
            ("x ' 'y ' ' z", "x &apos; &apos; y &apos; &apos; z"),
            ("O'Neil\u2019s l'eau", "O &apos;Neil \u2019 s l &apos;eau"),
        ],
    ),
    (
        "apostrophes stand alone in German",
        "de",
        False,
        [
            ("Das ist's, Hans' Auto und 'n Hund", "Das ist &apos; s , Hans &apos; Auto und &apos; n Hund"),
            ("'Ja.'", "&apos; Ja . &apos;"),
            ("5' '5", "5 &apos; &apos; 5"),
        ],
    ),
    (
        "dots and commas",
        "en",
        False,
        [
            ("Wait... what.. is....this?.", "Wait ... what .. is .... this ? ."),
            ("..", ".."),
            ("a..b ...c d... ...", "a .. b ... c d ... ..."),
            ("1,000,000 and 1,a,b,,c 5,", "1,000,000 and 1 , a , b , , c 5 ,"),
            ("5,300, ,5 ,a a, ,", "5,300 , , 5 , a a , ,"),
            ("v1.2.3. Next 3.14.", "v1.2.3. Next 3.14 ."),
            ("a.b.c. D", "a.b.c. D"),
            ("...' ..'", "... &apos; .. &apos;"),
            ("x.'", "x . &apos; "),
        ],
    ),
    (
        "symbols and escapes",
        "en",
        False,
        [
            (
                'AT&T <b>"bold"</b> [x] a|b',
                "AT &amp; T &lt; b &gt; &quot; bold &quot; &lt; / b &gt; &#91; x &#93; a &#124; b",
            ),
            ("&amp; &lt; `tick` $5 50% #tag @me", "&amp; amp ; &amp; lt ; `tick` $ 5 50 % # tag @ me"),
            ("http://www.a.de/x?y=1&z=2, a.b@c.de", "http : / / www.a.de / x ? y = 1 &amp; z = 2 , a.b @ c.de"),
            ("(a) {b} [c] a/b a_b a*b c++", "( a ) { b } &#91; c &#93; a / b a _ b a * b c + +"),
            (
                "\u201cquoted\u201d \u2018q\u2019 \u2026 \u2013 \u2014 \u00ab\u00bb",
                "\u201c quoted \u201d \u2018 q \u2019 \u2026 \u2013 \u2014 \u00ab \u00bb",
            ),
        ],
    ),
    (
        "hyphens stay",
        "en",
        False,
        [
            ("well-known x--y -5 - a-b-c ä-ö 5-6 -a b-", "well-known x--y -5 - a-b-c ä-ö 5-6 -a b-"),
        ],
    ),
    (
        "hyphens are split with -a",
        "en",
        True,
        [
            (
                "well-known x--y -5 - a-b-c ä-ö 5-6 -a b-",
                "well @-@ known x--y -5 - a @-@ b @-@ c ä @-@ ö 5 @-@ 6 -a b-",
            ),
            ("state-of-the-art. co-op's", "state @-@ of @-@ the @-@ art. co @-@ op &apos;s"),
            ("\u0663-\u0664 a-\u0301b", "\u0663 @-@ \u0664 a- \u0301 b"),
        ],
    ),
    (
        "white space and control characters",
        "en",
        False,
        [
            ("  a \t b\u00a0c\u2003d\u3000e\u0085f\u2028g\r", "a b c d e f g"),
            ("a\x00b \x01 c\x1cd\x1fe\x7ff", "ab cde \x7f f"),
            ("\x01", ""),
            ("\u200ba\u200db\ufeff", "\u200b a \u200d b \ufeff"),
            ("   ", "   "),
            ("\u00a0\t", "\u00a0\t"),
        ],
    ),
    (
        "letters and digits of all kinds",
        "en",
        False,
        [
            (
                "\u0663,\u0664 \u00bd,\u00bd \u2167,\u2167 \u00b2's \U0001d7d8's",
                "\u0663,\u0664 \u00bd , \u00bd \u2167,\u2167 \u00b2 &apos; s \U0001d7d8 &apos;s",
            ),
            (
                "e\u0301 \u0301 \u0b95\u0bcd\u0b95 \u65e5\u672c\u8a9e\u3002 "
                "\U00010348\U00010400 \U0001f600\U0001f469\u200d\U0001f467",
                "e \u0301 \u0301 \u0b95 \u0bcd \u0b95 \u65e5\u672c\u8a9e \u3002 "
                "\U00010348\U00010400 \U0001f600 \U0001f469 \u200d \U0001f467",
            ),
            (
                "\ufb01n. \ufb01n x. ä y. \u01c5 z. \u00aa q. \u03c3 r. \u2170 s. 5",
                "\ufb01n. \ufb01n x. ä y . \u01c5 z. \u00aa q. \u03c3 r. \u2170 s . 5",
            ),
        ],
    ),
    (
        "the place-holder of several dots in the text itself",
        "en",
        False,
        [
            ("DOTMULTI DOTDOTMULTI. DOTMULTI.. xDOTMULTI.y", ". ... . .. x.. y"),
            ("THISISPROTECTED000 a...DOTMULTI", "THISISPROTECTED000 a ... ."),
        ],
    ),
    (
        "other languages",
        "fr",
        False,
        [
            (
                "L'eau d'Aix aujourd'hui 'x' 5'6 M. Dupont etc.",
                "L&apos; eau d&apos; Aix aujourd&apos; hui &apos; x &apos; 5 &apos; 6 M. Dupont etc .",
            ),
        ],
    ),
    (
        "Finnish colons",
        "fi",
        False,
        [
            ("EU:n 5:een EU:N x: :y a:b: klo 5:30", "EU:n 5:een EU : N x : :y a:b : klo 5 : 30"),
        ],
    ),
    (
        "Catalan",
        "ca",
        False,
        [
            (
                "col\u00b7lega \u00b7 l'any \u00c2\u00b7x \u00c2\u00b7X",
                "col\u00b7lega \u00b7 l&apos; any \u00c2\u00b7x \u00c2\u00b7 X",
            ),
        ],
    ),
    (
        "Somali",
        "so",
        False,
        [
            ("lo'da 'a b' 5'5", "lo&apos;da &apos; a b &apos; 5 &apos; 5"),
        ],
    ),
    (
        "Tetum",
        "tdt",
        False,
        [
            ("ha'u ne'ebé' 'A x'", "ha&apos;u ne&apos;ebé &apos; &apos; A x &apos;"),
        ],
    ),
    (
        "Swedish",
        "sv",
        False,
        [
            ("S:t USA:s 5: bl.a. jan.", "S:t USA:s 5 : bl.a. jan ."),
        ],
    ),
]
LINES = [(lang, aggressive, line, expected) for _, lang, aggressive, pairs in CASES for line, expected in pairs]
IDS = [claim for claim, _, _, pairs in CASES for _ in pairs]

PIECES = (
    "a b s Mr Dr usw z.B bzw p.m Nr. No. 5. 5 10 1,000 ä Ö ß don't 'tis rock'n'roll x-y ... .. . , ' ' - ( ) "
    '" & | < > [ ] '
    "DOTMULTI http://a.de/?x=1&y=2 \u2019 \u2018 \u201e \u201c \u00bd \u0663 "
    "\u65e5 e\u0301 \U0001f600 \u03a3 .' '. ,, \u00a0 \u2028 \x01 \x1c \t"
).split(" ") + [" ", "  "] * 12


def random_lines(seed: int, count: int) -> List[str]:
    generator = random.Random(seed)
    return ["".join(generator.choice(PIECES) for _ in range(generator.randint(1, 25))) for _ in range(count)]


@pytest.mark.parametrize(("lang", "aggressive", "line", "expected"), LINES, ids=IDS)
def test_equals_the_script(lang: str, aggressive: bool, line: str, expected: str) -> None:
    assert MosesTokenizer(lang, aggressive).tokenize(line) == expected


@pytest.mark.parametrize(("lang", "aggressive", "line", "expected"), LINES, ids=IDS)
def test_rule_by_rule_equals_the_script(lang: str, aggressive: bool, line: str, expected: str) -> None:
    assert MosesTokenizer(lang, aggressive).tokenize_whole_line(line) == expected


@pytest.mark.parametrize("lang", ["en", "de", "fr", "fi", "ca", "so", "tdt"])
@pytest.mark.parametrize("aggressive", [False, True])
def test_words_looked_up_equal_rules_over_the_line(lang: str, aggressive: bool) -> None:
    tokenizer = MosesTokenizer(lang, aggressive)
    for line in random_lines(1, 1500):
        assert tokenizer.tokenize(line) == tokenizer.tokenize_whole_line(line)


def test_a_very_long_line_is_one_line_of_tokens() -> None:
    line = "Wort, " * 50_000 + "x" * 100_000 + "."
    assert MosesTokenizer("de").tokenize(line) == "Wort , " * 50_000 + "x" * 100_000 + " ."


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CACHE_WORDS >= 100_000
    monkeypatch.setattr("data_prep.parallel.CACHE_WORDS", 100)
    tokenizer = MosesTokenizer("en")
    for number in range(1000):
        assert tokenizer.tokenize(f"a w{number}, b") == f"a w{number} , b"
    assert len(tokenizer._inner) <= 100


def test_escapes_can_be_left_out() -> None:
    assert MosesTokenizer("en", escape=False).tokenize("a&b [it's]") == "a & b [ it 's ]"


def test_a_language_without_abbreviations_uses_the_english_ones() -> None:
    assert nonbreaking_prefixes("xx") == nonbreaking_prefixes("en")
    assert nonbreaking_prefixes("en")["No"] == 2 and nonbreaking_prefixes("en")["Mr"] == 1


@pytest.mark.parametrize(("lang", "aggressive", "pairs"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_script_itself_says_so(lang: str, aggressive: bool, pairs: List[Tuple[str, str]], perl) -> None:
    flags = ["-q", "-l", lang] + (["-a"] if aggressive else [])
    assert perl("tokenizer/tokenizer.perl", flags, [line for line, _ in pairs]) == [expected for _, expected in pairs]


@pytest.mark.parametrize("lang", ["en", "de"])
@pytest.mark.parametrize("aggressive", [False, True])
def test_random_lines_equal_the_script_itself(lang: str, aggressive: bool, perl) -> None:
    lines = random_lines(2, 5000)
    flags = ["-q", "-l", lang] + (["-a"] if aggressive else [])
    tokenizer = MosesTokenizer(lang, aggressive)
    assert [tokenizer.tokenize(line) for line in lines] == perl("tokenizer/tokenizer.perl", flags, lines)
