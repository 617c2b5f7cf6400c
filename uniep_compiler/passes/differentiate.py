"""Derives the backward pass of a program, as another program.

Before:  xs = dispatch(x, r); h = group_gemm(xs, w13); a = silu(h)...; y = group_gemm(a, w2); out = combine(y, weights)
After:   backward(r, h, x, weights, w13, w2, grad_out):
             gs = dispatch(grad_out, r)                         the transpose of combine
             _1 = group_gemm(gs, w2, layout=kn)                 data gradient; times the router weight in f32
             ...                                                a again, gradient of the activation
             grad_w2 = group_outer(gs, a * weight)              weight gradients
             grad_xs = group_gemm(grad_h, w13, layout=kn)
             grad_x = combine(grad_xs)                          the transpose of dispatch
             grad_weights = to_routes(row_sum(_1 * a))

Reverse mode over the op graph, by `gradient_rules.py`. What GEMMs made is kept by the forward pass; all else that the
backward pass needs of it is made again, by the same ops, so with the same bits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.types import RoutesType
from uniep_compiler.passes.backward_graph import BackwardGraph
from uniep_compiler.passes.gradient_rules import GRADIENT_RULES, added


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivative:
    """The two passes of a program that trains.

    `forward` returns the program's results and then what it keeps. The parameters of `backward` are values of `forward`
    (parameters, results, kept ones) under the same names, and then the gradients of the program's results, `grads` (one
    for each result; None where it has none). Its results are the gradients of the parameters `wrt`, in that order. No
    result depends on the parameters `without`, whose gradients are zeros.
    """

    forward: OpGraph
    backward: OpGraph
    grads: tuple[str | None, ...]
    wrt: tuple[str, ...]
    without: tuple[str, ...]


def differentiable_params(program: OpGraph) -> tuple[str, ...]:
    """The parameters that can have a gradient: those of floating point."""
    return tuple(
        param.name for param in program.params if not isinstance(param.type, RoutesType) and param.type.dtype.is_float
    )


def differentiate(program: OpGraph, wrt: Collection[str]) -> Derivative:
    """The forward and the backward pass of `program`, for the gradients of the parameters `wrt`.

    A gradient is rounded to its parameter's dtype.
    """
    wrt = tuple(param.name for param in program.params if param.name in wrt)
    graph = BackwardGraph(program, _depends_on(program, wrt))
    adjoints: dict[str, str] = {}
    grads: list[str | None] = []
    for number, result in enumerate(program.results):
        kind = program.types[result]
        if isinstance(kind, RoutesType) or not kind.dtype.is_float:
            grads.append(None)
            continue
        label = result if not result.startswith("_") else f"out_{number}" if len(program.results) > 1 else "out"
        grads.append(graph.param(f"grad_{label}", kind))
        _accumulate(graph, adjoints, result, grads[-1])
    for op in reversed(program.ops):
        above = tuple(adjoints.get(name) for name in op.results)
        if not any(above) or not any(map(graph.wants, op.operands)):
            continue
        graph.span = op.span
        for name, grad in zip(op.operands, GRADIENT_RULES[op.kind](graph, op, above), strict=True):
            if grad is not None and graph.wants(name):
                _accumulate(graph, adjoints, name, grad)
    reached = tuple(name for name in wrt if name in adjoints)
    results = tuple(_result(graph, name, adjoints[name]) for name in reached)
    backward = graph.finish(tuple(grad for grad in grads if grad is not None), results)
    made = {value.name for value in program.values}
    kept = tuple(p.name for p in backward.params if p.name in made and p.name not in program.results)
    return Derivative(
        forward=replace(program, results=(*program.results, *kept)),
        backward=backward,
        grads=tuple(grads),
        wrt=reached,
        without=tuple(name for name in wrt if name not in adjoints),
    )


def _depends_on(program: OpGraph, wrt: tuple[str, ...]) -> frozenset[str]:
    active = set(wrt)
    for op in program.ops:
        if active.intersection(op.operands) and op.kind not in ("route", "counts"):
            active.update(op.results)
    return frozenset(active)


def _accumulate(graph: BackwardGraph, adjoints: dict[str, str], name: str, grad: str | None) -> None:
    if grad is not None:
        adjoints[name] = added(graph, adjoints[name], grad) if name in adjoints else grad


def _result(graph: BackwardGraph, param: str, grad: str) -> str:
    """The gradient of a parameter, in its dtype."""
    return graph.rename(graph.rounded(grad, graph.dtype_of(param)), f"grad_{param}")
