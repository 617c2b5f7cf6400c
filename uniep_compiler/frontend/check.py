"""Rules about a whole layer, checked once its statements are read. Each is a sentence that gives diagnostics."""

from __future__ import annotations

import re
from collections.abc import Iterable

from uniep_compiler.diagnostics import Diagnostic, Label, Severity
from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.expressions import Scope
from uniep_compiler.frontend.schedule_block import ScheduleBlock
from uniep_compiler.frontend.scope import Header, error, suggestion, token_dims
from uniep_compiler.frontend.syntax import Assign, Comparison, MoeDecl, Return, ScheduleDecl
from uniep_compiler.ir.op_table import OPS, SlotKind
from uniep_compiler.ir.ops import OpGraph, Value
from uniep_compiler.ir.types import RoutesType, dims_of
from uniep_compiler.source import Span


def check_return(decl: MoeDecl) -> Iterable[Diagnostic]:
    """A layer returns exactly once, at its end."""
    returns = [index for index, statement in enumerate(decl.body) if isinstance(statement, Return)]
    if not returns:
        message, help_ = f"`{decl.name.name}` returns nothing", "end the layer with `return` and what it computes"
        yield error("UEP0211", message, decl.name.span, "has no `return`", help_)
    elif returns[0] < len(decl.body) - 1:
        behind = decl.body[returns[0] + 1].span
        yield error("UEP0211", "a statement behind `return`", behind, "never reached", "`return` is the last statement")


def check_unused(decl: MoeDecl, scope: Scope) -> Iterable[Diagnostic]:
    """Every parameter and every value is used."""
    assigns = [statement for statement in decl.body if isinstance(statement, Assign)]
    used = scope.used | set(_named_in_types(decl))
    names = [*(param.name for param in decl.params), *(t.name for statement in assigns for t in statement.targets)]
    for ident in names:
        if ident.name not in used and not ident.name.startswith("_"):
            yield Diagnostic(
                code="UEP0216",
                message=f"`{ident.name}` is never used",
                labels=(
                    Label(span=ident.span, text="computed for nothing" if ident.name in scope.later else "not needed"),
                ),
                help=f"remove it, or call it `_{ident.name}`",
                severity=Severity.WARNING,
            )


def _named_in_types(decl: MoeDecl) -> Iterable[str]:
    """The routes that the types of a header name, as in `rows(r)`."""
    for type_ in (*(param.type for param in decl.params), *decl.results):
        for call in (dim for dim in type_.dims if isinstance(dim, syntax.Call)):
            yield from (inner.name for inner in syntax.walk(call) if isinstance(inner, syntax.NameExpr))


def check_conditions(decl: MoeDecl, header: Header) -> Iterable[Diagnostic]:
    """The conditions of a header are about dims of the parameters that are bound when it is compiled."""
    dynamic = {dim.name for dim in token_dims(header)}
    for comparison in decl.constraints:
        yield from _check_comparison(comparison, header.dims)
        for name in _names(comparison):
            if name.name in dynamic:
                help_ = "one compiled kernel serves every number of tokens"
                message = f"`{name.name}` is not known when the program is compiled"
                yield error("UEP0219", message, name.span, "the number of tokens", help_)


def _names(comparison: Comparison) -> list[syntax.NameExpr]:
    sides = (comparison.left, comparison.right)
    return [inner for side in sides for inner in syntax.walk(side) if isinstance(inner, syntax.NameExpr)]


def _check_comparison(comparison: Comparison, dims: Iterable[str]) -> Iterable[Diagnostic]:
    for side in (comparison.left, comparison.right):
        for inner in syntax.walk(side):
            match inner:
                case syntax.NameExpr() if inner.name not in dims:
                    help_ = suggestion(inner.name, dims) or "a condition is about dims of the parameters"
                    yield error("UEP0219", f"`{inner.name}` is not a dim", inner.span, "no parameter names it", help_)
                case syntax.Call() | syntax.TupleExpr():
                    yield error(
                        "UEP0219",
                        "a condition is made of dims and integers",
                        inner.span,
                        "not a dim",
                        "use + - * // % only",
                    )
                case syntax.Number(value=float()):
                    yield error(
                        "UEP0219",
                        "a condition is made of dims and integers",
                        inner.span,
                        "not an integer",
                        "use + - * // % only",
                    )
                case syntax.Binary() if inner.operator.name == "/":
                    help_ = "write `//` for the quotient, or `%` for the rest"
                    yield error(
                        "UEP0219", "dims are not divided by `/`", inner.operator.span, "not an operator here", help_
                    )
                case _:
                    pass


def check_graph(graph: OpGraph, decl: MoeDecl) -> Iterable[Diagnostic]:
    """What holds for the graph as a whole."""
    yield from _check_weights_sharded(graph, decl)
    yield from _check_one_token_dim(graph, decl)


def check_dims_known(decl: MoeDecl, header: Header) -> Iterable[Diagnostic]:
    """Every dim of a result is named by a parameter."""
    known = header.dims
    for result in decl.results:
        for expr in result.dims:
            for inner in syntax.walk(expr):
                if isinstance(inner, syntax.NameExpr) and not isinstance(expr, syntax.Call) and inner.name not in known:
                    help_ = suggestion(inner.name, known) or "dims get their numbers from the parameters"
                    yield error("UEP0206", f"unknown dim `{inner.name}`", inner.span, "no parameter names it", help_)


def _check_weights_sharded(graph: OpGraph, decl: MoeDecl) -> Iterable[Diagnostic]:
    """A parameter is used as the weights of experts, which are sharded, or otherwise, and never both."""
    sharded, other = _uses(graph, decl)
    for param in graph.params:
        if param.name in sharded and param.name in other:
            labels = (
                Label(span=other[param.name], text="used as a whole here"),
                Label(span=sharded[param.name], text="used as the weights of experts here", primary=False),
            )
            message = f"`{param.name}` is sharded by expert, and also used as a whole"
            help_ = "pass it twice, as two parameters"
            yield Diagnostic(code="UEP0214", message=message, labels=labels, help=help_)


def _uses(graph: OpGraph, decl: MoeDecl) -> tuple[dict[str, Span], dict[str, Span]]:
    """Where each value is used first as the weights of experts, and where otherwise."""
    sharded: dict[str, Span] = {}
    other: dict[str, Span] = {}
    for op in graph.ops:
        slots = [slot for slot in OPS[op.kind].slots if slot.kind in (SlotKind.VALUE, SlotKind.WEIGHT)]
        for slot, operand in zip(slots, op.operands, strict=False):
            (sharded if slot.kind is SlotKind.WEIGHT else other).setdefault(operand, op.span)
    returned = next(statement for statement in decl.body if isinstance(statement, Return))
    for result, expr in zip(graph.results, returned.values, strict=False):
        other.setdefault(result, expr.span)
    return sharded, other


def _check_one_token_dim(graph: OpGraph, decl: MoeDecl) -> Iterable[Diagnostic]:
    """All routes are of the same tokens, whose number is a name of its own."""
    first: Value | None = None
    for value in (*graph.params, *graph.values):
        if not isinstance(value.type, RoutesType):
            continue
        tokens = value.type.tokens
        first = first if first is not None else value
        assert isinstance(first.type, RoutesType)
        if tokens.name is None:
            help_ = "give it a name of its own, such as `T`"
            yield error("UEP0215", f"the number of tokens is `{tokens}`", value.span, "expected a name", help_)
        elif tokens != first.type.tokens:
            message = f"routes of `{first.type.tokens}` tokens and of `{tokens}` tokens"
            help_ = "a layer has one number of tokens; write two layers"
            yield error("UEP0215", message, value.span, f"of {tokens} tokens", help_)
    if first is None:
        help_ = "a layer sends rows to experts: `dispatch` with the ids of experts, or take routes as a parameter"
        yield error("UEP0215", f"`{graph.name}` has no routes", decl.name.span, "how many tokens?", help_)


def check_schedule(decl: ScheduleDecl, schedule: ScheduleBlock, graph: OpGraph) -> Iterable[Diagnostic]:
    """A schedule's conditions are about dims of its layer, and its tiles about the layer's GEMMs."""
    dims = {name for param in graph.params for dim in dims_of(param.type) for name in dim.names}
    for comparison in decl.conditions:
        yield from _check_comparison(comparison, dims)
    tiled = tiled_values(graph)
    for tile in schedule.tiles:
        if tile.value not in tiled:
            help_ = suggestion(tile.value, tiled) or _tiles_there_are(tiled)
            message = f"`{tile.value}` is not a GEMM of `{graph.name}`"
            yield error("UEP0304", message, tile.span, "has no tile", help_)


def _tiles_there_are(tiled: tuple[str, ...]) -> str:
    return f"tiles are those of {', '.join(f'`{value}`' for value in tiled) or 'GEMMs'}"


def tiled_values(graph: OpGraph) -> tuple[str, ...]:
    """What a schedule may set tiles for: each GEMM by the name of its result, then the gradients of their operands."""
    gemms = {op.results[0] for op in graph.ops if op.kind == "group_gemm"}
    found = []
    for op in graph.ops:
        if op.kind == "group_gemm":
            found += [*op.results, *(f"grad({operand})" for operand in op.operands[:2])]
        elif op.kind == "round" and op.operands[0] in gemms:
            found += op.results
    named = [name for name in found if not re.fullmatch(r"(grad\()?_\d+\)?", name)]
    return tuple(dict.fromkeys(sorted(named, key=lambda name: name.startswith("grad("))))
