"""BLEU as Moses' ``multi-bleu.perl`` computes it, and fairseq's splitting of compounds."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from powernorm_fairseq.scoring.text import ScoringError

MAX_ORDER = 4


@dataclass(frozen=True)
class Score:
    """A corpus score.

    Attributes:
        score: the number; a percentage but for COMET.
        signature: how it was computed.
        text: the line that the original tool prints for it.
        parts: what it is made of, by name, unrounded.
    """

    score: float
    signature: str
    text: str
    parts: Dict[str, Any]

    def as_json(self) -> Dict[str, Any]:
        """All but ``text``."""
        return {"score": self.score, **self.parts, "signature": self.signature}


def multi_bleu(
    hypotheses: Sequence[bytes], references: Sequence[Sequence[bytes]], lowercase: bool = False, split: bool = False
) -> Score:
    """BLEU as ``multi-bleu.perl`` computes it.

    Where the references are all empty, Moses reports nothing but zeros. Where the hypotheses are, it stops at a
    division by zero; here that is the limit, a score and a brevity penalty of 0.

    Args:
        hypotheses: tokenised lines.
        references: as many lines, once or several times.
        lowercase: lower-case ASCII letters, as ``multi-bleu.perl -lc`` does.
        split: note in the signature that compounds were split.
    """
    for reference in references:
        if len(hypotheses) != len(reference):
            raise ScoringError(f"{len(hypotheses)} hypotheses, but {len(reference)} references")
    correct, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    sys_len = ref_len = 0
    for hypothesis, *own in zip(hypotheses, *references):
        sys_words, ref_words = words(hypothesis, lowercase), [words(line, lowercase) for line in own]
        sys_len += len(sys_words)
        ref_len += _closest_length(len(sys_words), [len(line) for line in ref_words])
        for n in range(MAX_ORDER):
            counts, limits = _ngrams(sys_words, n + 1), _ngrams(ref_words[0], n + 1)
            for line in ref_words[1:]:
                limits |= _ngrams(line, n + 1)
            total[n] += max(len(sys_words) - n, 0)
            correct[n] += sum(min(count, limits[ngram]) for ngram, count in counts.items() if ngram in limits)
    signature = "nrefs:{}|case:{}|eff:no|tok:none|smooth:none|split:{}|impl:multi-bleu".format(
        len(references), "lc" if lowercase else "mixed", "hyphens" if split else "no"
    )
    return _from_counts(correct, total, sys_len, ref_len, signature)


def _from_counts(correct: List[int], total: List[int], sys_len: int, ref_len: int, signature: str) -> Score:
    names = ("precisions", "bp", "ratio", "sys_len", "ref_len")
    if ref_len == 0:
        text = "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
        return Score(0.0, signature, text, dict(zip(names, ([0.0] * MAX_ORDER, 0.0, 0.0, 0, 0))))
    fractions = [part / whole if whole else 0.0 for part, whole in zip(correct, total)]
    bp = 1.0
    if sys_len < ref_len:
        bp = math.exp(1 - ref_len / sys_len) if sys_len else 0.0
    bleu = 0.0
    if all(fractions):
        logs = [math.log(fraction) for fraction in fractions]
        # Not sum(), which from Python 3.12 on rounds less often than Perl.
        bleu = bp * math.exp((logs[0] + logs[1] + logs[2] + logs[3]) / MAX_ORDER)
    precisions = [100 * fraction for fraction in fractions]
    values = (100 * bleu, *precisions, bp, sys_len / ref_len, sys_len, ref_len)
    text = "BLEU = %.2f, %.1f/%.1f/%.1f/%.1f (BP=%.3f, ratio=%.3f, hyp_len=%d, ref_len=%d)" % values
    return Score(100 * bleu, signature, text, dict(zip(names, (precisions, *values[5:]))))


def words(line: bytes, lowercase: bool) -> List[bytes]:
    """The words of a line as Perl splits it."""
    return (line.lower() if lowercase else line).split()  # bytes: ASCII only, like Perl


def _ngrams(tokens: List[bytes], order: int) -> "Counter[Tuple[bytes, ...]]":
    return Counter(zip(*(tokens[start:] for start in range(order))))


def _closest_length(sys_len: int, ref_lens: List[int]) -> int:
    """The length of the closest reference, of two the shorter; Moses begins at difference 9999 and length 9999."""
    return min([(9999, 9999), *((abs(sys_len - length), length) for length in ref_lens)])[1]


def split_compounds(line: bytes) -> bytes:
    """Splits words at their hyphens: ``Nord-Süd`` becomes ``Nord ##AT##-##AT## Süd``.

    Matches do not overlap, so in ``a-b-c`` only the first hyphen is split; published numbers have it so.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line)
