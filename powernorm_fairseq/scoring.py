"""From the output of ``fairseq-generate`` to BLEU, as the literature computes it.

Three kinds of BLEU, which :func:`score` returns as one type:

- ``tokenized``: Moses' ``multi-bleu.perl`` on tokenised text, equal to the last printed digit.
- ``compound-split``: the same after splitting compounds at their hyphens, as fairseq's ``compound_split_bleu.sh``.
- ``sacrebleu``: sacreBLEU on detokenised text, with its signature.

Perl reads bytes: it splits words at ASCII blanks only, and lower-cases ASCII letters only. So text is ``bytes`` here
wherever ``multi-bleu.perl`` must be met, and whatever the bytes are, valid UTF-8 or not.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

METRICS = ("tokenized", "compound-split", "sacrebleu")
BPE_KINDS = ("subword-nmt", "sentencepiece")
MAX_ORDER = 4
SENTENCEPIECE_SPACE = "\u2581"


class ScoringError(ValueError):
    """Text that cannot be scored; the message says which and why."""


@dataclass(frozen=True)
class Bleu:
    """A corpus BLEU and its parts; ``score`` and ``precisions`` are percentages.

    ``text`` is the line that the original tool prints for it.
    """

    score: float
    precisions: Tuple[float, ...]
    bp: float
    ratio: float
    sys_len: int
    ref_len: int
    signature: str
    text: str

    def as_json(self) -> Dict[str, Any]:
        """All but ``text``, unrounded."""
        return {
            "score": self.score,
            "precisions": list(self.precisions),
            "bp": self.bp,
            "ratio": self.ratio,
            "sys_len": self.sys_len,
            "ref_len": self.ref_len,
            "signature": self.signature,
        }


@dataclass(frozen=True)
class Text:
    """The lines of a file, without line ends.

    Args:
        name: what error messages call it, usually the path.
        lines: one sentence each. Only a line feed ends a line: other separators (U+2028, carriage return, ...) are
            part of it, or hypotheses and references would fall out of step.
        terminated: whether the last line ends with a line feed.
    """

    name: str
    lines: Tuple[bytes, ...]
    terminated: bool = True

    @classmethod
    def read(cls, path: Union[str, Path]) -> "Text":
        """Reads a file."""
        data = Path(path).read_bytes()
        lines = data.split(b"\n")
        terminated = lines[-1] == b""
        return cls(str(path), tuple(lines[:-1] if terminated else lines), terminated)

    @classmethod
    def of(cls, name: str, lines: Iterable[str]) -> "Text":
        """Text from strings."""
        return cls(name, tuple(line.encode("utf-8", "surrogateescape") for line in lines))

    def as_moses_reads(self) -> List[bytes]:
        """The lines as ``multi-bleu.perl`` has them: it chops the last character, even where that is no line feed."""
        lines = list(self.lines)
        if lines and not self.terminated:
            lines[-1] = lines[-1][:-1]
        return lines

    def as_strings(self) -> List[str]:
        """The lines as strings; invalid UTF-8 is an error that names the line."""
        strings = []
        for number, line in enumerate(self.lines, 1):
            try:
                strings.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                where = "{}, line {}".format(self.name, number)
                raise ScoringError("{}: not valid UTF-8 ({})".format(where, error.reason)) from None
        return strings

    def without_bpe(self, kind: str) -> "Text":
        """The text with its subwords joined; text that has no such subwords stays as it is."""
        if kind == "sentencepiece" and not any(SENTENCEPIECE_SPACE.encode() in line for line in self.lines):
            return self  # whole words already: joining would run them together
        lines = (remove_bpe(line.decode("utf-8", "surrogateescape"), kind) for line in self.lines)
        return Text.of(self.name, lines)


def check_same_length(hypotheses: Text, references: Text) -> None:
    """Raises :class:`ScoringError` unless both have the same number of lines."""
    if len(hypotheses.lines) != len(references.lines):
        raise ScoringError(
            "{} has {} lines, but {} has {}".format(
                hypotheses.name, len(hypotheses.lines), references.name, len(references.lines)
            )
        )


def score(metric: str, hypotheses: Text, references: Text, lowercase: bool = False, lang: str = "en") -> Bleu:
    """Scores hypotheses by one of :data:`METRICS`.

    Args:
        metric: which BLEU.
        hypotheses: tokenised, without BPE.
        references: the same, line for line.
        lowercase: ignore case, as each tool does it.
        lang: language of the text, for the detokeniser.
    """
    check_same_length(hypotheses, references)
    if metric == "sacrebleu":
        return sacre_bleu(detokenize(hypotheses, lang), detokenize(references, lang), lowercase, lang)
    return multi_bleu(*_moses_lines(metric, hypotheses, references), lowercase=lowercase, split=metric != "tokenized")


def _moses_lines(metric: str, *texts: Text) -> List[List[bytes]]:
    """What ``multi-bleu.perl`` is given for a metric."""
    if metric == "tokenized":
        return [text.as_moses_reads() for text in texts]
    if metric == "compound-split":
        return [[split_compounds(line) for line in text.lines] for text in texts]
    raise ValueError("metric={!r} is not known; choose from {}".format(metric, ", ".join(METRICS)))


def multi_bleu(
    hypotheses: Sequence[bytes], references: Sequence[bytes], lowercase: bool = False, split: bool = False
) -> Bleu:
    """BLEU as ``multi-bleu.perl`` computes it, with one reference for each hypothesis.

    Where the references are all empty, Moses reports nothing but zeros. Where the hypotheses are, it stops at a
    division by zero; here that is the limit, a score and a brevity penalty of 0.

    Args:
        hypotheses: tokenised lines.
        references: as many.
        lowercase: lower-case ASCII letters, as ``multi-bleu.perl -lc`` does.
        split: note in the signature that compounds were split.
    """
    if len(hypotheses) != len(references):
        raise ScoringError("{} hypotheses, but {} references".format(len(hypotheses), len(references)))
    correct, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    sys_len = ref_len = 0
    for hypothesis, reference in zip(hypotheses, references):
        sys_words, ref_words = _words(hypothesis, lowercase), _words(reference, lowercase)
        sys_len += len(sys_words)
        ref_len += _moses_reference_length(len(sys_words), len(ref_words))
        for n in range(MAX_ORDER):
            counts, limits = _ngrams(sys_words, n + 1), _ngrams(ref_words, n + 1)
            total[n] += max(len(sys_words) - n, 0)
            correct[n] += sum(min(count, limits[ngram]) for ngram, count in counts.items() if ngram in limits)
    signature = "nrefs:1|case:{}|eff:no|tok:none|smooth:none|split:{}|impl:multi-bleu".format(
        "lc" if lowercase else "mixed", "hyphens" if split else "no"
    )
    if ref_len == 0:
        text = "BLEU = 0, 0/0/0/0 (BP=0, ratio=0, hyp_len=0, ref_len=0)"
        return Bleu(0.0, (0.0,) * MAX_ORDER, 0.0, 0.0, 0, 0, signature, text)
    fractions = [part / whole if whole else 0.0 for part, whole in zip(correct, total)]
    bp = 1.0
    if sys_len < ref_len:
        bp = math.exp(1 - ref_len / sys_len) if sys_len else 0.0
    bleu = 0.0
    if all(fractions):
        logs = [math.log(fraction) for fraction in fractions]
        # Not sum(), which from Python 3.12 on rounds less often than Perl.
        bleu = bp * math.exp((logs[0] + logs[1] + logs[2] + logs[3]) / MAX_ORDER)
    values = (100 * bleu, *(100 * fraction for fraction in fractions), bp, sys_len / ref_len, sys_len, ref_len)
    text = "BLEU = %.2f, %.1f/%.1f/%.1f/%.1f (BP=%.3f, ratio=%.3f, hyp_len=%d, ref_len=%d)" % values
    return Bleu(values[0], values[1:5], bp, sys_len / ref_len, sys_len, ref_len, signature, text)


def _words(line: bytes, lowercase: bool) -> List[bytes]:
    return (line.lower() if lowercase else line).split()  # bytes: ASCII only, like Perl


def _ngrams(words: List[bytes], order: int) -> "Counter[Tuple[bytes, ...]]":
    return Counter(zip(*(words[start:] for start in range(order))))


def _moses_reference_length(sys_len: int, ref_len: int) -> int:
    """The length of the closest reference; Moses starts its search at difference 9999 and length 9999."""
    difference = abs(sys_len - ref_len)
    return ref_len if difference < 9999 or (difference == 9999 and ref_len < 9999) else 9999


def split_compounds(line: bytes) -> bytes:
    """Splits words at their hyphens: ``Nord-Süd`` becomes ``Nord ##AT##-##AT## Süd``.

    Matches do not overlap, so in ``a-b-c`` only the first hyphen is split; published numbers have it so.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line)


def remove_bpe(line: str, kind: str) -> str:
    """Joins the subwords of a line, one of :data:`BPE_KINDS`."""
    if kind == "subword-nmt":
        return (line + " ").replace("@@ ", "").rstrip(" ")
    if kind == "sentencepiece":
        return line.replace(" ", "").replace(SENTENCEPIECE_SPACE, " ").strip(" ")
    raise ValueError("bpe={!r} is not known; choose from {}".format(kind, ", ".join(BPE_KINDS)))


def find_bpe_kind(words: Iterable[str]) -> Optional[str]:
    """Which subwords these are, by majority, or None where they are whole words."""
    counts: "Counter[str]" = Counter()
    for word in words:
        counts["subword-nmt"] += word.endswith("@@")
        counts["sentencepiece"] += word.startswith(SENTENCEPIECE_SPACE)
    kind = max(BPE_KINDS, key=lambda name: counts[name])
    return kind if counts[kind] else None


def detokenize(text: Text, lang: str = "en") -> List[str]:
    """Undoes Moses tokenisation, XML escapes and hyphen splitting (``@-@``) included."""
    try:
        from sacremoses import MosesDetokenizer
    except ImportError:
        raise ScoringError("sacremoses is not installed; the metric sacrebleu needs it to detokenise") from None
    detokenizer = MosesDetokenizer(lang=lang)
    return [detokenizer.detokenize(line.split()) for line in text.as_strings()]


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False, lang: str = "") -> Bleu:
    """BLEU as sacreBLEU computes it from detokenised text.

    Args:
        hypotheses: detokenised lines.
        references: as many.
        lowercase: ignore case.
        lang: language of the text; sacreBLEU has tokenisers of their own for a few.
    """
    if not hypotheses:
        raise ScoringError("there are no lines to score; sacrebleu is not defined then")
    metric = _sacrebleu().BLEU(lowercase=lowercase, trg_lang=lang)
    result = metric.corpus_score(hypotheses, [references])
    signature = metric.get_signature().format()
    return Bleu(
        score=result.score,
        precisions=tuple(result.precisions),
        bp=result.bp,
        ratio=result.ratio,
        sys_len=result.sys_len,
        ref_len=result.ref_len,
        signature=signature,
        text=result.format(signature=signature),
    )


def _sacrebleu() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError:
        raise ScoringError("sacrebleu is not installed") from None
    return sacrebleu.metrics


@dataclass(frozen=True)
class Comparison:
    """A paired bootstrap of one metric: scores with the half-width of their 95 % confidence intervals."""

    score: float
    mean: float
    ci: float
    baseline_score: float
    baseline_mean: float
    baseline_ci: float
    p_value: float
    samples: int

    @property
    def text(self) -> str:
        """One line."""
        ours = "{:.2f} ({:.2f} +/- {:.2f})".format(self.score, self.mean, self.ci)
        theirs = "{:.2f} ({:.2f} +/- {:.2f})".format(self.baseline_score, self.baseline_mean, self.baseline_ci)
        how = "paired bootstrap, {} samples".format(self.samples)
        return "{} against baseline {}, p = {:.4f}; {}".format(ours, theirs, self.p_value, how)


def compare(
    metric: str,
    hypotheses: Text,
    baseline: Text,
    references: Text,
    lowercase: bool = False,
    lang: str = "en",
    samples: int = 1000,
) -> Comparison:
    """Compares two systems by sacreBLEU's own paired bootstrap.

    For the Moses metrics, sacreBLEU resamples the very words that ``multi-bleu.perl`` counts.

    Args:
        metric: one of :data:`METRICS`.
        hypotheses: the system.
        baseline: the system it is compared with.
        references: of both.
        lowercase: ignore case.
        lang: language of the text, for the detokeniser.
        samples: how many resamplings.
    """
    check_same_length(hypotheses, references)
    check_same_length(baseline, references)
    if not references.lines:
        raise ScoringError("there are no lines to compare")
    if metric == "sacrebleu":
        scorer = _sacrebleu().BLEU(lowercase=lowercase, trg_lang=lang)
        base, system, reference = (detokenize(text, lang) for text in (baseline, hypotheses, references))
    else:
        scorer = _sacrebleu().BLEU(tokenize="none", smooth_method="none", force=True)
        base, system, reference = _word_numbers(_moses_lines(metric, baseline, hypotheses, references), lowercase)
    from sacrebleu.significance import PairedTest

    systems = [("baseline", base), ("system", system)]
    _, results = PairedTest(systems, {"BLEU": scorer}, [reference], test_type="bs", n_samples=samples)()
    theirs, ours = results["BLEU"]
    return Comparison(
        *(float(value) for value in (ours.score, ours.mean, ours.ci, theirs.score, theirs.mean, theirs.ci)),
        # sacreBLEU counts resampled differences above the real one: without any difference, 0 of them, "significant".
        p_value=1.0 if ours.score == theirs.score else float(ours.p_value),
        samples=samples,
    )


def _word_numbers(texts: Iterable[List[bytes]], lowercase: bool) -> List[List[str]]:
    """Replaces words by numbers: sacreBLEU would split at Unicode blanks, which are no blanks to Perl."""
    numbers: Dict[bytes, str] = {}
    return [
        [" ".join(numbers.setdefault(word, str(len(numbers))) for word in _words(line, lowercase)) for line in text]
        for text in texts
    ]


def parse_generate_log(
    lines: Iterable[str], name: str = "the log", count: Optional[int] = None
) -> Tuple[List[str], List[str]]:
    """Hypotheses and references from the output of ``fairseq-generate``, in corpus order.

    fairseq writes them batch by batch, in order of length. Of an n-best list, the first (best) counts.

    Args:
        lines: the output, line by line; all but ``H-`` and ``T-`` lines are ignored.
        name: what error messages call it.
        count: how many sentences there must be; without it, as many as the highest number says.

    Returns:
        As many hypotheses as references, subwords and all.
    """
    hypotheses: Dict[int, str] = {}
    references: Dict[int, str] = {}
    for line in lines:
        hypothesis = re.match(r"H-(\d+)\t[^\t]*\t(.*)", line, re.DOTALL)
        reference = re.match(r"T-(\d+)\t(.*)", line, re.DOTALL)
        if hypothesis:
            hypotheses.setdefault(int(hypothesis.group(1)), hypothesis.group(2).rstrip("\n"))
        elif reference:
            references[int(reference.group(1))] = reference.group(2).rstrip("\n")
    if not hypotheses:
        raise ScoringError("{} has no hypotheses (H- lines)".format(name))
    expected = range(max(max(hypotheses), max(references, default=0)) + 1 if count is None else count)
    for kind, found in (("hypothesis", hypotheses), ("reference", references)):
        missing = [number for number in expected if number not in found]
        if missing:
            raise ScoringError("{} has no {} for sentence {}".format(name, kind, missing[0]))
    return [hypotheses[number] for number in expected], [references[number] for number in expected]
