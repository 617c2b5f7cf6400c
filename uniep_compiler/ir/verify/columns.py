"""Columns that an access touches over all its coordinates: those are numbers, as all dims but the tokens' are bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from uniep_compiler.ir.index import Environment, Int, evaluate, tables
from uniep_compiler.ir.tasks import Access, Family
from uniep_compiler.ir.verify.elements import column_coords

Columns = tuple[tuple[int, int], ...]
"""Half-open stretches of columns."""

_MAX_TASKS = 100_000


class _NoRouting(Environment):
    """Refuses symbols and tables: columns don't depend on the routing."""

    def symbol(self, name: str, rank: int) -> int:
        raise KeyError(name)

    def lookup(self, table: str, indices: tuple[int, ...], rank: int) -> int:
        raise KeyError(table)


def covered_columns(family: Family, access: Access) -> Columns | None:
    """The columns of all items of the access together; None where they are not known numbers."""
    try:
        return tuple(_stretches(family, access))
    except (KeyError, OverflowError):
        return None


def _stretches(family: Family, access: Access) -> Iterator[tuple[int, int]]:
    names = column_coords(access)
    ranges = [item for item in (*family.domain, *access.over) if item.coord in names]
    sizes = [item.extent.value if isinstance(item.extent, Int) else -1 for item in ranges]
    if min(sizes, default=0) < 0 or len(ranges) != len(names) or tables(access.col) | tables(access.num_cols):
        raise KeyError(access.buffer)
    number = 1
    for size in sizes:
        number *= size
    if number > _MAX_TASKS:
        raise OverflowError(number)
    for values in product(*map(range, sizes)):
        coords = {item.coord: value for item, value in zip(ranges, values, strict=True)}
        first = evaluate(access.col, _NoRouting(), 0, coords)
        yield first, first + evaluate(access.num_cols, _NoRouting(), 0, coords)


def covers(found: Iterable[tuple[int, int]], wanted: Columns) -> bool:
    """Whether stretches cover others."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(stretch for stretch in found if stretch[0] < stretch[1]):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return all(low >= high or any(start <= low and high <= end for start, end in joined) for low, high in wanted)
