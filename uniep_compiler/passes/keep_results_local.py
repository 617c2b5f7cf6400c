"""Removes pushes on one local rank: the reduce reads the rows where the GEMM left them.

Before:  push_y: y -> y_returned;  reduce_out reads y_returned[route]
After:   reduce_out reads y[row_of[route]]
"""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.index import Lookup
from uniep_compiler.ir.tasks import Access, Body, CopyBody, Family, ReduceBody, Role, RoutesBody, TaskGraph
from uniep_compiler.passes.settings import Settings


def keep_results_local(graph: TaskGraph, settings: Settings) -> TaskGraph:
    """The graph without pushes if the group is one local rank, else the graph itself."""
    if not settings.local:
        return graph
    kept_at = {
        family.body.target: family.body.source
        for family in graph.families
        if family.role is Role.PUSH and isinstance(family.body, CopyBody)
    }
    families = tuple(_read_in_place(f, kept_at) for f in graph.families if f.role is not Role.PUSH)
    buffers = tuple(buffer for buffer in graph.buffers if buffer.name not in kept_at)
    return replace(graph, families=families, buffers=buffers)


def _read_in_place(family: Family, kept_at: dict[str, str]) -> Family:
    match family.body:
        case ReduceBody() as body if body.rows in kept_at:
            return _looking_up(family, replace(body, rows=kept_at[body.rows], by_route=False), kept_at)
        case RoutesBody() as body:
            parts = tuple(replace(part, rows=kept_at[part.rows]) for part in body.parts)
            return _looking_up(family, replace(body, parts=parts, by_route=False), kept_at)
        case _:
            return family


def _looking_up(family: Family, body: Body, kept_at: dict[str, str]) -> Family:
    reads = family.reads
    for returned, rows in kept_at.items():
        reads = tuple(_through_rows(access, returned, rows) for access in reads)
    return replace(family, body=body, reads=reads)


def _through_rows(access: Access, returned: str, rows: str) -> Access:
    if access.buffer != returned:
        return access
    return replace(access, buffer=rows, row=Lookup("row_of", (access.row,)))
