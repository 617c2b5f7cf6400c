"""Layers as operators of PyTorch: what torch.compile, torch.export and all else that traces programs sees of a call.

A layer that is called eagerly just runs. Where its call is traced, an operator stands for it, `uniep::NAME_DIGEST`. The
digest is that of the layer, so equal layers have the same operator, in every process. An operator is a function of its
arguments: it changes none of them, returns new tensors, and may be left out, moved or merged with an equal call.

Its parameters are those of the program: a tensor, or under a group a list with one for each rank. Routes are two: the
storage of their plan, and the tokens of each rank. Each result is one tensor; under a group it holds all ranks' parts.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode

from uniep_compiler.compiler import Direction
from uniep_compiler.diagnostics import Diagnostic, InternalError, UniepError
from uniep_compiler.ir.types import RoutesType
from uniep_compiler.passes.names import buffer_names
from uniep_compiler.runtime import training
from uniep_compiler.runtime.arguments import TORCH_DTYPES, argument_error, check_routes, is_plain, nested_error
from uniep_compiler.runtime.layout import Sizes, counts_shape
from uniep_compiler.runtime.locks import lock_across_forks
from uniep_compiler.runtime.plan import Plan
from uniep_compiler.runtime.routes import Routes, is_counts
from uniep_compiler.runtime.training import Passes, tensors_in, wants_gradient

if TYPE_CHECKING:
    from uniep_compiler.runtime.layer import Layer

NAMESPACE = "uniep"
"""Operators are `torch.ops.uniep.NAME`."""

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""Expert weights have to be contiguous: no compiler may choose another layout for an argument."""

_NOT_OPERATORS = frozenset((*dir(torch._ops._OpNamespace), *vars(torch._ops._OpNamespace(NAMESPACE))))
"""What the object `torch.ops.uniep` has of its own."""

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_digests: dict[str, str] = {}
_lock = lock_across_forks()


# -- which way a call goes ---------------------------------------------------------------------------------------------


def is_traced(args: Sequence[object]) -> bool:
    """Whether somebody looks at the call who has to see an operator: a tracer, a transform, a tensor subclass.

    Modes of users see what a call allocates and copies, as they do in eager code.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or (is_in_torch_dispatch_mode() and any(mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack()))
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or not all(map(_is_plain_argument, args))
    )


def _is_plain_argument(arg: object) -> bool:
    if isinstance(arg, list | tuple):
        return all(map(_is_plain_argument, arg))
    return not isinstance(arg, Tensor) or is_plain(arg)


# -- derivatives -------------------------------------------------------------------------------------------------------


def _check_no_derivative(args: Sequence[object]) -> None:
    """UEP0606 where a transform expects a derivative that layers do not have: it would get zero, or nothing."""
    if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors_in(args))):
        raise training.no_derivative_error(
            "layers have no forward-mode derivative",
            "call the layer with the primals of its arguments: `torch.autograd.forward_ad.unpack_dual`",
        )
    if torch._C._are_functorch_transforms_active() and torch.is_grad_enabled() and wants_gradient(args):
        raise training.no_derivative_error(
            "layers have no derivative under transforms of `torch.func`",
            "use torch.autograd: `out.backward()` or `torch.autograd.grad(out, x)`",
        )


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


# -- operators ---------------------------------------------------------------------------------------------------------


def call(layer: Layer, args: Sequence[object]) -> tuple[Tensor, ...]:
    """The layer's tensors, by its operator. UEP0601 for arguments that it cannot take, UEP0606 for derivatives."""
    layer.signature.check_count(args)
    _check_no_derivative(args)
    for param, arg in zip(layer.ops.params, args, strict=True):
        if any(tensor.is_nested for tensor in tensors_in([arg])):
            raise nested_error(f"`{param.name}`")
    # Tracers see that the name hangs on the layer's attributes, and trace again for another layer.
    name = layer._as_operator(f"{layer.ops.name}_{layer.digest[:16]}")
    return _as_tuple(_operator(name)(*_flat(layer, args)))


def register(layer: Layer, name: str) -> Any:
    """`torch.ops.uniep.NAME` for the layer. UEP0601 for a name that cannot be, UEP0608 for one that is another's."""
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
        raise argument_error(f"{name!r} cannot be the name of an operator", "use letters, digits and underscores")
    if name in _NOT_OPERATORS or name.startswith("__"):
        raise argument_error(f"{name!r} cannot be the name of an operator", f"torch.ops.{NAMESPACE}.{name} is not one")
    return getattr(torch.ops.uniep, define(layer, name))


def define(layer: Layer, name: str) -> str:
    """The name itself, once it stands for the layer. UEP0608 if it stands for another one."""
    with _lock:
        known = _digests.get(name)
        if known is None:
            full_name = _define_new(layer, name)
            if layer.direction is Direction.FORWARD:
                _library.impl(name, _differentiates(layer, name), "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]
            else:
                torch.library.register_autograd(full_name, training.refuse_second_derivative, lib=_library)
            _digests[name] = layer.digest
        elif known != layer.digest:
            message = f"there is an operator {NAMESPACE}::{name} already, and it is another layer"
            raise UniepError([Diagnostic(code="UEP0608", message=message, help="choose another name")])
    return name


def _define_step(passes: Passes) -> str:
    """The operator of a forward pass that keeps what its backward pass needs; calls for gradients come to it."""
    name = f"{passes.forward.ops.name}_step_{passes.digest[:16]}"
    with _lock:
        if name not in _digests:
            full_name = _define_new(passes.forward, name)
            torch.library.register_autograd(
                full_name, _gives_gradients(passes), setup_context=_remembers(passes), lib=_library
            )
            _digests[name] = passes.digest
    return name


def _define_new(layer: Layer, name: str) -> str:
    results = ", ".join("Tensor" for _ in layer.ops.results)
    if len(layer.ops.results) > 1:
        results = f"({results})"
    schema = f"({', '.join(_parameters(layer))}) -> {results}"
    full_name = f"{NAMESPACE}::{name}"
    torch.library.define(full_name, schema, lib=_library, tags=TAGS)
    torch.library.impl(full_name, ("cpu", "cuda"), _runs(layer), lib=_library)
    torch.library.register_fake(full_name, _describes(layer), lib=_library)
    torch.library.register_vmap(full_name, _repeats(name), lib=_library)
    return full_name


def _runs(layer: Layer) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    def run(*flat: object) -> Tensor | tuple[Tensor, ...]:
        results = layer.calls.run(_nested(layer, flat))
        # A layer may return routes that it was given. What an operator returns has to be new.
        tensors = tuple([t.clone() if any(t is given for given in tensors_in(flat)) else t for t in results])
        return tensors[0] if len(tensors) == 1 else tensors

    return run


def _differentiates(layer: Layer, name: str) -> Callable[..., Any]:
    """What autograd does with the layer's operator: where a gradient is asked for, another operator does its work."""

    def differentiate(keyset: Any, *flat: Any) -> Any:
        def run() -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return _operator(name).redispatch(keyset & torch._C._after_autograd_keyset, *flat)

        if not (torch.is_grad_enabled() and wants_gradient(flat)):
            return run()
        try:
            passes = training.passes_for(layer, _without_tokens(layer, flat))
        except InternalError:
            raise
        except UniepError as error:
            results = training.refusing(lambda: _as_tuple(run()), error, flat)
        else:
            step = _as_tuple(_operator(_define_step(passes))(*flat))
            results = step[: passes.num_results]
        return results[0] if len(results) == 1 else results

    return differentiate


def _remembers(passes: Passes) -> Callable[..., None]:
    def remember(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        results = _as_tuple(output)
        training.remember(ctx, passes, _nested(passes.forward, inputs), results)
        ctx.mark_non_differentiable(*results[passes.num_results :])

    return remember


def _gives_gradients(passes: Passes) -> Callable[..., Any]:
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        found = training.gradients(ctx, call, upstream[: passes.num_results])
        flat: list[Tensor | None] = []
        for param, gradient in zip(passes.forward.ops.params, found, strict=True):
            flat += [None, None] if isinstance(param.type, RoutesType) else [gradient]
        return tuple(flat)

    return backward


def _operator(name: str) -> Any:
    return getattr(torch.ops.uniep, name).default


def _as_tuple(results: Any) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)


def _repeats(name: str) -> Callable[..., tuple[Tensor | tuple[Tensor, ...], int | tuple[int, ...]]]:
    """What `vmap` does with the operator: one call for each item of the batch."""

    def repeat(info: Any, in_dims: Sequence[Any], *flat: object) -> tuple[Any, Any]:
        if info.batch_size == 0:
            raise argument_error("vmap over a batch without items calls no layer", "leave such a batch out")
        operator = _operator(name)
        outs = [operator(*map(partial(_item, place), flat, in_dims)) for place in range(info.batch_size)]
        if isinstance(outs[0], Tensor):
            return torch.stack(outs), 0
        return tuple(map(torch.stack, zip(*outs, strict=True))), (0,) * len(outs[0])

    return repeat


def _item(place: int, arg: Any, dim: Any) -> Any:
    """An argument of one call, from that of a batch, which lies in `dim`: a list of dims if `arg` is a list."""
    if isinstance(arg, Tensor):
        return arg if dim is None else arg.select(dim, place)
    if isinstance(arg, list | tuple) and isinstance(dim, list | tuple):
        return [_item(place, *pair) for pair in zip(arg, dim, strict=True)]
    return arg


def _describes(layer: Layer) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    def describe(*flat: object) -> Tensor | tuple[Tensor, ...]:
        tensors = fake_results(layer, _nested(layer, flat))
        return tensors[0] if len(tensors) == 1 else tensors

    return describe


def fake_results(layer: Layer, args: Sequence[object]) -> tuple[Tensor, ...]:
    """Tensors like those of a call, without values; shapes may be symbolic. UEP0601 for arguments that do not fit."""
    first = next(tensors_in(_flat(layer, args)))
    layer.calls.check(args, first.device if first.is_meta else None)
    tokens = layer.num_tokens(args)
    plan, graph = layer.plan_shape(tokens), layer.compiled_for(max(tokens)).schedule.graph
    sizes, names = Sizes(plan=plan), buffer_names(layer.ops)
    tensors: list[Tensor] = []
    for name in layer.ops.results:
        if isinstance(layer.ops.types[name], RoutesType):
            tensors.append(first.new_empty(plan.num_words, dtype=torch.int32))
        elif is_counts(layer.ops, name):
            tensors.append(first.new_empty(counts_shape(plan), dtype=torch.int32))
        else:
            buffer = graph.buffer(names[name])
            tensors.append(first.new_empty(sizes.shape(buffer), dtype=TORCH_DTYPES[buffer.dtype]))
    return tuple(tensors)


# -- arguments of operators --------------------------------------------------------------------------------------------


def _parameters(layer: Layer) -> Iterator[str]:
    """The parameters of the schema. Names that a schema cannot have, or has already, get an underscore."""
    taken: set[str] = {"NoneType"}

    def name(wish: str) -> str:
        while keyword.iskeyword(wish) or wish in taken:
            wish += "_"
        taken.add(wish)
        return wish

    names = {param.name: name(param.name) for param in layer.ops.params}
    for param in layer.ops.params:
        if isinstance(param.type, RoutesType):
            yield f"Tensor {names[param.name]}"
            yield f"SymInt[] {name(f'{param.name}_tokens')}"
        else:
            yield f"Tensor {names[param.name]}" if layer.group is None else f"Tensor[] {names[param.name]}"


def _flat(layer: Layer, args: Sequence[object]) -> list[object]:
    """The arguments of a call as its operator takes them. UEP0601 for routes that are not for the layer."""
    flat: list[object] = []
    for param, arg in zip(layer.ops.params, args, strict=True):
        if isinstance(param.type, RoutesType):
            ranks = [
                routes for routes in (arg if isinstance(arg, list | tuple) else [arg]) if isinstance(routes, Routes)
            ]
            if len(ranks) != len(layer.placement):
                raise argument_error(f"`{param.name}` has to be uniep.Routes, one for each rank")
            tokens = ranks[0].plan.shape.tokens
            check_routes(ranks, layer.plan_shape(tokens), layer.placement)
            flat += [ranks[0].plan.storage, list(tokens)]
        else:
            flat.append(arg)
    return flat


def _without_tokens(layer: Layer, flat: Sequence[Any]) -> list[object]:
    """An argument of an operator for each parameter: of routes, the storage of their plan."""
    rest = iter(flat)
    args: list[object] = []
    for param in layer.ops.params:
        args.append(next(rest))
        if isinstance(param.type, RoutesType):
            next(rest)
    return args


def _nested(layer: Layer, flat: Sequence[Any]) -> list[object]:
    """The arguments of a call, from those of its operator."""
    rest = iter(flat)
    args: list[object] = []
    for param in layer.ops.params:
        arg = next(rest)
        if isinstance(param.type, RoutesType):
            shape = layer.plan_shape(tuple(next(rest)))
            if arg.dtype != torch.int32 or list(arg.shape) != [shape.num_words]:
                raise argument_error(f"`{param.name}` is {arg.dtype}{list(arg.shape)}, which is no storage of {shape}")
            plan = Plan(shape=shape, storage=arg)
            ranks = [Routes(plan=plan, placement=layer.placement, rank=rank) for rank in range(shape.ranks)]
            arg = ranks[0] if layer.group is None else ranks
        args.append(arg)
    return args
