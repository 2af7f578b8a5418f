"""Probes on the norms of a model, from outside: attach, train, read, detach."""

import inspect
import math
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from powernorm_fairseq.diagnostics import metrics
from powernorm_fairseq.norms import BatchStatisticsNorm, functional
from powernorm_fairseq.norms.context import in_backward, loss_scale, step_counts

Numbers = Dict[str, float]
CHOOSING_DEVICES = ("cpu",)  # where leaving rows out is cheaper than masking them
USUAL_MOMENTUM = 0.1  # of averages kept by a probe, where a torch norm has none
# torch < 2.0 shows hooks the positional arguments alone: there a padding mask must be given by position.
_PARAMETERS = inspect.signature(nn.Module.register_forward_hook).parameters
SEES_KEYWORDS: Dict[str, Any] = {"with_kwargs": True} if "with_kwargs" in _PARAMETERS else {}


def attach(model: nn.Module) -> "Probes":
    """Puts a probe on every norm of ``model`` that has statistics of a batch: this package's and torch's BatchNorm.

    Example::

        probes = attach(model)
        loss_of(model).backward()
        print(probes.read())  # {"encoder.layers.0.final_layer_norm": {"dist_mu": 0.0021, ...}, ...}
    """
    probes = Probes(model)
    probes.attach()
    return probes


class Probes:
    """Probes on the norms of a model; see :func:`attach`.

    What is measured of a training step, for each norm, on the real tokens of this process's batch:

    - ``dist_mu``, ``dist_var``, ``dist_psi2``: dist(mu_B, mu), dist(sigma_B^2, sigma^2) and dist(psi_B^2, psi^2), where
      dist(a, b) = ||a - b|| / d and the running statistics are those before the step. A running statistic that the
      norm does not keep is kept by the probe while it is attached: a moving average with the norm's momentum, divided
      by the sum of its weights.
    - ``g_mu``, ``g_var``, ``g_psi2``: norms of the terms of the gradient, see :func:`.metrics.gradient_norms`, in units
      of the loss whose backward is run, without the loss scale that ``training_step`` announces. For a norm that does
      not use the statistic, what its term would be.
    - ``gamma_psi_*``: quantiles of |gamma| / psi_B over the features.
    - ``Gamma_*``, ``Lambda_*``, ``nu_*`` (PN): smallest, mean and largest Gamma; largest entry and norm (divided by d)
      of Lambda and of the nu that the step began with.
    - ``tokens``: how many were measured.

    Of evaluation: ``tid_mean`` and ``tid_var``, the training-inference discrepancy. The first is missing where
    evaluation subtracts no mean; the second is that of psi where the norm divides by psi.

    The first call of a norm since the last :meth:`read` counts in training, every call in evaluation. The second
    forward of activation checkpointing and batches that stand in for missing data are left out. With ``sync``, too,
    the batch is that of this process, and the gradient's terms are BN's and PN-V's own: without the r of BRN and MABN.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = (BatchStatisticsNorm, _BatchNorm)
        self.probes = {name: _Probe(name, norm) for name, norm in model.named_modules() if isinstance(norm, kinds)}
        self._handles: List[Any] = []

    def attach(self, measuring: bool = True) -> None:
        """Starts listening.

        Args:
            measuring: false to move the averages that the probes keep and do nothing else.
        """
        for probe in self.probes.values():
            probe.measuring = measuring
        if not self._handles:
            for probe in self.probes.values():
                self._handles += [
                    probe.norm.register_forward_pre_hook(probe.before_forward, **SEES_KEYWORDS),
                    probe.norm.register_forward_hook(probe.after_forward, **SEES_KEYWORDS),
                ]

    def detach(self) -> None:
        """Stops listening and forgets the training steps seen; nothing is left on the model."""
        if not self._handles:
            return
        self._remove_hooks()
        for probe in self.probes.values():
            probe.forget_training()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Listens inside this context whether or not attached; what the probes know of the training stays."""
        attached = bool(self._handles)
        before = [probe.measuring for probe in self.probes.values()]
        self.attach()
        try:
            yield
        finally:
            for probe, measuring in zip(self.probes.values(), before):
                probe.measuring = measuring
            if not attached:
                self._remove_hooks()

    @property
    def memory(self) -> int:
        """How many of the latest batches have 95 % of the weight in the averages that the probes keep."""
        momenta = [probe.momentum for probe in self.probes.values() if probe.averages]
        return max((math.ceil(math.log(0.05) / math.log(1 - momentum)) for momentum in momenta), default=0)

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def read(self) -> Dict[str, Numbers]:
        """What was measured since the last call, by the name of the norm; then starts anew."""
        return self._read([probe.take_step() for probe in self.probes.values()])

    def read_evaluation(self) -> Dict[str, Numbers]:
        """Means over all calls in evaluation since the last time, ``batches`` says how many; then starts anew."""
        return self._read([probe.take_evaluation() for probe in self.probes.values()])

    def vectors(self) -> Dict[str, List[float]]:
        """|gamma| / psi_B of every feature, at the training step that :meth:`read` would return."""
        return {name: probe.step.gamma_psi.tolist() for name, probe in self.probes.items() if probe.step is not None}

    def _read(self, taken: List[Dict[str, Tensor]]) -> Dict[str, Numbers]:
        """All numbers by one transfer from their device."""
        flat = [value.double().reshape(()) for numbers in taken for value in numbers.values()]
        values = iter(torch.stack(flat).tolist() if flat else [])
        read = {name: {key: next(values) for key in numbers} for name, numbers in zip(self.probes, taken)}
        return {name: numbers for name, numbers in read.items() if numbers}


class _Step(NamedTuple):
    """What is known of a training step after the forward."""

    gamma_psi: Tensor
    numbers: Dict[str, Tensor]
    psi2: Optional[Tensor]  # PN: squared divisor of the forward
    loss_scale: Optional[Tensor]


class _Average:
    """A moving average of the batches seen so far, divided by the sum of its weights."""

    def __init__(self) -> None:
        self.total: Union[float, Tensor] = 0.0
        self.weight = 0.0

    def move(self, value: Tensor, momentum: float) -> None:
        self.total = (1 - momentum) * self.total + momentum * value
        self.weight = (1 - momentum) * self.weight + momentum

    @property
    def value(self) -> Optional[Tensor]:
        return self.total / self.weight if self.weight > 0 else None


class _Probe:
    """Measures one norm."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        self.name = name
        self.norm = norm
        self.measuring = True
        self.evaluation: Dict[str, Tensor] = {}
        self.forget_training()

    def forget_training(self) -> None:
        self.step: Optional[_Step] = None
        self.hooked = False
        self.gradients: Dict[str, Tensor] = {}
        self.averages = {name: _Average() for name in ("mean", "var", "psi2") if self._running(name) is None}

    def take_step(self) -> Dict[str, Tensor]:
        numbers = {} if self.step is None else {**self.step.numbers, **self.gradients}
        self.step, self.hooked, self.gradients = None, False, {}
        return numbers

    def take_evaluation(self) -> Dict[str, Tensor]:
        totals, self.evaluation = self.evaluation, {}
        return {name: total if name == "batches" else total / totals["batches"] for name, total in totals.items()}

    @torch.no_grad()
    def before_forward(self, norm: nn.Module, args: Tuple[Any, ...], keywords: Optional[Dict[str, Any]] = None) -> None:
        """The pre-hook: measures the batch against the running statistics as they are before the norm moves them."""
        x, mask = _arguments(args, keywords)
        if in_backward() or not step_counts() or x.numel() == 0:
            return
        due = self.measuring and not (norm.training and self.step is not None)
        if not due and not (norm.training and self.averages):
            return
        batch = self._batch(x, mask)
        if not norm.training:
            self._evaluate(batch)
            return
        if due:
            self.step = self._measure(batch)
        for name, average in self.averages.items():
            average.move(self._of_batch(batch, name), self.momentum)

    def after_forward(self, norm: nn.Module, args: Tuple[Any, ...], *keywords_and_output: Any) -> None:
        """The hook: asks autograd for the gradient of the output; with checkpointing, that of the second forward."""
        output = keywords_and_output[-1]
        if norm.training and self.step is not None and not self.hooked and output.requires_grad:
            self.hooked = True
            output.register_hook(self._on_gradient(*_arguments(args, *keywords_and_output[:-1])))

    def _on_gradient(self, x: Tensor, mask: Optional[Tensor]) -> Callable[[Tensor], None]:
        """What to do with the gradient of the output for the input ``x``, which is kept and not copied."""
        kept, version, step = x.detach(), x._version, self.step

        @torch.no_grad()
        def measure(grad: Tensor) -> None:
            if self.step is not step:  # read before the backward
                return
            if kept._version != version:
                raise RuntimeError(f"the input of {self.name} was changed in place; its gradients cannot be measured")
            norm, batch = self.norm, self._batch(kept, mask)
            all_grad = self._as_rows(grad).to(batch.x.dtype)
            if step.loss_scale is not None:
                all_grad = all_grad / step.loss_scale
            grad, _ = _without_padding(all_grad, mask)
            self.gradients = metrics.gradient_norms(batch, grad, norm.weight, norm.eps)
            if step.psi2 is None:
                return
            x, count = batch.x, batch.count
            if norm.recipe == "release":  # padding takes part in these means, where it is finite
                x = self._scaled(self._as_rows(torch.nan_to_num(kept, 0.0, 0.0, 0.0)))
                grad, count = all_grad, batch.positions
            self.gradients.update(_extremes(*metrics.backward_means(x, grad, count, step.psi2, norm.weight, norm.eps)))

        return measure

    def _measure(self, batch: metrics.BatchStatistics) -> _Step:
        norm, numbers = self.norm, {}
        for name, short in (("mean", "dist_mu"), ("var", "dist_var"), ("psi2", "dist_psi2")):
            running = self.averages[name].value if name in self.averages else self._running(name)
            if running is not None:
                numbers[short] = metrics.distance(self._of_batch(batch, name), running.to(batch.x.dtype))
        gamma_psi = metrics.gamma_over_psi(norm.weight, batch.psi2, norm.eps)
        numbers.update({f"gamma_psi_{name}": value for name, value in metrics.quantiles(gamma_psi).items()})
        numbers["tokens"] = batch.count
        nu, psi2 = getattr(norm, "nu", None), None
        if nu is not None:
            numbers.update(nu_norm=metrics.average_norm(nu), nu_max=nu.abs().max())
            own = norm.num_updates + 1 <= norm.warmup_updates
            psi2 = torch.where(own, batch.psi2, norm.running_psi2.to(batch.psi2.dtype))
        return _Step(gamma_psi, numbers, psi2, loss_scale(batch.x.device))

    def _evaluate(self, batch: metrics.BatchStatistics) -> None:
        mean, var, psi2, eps = self._running("mean"), self._running("var"), self._running("psi2"), self.norm.eps
        of_batch = batch.psi2 if var is None else self._of_batch(batch, "var")
        divisor = psi2 if var is None else var
        if divisor is None:
            return  # torch's norm without running statistics: evaluation is as training
        numbers = {"tid_var": metrics.discrepancy_of_divisor(divisor, of_batch, eps)}
        if mean is not None:
            numbers["tid_mean"] = metrics.discrepancy_of_mean(mean, batch, eps)
        numbers["batches"] = torch.ones_like(numbers["tid_var"])
        self.evaluation = {name: self.evaluation.get(name, 0.0) + value for name, value in numbers.items()}

    def _running(self, name: str) -> Optional[Tensor]:
        """The running statistic that the norm keeps itself, if it does."""
        names = {"mean": ("running_mean",), "var": ("running_var",), "psi2": ("running_psi2", "running_chi2")}[name]
        return next((getattr(self.norm, own) for own in names if getattr(self.norm, own, None) is not None), None)

    def _of_batch(self, batch: metrics.BatchStatistics, name: str) -> Tensor:
        """The batch's value of a statistic as the norm's running one counts it: torch's variance is unbiased."""
        value = getattr(batch, name)
        if name == "var" and isinstance(self.norm, _BatchNorm):
            return value * batch.count / (batch.count - 1).clamp(min=1)
        return value

    @property
    def momentum(self) -> float:
        """Weight of a new batch in the averages that the probe keeps."""
        alpha = getattr(self.norm, "alpha_fwd", None)
        return 1 - alpha if alpha is not None else self.norm.momentum or USUAL_MOMENTUM

    @property
    def _counts_padding(self) -> bool:
        """Whether the norm's variance counts padding as tokens at the mean."""
        return hasattr(self.norm, "running_var") and getattr(self.norm, "recipe", "paper") == "release"

    def _batch(self, x: Tensor, mask: Optional[Tensor]) -> metrics.BatchStatistics:
        """What the norm normalises, without what stands at padding."""
        rows, padding = _without_padding(self._as_rows(x), mask)
        positions = x.numel() // rows.shape[1]
        return metrics.BatchStatistics(self._scaled(rows), padding, positions, self._counts_padding)

    def _scaled(self, rows: Tensor) -> Tensor:
        """The layer scale, in float32 or wider, as the norm does it."""
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        groups = getattr(self.norm, "scale_groups", 0)
        return functional.layer_scale(rows, groups, self.norm.eps)[0]

    def _as_rows(self, x: Tensor) -> Tensor:
        """N x C; torch's norms have the features in the second dimension."""
        x = x.detach()
        if isinstance(self.norm, _BatchNorm):
            x = x.movedim(1, -1)
        return x.reshape(-1, x.shape[-1])


def _without_padding(rows: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    """The real rows alone; or, where choosing them would wait for the device, zeros at padding and where that is."""
    if mask is None:
        return rows, None
    if rows.device.type in CHOOSING_DEVICES:
        return rows.index_select(0, (~mask).reshape(-1).nonzero().squeeze(1)), None
    padding = mask.reshape(-1, 1)
    return rows.masked_fill(padding, 0.0), padding


def _arguments(args: Tuple[Any, ...], keywords: Optional[Dict[str, Any]] = None) -> Tuple[Tensor, Optional[Tensor]]:
    """Input and padding mask of a norm's call."""
    named = {**dict(zip(("x", "padding_mask"), args)), **(keywords or {})}
    return named["x"] if "x" in named else named["input"], named.get("padding_mask")


def _extremes(gamma: Tensor, lambda_: Tensor) -> Dict[str, Tensor]:
    return {
        "Gamma_min": gamma.min(),
        "Gamma_mean": gamma.mean(),
        "Gamma_max": gamma.max(),
        "Lambda_norm": metrics.average_norm(lambda_),
        "Lambda_max": lambda_.abs().max(),
    }
