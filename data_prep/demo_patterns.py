"""The table of sentence patterns, and drawing one sentence pair from it."""

from __future__ import annotations

from typing import Callable, Tuple

from data_prep import demo_complex_sentences as complex_sentences
from data_prep import demo_simple_sentences as simple_sentences
from data_prep.demo_clauses import AmbiguousError, Sentence, finish
from data_prep.demo_draw_clauses import Composer

Pair = Tuple[str, str]

PATTERNS: Tuple[Tuple[Callable[[Composer], Sentence], float], ...] = (
    (simple_sentences.statement, 40),
    (simple_sentences.yes_no_question, 6),
    (simple_sentences.subject_question, 3),
    (simple_sentences.object_question, 3),
    (simple_sentences.adverb_question, 3),
    (simple_sentences.which_question, 2),
    (simple_sentences.command, 4),
    (complex_sentences.because, 5),
    (complex_sentences.conditional, 3),
    (complex_sentences.meanwhile, 3),
    (complex_sentences.after, 2),
    (complex_sentences.purpose, 4),
    (complex_sentences.so_that, 1.5),
    (complex_sentences.that, 4),
    (complex_sentences.whether, 3),
    (complex_sentences.to_do, 3),
    (complex_sentences.judgement, 2),
    (complex_sentences.relative_subject, 5),
    (simple_sentences.describing, 5),
    (simple_sentences.comparison, 3),
    (simple_sentences.superlative, 1.5),
    (complex_sentences.coordination, 3),
    (complex_sentences.contrast, 1.5),
    (complex_sentences.sequence, 3),
    (simple_sentences.existence, 2),
    (simple_sentences.liking, 2),
    (simple_sentences.belonging, 1.5),
    (simple_sentences.passive, 4),
    (simple_sentences.schedule, 2),
    (complex_sentences.unreal, 2),
    (simple_sentences.since, 1.5),
    (simple_sentences.amount, 2),
    (simple_sentences.profession, 1.5),
    (simple_sentences.growing, 1),
    (simple_sentences.forecast, 1),
)


def sentence(composer: Composer) -> Pair:
    """Draw one sentence pair; a draw that could be read in two ways is thrown away."""
    while True:
        try:
            german, english, end = composer.weighted(PATTERNS)(composer)
        except AmbiguousError:
            continue
        return finish(german, end), finish(english, end)
