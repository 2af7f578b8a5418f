"""A tiny training as fairseq's configuration, and the comparison of what two trainings have saved."""

import copy
from pathlib import Path
from typing import Any, Dict, List

import torch

from powernorm_fairseq.safe_load import load_checkpoint
from tests.faults.programs import NO_FAULT, Fault, Run
from tests.models.training import NO_STATE, RECIPE, SMALL, USER_DIR, config

# Two epochs; a save after each third update and each epoch, with a best and a last copy, and old ones to delete.
UPDATES = 20
FLAGS = (
    "--encoder-layers 1 --decoder-layers 1 --dropout 0.1 --attention-dropout 0.1 --save-interval-updates 3 "
    "--keep-interval-updates 2 --keep-last-epochs 1 --log-format simple --log-interval 1000"
).split()


class Training:
    """A training that can be started in many folders; parsing fairseq's flags takes longer than training."""

    def __init__(self, data: Path, *flags: Any) -> None:
        argv = [str(data), "--user-dir", USER_DIR, "--arch", "powernorm_tiny", *SMALL, *RECIPE, *FLAGS]
        argv += ["--max-update", str(UPDATES), *map(str, flags)]
        self.cfg = config(argv)

    def run(self, folder: Path, fault: Fault = NO_FAULT, rank: int = 0) -> Run:
        """The run that saves in ``folder``; log and journal lie beside it."""
        cfg = copy.deepcopy(self.cfg)
        cfg.checkpoint.save_dir = str(folder)
        cfg.distributed_training.distributed_rank = rank
        log, journal = (folder.with_name(f"{folder.name}.{rank}.{kind}") for kind in ("log", "journal"))
        return Run("train", cfg, folder, log, journal, fault)


def checkpoint(path: Path) -> Dict[str, Any]:
    """All that a checkpoint says of a training, without the clock, the paths and the number of resumes."""
    state = load_checkpoint(path)
    state["model"] = {key: value for key, value in state["model"].items() if not NO_STATE.search(key)}
    state["optimizer_history"] = state["optimizer_history"][-1]
    for timed in ("metrics", "previous_training_time"):
        del state["extra_state"][timed]
    del state["cfg"]
    return state


def differences(ours: Any, theirs: Any, name: str = "") -> List[str]:
    """Where two checkpoints differ in a bit."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        same = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.equal(theirs)
        return [] if same else [name]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            return [f"{name}: {sorted(map(str, ours.keys() ^ theirs.keys()))}"]
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{name}.{key}")]
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs):
        return [line for i in range(len(ours)) for line in differences(ours[i], theirs[i], f"{name}.{i}")]
    return [] if type(ours) is type(theirs) and ours == theirs else [f"{name}: {ours!r} != {theirs!r}"]


def assert_same_files(ours: Path, theirs: Path) -> None:
    """Two folders hold the same files, and each checkpoint is the same to the last bit."""
    names = sorted(path.name for path in theirs.iterdir())
    assert sorted(path.name for path in ours.iterdir()) == names
    assert "checkpoint_last.pt" in names
    for name in names:
        found = differences(checkpoint(ours / name), checkpoint(theirs / name), name)
        assert not found, "\n".join(found)


def data_order(journal: List[str]) -> Dict[str, str]:
    """The data of each update."""
    return dict(line.split()[1:] for line in journal if line.startswith("update "))
