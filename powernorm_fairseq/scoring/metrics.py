"""Every score of a translation, and the paired bootstrap of two."""

import functools
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence

from powernorm_fairseq.scoring.comet import DEFAULT_MODEL, comet
from powernorm_fairseq.scoring.multi_bleu import Score, multi_bleu, split_compounds, words
from powernorm_fairseq.scoring.text import ScoringError, Text

#: Metrics that Moses' multi-bleu.perl computes, and those of sacreBLEU.
_MOSES, _SACREBLEU = ("tokenized", "compound-split"), ("sacrebleu", "chrf", "ter")
METRICS = (*_MOSES, *_SACREBLEU, "comet")
DEFAULT_METRICS = (*_MOSES, "sacrebleu")


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
        ours = f"{self.score:.2f} ({self.mean:.2f} +/- {self.ci:.2f})"
        theirs = f"{self.baseline_score:.2f} ({self.baseline_mean:.2f} +/- {self.baseline_ci:.2f})"
        how = f"paired bootstrap, {self.samples} samples"
        return f"{ours} against baseline {theirs}, p = {self.p_value:.4f}; {how}"


class Scorer:
    """Scores translations against the same references.

    Args:
        references: one text or several, prepared like the hypotheses, without BPE.
        lang: language of the text, for tokenising and detokenising.
        lowercase: ignore case, as each tool does it.
        tokenized: whether hypotheses and references are Moses tokens; otherwise they are plain text, which is
            tokenised where a metric is defined on tokens.
        raw_references: the references as published. The metrics of detokenised text compare with them, and
            ``compound-split`` tokenises them; without them, with the detokenised ``references``.
        source: the source text as published, for COMET.
        model: of COMET, a file or a name.
    """

    def __init__(
        self,
        references: Sequence[Text],
        lang: str = "en",
        lowercase: bool = False,
        tokenized: bool = True,
        raw_references: Sequence[Text] = (),
        source: Optional[Text] = None,
        model: str = DEFAULT_MODEL,
    ) -> None:
        self.references = list(references)
        self.raw_references = list(raw_references)
        self.lang, self.lowercase, self.tokenized = lang, lowercase, tokenized
        self.source, self.model = source, model
        for text in (*references[1:], *raw_references, *([source] if source else [])):
            check_same_length(text, references[0])

    def score(self, metric: str, hypotheses: Text) -> Score:
        """The score of a system by one of :data:`METRICS`."""
        check_same_length(hypotheses, self.references[0])
        if metric in _MOSES:
            references = self._moses_references(metric)
            hypothesis = self._moses(metric, hypotheses)
            return multi_bleu(hypothesis, references, self.lowercase, split=metric == "compound-split")
        if metric not in METRICS:
            raise ValueError("metric={!r} is not known; choose from {}".format(metric, ", ".join(METRICS)))
        if not hypotheses.lines:
            raise ScoringError(f"there are no lines to score; {metric} is not defined then")
        plain = self._plain(hypotheses)
        if metric == "comet":
            if self.source is None:
                raise ScoringError("comet needs the source text as well")
            if len(self._plain_references) > 1:
                raise ScoringError(f"comet takes one reference, not {len(self._plain_references)}")
            return comet(self.source.strings(), plain, self._plain_references[0], self.model)
        return self._sacre_score(self._sacre_metric(metric), plain)

    def compare(self, metric: str, hypotheses: Text, baseline: Text, samples: int = 1000) -> Comparison:
        """Compares two systems by sacreBLEU's own paired bootstrap.

        For the Moses metrics, sacreBLEU resamples the very words that ``multi-bleu.perl`` counts.

        Args:
            metric: one of :data:`METRICS` but ``comet``.
            hypotheses: the system.
            baseline: the system it is compared with.
            samples: how many resamplings.
        """
        for text in (hypotheses, baseline):
            check_same_length(text, self.references[0])
        if not hypotheses.lines:
            raise ScoringError("there are no lines to compare")
        if metric in _MOSES:
            scorer = _sacrebleu().BLEU(tokenize="none", smooth_method="none", force=True)
            texts = [self._moses(metric, text) for text in (baseline, hypotheses)]
            texts += self._moses_references(metric)
            base, system, *references = _word_numbers(texts, self.lowercase)
        elif metric in _SACREBLEU:
            scorer, references = self._sacre_metric(metric), self._plain_references
            base, system = self._plain(baseline), self._plain(hypotheses)
        else:
            raise ScoringError(f"there is no paired bootstrap of {metric}")
        from sacrebleu.significance import PairedTest

        systems: Any = [("baseline", base), ("system", system)]
        results: Any
        _, results = PairedTest(systems, {"metric": scorer}, references, test_type="bs", n_samples=samples)()
        theirs, ours = next(result for name, result in results.items() if name != "System")
        return Comparison(  # type: ignore[misc]
            *map(float, (ours.score, ours.mean, ours.ci, theirs.score, theirs.mean, theirs.ci)),  # type: ignore[arg-type]
            # sacreBLEU counts resampled differences above the real one: without any, 0 of them, "significant".
            p_value=1.0 if ours.score == theirs.score else float(ours.p_value),
            samples=samples,
        )

    def _moses_references(self, metric: str) -> List[Sequence[bytes]]:
        if metric == "compound-split" and self.raw_references:
            return [self._moses(metric, text, raw=True) for text in self.raw_references]
        return [self._moses(metric, text) for text in self.references]

    def _moses(self, metric: str, text: Text, raw: bool = False) -> Sequence[bytes]:
        """What ``multi-bleu.perl`` is given for a metric."""
        if metric == "tokenized" and self.tokenized:
            return text.lines
        lines = tokenize(text.strings() if raw else self._plain(text), self.lang)
        # "-a" of the tokeniser leaves @-@, which the pattern would split once more: hence detokenised, tokenised, split
        return [split_compounds(line) for line in lines] if metric == "compound-split" else lines

    def _plain(self, text: Text) -> List[str]:
        return detokenize(text, self.lang) if self.tokenized else text.strings()

    @property
    def _plain_references(self) -> List[List[str]]:
        if self.raw_references:
            return [text.strings() for text in self.raw_references]
        return [self._plain(text) for text in self.references]

    def _sacre_metric(self, metric: str) -> Any:
        metrics = _sacrebleu()
        if metric == "chrf":
            return metrics.CHRF(lowercase=self.lowercase)
        if metric == "ter":
            return metrics.TER()  # its default, and so the usual one, ignores case
        return metrics.BLEU(lowercase=self.lowercase, trg_lang=self.lang)

    def _sacre_score(self, metric: Any, plain: List[str]) -> Score:
        result = metric.corpus_score(plain, self._plain_references)
        signature = metric.get_signature().format()
        parts: Dict[str, Any] = {}
        if hasattr(result, "precisions"):
            parts = {name: getattr(result, name) for name in ("precisions", "bp", "ratio", "sys_len", "ref_len")}
        return Score(result.score, signature, result.format(signature=signature), parts)


def check_same_length(text: Text, other: Text) -> None:
    """Raises :class:`ScoringError` unless both have the same number of lines."""
    if len(text.lines) != len(other.lines):
        raise ScoringError(f"{text.name} has {len(text.lines)} lines, but {other.name} has {len(other.lines)}")


def tokenize(lines: Iterable[str], lang: str) -> List[bytes]:
    """Moses tokens of plain text, without ``-a``."""
    from data_prep.moses import get_tokenizer

    tokenizer = get_tokenizer(lang)
    return [tokenizer.tokenize(line).encode("utf-8") for line in lines]


def detokenize(text: Text, lang: str = "en") -> List[str]:
    """Undoes Moses tokenisation, XML escapes and hyphen splitting (``@-@``) included."""
    try:
        detokenizer = _detokenizer(lang)
    except ImportError:
        raise ScoringError("sacremoses is not installed; detokenising needs it") from None
    return [detokenizer.detokenize(line.split()) for line in text.strings()]


@functools.lru_cache(maxsize=None)
def _detokenizer(lang: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=lang)


def _sacrebleu() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError:
        raise ScoringError("sacrebleu is not installed") from None
    return sacrebleu.metrics


def _word_numbers(texts: Iterable[Sequence[bytes]], lowercase: bool) -> List[List[str]]:
    """Replaces words by numbers: sacreBLEU would split at Unicode blanks, which are no blanks to Perl."""
    numbers: Dict[bytes, str] = {}
    return [
        [" ".join(numbers.setdefault(word, str(len(numbers))) for word in words(line, lowercase)) for line in text]
        for text in texts
    ]
