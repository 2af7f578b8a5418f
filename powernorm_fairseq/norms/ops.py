"""The norms as torch operators, the one place that decides which implementation serves, and autograd over them.

Every operator exists twice: ``powernorm::NAME``, which C++ serves on a CPU and Triton on a GPU, and
``powernorm::plain_NAME``, which is :mod:`.functional`. Both have the same schema, and nothing above knows which one it
uses. The autograd functions take tensors and settings alone; running statistics are arguments like others.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import Function, Variable, forward_ad

from powernorm_fairseq.norms import functional, kernels, released
from powernorm_fairseq.norms.context import check_scale, in_backward
from powernorm_fairseq.norms.functional import MaybeTensor
from powernorm_fairseq.norms.sync import Pool

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


def operator(name: str, function: Callable[..., Any], mover: Callable[..., None] = move) -> Callable[..., Any]:
    """The operator ``name`` from a function that returns new values of running statistics beside its outputs."""
    buffers, forward = {**SCHEMAS, **RELEASED}[name].count("!"), name.endswith("forward")
    if buffers == 0:
        return function

    def run(*args: Any) -> Tuple[Tensor, ...]:
        *outputs, new, count = function(*args[:-1])
        if args[-1]:  # behind the statistics come the number of updates and given in a forward, nothing in a backward
            moved, num_updates = (args[-2 - buffers : -3], args[-3]) if forward else (args[-2:-1], None)
            mover([buffer for buffer in moved if buffer is not None], new, count, num_updates)
        return tuple(outputs)

    return run


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
PLAIN: Dict[str, Any] = {
    name: operator(name, getattr(released if name in RELEASED else functional, name))
    for name in (*SCHEMAS, *RELEASED)
    if not name.startswith(("token", "evaluate"))
}
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


def transforming() -> bool:
    """Whether one of torch.func's transforms is under way."""
    return COMPILES and torch._C._are_functorch_transforms_active()


def takes_plain() -> bool:
    """Whether torch makes something else of this code, a graph or a derivative, for which it needs plain operators."""
    return compiling() or torch.jit.is_tracing() or transforming() or forward_ad._current_level >= 0


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


class NormFunction(Function):
    """What the functions below share: the first inputs are x and the parameters, and ctx has the parameters' types."""

    @classmethod
    def call(cls, *args: Any) -> Any:
        """``apply`` without torch's look at each argument, which takes a while and serves torch.func's transforms."""
        if compiling() or not COMPILES or transforming():
            return cls.apply(*args)
        return super(Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def gradients(ctx: Any, dx: Tensor, *of_parameters: Tensor) -> Tuple[MaybeTensor, ...]:
        """What a backward returns: a gradient for each parameter there is, in its type, and none for the rest."""
        found = [
            None if dtype is None else grad if grad.dtype is dtype else grad.to(dtype)
            for grad, dtype in zip(of_parameters, ctx.types)
        ]
        return (dx, *found, *[None] * (len(ctx.needs_input_grad) - 1 - len(found)))

    @staticmethod
    def differentiable(ctx: Any, function: Callable[..., Any], dy: Any, *inputs: MaybeTensor) -> Any:
        """The same by autograd, from the plain ``function`` of x and the parameters: can be differentiated again."""
        wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
        with torch.enable_grad():
            found = iter(torch.autograd.grad(function(*inputs), wanted, dy, create_graph=True))
        grads = [next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs]
        return (*grads, *[None] * (len(ctx.needs_input_grad) - len(grads)))

    @staticmethod
    def backward_state(ctx: Any) -> Tuple[Any, bool]:
        """The statistics of a backward, and whether it moves them: a second one of a graph repeats the first."""
        if compiling():  # such a graph refuses a second backward by itself
            return ctx.state, ctx.how.counts
        check_scale(ctx.loss_scale)
        return (ctx.state, ctx.how.counts) if ctx.used is None else (ctx.used, False)


def types_of(*parameters: MaybeTensor) -> List[Optional[torch.dtype]]:
    """The type of each parameter that there is."""
    return [None if parameter is None else parameter.dtype for parameter in parameters]


def twice() -> bool:
    """Whether a backward is to be differentiated again (``create_graph=True``)."""
    return torch.is_grad_enabled() and not compiling()


def refuse_twice(norm: str) -> None:
    """Refuses a derivative that would mean nothing."""
    if twice():
        raise RuntimeError(f"the gradient of {norm} cannot be differentiated again; leave out create_graph=True")


class _Fused(NormFunction):
    """See :func:`fused`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *args: Any) -> Tensor:
        """The inputs are x, the parameters, the padding and the three functions."""
        *parameters, padding, ctx.plain, forward, ctx.run_backward = args
        y, saved = forward(x, padding, *parameters)
        ctx.save_for_backward(x, padding, saved, *parameters)
        ctx.types = types_of(*parameters)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See the forward."""
        x, padding, saved, *parameters = ctx.saved_tensors
        if twice():
            return NormFunction.differentiable(ctx, lambda x, *rest: ctx.plain(x, padding, *rest), dy, x, *parameters)
        return NormFunction.gradients(ctx, *ctx.run_backward(dy.contiguous(), x, padding, saved, *parameters))


def fused(
    is_served: bool, plain: Callable[..., Tensor], forward: Callable[..., Any], backward: Callable[..., Any],
    x: Tensor, padding: MaybeTensor, *parameters: MaybeTensor,
) -> Tensor:
    """``plain(x, padding, *parameters)``; where ``is_served``, by operators that compute it and its gradient.

    ``forward`` has the same arguments and returns the output and a tensor for the backward, or None. ``backward`` gets
    the gradient of the output in front and that tensor behind the padding, and returns the gradients of x and the
    parameters. What torch makes of it otherwise, see :func:`takes_plain`, has the plain function.
    """
    if not is_served or takes_plain():
        return plain(x, padding, *parameters)
    if not torch.is_grad_enabled():
        return forward(x.contiguous(), padding, *parameters)[0]
    return _Fused.call(x.contiguous(), *parameters, padding, plain, forward, backward)


# Norms with an exact gradient and no state: the plain function, and the names of the operators.
_EXACT: Dict[str, Tuple[Any, str, str]] = {
    "evaluate": (functional.evaluate, "evaluate", "evaluate_backward"),
    "token_norm": (functional.token_norm, "token_forward", "token_backward"),
}


def exact(
    name: str, kernel: str, x: Tensor, padding: MaybeTensor, groups: int, eps: float, gamma: MaybeTensor,
    beta: MaybeTensor, *settings: Any,
) -> Tensor:
    """:func:`.functional.evaluate` or :func:`.functional.token_norm`, by what serves the input."""
    function, forward_name, backward_name = _EXACT[name]
    if torch.is_grad_enabled() and not takes_plain():  # running statistics may move before the backward
        settings = tuple(value.clone() if isinstance(value, Tensor) else value for value in settings)

    def plain(x: Tensor, padding: MaybeTensor, *affine: MaybeTensor) -> Tensor:
        return function(x, padding, groups, eps, *affine, *settings)

    def forward(x: Tensor, padding: MaybeTensor, *affine: MaybeTensor) -> Any:
        found = operators(kernel)[forward_name](x, padding, groups, eps, *affine, *settings)
        return found if isinstance(found, tuple) else (found, None)

    def backward(dy: Tensor, x: Tensor, padding: MaybeTensor, saved: MaybeTensor, *affine: MaybeTensor) -> Any:
        more = settings if saved is None else (*settings, saved)
        return operators(kernel)[backward_name](dy, x, padding, groups, eps, affine[0], *more)

    return fused(kernel != "plain", plain, forward, backward, x, padding, gamma, beta)


class How(NamedTuple):
    """How a training call is computed."""

    kernel: str
    pool: Optional[Pool]
    moves: bool  # whether the forward moves running statistics
    counts: bool  # whether the backward does
    groups: int
    eps: float

    @property
    def rows(self) -> Tuple[int, float]:
        """What operators take behind x and padding."""
        return self.groups, self.eps

    def statistics(self, x: Tensor, padding: MaybeTensor, origin: MaybeTensor) -> MaybeTensor:
        """Those of all processes, if there are several; centred ones if there is an ``origin``."""
        if self.pool is None:
            return None
        own = operators(self.kernel)["statistics"](x, padding, *self.rows, origin is not None)
        return self.pool.statistics(own, origin)

    def gradient_sums(self, dy: Tensor, x: Tensor, padding: MaybeTensor, centre: MaybeTensor) -> MaybeTensor:
        """Those of all processes, if there are several."""
        if self.pool is None:
            return None
        return self.pool.total(operators(self.kernel)["gradient_sums"](dy, x, padding, *self.rows, centre))


class BatchNorm(NormFunction):
    """BN, PN-V and BRN."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, how: How,
        running_mean: MaybeTensor, running_power: Tensor, num_updates: Tensor,
        momentum: float, released: bool, warmup: int, rise: int,
    ) -> Tensor:
        """See :func:`.functional.batch_forward`."""
        settings, state = (momentum, released, warmup, rise), (running_mean, running_power, num_updates)
        given = how.statistics(x, padding, running_mean)
        y, columns, scales = operators(how.kernel)["batch_forward"](
            x, padding, *how.rows, gamma, beta, *settings, *state, given, how.moves
        )
        ctx.save_for_backward(x, gamma, beta, padding, columns, scales)
        ctx.how, ctx.types, ctx.settings, ctx.state = how, types_of(gamma, beta), settings, state
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.batch_backward`."""
        x, gamma, beta, padding, columns, scales = ctx.saved_tensors
        how, centred = ctx.how, ctx.state[0] is not None
        if ctx.settings[-1] >= 0 or how.pool is not None:
            refuse_twice("BRN, or of statistics over several processes,")

        def again(x: Tensor, *affine: MaybeTensor) -> Tensor:
            settings: Any = (*how.rows, *affine, *ctx.settings, *ctx.state, None)
            return functional.batch_forward(x, padding, *settings)[0]

        if twice():
            return NormFunction.differentiable(ctx, again, dy, x, gamma, beta)
        dy = dy.contiguous()
        centre = columns[: x.shape[-1]] if centred and how.pool is not None else None
        given = how.gradient_sums(dy, x, padding, centre)
        grads = operators(how.kernel)["batch_backward"](
            dy, x, padding, *how.rows, gamma, centred, columns, scales, given
        )
        return NormFunction.gradients(ctx, *grads)


class PowerNorm(NormFunction):
    """PN. A graph gives one gradient: a second backward repeats the first and moves nothing."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, how: How,
        running_psi2: Tensor, num_updates: Tensor, nu: Tensor, loss_scale: MaybeTensor,
        alpha_fwd: float, alpha_bwd: float, warmup: int, recipe: str,
    ) -> Tensor:
        """See :func:`.functional.power_forward`."""
        ops, name, given, pool = operators(how.kernel), NAMES[recipe], None, how.pool
        late = pool is not None and warmup == 0 and recipe == "paper"  # the output needs no statistics of this batch
        if pool is not None and not late:
            given = pool.total(ops[name + "statistics"](x, padding, *how.rows, False))
        y, columns, scales = ops[name + "power_forward"](
            x, padding, *how.rows, gamma, beta, alpha_fwd, warmup, running_psi2, num_updates, given,
            how.moves and not late,
        )
        ctx.sums = None
        if pool is not None and late:

            def move_psi2(sums: Tensor) -> None:
                psi2 = functional.mean(sums[:-1], sums[-1])
                move([running_psi2], [torch.lerp(running_psi2, psi2, 1 - alpha_fwd)], sums[-1:], num_updates)

            _, psi2, count = columns.split([x.shape[-1], x.shape[-1], 1])
            ctx.sums = pool.start(torch.cat([psi2 * count, count]), move_psi2 if how.moves else None)
        ctx.save_for_backward(x, gamma, padding, columns, scales)
        ctx.how, ctx.types, ctx.settings = how, types_of(gamma, beta), (alpha_bwd, name)
        ctx.state, ctx.loss_scale, ctx.used = nu, loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.power_backward`."""
        refuse_twice("PN")
        x, gamma, padding, columns, scales = ctx.saved_tensors
        (alpha, name), loss_scale, how = ctx.settings, ctx.loss_scale, ctx.how
        nu, moves = NormFunction.backward_state(ctx)
        if ctx.sums is not None:
            sums = ctx.sums.wait()
            columns = torch.cat([columns[: x.shape[-1]], functional.mean(sums[:-1], sums[-1]), sums[-1:]])
        dx, found = operators(how.kernel)[name + "power_backward"](
            dy.contiguous(), x, padding, *how.rows, gamma, alpha, loss_scale, columns, scales, nu,
            moves and how.pool is None,
        )
        of_gamma, of_beta, used_nu = found.unbind()
        if not compiling():
            ctx.used = used_nu
        if how.pool is not None and moves:

            def move_nu(sums: Tensor) -> None:
                new = functional.next_nu(nu, gamma, sums, columns, alpha, loss_scale)
                move([nu], [new], columns[-1:])

            how.pool.start(of_gamma.clone(), move_nu)
            Variable._execution_engine.queue_callback(how.pool.settle)
        if ctx.types[0] is ctx.types[1] is not found.dtype and gamma is not None:
            of_gamma, of_beta = found[:2].to(ctx.types[0])  # one conversion for both
        return NormFunction.gradients(ctx, dx, of_gamma, of_beta)


class WindowNorm(NormFunction):
    """MABN. As with PN, a second backward repeats the first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: MaybeTensor, beta: MaybeTensor, padding: MaybeTensor, how: How,
        running_chi2: Tensor, psi2_window: Tensor, num_updates: Tensor, grad_window: Tensor, loss_scale: MaybeTensor,
        momentum: float, warmup: int,
    ) -> Tensor:
        """See :func:`.functional.window_forward`."""
        settings, state = (momentum, warmup), (running_chi2, psi2_window, num_updates)
        given = how.statistics(x, padding, None)
        y, columns, scales = operators(how.kernel)["window_forward"](
            x, padding, *how.rows, gamma, beta, *settings, *state, given, how.moves
        )
        ctx.save_for_backward(x, gamma, padding, columns, scales)
        ctx.how, ctx.types = how, types_of(gamma, beta)
        ctx.state, ctx.loss_scale, ctx.used = grad_window, loss_scale, None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tuple[MaybeTensor, ...]:
        """See :func:`.functional.window_backward`."""
        refuse_twice("MABN")
        x, gamma, padding, columns, scales = ctx.saved_tensors
        how, dy = ctx.how, dy.contiguous()
        window, moves = NormFunction.backward_state(ctx)
        if not compiling():
            ctx.used = window.clone()
        given = how.gradient_sums(dy, x, padding, None)
        grads = operators(how.kernel)["window_backward"](
            dy, x, padding, *how.rows, gamma, ctx.loss_scale, columns, scales, given, window, moves
        )
        return NormFunction.gradients(ctx, *grads)
