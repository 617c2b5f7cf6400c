"""Layers that train: the passes of a layer, and what stands for its calls in PyTorch's graph of gradients.

Which parameters want a gradient is known when a layer is called. The two passes for them are derived and compiled then,
and kept with the layer. A call runs the forward pass, which also returns what the backward pass needs of it; that, and
the parameters that the backward pass reads, are saved as autograd saves what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from uniep_compiler.diagnostics import Diagnostic, InternalError, UniepError
from uniep_compiler.ir.types import RoutesType
from uniep_compiler.passes.differentiate import Derivative, differentiable_params, differentiate
from uniep_compiler.runtime.kernels import POINTER_ALIGNMENT
from uniep_compiler.runtime.locks import lock_across_forks
from uniep_compiler.runtime.plan import Plan
from uniep_compiler.runtime.routes import Routes

if TYPE_CHECKING:
    from uniep_compiler.runtime.layer import Layer

_lock = lock_across_forks()

Run = Callable[["Layer", Sequence[object]], tuple[Tensor, ...]]
"""How a pass runs: by its kernels, or by its operator."""


# -- the passes of a layer ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Both passes of a layer, for the gradients of some of its parameters.

    `forward` returns the layer's results, then what is kept. `backward` is None if no result depends on the parameters.
    """

    derivative: Derivative
    forward: Layer
    backward: Layer | None

    @property
    def num_results(self) -> int:
        """Results that are the caller's."""
        return len(self.derivative.grads)

    @property
    def digest(self) -> str:
        """Equal for passes that do the same."""
        backward = "" if self.backward is None else self.backward.digest
        return sha256(repr((self.forward.digest, backward, self.derivative.without)).encode()).hexdigest()

    def saved(self, args: Sequence[object], results: Sequence[Tensor]) -> list[Tensor]:
        """What `gradients` needs of a call of the forward pass: of routes, it is the storage of their plan."""
        if self.backward is None:
            return []
        names = (*(param.name for param in self.forward.ops.params), *self.forward.ops.results)
        values = dict(zip(names, (*args, *results), strict=True))
        found = [values[name] for name in self._saved_names(self.backward)]
        return [value.plan.storage if isinstance(value, Routes) else value for value in found]  # type: ignore[misc]

    def gradients(
        self, run: Run, saved: Sequence[Tensor], tokens: tuple[int, ...], upstream: Sequence[Tensor | None]
    ) -> Mapping[str, Tensor]:
        """The gradients of parameters by name, from those of the results; None stands for zeros.

        They have the dtypes that the program says; parameters that no result depends on are left out.
        """
        if self.backward is None:
            return {}
        given = dict(zip(self._saved_names(self.backward), saved, strict=True))
        given |= self._with_zeros(self.backward, tokens, upstream, saved[0].device)
        shape = self.backward.plan_shape(tokens)
        args = [
            Routes(plan=Plan(shape=shape, storage=given[param.name]), placement=self.backward.placement)
            if isinstance(param.type, RoutesType)
            else given[param.name]
            for param in self.backward.ops.params
        ]
        return dict(zip(self.derivative.wrt, run(self.backward, args), strict=True))

    def _saved_names(self, backward: Layer) -> list[str]:
        return [param.name for param in backward.ops.params if param.name not in self.derivative.grads]

    def _with_zeros(
        self, backward: Layer, tokens: tuple[int, ...], upstream: Sequence[Tensor | None], device: torch.device
    ) -> dict[str, Tensor]:
        """The gradients of results by the names that the backward pass has for them."""
        examples = backward.signature.examples(tokens) if None in upstream else {}
        return {
            name: torch.zeros(examples[name].shape, dtype=examples[name].dtype, device=device) if grad is None else grad
            for name, grad in zip(self.derivative.grads, upstream, strict=True)
            if name is not None
        }


class Training:
    """The passes of a layer, by the parameters whose gradients are asked for. Compiled when asked for first."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._found: dict[tuple[str, ...], Passes | UniepError] = {}
        self._forwards: dict[tuple[str, ...], Layer] = {layer.ops.results: layer}

    def passes(self, wrt: tuple[str, ...]) -> Passes:
        """The passes for the gradients of some parameters, in order. UEP0606 if there is no backward pass yet."""
        with _lock:
            if wrt not in self._found:
                self._found[wrt] = self._made(wrt)
            found = self._found[wrt]
        if isinstance(found, Passes):
            return found
        raise UniepError(found.diagnostics, found.source)

    def of_all(self) -> Passes:
        """The passes for the gradients of all parameters that can have one."""
        return self.passes(differentiable_params(self._layer.ops))

    def _made(self, wrt: tuple[str, ...]) -> Passes | UniepError:
        layer = self._layer
        if layer.group is not None:
            return no_derivative_error(
                "layers of a virtual group have no backward pass yet",
                "train on one rank: compile without `group`, or call the layer under torch.no_grad()",
            )
        derivative = differentiate(layer.ops, wrt)
        if not derivative.wrt:
            return Passes(derivative=derivative, forward=layer, backward=None)
        try:
            backward = layer._backward_pass(derivative.backward)
        except InternalError:
            raise
        except UniepError as error:
            return _not_supported(layer, error)
        kept = derivative.forward.results
        if kept not in self._forwards:
            self._forwards[kept] = layer._forward_pass(derivative.forward)
        return Passes(derivative=derivative, forward=self._forwards[kept], backward=backward)


def wants_gradient(args: Sequence[object]) -> bool:
    """Whether a gradient for one of the arguments is expected."""
    return any(tensor.requires_grad for tensor in tensors_in(args))


def tensors_in(args: Sequence[object]) -> Iterator[Tensor]:
    """Tensors among arguments, and in lists of them."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_in(arg)


def passes_for(layer: Layer, args: Sequence[object]) -> Passes:
    """The passes for the gradients that a call's arguments ask for. UEP0606 if there is no backward pass yet."""
    params = zip(layer.ops.params, args, strict=True)
    return layer.training.passes(tuple(param.name for param, arg in params if wants_gradient([arg])))


# -- calls that gradients pass through ---------------------------------------------------------------------------------


def call(layer: Layer, args: Sequence[object]) -> tuple[Tensor, ...]:
    """The layer's tensors, of which autograd knows how to get gradients for the arguments that ask for them.

    Without a backward pass the call runs as well, and only a gradient that comes to it is an error.
    """
    layer.signature.check_count(args)
    try:
        passes = passes_for(layer, args)
    except InternalError:
        raise
    except UniepError as error:
        return refusing(lambda: layer.calls.run(args), error, args)
    tensors: tuple[Tensor, ...] = _Step.apply(passes, *args)  # type: ignore[no-untyped-call]
    return tensors


class _Step(torch.autograd.Function):
    """A call of a layer in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *args: object) -> tuple[Tensor, ...]:
        results = passes.forward.calls.run(args)
        remember(ctx, passes, args, results)
        return results[: passes.num_results]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *gradients(ctx, _run_aligned, upstream)


def remember(ctx: Any, passes: Passes, args: Sequence[object], results: Sequence[Tensor]) -> None:
    """Saves for `gradients` what a call of the forward pass leaves."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*passes.saved(args, results))
    ctx.passes = passes
    ctx.tokens = passes.forward.num_tokens(args)
    ctx.like = [(arg.shape, arg.dtype, arg.device) if isinstance(arg, Tensor) else None for arg in args]


def gradients(ctx: Any, run: Run, upstream: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A gradient for each argument of a remembered call, in its dtype; None for those that ask for none.

    Where a graph of this is asked for, a second derivative that comes to it is an error (UEP0606).
    """
    passes: Passes = ctx.passes

    def once() -> tuple[Tensor, ...]:
        found = passes.gradients(run, ctx.saved_tensors, ctx.tokens, upstream)
        return tuple(found[name] for name in passes.derivative.wrt)

    made = refusing(once, no_second_derivative(), ()) if torch.is_grad_enabled() else once()
    found = dict(zip(passes.derivative.wrt, made, strict=True))
    return [
        _gradient(param.name, found, passes, like)
        for param, like in zip(passes.forward.ops.params, ctx.like, strict=True)
    ]


def _gradient(name: str, found: Mapping[str, Tensor], passes: Passes, like: Any) -> Tensor | None:
    if name in found:
        return found[name].to(like[1])
    if name in passes.derivative.without:
        shape, dtype, device = like
        return torch.zeros(shape, dtype=dtype, device=device)
    return None


def _run_aligned(layer: Layer, args: Sequence[object]) -> tuple[Tensor, ...]:
    """Run a backward pass. Gradients may be parts of larger ones, and start where no tensor descriptor can."""
    return layer.calls.run([arg.clone() if _is_odd(arg) else arg for arg in args])


def _is_odd(arg: object) -> TypeGuard[Tensor]:
    return isinstance(arg, Tensor) and arg.data_ptr() % POINTER_ALIGNMENT != 0


# -- calls that no gradient passes through -----------------------------------------------------------------------------


def refusing(run: Callable[[], tuple[Tensor, ...]], error: UniepError, args: Sequence[object]) -> tuple[Tensor, ...]:
    """The tensors of a run. A gradient that comes to them is that error, whether or not `args` ask for one."""
    needed = torch.empty(0, requires_grad=True)
    tensors: tuple[Tensor, ...] = _Refusal.apply(run, error, needed, *tensors_in(args))  # type: ignore[no-untyped-call]
    return tensors


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[], tuple[Tensor, ...]], error: UniepError, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.error = error
        return run()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> None:
        raise UniepError(ctx.error.diagnostics, ctx.error.source)


def refuse_second_derivative(ctx: FunctionCtx, *upstream: object) -> None:
    """The derivative of a backward pass, which there is none of (UEP0606)."""
    raise no_second_derivative()


def no_second_derivative() -> UniepError:
    """The error for a derivative of a gradient (UEP0606)."""
    return no_derivative_error(
        "layers have no second derivative",
        "leave `create_graph` out, or compute that derivative with `layer.reference(...)`",
    )


def no_derivative_error(message: str, help_text: str) -> UniepError:
    """The error for a derivative that layers do not have (UEP0606)."""
    return UniepError([Diagnostic(code="UEP0606", message=message, help=help_text)])


def _not_supported(layer: Layer, error: UniepError) -> UniepError:
    """The error for a program whose backward pass cannot be built, with the places that are why."""
    first = error.diagnostics[0]
    found = Diagnostic(
        code="UEP0606",
        message=f"the backward pass of `{layer.ops.name}` cannot be built yet: {first.message}",
        labels=first.labels,
        notes=tuple(f"{other.message}" for other in error.diagnostics[1:]),
        help="call the layer under torch.no_grad(), or train with `layer.reference(...)`, which is plain PyTorch",
    )
    return UniepError([found], error.source)
