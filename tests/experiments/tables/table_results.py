"""Folders of finished runs as reproduce.py leaves them, written here: numbers are made up."""

import json
import math
from pathlib import Path
from typing import Dict, Optional, Sequence

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def result(
    dataset: str, norm: str, seed: int, bleu: Optional[float], ppl: float = 4.8, variant: str = "", label: str = "",
    updates: int = 2700, **changes: object,
) -> Dict:  # fmt: skip
    """A result.json with curves that fall to ``ppl``."""
    valid, train = [], []
    for epoch in range(1, 21):
        value = ppl + 40 * math.exp(-epoch / 2)
        loss = math.log2(value) + 1.5
        valid.append({"update": epoch * updates // 20, "epoch": epoch, "loss": loss, "ppl": value})
        train.append({"update": epoch * updates // 20, "epoch": epoch, "loss": loss - 0.2, "ppl": 0.9 * value})
    scores = {}
    if bleu is not None:
        scores = {
            "tokenized": {"score": bleu, "signature": "nrefs:1|case:mixed|impl:multi-bleu"},
            "sacrebleu": {"score": bleu + 0.3, "signature": SIGNATURE},
        }
    content = {
        "format": 1,
        "run": "-".join(part for part in (norm, variant, f"seed{seed}") if part),
        "dataset": dataset,
        "norm": norm,
        "variant": variant,
        "label": label or norm.upper(),
        "seed": seed,
        "changes": {"--update-freq": ["8"]} if variant.startswith("tokens") else {},
        "length": {"--max-epoch": ["20"]},
        "command": f"/home/someone/checkout/scripts/train.sh --data /home/someone/data/{dataset}/bin",
        "configuration": {"--lr": ["0.005"], "--encoder-norm": [norm], "--adam-betas": ["(0.9, 0.98)"]},
        "git_revision": "0123456789abcdef0123456789abcdef01234567",
        "environment": {
            "host": "secret-host",
            "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
            "python": "3.11.7 (/home/someone/checkout/.venv/bin/python3)",
            "packages": {"torch": "2.13.0+cpu", "sacrebleu": "2.6.0"},
            "processor": "AMD EPYC",
            "cores": 2,
            "gpus": [],
            "processes": {"all": 1, "meet_at": "secret-host:1"},
            "variables": {
                "OMP_NUM_THREADS": "1",
                "LD_PRELOAD": "/home/someone/libtuned.so",
                "SLURM_NODELIST": "secret-host",
            },
        },
        "parameters": 1513472,
        "updates": updates,
        "epochs": 20,
        "seconds": 3120.0,
        "words_per_second": 4000.0 if norm == "ln" else 3700.0,
        "updates_per_second": 1.2,
        "peak_memory": 830 * 2**20,
        "best_valid": valid[-1],
        "curves": {"train": train, "valid": valid},
        "scores": scores,
        "decoding": {"beam": 5, "lenpen": 1.0, "sentences": 3} if scores else {},
        "target_lang": "en",
    }
    return {**content, **changes}


def write_run(folder: Path, content: Dict, hypotheses: Sequence[str] = (), references: Sequence[str] = ()) -> Path:
    """A run's folder with a result, translations, and the log of a training."""
    run = folder / content["run"]
    (run / "checkpoints").mkdir(parents=True)
    (run / "result.json").write_text(json.dumps(content))
    for name, lines in (("hyp.txt", hypotheses), ("ref.txt", references)):
        if lines:
            (run / name).write_text("".join(line + "\n" for line in lines))
    return run


def write_data(folder: Path) -> Path:
    """The files of binarised data that are looked at before a training starts, with nothing in them."""
    folder.mkdir()
    for name in ("dict.de.txt", "dict.en.txt"):
        (folder / name).write_text("a 1\n")
    for split in ("train", "valid"):
        for language in ("de", "en"):
            for end in ("bin", "idx"):
                (folder / f"{split}.de-en.{language}.{end}").write_text("x")
    return folder
