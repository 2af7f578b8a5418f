"""Hypotheses and references from the output of ``fairseq-generate``."""

import re
from typing import Dict, Iterable, List, Optional, Tuple

from powernorm_fairseq.scoring.text import ScoringError


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
        raise ScoringError(f"{name} has no hypotheses (H- lines)")
    expected = range(max(max(hypotheses), max(references, default=0)) + 1 if count is None else count)
    for kind, found in (("hypothesis", hypotheses), ("reference", references)):
        missing = [number for number in expected if number not in found]
        if missing:
            raise ScoringError(f"{name} has no {kind} for sentence {missing[0]}")
    return [hypotheses[number] for number in expected], [references[number] for number in expected]
