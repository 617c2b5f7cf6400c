"""Rules about numbers: each is at least what its field can hold, and extents leave room for something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.fields_text import least_of
from uniep_compiler.ir.index import Binary, Coord, Expr, Int, Lookup, Sym, substitute
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import Family, TaskGraph
from uniep_compiler.ir.verify.report import about
from uniep_compiler.source import Span


def check_numbers(schedule: Schedule) -> Iterator[Diagnostic]:
    """The numbers of all records of a schedule. Expressions have to be ones that `check_names` accepts."""
    yield from _check_fields("the schedule", schedule, ())
    yield from _check_extents(schedule.graph)
    for buffer in schedule.graph.buffers:
        if buffer.experts not in (0, schedule.graph.experts):
            yield about(
                "UEP0327",
                f"`{buffer.name}` has {buffer.experts} experts, and the graph has {schedule.graph.experts}",
                help="weights hold a part for each expert; everything else has no `experts`",
            )


def _check_fields(where: str, value: object, families: tuple[Family, ...]) -> Iterator[Diagnostic]:
    """The numbers of a record and of all records in it."""
    if isinstance(value, tuple):
        for item in value:
            yield from _check_fields(where, item, families)
    if not is_dataclass(value) or isinstance(value, Int | Sym | Coord | Lookup | Binary | Op | Span):
        return
    where, families = _named(where, value), (value,) if isinstance(value, Family) else families
    for item in fields(value):
        part = getattr(value, item.name)
        least = least_of(type(value), item.name)
        if least is None:
            yield from _check_fields(where, part, families)
        elif part < least:
            yield about(
                "UEP0327",
                f"{where} has {item.name} = {part}, which is less than {least}",
                *families,
                help=f"give a number that is at least {least}",
            )


def _named(where: str, record: object) -> str:
    """The words for a record: its own name, or that of the family that it is about, or those for what it is in."""
    name = getattr(record, "name", None) or getattr(record, "family", None)
    return f"`{name}`" if name else where


def _check_extents(graph: TaskGraph) -> Iterator[Diagnostic]:
    """Extents that are numbers are at least 1; counts are the plan's, and never negative."""
    extents: list[tuple[str, Expr]] = [(buffer.name, e) for buffer in graph.buffers for e in (buffer.rows, buffer.cols)]
    extents += [(signal.name, signal.extent) for signal in graph.signals]
    for name, extent in extents:
        number = substitute(extent, {})
        if isinstance(number, Int) and number.value < 1:
            yield about("UEP0327", f"`{name}` has an extent of {number.value}", help="an extent is at least 1")
