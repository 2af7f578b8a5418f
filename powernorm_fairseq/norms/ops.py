"""The norms as torch operators, the one place that decides which implementation serves, and autograd over them.

Every operator exists twice: ``powernorm::NAME``, which C++ serves on a CPU and Triton on a GPU, and
``powernorm::plain_NAME``, which is :mod:`.functional`. Both have the same schema, and nothing above knows which one it
uses. The autograd functions take tensors and settings alone; running statistics are arguments like others.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import Function, Variable

from powernorm_fairseq.norms import functional, kernels, released
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.replay import in_backward
from powernorm_fairseq.norms.sync import Pool
from powernorm_fairseq.norms.training_step import check_scale

_ROWS = "Tensor x, Tensor? padding, int groups, float eps"
_AFFINE = "Tensor? gamma, Tensor? beta"
_SAVED = "Tensor columns, Tensor scales"
_PSI2 = "Tensor(a!) running_psi2, Tensor(b!) num_updates, Tensor? given, bool moves"
_POWER = f"({_ROWS}, {_AFFINE}, float alpha, int warmup, {_PSI2}) -> (Tensor, Tensor, Tensor)"
_POWER_BACKWARD = (
    f"(Tensor dy, {_ROWS}, Tensor? gamma, float alpha, Tensor? loss_scale, {_SAVED}, Tensor(a!) nu, bool moves)"
    " -> (Tensor, Tensor)"
)
SCHEMAS = {
    "statistics": f"({_ROWS}, bool centred) -> Tensor",
    "gradient_sums": f"(Tensor dy, {_ROWS}, Tensor? centre) -> Tensor",
    "evaluate": f"({_ROWS}, {_AFFINE}, Tensor? centre, Tensor? power) -> Tensor",
    "evaluate_backward": f"(Tensor dy, {_ROWS}, Tensor? gamma, Tensor? centre, Tensor? power)"
    " -> (Tensor, Tensor, Tensor)",
    "batch_forward": f"({_ROWS}, {_AFFINE}, float momentum, bool released, int warmup, int rise, "
    "Tensor(a!)? running_mean, Tensor(b!) running_power, Tensor(c!) num_updates, Tensor? given, bool moves)"
    " -> (Tensor, Tensor, Tensor)",
    "batch_backward": f"(Tensor dy, {_ROWS}, Tensor? gamma, bool centred, {_SAVED}, Tensor? given, "
    "Tensor? extra=None) -> (Tensor, Tensor, Tensor)",
    "power_forward": _POWER,
    "power_backward": _POWER_BACKWARD,
    "window_forward": f"({_ROWS}, {_AFFINE}, float momentum, int warmup, Tensor(a!) running_chi2, "
    "Tensor(b!) psi2_window, Tensor(c!) num_updates, Tensor? given, bool moves) -> (Tensor, Tensor, Tensor)",
    "window_backward": f"(Tensor dy, {_ROWS}, Tensor? gamma, Tensor? loss_scale, {_SAVED}, Tensor? given, "
    "Tensor(a!) grad_window, bool moves) -> (Tensor, Tensor, Tensor)",
    "token_forward": f"({_ROWS}, {_AFFINE}, bool centred) -> (Tensor, Tensor)",
    "token_backward": f"(Tensor dy, {_ROWS}, Tensor? gamma, bool centred, Tensor columns) -> (Tensor, Tensor, Tensor)",
}
# What the authors' release does, which has no implementation but the plain one.
RELEASED = {
    "released_statistics": SCHEMAS["statistics"],
    "released_power_forward": _POWER,
    "released_power_backward": _POWER_BACKWARD,
}
NAMES = {"paper": "", "release": "released_"}
# How many columns, and single numbers, an operator leaves for its backward.
_COLUMNS = {"batch": (4, 2), "power": (2, 1), "window": (2, 3), "released_power": (3, 2)}


# ---------------------------------------------------------------- operators


def move(buffers: Sequence[Tensor], new: Sequence[Tensor], count: Tensor, num_updates: MaybeTensor = None) -> None:
    """Moves running statistics, unless there was no token or a value is not finite. Nothing waits for the device."""
    moves = count > 0
    for value in new:  # the largest magnitude tells: NaN is above everything
        moves = moves & (torch.linalg.vector_norm(value, float("inf")) < float("inf"))
    for buffer, value in zip(buffers, new):
        buffer.copy_(torch.where(moves, value.to(buffer.dtype), buffer))
    if num_updates is not None:
        num_updates.add_(moves.to(num_updates.dtype).view(()))


def _plain(name: str) -> Callable[..., Any]:
    """The function behind ``powernorm::plain_NAME``."""
    function: Any = getattr(released if name in RELEASED else functional, name, None)
    buffers = SCHEMAS.get(name, RELEASED.get(name, "")).count("!")
    if buffers == 0:
        return function

    def forward(*args: Any) -> Tuple[Tensor, ...]:
        *outputs, new, count = function(*args[:-1])
        if args[-1]:
            move([buffer for buffer in args[-2 - buffers : -3] if buffer is not None], new, count, args[-3])
        return tuple(outputs)

    def backward(*args: Any) -> Tuple[Tensor, ...]:
        *outputs, new, count = function(*args[:-1])
        if args[-1]:
            move([args[-2]], new, count)
        return tuple(outputs)

    return forward if name.endswith("forward") else backward


def _fake(name: str) -> Callable[..., Any]:
    """The shapes that operator ``name`` returns."""

    def forward(x: Tensor, padding: MaybeTensor, groups: int, *args: Any) -> Any:
        width, dtype = x.shape[-1], functional.statistics_type(x.dtype)
        if name == "evaluate":
            return torch.empty_like(x)
        if name == "statistics":
            return x.new_empty((2 * width + 2) if args[1] else width + 1, dtype=dtype)
        rows = x.numel() // width
        if name == "token_forward":
            return torch.empty_like(x), x.new_empty((2, rows, groups), dtype=dtype)
        columns, numbers = _COLUMNS[name[: -len("_forward")]]
        scales = x.new_empty((rows, groups) if groups else 0, dtype=dtype)
        return torch.empty_like(x), x.new_empty(columns * width + numbers, dtype=dtype), scales

    def backward(dy: Tensor, x: Tensor, *args: Any) -> Any:
        width, dtype = x.shape[-1], functional.statistics_type(x.dtype)
        if name == "gradient_sums":
            return x.new_empty(2 * width, dtype=dtype)
        if name.endswith("power_backward"):
            return torch.empty_like(x), x.new_empty((3, width), dtype=dtype)
        return torch.empty_like(x), x.new_empty(width, dtype=dtype), x.new_empty(width, dtype=dtype)

    return backward if name.endswith("backward") or name == "gradient_sums" else forward


def _on_gpu(name: str) -> Callable[..., Any]:
    """What serves ``powernorm::NAME`` on a GPU; triton is imported at the first call."""
    return lambda *args: kernels.triton_operators()[name](*args)


FAST: Dict[str, Any] = {}  # torch sends them to C++ on a CPU, to Triton on a GPU
# Autograd differentiates the plain evaluation and the plain norms of tokens: they need no operators.
PLAIN: Dict[str, Any] = {name: _plain(name) for name in (*SCHEMAS, *RELEASED) if name[:5] not in ("token", "evalu")}
PLAIN_OPERATORS: Dict[str, Any] = PLAIN  # what a compiled graph calls
COMPILES = hasattr(torch.library, "register_fake")  # torch >= 2.4
_library: Any = torch.library.Library("powernorm", "DEF") if COMPILES else None


def _register() -> None:
    for name, schema in {**SCHEMAS, **RELEASED}.items():
        if name in SCHEMAS:
            _library.define(name + schema)
            _library.impl(name, _on_gpu(name), "CUDA")
            torch.library.register_fake(f"powernorm::{name}", _fake(name), lib=_library)
            FAST[name] = getattr(torch.ops.powernorm, name).default
        if name in PLAIN:
            _library.define(f"plain_{name}{schema}")
            _library.impl(f"plain_{name}", PLAIN[name], "CompositeExplicitAutograd")
            torch.library.register_fake(f"powernorm::plain_{name}", _fake(name), lib=_library)
            PLAIN_OPERATORS[name] = getattr(torch.ops.powernorm, f"plain_{name}").default


def _outside_backward(num_updates: Tensor) -> None:
    """Refuses a compiled forward that is repeated: it would start from the statistics that the first one has moved."""
    if in_backward():
        raise RuntimeError(
            "activation checkpointing cannot repeat a norm that torch.compile has compiled; leave the norm out of the "
            "checkpointing, or do not compile it"
        )


if COMPILES:
    PLAIN_OPERATORS = {}
    _register()
    _library.define("outside_backward(Tensor(a!) num_updates) -> ()")  # "!", or a graph would leave it out
    _library.impl("outside_backward", _outside_backward, "CompositeExplicitAutograd")
    torch.library.register_fake("powernorm::outside_backward", lambda num_updates: None, lib=_library)
    kernels.serving("auto", "cpu")  # loads the C++ operators


def compiling() -> bool:
    """Whether torch.compile or torch.export is reading this code."""
    return COMPILES and torch.compiler.is_compiling()


def implementation(
    kernel: str, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, statistics: MaybeTensor = None
) -> str:
    """``cpp``, ``triton`` or ``plain``, whichever serves the input ``x``: the one place where that is decided."""
    found, types = kernels.serving(kernel, x.device.type)
    served = (
        x.dtype in types
        and (gamma is None or gamma.dtype in types)
        and (beta is None or beta.dtype in types)
        and (statistics is None or statistics.dtype == torch.float32)
    )
    return found if served else "plain"


def operators(name: str) -> Dict[str, Any]:
    """The operators of an implementation."""
    if name == "plain":
        return PLAIN_OPERATORS if compiling() else PLAIN
    return FAST if name == "cpp" or compiling() else kernels.triton_operators()


# ---------------------------------------------------------------- autograd


class _Norm(Function):
    """What the functions below share: the first three inputs are x, gamma and beta."""

    @classmethod
    def call(cls, *args: Any) -> Tensor:
        """``apply`` without torch's look at each argument, which takes a while and serves torch.func's transforms."""
        if compiling() or not COMPILES or torch._C._are_functorch_transforms_active():
            return cls.apply(*args)
        return super(Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def gradients(ctx: Any, gradients: Sequence[Any]) -> Tuple[MaybeTensor, ...]:
        """What a backward returns: a gradient for each parameter there is, in its type, and none for the rest."""
        (dx, of_gamma, of_beta), (gamma, beta) = gradients, ctx.types
        of_gamma = None if gamma is None else of_gamma if of_gamma.dtype is gamma else of_gamma.to(gamma)
        of_beta = None if beta is None else of_beta if of_beta.dtype is beta else of_beta.to(beta)
        return (dx, of_gamma, of_beta, *[None] * (len(ctx.needs_input_grad) - 3))

    @staticmethod
    def differentiable(ctx: Any, function: Callable[..., Any], dy: Any, *inputs: MaybeTensor) -> Any:
        """The same by autograd, from the plain ``function`` of x, gamma and beta: can be differentiated again."""
        wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
        with torch.enable_grad():
            found = iter(torch.autograd.grad(function(*inputs), wanted, dy, create_graph=True))
        grads = [next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs]
        return (*grads, *[None] * (len(ctx.needs_input_grad) - 3))


def _types(gamma: MaybeTensor, beta: MaybeTensor) -> Tuple[Optional[torch.dtype], Optional[torch.dtype]]:
    return None if gamma is None else gamma.dtype, None if beta is None else beta.dtype


def _twice() -> bool:
    """Whether a backward is to be differentiated again (``create_graph=True``)."""
    return torch.is_grad_enabled() and not compiling()


def _refuse_twice(norm: str) -> None:
    if _twice():
        raise RuntimeError(f"the gradient of {norm} cannot be differentiated again; leave out create_graph=True")


class Evaluate(_Norm):
    """Any batch norm by its running statistics, in C++ or Triton."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, kernel: str, groups: int,
        eps: float, centre: MaybeTensor, power: MaybeTensor,
    ) -> Tensor:
        """See :func:`.functional.evaluate`."""
        ctx.save_for_backward(x, gamma, beta, padding)
        ctx.kernel, ctx.types = kernel, _types(gamma, beta)
        ctx.settings, ctx.statistics = (groups, eps), (centre, power)
        return operators(kernel)["evaluate"](x, padding, groups, eps, gamma, beta, centre, power)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, gamma, beta, padding = ctx.saved_tensors

        def again(x: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
            return functional.evaluate(x, padding, *ctx.settings, gamma, beta, *ctx.statistics)  # type: ignore[call-arg]

        if _twice():
            return _Norm.differentiable(ctx, again, dy, x, gamma, beta)
        backward = operators(ctx.kernel)["evaluate_backward"]
        return _Norm.gradients(ctx, backward(dy.contiguous(), x, padding, *ctx.settings, gamma, *ctx.statistics))


class TokenNorm(_Norm):
    """LN, RMS and GN, in C++ or Triton."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, kernel: str, groups: int,
        eps: float, centred: bool,
    ) -> Tensor:
        """See :func:`.functional.token_norm`."""
        y, columns = operators(kernel)["token_forward"](x, padding, groups, eps, gamma, beta, centred)
        ctx.save_for_backward(x, gamma, beta, padding, columns)
        ctx.kernel, ctx.types, ctx.settings, ctx.centred = kernel, _types(gamma, beta), (groups, eps), centred
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, gamma, beta, padding, columns = ctx.saved_tensors

        def again(x: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
            return functional.token_norm(x, padding, *ctx.settings, gamma, beta, ctx.centred)  # type: ignore[call-arg]

        if _twice():
            return _Norm.differentiable(ctx, again, dy, x, gamma, beta)
        backward = operators(ctx.kernel)["token_backward"]
        return _Norm.gradients(
            ctx, backward(dy.contiguous(), x, padding, *ctx.settings, gamma, ctx.centred, columns)
        )


class BatchNorm(_Norm):
    """BN, PN-V and BRN."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor,
        running_mean: MaybeTensor, running_power: Tensor, num_updates: Tensor,
        kernel: str, pool: Optional[Pool], moves: bool, groups: int, eps: float,
        momentum: float, released: bool, warmup: int, rise: int,
    ) -> Tensor:
        """See :func:`.functional.batch_forward`."""
        ops, given = operators(kernel), None
        if pool is not None:
            own = ops["statistics"](x, padding, groups, eps, running_mean is not None)
            given = pool.statistics(own, running_mean)
        state, settings = (running_mean, running_power, num_updates), (momentum, released, warmup, rise)
        y, columns, scales = ops["batch_forward"](
            x, padding, groups, eps, gamma, beta, *settings, *state, given, moves
        )
        ctx.save_for_backward(x, gamma, beta, padding, columns, scales)
        ctx.kernel, ctx.pool, ctx.rows, ctx.types = kernel, pool, (groups, eps), _types(gamma, beta)
        ctx.settings, ctx.state = settings, state
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.batch_backward`."""
        x, gamma, beta, padding, columns, scales = ctx.saved_tensors
        if ctx.settings[-1] >= 0 or ctx.pool is not None:
            _refuse_twice("BRN, or of statistics over several processes,")

        def again(x: Tensor, gamma: MaybeTensor, beta: MaybeTensor) -> Tensor:
            settings: Any = (*ctx.rows, gamma, beta, *ctx.settings, *ctx.state, None)
            return functional.batch_forward(x, padding, *settings)[0]

        if _twice():
            return _Norm.differentiable(ctx, again, dy, x, gamma, beta)
        ops, dy, centred, given = operators(ctx.kernel), dy.contiguous(), ctx.state[0] is not None, None
        if ctx.pool is not None:
            centre = columns[: x.shape[-1]] if centred else None
            own = ops["gradient_sums"](dy, x, padding, *ctx.rows, centre)
            given = ctx.pool.total(own)
        return _Norm.gradients(
            ctx, ops["batch_backward"](dy, x, padding, *ctx.rows, gamma, centred, columns, scales, given)
        )


class PowerNorm(_Norm):
    """PN. A graph gives one gradient: a second backward repeats the first and moves nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor,
        running_psi2: Tensor, num_updates: Tensor, nu: Tensor, loss_scale: MaybeTensor,
        kernel: str, pool: Optional[Pool], moves: bool, counts: bool, groups: int, eps: float,
        alpha_fwd: float, alpha_bwd: float, warmup: int, recipe: str,
    ) -> Tensor:
        """See :func:`.functional.power_forward`. ``counts``: whether the backward moves nu."""
        ops, name, given = operators(kernel), NAMES[recipe], None
        late = pool is not None and warmup == 0 and recipe == "paper"  # the output needs no statistics of this batch
        if pool is not None and not late:
            given = pool.total(ops[name + "statistics"](x, padding, groups, eps, False))
        y, columns, scales = ops[name + "power_forward"](
            x, padding, groups, eps, gamma, beta, alpha_fwd, warmup, running_psi2, num_updates, given,
            moves and not late,
        )
        ctx.sums = None
        if pool is not None and late:

            def move_psi2(sums: Tensor) -> None:
                psi2 = functional.mean(sums[:-1], sums[-1])
                move([running_psi2], [torch.lerp(running_psi2, psi2, 1 - alpha_fwd)], sums[-1:], num_updates)

            _, psi2, count = columns.split([x.shape[-1], x.shape[-1], 1])
            ctx.sums = pool.start(torch.cat([psi2 * count, count]), move_psi2 if moves else None)
        ctx.save_for_backward(x, gamma, padding, columns, scales)
        ctx.rows, ctx.settings = (groups, eps), (alpha_bwd, counts, name)
        ctx.kernel, ctx.pool, ctx.types = kernel, pool, _types(gamma, beta)
        ctx.nu, ctx.loss_scale, ctx.used_nu = nu, loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.power_backward`."""
        _refuse_twice("PN")
        x, gamma, padding, columns, scales = ctx.saved_tensors
        (alpha, moves, name), nu, loss_scale, pool = ctx.settings, ctx.nu, ctx.loss_scale, ctx.pool
        if not compiling():  # a compiled graph refuses a second backward by itself
            check_scale(loss_scale)
            if ctx.used_nu is not None:
                nu, moves = ctx.used_nu, False
        if ctx.sums is not None:
            sums = ctx.sums.wait()
            columns = torch.cat([columns[: x.shape[-1]], functional.mean(sums[:-1], sums[-1]), sums[-1:]])
        dx, found = operators(ctx.kernel)[name + "power_backward"](
            dy.contiguous(), x, padding, *ctx.rows, gamma, alpha, loss_scale, columns, scales, nu,
            moves and pool is None,
        )
        of_gamma, of_beta, used_nu = found.unbind()
        if not compiling():
            ctx.used_nu = used_nu
        if pool is not None and moves:

            def move_nu(sums: Tensor) -> None:
                new = functional.next_nu(nu, gamma, sums, columns, alpha, loss_scale)
                move([nu], [new], columns[-1:])

            pool.start(of_gamma.clone(), move_nu)
            Variable._execution_engine.queue_callback(pool.settle)
        if ctx.types[0] is ctx.types[1] is not found.dtype and gamma is not None:
            of_gamma, of_beta = found[:2].to(ctx.types[0])  # one conversion for both
        return _Norm.gradients(ctx, (dx, of_gamma, of_beta))


class WindowNorm(_Norm):
    """MABN. As with PN, a second backward repeats the first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor,
        running_chi2: Tensor, psi2_window: Tensor, num_updates: Tensor, grad_window: Tensor, loss_scale: MaybeTensor,
        kernel: str, pool: Optional[Pool], moves: bool, counts: bool, groups: int, eps: float,
        momentum: float, warmup: int,
    ) -> Tensor:
        """See :func:`.functional.window_forward`. ``counts``: whether the backward moves its window."""
        ops, given = operators(kernel), None
        if pool is not None:
            given = pool.total(ops["statistics"](x, padding, groups, eps, False))
        y, columns, scales = ops["window_forward"](
            x, padding, groups, eps, gamma, beta, momentum, warmup, running_chi2, psi2_window, num_updates, given, moves
        )
        ctx.save_for_backward(x, gamma, padding, columns, scales)
        ctx.rows, ctx.counts, ctx.kernel, ctx.pool, ctx.types = (groups, eps), counts, kernel, pool, _types(gamma, beta)
        ctx.window, ctx.loss_scale, ctx.used_window = grad_window, loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.window_backward`."""
        _refuse_twice("MABN")
        x, gamma, padding, columns, scales = ctx.saved_tensors
        ops, dy, window, moves, given = operators(ctx.kernel), dy.contiguous(), ctx.window, ctx.counts, None
        if not compiling():
            check_scale(ctx.loss_scale)
            if ctx.used_window is not None:
                window, moves = ctx.used_window, False
            ctx.used_window = window.clone()
        if ctx.pool is not None:
            given = ctx.pool.total(ops["gradient_sums"](dy, x, padding, *ctx.rows, None))
        return _Norm.gradients(
            ctx,
            ops["window_backward"](
                dy, x, padding, *ctx.rows, gamma, ctx.loss_scale, columns, scales, given, window, moves
            ),
        )
