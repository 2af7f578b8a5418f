"""Paired bootstraps of runs against the baseline's run with the same seed, kept beside the results.

References are text of the data set, translations often repeat it, and neither is exported; so what was computed with
them is kept in ``comparisons.json`` and holds as long as the translations have the same hash.
"""

import hashlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from powernorm_fairseq import files
from powernorm_fairseq.experiments.corpora import CORPORA
from powernorm_fairseq.experiments.tables.run import HYPOTHESES, REFERENCES, RESULT
from powernorm_fairseq.files import read_json

COMPARISONS = "comparisons.json"
SAMPLES = 1000
HASH = "translations"  # in an exported result.json


def translations_hash(run: Path) -> Optional[str]:
    """The hash of a run's translations, or the one that was exported in their place; None if it has none."""
    if (run / HYPOTHESES).exists():
        return hashlib.sha256((run / HYPOTHESES).read_bytes()).hexdigest()
    return read_json(run / RESULT).get(HASH)


class Comparisons:
    """The comparisons of a dataset's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: Dict[str, Any] = read_json(folder / COMPARISONS)

    def get(self, run: str, baseline: str, metric: str) -> Optional[Dict[str, Any]]:
        """The comparison of two runs, computed now if it can be and was not; None if it cannot be."""
        hashes = [translations_hash(self.folder / name) for name in (run, baseline)]
        if None in hashes:
            return None
        key = f"{run} against {baseline}, {metric}"
        found = self.known.get(key)
        if found is not None and found["hypotheses"] == hashes:
            return found
        texts = ((run, HYPOTHESES), (baseline, HYPOTHESES), (run, REFERENCES))
        paths = [self.folder / name / text for name, text in texts]
        if not all(path.exists() for path in paths):
            return None
        self.known[key] = {"hypotheses": hashes, **self._compare(run, paths, metric)}
        files.write(self.folder / COMPARISONS, self.known)
        return self.known[key]

    def _compare(self, run: str, paths: Sequence[Path], metric: str) -> Dict[str, Any]:
        from powernorm_fairseq import scoring  # here, because it takes seconds

        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        result = read_json(self.folder / run / RESULT)
        options = {"lowercase": CORPORA[result["dataset"]].lowercase, "lang": result["target_lang"]}
        system, baseline, references = (scoring.Text.read(path) for path in paths)
        return asdict(scoring.Scorer([references], **options).compare(metric, system, baseline, SAMPLES))
