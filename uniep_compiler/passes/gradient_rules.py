"""How a gradient passes each op backwards: one rule per op of the table, with its rounding points.

A rule gets the gradients of an op's results and gives those of its operands, as values of the backward graph. Gradients
are f32 where they come from arithmetic; a rule rounds one only where it says so:

    dispatch    each route's row is rounded to the dtype of the rows, then a token's rows are summed in f32
    group_gemm  the gradient is rounded to the GEMM's dtype before both products. If it is a multiple by one number per
                row (a router weight), that number is multiplied with the f32 result of the data gradient's GEMM; the
                weight gradient takes it with the forward rows, and rounds the product
    a + b       gradients of one value are added in f32; those of rows that a token, route or expert has the sum of,
                before that sum, and rounded where they would have been
    combine     a weight's gradient is <g, y>, of the unrounded y = a W: summed as <g W, a>, so that y is not kept
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.types import DType, RoutesType
from uniep_compiler.passes.backward_graph import BackwardGraph

Gradients = tuple[str | None, ...]
"""Names of values of the backward graph; None is a gradient of zero, or one that nobody asks for."""

Rule = Callable[[BackwardGraph, Op, Gradients], Gradients]


def _none(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    return (None,) * len(op.operands)


def _dispatch(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    rows = graph.rounded(grad, graph.dtype_of(op.results[0]), _label(graph, op.results[0]))
    return (graph.emit("combine", rows), None)


def _to_rows(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    return (graph.emit("to_routes", *_all(grads)), None)


def _group_gemm(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    rows, weight, *bias = op.operands
    dtype, label = graph.dtype_of(rows), _label(graph, op.results[0])
    base, factor = _factors(graph, grad)
    base = graph.rounded(base, dtype, label)
    found: list[str | None] = [None] * len(op.operands)
    if graph.wants(rows):
        found[0] = _times(graph, _through(graph, op, base), factor)
    if graph.wants(weight):
        outer = (base, _weighted(graph, rows, factor))
        found[1] = graph.emit("group_outer", *(outer if op.attr("layout") == "nk" else outer[::-1]))
    if bias and graph.wants(bias[0]):
        found[2] = graph.emit("group_sum", _times(graph, base, factor))
    return tuple(found)


def _through(graph: BackwardGraph, op: Op, grad: str) -> str:
    """The gradient of a GEMM's rows: `grad` times the weight, the other way round."""
    layout = "kn" if op.attr("layout") == "nk" else "nk"
    return graph.emit("group_gemm", grad, graph.forward(op.operands[1]), bias=False, layout=layout)


def _factors(graph: BackwardGraph, grad: str) -> tuple[str, str | None]:
    """A gradient as rows, and what each of them is to be multiplied with, if that is known."""
    maker = graph.producer(grad)
    if maker is not None and maker.kind == "mul" and graph.is_number_per_row(maker.operands[1]):
        return maker.operands[0], maker.operands[1]
    return grad, None


def _weighted(graph: BackwardGraph, rows: str, factor: str | None) -> str:
    """Rows of the forward pass, each times its factor."""
    dtype = graph.dtype_of(rows)
    found = graph.rounded(_times(graph, graph.forward(rows), factor), dtype)
    return found if factor is None else graph.rename(found, f"weighted_{_label(graph, rows) or 'rows'}")


def _times(graph: BackwardGraph, rows: str, factor: str | None) -> str:
    return rows if factor is None else graph.emit("mul", rows, factor)


def _combine(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    rows, *weights = op.operands
    routes = graph.routes_of(rows)
    back = _dispatched(graph, grad, routes)
    if not weights:
        return (back,)
    found = (
        graph.emit("mul", back, graph.emit("to_rows", graph.forward(weights[0]), routes)) if graph.wants(rows) else None
    )
    per_route = graph.emit("to_routes", _inner_product(graph, back, rows)) if graph.wants(weights[0]) else None
    return (found, per_route)


def _dispatched(graph: BackwardGraph, grad: str, routes: str) -> str:
    """The gradient of a token's sum, for each of its rows. Gradients that were added up are added up there."""
    maker = graph.producer(grad)
    if maker is not None and maker.kind == "add":
        return graph.emit("add", *(_dispatched(graph, part, routes) for part in maker.operands))
    return graph.rename(graph.emit("dispatch", grad, routes), f"{grad}_rows")


def added(graph: BackwardGraph, one: str, other: str) -> str:
    """The sum of two gradients of one value. Sums are linear: rows of one routing are added up, then summed once."""
    makers = [graph.producer(name) for name in (one, other)]
    kinds = {maker.kind if maker is not None and len(maker.operands) == 1 else "" for maker in makers}
    rows = [maker.operands[0] for maker in makers if maker is not None]
    if len(kinds) > 1 or not kinds <= {"combine", "to_routes", "group_sum"} or not graph.are_alike(*rows):
        return graph.emit("add", one, other)
    total = added(graph, *(graph.unrounded(name) for name in rows))
    return graph.emit(kinds.pop(), graph.rounded(total, graph.dtype_of(rows[0])))


def _inner_product(graph: BackwardGraph, grad: str, rows: str) -> str:
    """<grad, rows> for each row. Rows that a GEMM makes are not needed for that: <g, a W + b> = <g W, a> + <g, b>."""
    maker = graph.program.producer(rows)
    while maker is not None and maker.kind == "round":
        maker = graph.program.producer(maker.operands[0])
    if maker is None or maker.kind != "group_gemm":
        return _dot(graph, grad, graph.forward(rows))
    source, _, *bias = maker.operands
    through = _through(graph, maker, graph.rounded(grad, graph.dtype_of(source)))
    product = _dot(graph, through, graph.forward(source))
    if not bias:
        return product
    spread = graph.emit("bias_rows", graph.forward(bias[0]), graph.routes_of(rows))
    return graph.emit("add", product, _dot(graph, grad, spread))


def _dot(graph: BackwardGraph, a: str, b: str) -> str:
    return graph.rename(graph.emit("row_sum", graph.emit("mul", a, b)), "inner_products")


def _split(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (known, *_) = _all(grads)
    halves = [_zeros_like(graph, known) if grad is None else grad for grad in grads]
    if len({graph.dtype_of(half) for half in halves}) > 1:
        halves = [graph.rounded(half, DType.F32) for half in halves]  # exact: the other one is narrower
    return (graph.emit("join", *halves, how=op.attr("how")),)


def _round(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    return grads


# -- elementwise -------------------------------------------------------------------------------------------------------


def _add(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    return tuple(_like(graph, grad, op, name) if graph.wants(name) else None for name in op.operands)


def _sub(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    a, b = op.operands
    return (
        _like(graph, grad, op, a) if graph.wants(a) else None,
        graph.emit("neg", _like(graph, grad, op, b)) if graph.wants(b) else None,
    )


def _mul(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    (grad,) = _all(grads)
    a, b = op.operands
    return tuple(
        _like(graph, graph.emit("mul", grad, graph.forward(other)), op, name) if graph.wants(name) else None
        for name, other in ((a, b), (b, a))
    )


def _neg(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
    return (graph.emit("neg", *_all(grads)),)


def _like(graph: BackwardGraph, grad: str, op: Op, operand: str) -> str:
    """The gradient of an operand: where that is one number per row, it is the sum over the row."""
    wide, narrow = graph.program.types[op.results[0]], graph.program.types[operand]
    if isinstance(wide, RoutesType) or isinstance(narrow, RoutesType):
        raise TypeError(f"{op.kind} of routes")
    return grad if wide.shape == narrow.shape else graph.emit("row_sum", grad)


def _by_slope(slope: Callable[[BackwardGraph, Op, str], str]) -> Rule:
    """The rule of a function of one number, by its derivative at the operand."""

    def rule(graph: BackwardGraph, op: Op, grads: Gradients) -> Gradients:
        (grad,) = _all(grads)
        return (graph.emit("mul", grad, slope(graph, op, graph.forward(op.operands[0]))),)

    return rule


def _slope_of_silu(graph: BackwardGraph, op: Op, v: str) -> str:
    """With s = sigmoid(v): s (1 + v (1 - s))."""
    one, s = graph.constant(1.0), graph.emit("sigmoid", v)
    rest = graph.emit("mul", v, graph.emit("sub", one, s))
    return graph.emit("mul", s, graph.emit("add", rest, one))


def _slope_of_sigmoid(graph: BackwardGraph, op: Op, v: str) -> str:
    s = graph.emit("sigmoid", v)
    return graph.emit("mul", s, graph.emit("sub", graph.constant(1.0), s))


def _slope_of_square(graph: BackwardGraph, op: Op, v: str) -> str:
    return graph.emit("mul", v, graph.constant(2.0))


def _slope_of_clamp(graph: BackwardGraph, op: Op, v: str) -> str:
    return graph.emit("within", v, **dict(op.attrs))


def _slope(kind: str) -> Rule:
    return _by_slope(lambda graph, op, v: graph.emit(kind, v))


GRADIENT_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "route": _none,
        "counts": _none,
        "const": _none,
        "dispatch": _dispatch,
        "to_rows": _to_rows,
        "group_gemm": _group_gemm,
        "split": _split,
        "combine": _combine,
        "round": _round,
        "add": _add,
        "sub": _sub,
        "mul": _mul,
        "neg": _neg,
        "silu": _by_slope(_slope_of_silu),
        "sigmoid": _by_slope(_slope_of_sigmoid),
        "gelu": _slope("gelu_slope"),
        "gelu_tanh": _slope("gelu_tanh_slope"),
        "relu": _slope("step"),
        "square": _by_slope(_slope_of_square),
        "clamp": _by_slope(_slope_of_clamp),
    }
)
"""The rule of every op that programs can have, by its name."""


# -- help --------------------------------------------------------------------------------------------------------------


def _all(grads: Gradients) -> tuple[str, ...]:
    """The gradients of an op of which one result is asked for, so that none is missing."""
    return tuple(grad for grad in grads if grad is not None)


def _zeros_like(graph: BackwardGraph, rows: str) -> str:
    """Zeros, whatever the rows hold."""
    return graph.emit("mul", graph.emit("step", rows), graph.constant(0.0))


def _label(graph: BackwardGraph, value: str) -> str:
    """What the program calls a value, or what it is rounded to; empty for nothing."""
    names = (value, *(op.results[0] for op in graph.program.consumers(value) if op.kind == "round"))
    return next((name for name in names if not name.startswith("_")), "")
