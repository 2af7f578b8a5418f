"""COMET by ``unbabel-comet``, which is an extra: a model of gigabytes that the user has, or lets it fetch."""

import os
from typing import Sequence

from powernorm_fairseq.scoring.multi_bleu import Score
from powernorm_fairseq.scoring.text import ScoringError

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"


def comet(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], model: str) -> Score:
    """The system score of a COMET model.

    Args:
        sources: lines of the source language, as published.
        hypotheses: detokenised translations.
        references: as many.
        model: a checkpoint file, or the name of a published model.
    """
    try:
        import comet as package
    except ImportError:
        raise ScoringError("the metric comet needs unbabel-comet: pip install unbabel-comet") from None
    try:
        path = model if os.path.exists(model) else package.download_model(model)
        scorer = package.load_from_checkpoint(path)
    except Exception as error:  # whatever the hub or the checkpoint throws
        raise ScoringError(f"the COMET model {model!r} cannot be loaded: {error}") from None
    import torch

    data = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in zip(sources, hypotheses, references)]
    output = scorer.predict(data, batch_size=8, gpus=1 if torch.cuda.is_available() else 0)
    name = os.path.basename(model.rstrip("/"))
    score = float(output.system_score)
    signature = "nrefs:1|model:{}|version:{}".format(name, getattr(package, "__version__", "unknown"))
    text = f"COMET|{signature} = {score:.4f}"
    return Score(score, signature, text, {"segments": [float(value) for value in output.scores]})
