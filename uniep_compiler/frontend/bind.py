"""Binds the dims of a program to numbers, which is where its conditions are checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label
from uniep_compiler.frontend.parse import Program
from uniep_compiler.frontend.scope import suggestion
from uniep_compiler.ir import constraint
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.types import Dim, RoutesType, dims_of
from uniep_compiler.source import Span

MAX_DIM = 2**31 - 1
"""The largest number that a dim may be bound to, and that any dim of a type may come to."""


def bind_dims(graph: OpGraph, dims: Mapping[str, int], program: Program | None = None) -> dict[str, int]:
    """The numbers of all dims but the token dim, checked and in the order of their names.

    Raises UniepError with everything that is wrong: dims that are missing, unknown or no integer of at least 1
    (UEP0217), conditions that do not hold (UEP0218), more routes per token than experts (UEP0220), dims of types that
    come to less than 1 or too much (UEP0206). `program` is where errors show the text of conditions.
    """
    bag = DiagnosticBag()
    bag.extend(_check_names(graph, dims))
    bag.extend(_check_numbers(dims))
    source = program.source if program is not None else None
    bag.raise_if_errors(source)
    bag.extend(_check_conditions(graph, dims, program))
    bag.extend(_check_experts(graph, dims))
    bag.extend(_check_sizes(graph, dims))
    bag.raise_if_errors(source)
    return {name: int(dims[name]) for name in dims_to_bind(graph)}


def dims_to_bind(graph: OpGraph) -> tuple[str, ...]:
    """The dims that need a number when the graph is compiled, sorted: all but the token dim."""
    named = {name for param in graph.params for dim in dims_of(param.type) for name in dim.names}
    return tuple(sorted(named - _token_dims(graph)))


def _token_dims(graph: OpGraph) -> set[str]:
    types = graph.types.values()
    return {name for type_ in types if isinstance(type_, RoutesType) for name in type_.tokens.names}


def _check_names(graph: OpGraph, dims: Mapping[str, int]) -> Iterable[Diagnostic]:
    wanted = dims_to_bind(graph)
    missing = [name for name in wanted if name not in dims]
    if missing:
        given = {name: dims.get(name, "...") for name in wanted}
        help_ = f"pass dims={{{', '.join(f'{name!r}: {value}' for name, value in given.items())}}}"
        yield Diagnostic(code="UEP0217", message=f"no number for {_listed(missing)}", help=help_)
    for name in dims:
        if name in _token_dims(graph):
            message = f"`{name}` is the number of tokens, which is not bound"
            help_ = "one compiled kernel serves every number of tokens: leave it out"
            yield Diagnostic(code="UEP0217", message=message, help=help_)
        elif name not in wanted:
            help_ = suggestion(name, wanted) or f"its dims are {_listed(wanted)}"
            yield Diagnostic(code="UEP0217", message=f"`{graph.name}` has no dim `{name}`", help=help_)


def _check_numbers(dims: Mapping[str, int]) -> Iterable[Diagnostic]:
    for name, value in dims.items():
        number: object = value
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_DIM:
            message = f"`{name}` cannot be {value!r}"
            yield Diagnostic(code="UEP0217", message=message, help=f"dims are integers from 1 to {MAX_DIM}")


def _check_conditions(graph: OpGraph, dims: Mapping[str, int], program: Program | None) -> Iterable[Diagnostic]:
    for text in graph.constraints:
        shown = ", ".join(f"{name} = {dims[name]}" for name in constraint.names(text))
        labels = _place(text, program, graph.name)
        try:
            left, right = constraint.sides(text, dims)
        except ZeroDivisionError:
            message = f"`{text}` divides by zero"
            yield Diagnostic(code="UEP0219", message=message, labels=labels, notes=(f"with {shown}",) if shown else ())
            continue
        if not constraint.holds(text, dims):
            notes = (f"with {shown} it says {left} {constraint.comparison(text)} {right}",)
            help_ = "choose other dims; the program's author wrote this condition"
            yield Diagnostic(code="UEP0218", message=f"`{text}` does not hold", labels=labels, notes=notes, help=help_)


def _place(text: str, program: Program | None, name: str) -> tuple[Label, ...]:
    if program is None or name not in program.moes:
        return ()
    spans: list[Span] = [each.span for each in program.moes[name].constraints if str(each) == text]
    return tuple(Label(span=span, text="required here") for span in spans[:1])


def _check_experts(graph: OpGraph, dims: Mapping[str, int]) -> Iterable[Diagnostic]:
    pairs = {(t.topk, t.experts) for t in graph.types.values() if isinstance(t, RoutesType)}
    for topk, experts in pairs:
        routes, available = topk.value(dims), experts.value(dims)
        if routes > available:
            message = f"{routes} routes per token to {available} experts: {topk} is larger than {experts}"
            yield Diagnostic(code="UEP0220", message=message, help=f"bind {topk} to at most {available}")


def _check_sizes(graph: OpGraph, dims: Mapping[str, int]) -> Iterable[Diagnostic]:
    tokens = _token_dims(graph)
    found: dict[Dim, None] = {}
    for type_ in graph.types.values():
        found.update(dict.fromkeys(dim for dim in dims_of(type_) if not tokens.intersection(dim.names)))
    for dim in found:
        if not 1 <= dim.value(dims) <= MAX_DIM:
            message = f"the dim {dim} comes to {dim.value(dims)}"
            yield Diagnostic(code="UEP0206", message=message, help=f"dims are from 1 to {MAX_DIM}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
