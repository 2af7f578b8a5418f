"""``--norm-stats``: probes on the norms of a fairseq training, their numbers in its log and in a file beside it."""

import functools
import logging
import math
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import torch.distributed as dist
from fairseq.logging import metrics as fairseq_metrics
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf
from torch import Tensor, nn

from powernorm_fairseq.around import around
from powernorm_fairseq.diagnostics.hooks import Numbers, Probes
from powernorm_fairseq.diagnostics.storage import FILE, Layer, Writer

logger = logging.getLogger(__name__)

# What fairseq's log shows, by whether the norm centres: a number of the probes, and how layers are put together.
SHOWN_CENTRED = {"dist_mu": "mean", "dist_var": "mean", "g_mu": "mean", "g_var": "mean"}
SHOWN_PLAIN = {"dist_psi2": "mean", "g_psi2": "mean", "gamma_psi_max": "max", "nu_max": "max"}


def record_norm_stats(task: FairseqTask, cfg: Any) -> None:
    """Makes ``task`` record what the norms of the model it trains do.

    One process records, the first, and its own batches. Of an update with accumulated gradients it is the first
    mini-batch that has data. Gradients are in units of fairseq's loss: the sum over the target tokens of the
    mini-batch, without the loss scale; divided by the record's ``sample_size`` they are those of the mean.

    Args:
        task: whose training it is.
        cfg: the model's settings, a part of the training's whole configuration; outside of a training nothing happens.
    """
    if cfg.norm_stats_interval < 1:
        raise ValueError(f"--norm-stats-interval {cfg.norm_stats_interval} is too small; it must be at least 1")
    training = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    if training is None or "checkpoint" not in training or getattr(task.train_step, "records_norms", False):
        return
    recorder = Recorder(Path(training.checkpoint.save_dir), cfg.norm_stats_interval)
    post_validate = getattr(task, "post_validate", None)

    @around(task, "train_step", mark="records_norms")
    def recorded_step(
        train_step: Any, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int,
        ignore_grad: bool = False, **more: Any,
    ) -> Any:  # fmt: skip
        recorder.begin_step(model, update_num + 1, stands_in=ignore_grad)
        output = train_step(sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **more)
        loss, sample_size, _ = output
        scaled = getattr(optimizer, "scaler", None) is not None
        recorder.end_step(loss, sample_size, scaled, epoch=functools.partial(_epoch, task))
        return output

    @around(task, "valid_step")
    def evaluated_step(valid_step: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.writer is None:  # no training, or not the process that records
            return valid_step(*args, **kwargs)
        with recorder.probes.evaluating():
            return valid_step(*args, **kwargs)

    def after_validation(model: nn.Module, stats: Dict[str, Any], aggregator: Any) -> None:
        if post_validate is not None:
            post_validate(model, stats, aggregator)
        stats.update(recorder.end_validation())

    task.post_validate = after_validation


class Recorder:
    """Decides when the probes listen, and writes what they measured.

    Hooks are on the model at recorded updates, and shortly before them where a probe keeps a running statistic that
    its norm lacks: as many updates as have 95 % of the weight in it. At other updates there are none.

    Args:
        folder: where the file of records lies.
        interval: number of updates between two records.
    """

    def __init__(self, folder: Path, interval: int) -> None:
        self.path = folder / FILE
        self.interval = interval
        self.probes: Optional[Probes] = None
        self.writer: Optional[Writer] = None
        self.update = 0
        self.recorded = 0  # the newest update that has its record
        self.measuring = False
        self.validations = 0  # sets of validation data since the newest update
        self.window = 0
        self.shown: Numbers = {}

    def begin_step(self, model: nn.Module, update: int, stands_in: bool) -> None:
        """Before each mini-batch, of which an update may have several."""
        if self.probes is None:
            self._start(model, update)
        self.update = update
        if self.writer is None:
            return
        self.validations = 0
        updates_to_go = -update % self.interval
        self.measuring = updates_to_go == 0 and update != self.recorded and not stands_in
        if self.measuring:
            self.probes.read()  # nothing of a mini-batch that failed
            self.probes.attach()
        elif updates_to_go <= self.window:
            self.probes.attach(measuring=False)
        else:
            self.probes.detach()

    def end_step(
        self, loss: Tensor, sample_size: Any, scaled: bool, epoch: Callable[[], Optional[float]] = lambda: None
    ) -> None:
        """After each mini-batch.

        Args:
            loss: sum over the tokens of the mini-batch.
            sample_size: number of those.
            scaled: whether the loss has a scale: then a gradient that is not finite means that fairseq will lower it
                and repeat the update with other data, and so does the record.
            epoch: tells how many epochs of the data have been seen, if that is known.
        """
        if not self.measuring:
            return
        self.measuring = False
        ordinal = self.update // self.interval
        rare = ordinal & (ordinal - 1) == 0 or ordinal % 100 == 0
        vectors = self.probes.vectors() if rare else None
        numbers = self.probes.read()
        if scaled and not all(math.isfinite(value) for of_layer in numbers.values() for value in of_layer.values()):
            return
        self.recorded = self.update
        extra = {"loss": loss.item() / float(sample_size), "sample_size": float(sample_size), "epoch": epoch()}
        self._write("train", numbers, vectors, **{name: value for name, value in extra.items() if value is not None})
        self.shown.update(_summary(numbers, self.probes))
        for key in self.shown:
            fairseq_metrics.log_derived(f"norm_{key}", functools.partial(self._latest, key), priority=900)

    def end_validation(self) -> Numbers:
        """After each set of validation data: writes the training-inference discrepancy; returns its mean over norms."""
        numbers = {} if self.writer is None else self.probes.read_evaluation()
        if not numbers:
            return {}
        self._write(f"valid{self.validations or ''}", numbers)
        self.validations += 1
        return {
            f"norm_{key}": _short(_mean([of_layer[key] for of_layer in numbers.values() if key in of_layer]))
            for key in ("tid_mean", "tid_var")
            if any(key in of_layer for of_layer in numbers.values())
        }

    def _start(self, model: nn.Module, update: int) -> None:
        while isinstance(getattr(model, "module", None), nn.Module):
            model = model.module  # wrappers for several processes
        self.probes = Probes(model)
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        if not self.probes.probes:
            logger.warning("--norm-stats: no norm of this model has statistics of a batch, so there are none to record")
            return
        self.window = self.probes.memory
        layers = [
            Layer(name, type(probe.norm).__name__, probe.norm.num_features)
            for name, probe in self.probes.probes.items()
        ]
        self.writer = Writer(self.path, layers, update - 1, interval=self.interval, loss="sum over target tokens")
        logger.info("norm statistics of %s norms, every %s updates: %s", len(layers), self.interval, self.path)

    def _write(self, kind: str, numbers: Dict[str, Numbers], vectors: Any = None, **extra: float) -> None:
        try:
            self.writer.write(self.update, kind, numbers, vectors, **extra)
        except OSError as error:
            logger.warning("a record of norm statistics is lost and training goes on: %s", error)

    def _latest(self, key: str, meters: Any) -> float:
        return self.shown[key]


def _epoch(task: FairseqTask) -> Optional[float]:
    """Epochs of the training data seen, this batch included, as far as fairseq's iterator over it can be asked."""
    iterator = getattr(task, "dataset_to_epoch_iter", {}).get(task.datasets.get("train"))
    return None if iterator is None else iterator.epoch - 1 + iterator.iterations_in_epoch / len(iterator)


def _summary(numbers: Dict[str, Numbers], probes: Probes) -> Numbers:
    """A few numbers for the log: of what the norms themselves use, over all of them."""
    found: Dict[str, Any] = {}
    for name, of_layer in numbers.items():
        centred = getattr(probes.probes[name].norm, "running_mean", None) is not None
        for key in SHOWN_CENTRED if centred else SHOWN_PLAIN:
            if key in of_layer:
                found.setdefault(key, []).append(of_layer[key])
    how = {**SHOWN_CENTRED, **SHOWN_PLAIN}
    return {key: _short(max(values) if how[key] == "max" else _mean(values)) for key, values in found.items()}


def _mean(values: Any) -> float:
    return sum(values) / len(values)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
