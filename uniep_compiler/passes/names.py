"""Gives the values of a program the names that their buffers will have.

Before:  _6 = round(_5); return _6        after:  out = round(_5); return out
         h = group_gemm(_2, w13)                  h = group_gemm(rows_2, w13)

A value that the program names keeps that name, unless it is very long or one of the few that mean something in kernels.
Of those without a name, results become `out`, `out_2` and so on in the order of `return`, and rows that are read from
memory `rows_1`. No two values share a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count

from uniep_compiler.ir.ops import OpGraph, Value
from uniep_compiler.ir.tasks import ROW_ROUTE as ROW_ROUTE
from uniep_compiler.ir.types import RowsType, Type

RESERVED = frozenset({ROW_ROUTE, "board"})
"""Names that no value's buffer gets. (`board_size` is an argument of kernels.)"""

LONGEST = 20
"""Characters that are kept of a name."""


def name_buffers(graph: OpGraph) -> OpGraph:
    """The graph with its values renamed by `buffer_names`."""
    names = buffer_names(graph)

    def renamed(value: Value) -> Value:
        return replace(value, name=names[value.name], type=_rename_type(value.type, names))

    return replace(
        graph,
        params=tuple(map(renamed, graph.params)),
        values=tuple(map(renamed, graph.values)),
        ops=tuple(
            replace(op, operands=_rename_all(op.operands, names), results=_rename_all(op.results, names))
            for op in graph.ops
        ),
        results=_rename_all(graph.results, names),
    )


def buffer_names(graph: OpGraph) -> Mapping[str, str]:
    """For each value of a program, its name in the task graph and in kernels."""
    values = [value.name for value in (*graph.params, *graph.values)]
    in_memory = {op.operands[0] for op in graph.ops if op.kind in ("group_gemm", "combine")}
    in_memory |= {op.results[0] for op in graph.ops if op.kind in ("dispatch", "to_rows")}
    names: dict[str, str] = {}
    taken = set(RESERVED)
    unnamed = [value for value in (*graph.results, *values) if not is_named(value)]
    for value in dict.fromkeys((*filter(is_named, values), *unnamed)):
        wish = value[:LONGEST]
        if not is_named(value) and value in graph.results:
            wish = "out"
        elif not is_named(value) and value in in_memory:
            wish = f"rows{value}"
        names[value] = fresh(wish, taken)
        taken.add(names[value])
    return names


def is_named(value: str) -> bool:
    """Whether the program names the value; `_1`, `_2`, ... are the compiler's own."""
    return not (value.startswith("_") and value[1:].isdigit())


def fresh(name: str, taken: Collection[str]) -> str:
    """`name` itself if it is not taken, else the first of `name_2`, `name_3`, ... that is not."""
    if name not in taken:
        return name
    return next(other for number in count(2) if (other := f"{name}_{number}") not in taken)


def _rename_all(names: Iterable[str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(new[name] for name in names)


def _rename_type(kind: Type, names: Mapping[str, str]) -> Type:
    return replace(kind, routes=names[kind.routes]) if isinstance(kind, RowsType) else kind
