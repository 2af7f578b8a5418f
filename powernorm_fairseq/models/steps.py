"""What fairseq's trainer knows and the norms need: told to them from the task, the one place that sees it all."""

import logging
from typing import Any, List, Union

from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from powernorm_fairseq.around import around
from powernorm_fairseq.models.penalty import log_penalty, with_penalty
from powernorm_fairseq.norms import BatchStatisticsNorm, kernels, training_step
from powernorm_fairseq.norms.sync import average_over_processes

logger = logging.getLogger(__name__)


def prepare(task: FairseqTask, cfg: Any) -> None:
    """What every model of this package does with the task when it is built from ``cfg``."""
    logger.info("norms run on %s", kernels.describe())
    announce_steps(task)
    if getattr(cfg, "norm_stats", False):
        from powernorm_fairseq.diagnostics.training import record_norm_stats  # nothing of it is there without the flag

        record_norm_stats(task, cfg)


def announce_steps(task: FairseqTask) -> None:
    """Makes ``task`` tell the norms what happens around them.

    - The loss scale of each step, and which batches stand in for missing data. Only the task's ``train_step`` sees the
      optimizer, which has the scale, and the mark of a dummy batch; a model has no other way to learn either.
    - The loss: RBN's penalty goes there.
    - That validation comes next: processes that measured statistics on their own then agree on them, so that it does
      not depend on the process.
    """

    @around(task, "train_step", mark="announces_steps")
    def announcing_step(
        train_step: Any, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int,
        ignore_grad: bool = False, **more: Any,
    ) -> Any:  # fmt: skip
        criterion = with_penalty(criterion, model)
        with training_step(loss_scale=_loss_scale(optimizer), counts=not ignore_grad):
            return train_step(sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **more)

    @around(task, "begin_valid_epoch", mark="announces_steps")
    def agreeing_validation(begin_valid_epoch: Any, epoch: int, model: Any) -> None:
        agree_on_statistics(model)
        begin_valid_epoch(epoch, model)

    log_penalty(task)


def own_statistics(model: nn.Module) -> List[Tensor]:
    """The buffers in which processes may differ: each has measured them on its own batches."""
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm) and not module.sync]
    return [buffer for norm in norms for buffer in norm.buffers()]


def agree_on_statistics(model: nn.Module) -> None:
    """Gives all processes the mean of the running statistics that each has measured on its own batches."""
    average_over_processes(own_statistics(model))


def _loss_scale(optimizer: Any) -> Union[float, Tensor]:
    """The factor that ``optimizer.backward`` puts on the loss."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None:  # full precision, bfloat16
        return 1.0
    if hasattr(scaler, "loss_scale"):  # fairseq's own, --fp16
        return float(scaler.loss_scale)
    if not scaler.is_enabled():  # torch's GradScaler, --amp, where there is no GPU
        return 1.0
    return scaler.get_scale() if scaler._scale is None else scaler._scale  # the tensor: get_scale() waits for the GPU
