"""Paired bootstraps of runs against the baseline's run with the same seed, kept beside the results.

References are text of the data set and leave no machine; so what was computed with them is kept in ``comparisons.json``
and holds as long as the translations are the same.
"""

import hashlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Optional

from scripts import train
from scripts.slurm.table import read_json
from scripts.tables.run import HYPOTHESES, REFERENCES

COMPARISONS = "comparisons.json"
SAMPLES = 1000


class Comparisons:
    """The comparisons of a dataset's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: Dict[str, Any] = read_json(folder / COMPARISONS)

    def get(self, run: str, baseline: str, metric: str) -> Optional[Dict[str, Any]]:
        """The comparison of two runs, computed now if it can be and was not; None if it cannot be."""
        files = [self.folder / name / HYPOTHESES for name in (run, baseline)]
        if not all(file.exists() for file in files):
            return None
        hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        key = f"{run} against {baseline}, {metric}"
        found = self.known.get(key)
        if found is not None and found["hypotheses"] == hashes:
            return found
        reference = self.folder / run / REFERENCES
        if not reference.exists():
            return None
        self.known[key] = {"hypotheses": hashes, **self._compare(run, files, reference, metric)}
        train.write(self.folder / COMPARISONS, self.known)
        return self.known[key]

    def _compare(self, run: str, files: Any, reference: Path, metric: str) -> Dict[str, Any]:
        from powernorm_fairseq import scoring
        from scripts import evaluate  # here, because it takes seconds

        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        result = read_json(self.folder / run / "result.json")
        options = {"lowercase": evaluate.PRESETS[result["dataset"]].lowercase, "lang": result["target_lang"]}
        system, baseline, references = (scoring.Text.read(file) for file in (*files, reference))
        return asdict(scoring.compare(metric, system, baseline, references, samples=SAMPLES, **options))
