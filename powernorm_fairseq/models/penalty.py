"""RBN's penalty on its way into the loss: with any criterion, in training alone, and into the log as its own number."""

from typing import Any, Tuple

import torch.distributed as dist
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import nn

from powernorm_fairseq.around import around
from powernorm_fairseq.norms import RegularisedBatchNorm, take_penalty

KEY, SAMPLES = "rbn_penalty", "rbn_penalty_samples"  # in the log


class WithPenalty:
    """A criterion that adds the penalty of the model's RBN to its loss; everything else is the criterion's own.

    fairseq sums the loss over tokens and divides the gradient by the sample size, so the penalty counts as often as
    there are samples. In the release recipe it counts once for each mini-batch, however large.
    """

    def __init__(self, criterion: Any, norm: RegularisedBatchNorm) -> None:
        self.criterion, self.released = criterion, norm.recipe == "release"
        several = norm.sync and dist.is_available() and dist.is_initialized()
        self.processes = dist.get_world_size() if several else 1  # each has the penalty of all tokens

    def __call__(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tuple[Any, Any, Any]:
        """The loss with the penalty, sample size, and numbers for the log."""
        take_penalty(model)  # what an aborted step has left
        loss, sample_size, log = self.criterion(model, *args, **kwargs)
        penalty = take_penalty(model)
        if penalty is None:
            return loss, sample_size, log
        log[KEY], log[SAMPLES] = penalty.detach() * sample_size, sample_size  # fairseq adds up numbers of a log
        return loss + penalty * (1 / self.processes if self.released else sample_size), sample_size, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.criterion, name)


def with_penalty(criterion: Any, model: nn.Module) -> Any:
    """The criterion that a training step of ``model`` needs."""
    norm = next((module for module in model.modules() if isinstance(module, RegularisedBatchNorm)), None)
    return criterion if norm is None else WithPenalty(criterion, norm)


def log_penalty(task: FairseqTask) -> None:
    """Makes ``task`` log the penalty, as a mean over samples, where there is one: in training."""

    @around(task, "reduce_metrics", mark="logs_penalty")
    def reduce_with_penalty(reduce_metrics: Any, logging_outputs: Any, criterion: Any) -> None:
        reduce_metrics(logging_outputs, criterion)
        total, samples = (float(sum(log.get(key, 0) for log in logging_outputs)) for key in (KEY, SAMPLES))
        if samples > 0:
            metrics.log_scalar(KEY, total / samples, samples, round=5)
