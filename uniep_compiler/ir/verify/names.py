"""Rules about expressions: everything that is named exists, and can be evaluated. The other rules rest on that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Expr, Int, Lookup, Sym, walk
from uniep_compiler.ir.index_text import print_expr
from uniep_compiler.ir.plan_tables import PLAN_SYMBOLS, PLAN_TABLES
from uniep_compiler.ir.schedule import Interleave, Schedule, Slice, families_of
from uniep_compiler.ir.tasks import Access, Family, Range, TaskGraph
from uniep_compiler.ir.verify.report import about

_DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.MOD, BinaryOp.CEILDIV)
_ARGUMENTS = {table.name: len(table.arguments) for table in PLAN_TABLES}


def check_names(schedule: Schedule) -> Iterator[Diagnostic]:
    """Families, buffers, signals, coordinates, symbols and tables are known; no two have one name."""
    graph = schedule.graph
    yield from _check_unique(schedule)
    for family in graph.families:
        yield from _check_family(graph, family)
    known = {family.name for family in graph.families}
    for segment in (segment for launch in schedule.launches for segment in launch.segments):
        for name in families_of(segment):
            if name not in known:
                yield _unknown(f"the order names a family `{name}` that the graph does not have")
        exprs = _segment_exprs(segment)
        yield from _check_exprs("the order", exprs, frozenset())
    places = [place.signal for place in schedule.scoreboard]
    for name in places:
        if name not in {signal.name for signal in graph.signals}:
            yield _unknown(f"the scoreboard names a signal `{name}` that the graph does not have")
    layout = [expr for place in schedule.scoreboard for expr in (place.offset, place.extent)]
    layout += [schedule.scoreboard_size] if schedule.scoreboard_size is not None else []
    yield from _check_exprs("the scoreboard", layout, frozenset())


def _segment_exprs(segment: Slice | Interleave) -> list[Expr]:
    if isinstance(segment, Slice):
        return [segment.start, segment.count]
    return [segment.steps, *(member.start for member in segment.members)]


def _unknown(message: str, *families: Family) -> Diagnostic:
    return about("UEP0324", message, *families)


def _check_unique(schedule: Schedule) -> Iterator[Diagnostic]:
    graph = schedule.graph
    for what, names in (
        ("families", [family.name for family in graph.families]),
        ("buffers", [buffer.name for buffer in graph.buffers]),
        ("signals", [signal.name for signal in graph.signals]),
        ("launches", [launch.name for launch in schedule.launches]),
        ("places of the scoreboard", [place.signal for place in schedule.scoreboard]),
    ):
        for name, number in Counter(names).items():
            if number > 1:
                yield _unknown(f"{number} {what} have the name `{name}`")


def _check_family(graph: TaskGraph, family: Family) -> Iterator[Diagnostic]:
    where, domain = f"`{family.name}`", frozenset(item.coord for item in family.domain)
    buffers = {buffer.name for buffer in graph.buffers}
    signals = {signal.name for signal in graph.signals}
    yield from _check_ranges(where, family.domain, frozenset())
    if family.group > 1 and len(family.domain) != 2:
        yield _unknown(f"{where} is numbered in groups, which takes two coordinates", family)
    for access in (*family.reads, *family.writes):
        if access.buffer not in buffers:
            yield _unknown(f"{where} names a buffer `{access.buffer}` that the graph does not have", family)
        coords = domain | {item.coord for item in access.over}
        yield from _check_ranges(where, access.over, domain)
        yield from _check_exprs(where, _access_exprs(access), coords)
    for signal in [*(post.signal for post in family.posts), *(wait.signal for wait in family.waits)]:
        if signal not in signals:
            yield _unknown(f"{where} names a signal `{signal}` that the graph does not have", family)
    for wait in family.waits:
        yield from _check_exprs(where, [wait.index, wait.target], domain)
    for post in family.posts:
        coords = domain | {item.coord for item in post.over}
        yield from _check_ranges(where, post.over, domain)
        yield from _check_exprs(where, [e for e in (post.index, post.rank, post.when) if e is not None], coords)


def _access_exprs(access: Access) -> list[Expr]:
    parts = (access.row, access.num_rows, access.col, access.num_cols, access.rank, access.when)
    return [part for part in parts if part is not None]


def _check_ranges(where: str, ranges: tuple[Range, ...], outer: frozenset[str]) -> Iterator[Diagnostic]:
    for item in ranges:
        yield from _check_exprs(where, [item.extent], outer)
        if item.coord in outer:
            yield _unknown(f"{where} has two coordinates `{item.coord}`")
        outer = outer | {item.coord}


def _check_exprs(where: str, exprs: Iterable[Expr], coords: frozenset[str]) -> Iterator[Diagnostic]:
    for part in (part for expr in exprs for part in walk(expr)):
        match part:
            case Coord(name) if name not in coords:
                yield _unknown(f"{where} uses a coordinate `{name}` that it does not have")
            case Sym(name) if name not in PLAN_SYMBOLS:
                yield _unknown(f"{where} uses a symbol `{name}` that the plan does not have")
            case Lookup(table, indices) if _ARGUMENTS.get(table) != len(indices):
                yield _unknown(f"{where} looks into a table `{table}` of {len(indices)} arguments; the plan has none")
            case Binary(op, _, divisor) if op in _DIVISIONS and not _is_positive(divisor):
                yield Diagnostic(
                    code="UEP0325",
                    message=f"{where} divides by {print_expr(divisor)}",
                    help="divide by a number, which is at least 1",
                )
            case _:
                pass


def _is_positive(expr: Expr) -> bool:
    return isinstance(expr, Int) and expr.value > 0
