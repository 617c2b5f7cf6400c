"""How the tasks of a family are numbered: from an index to coordinates and back.

Last coordinate fastest; with `group` > 1, in groups of that many values of the first coordinate, and inside a group
first coordinate fastest. Example, group 2 over 3 tiles of 2 columns: (0,0) (1,0) (0,1) (1,1) (2,0) (2,1).
"""

from __future__ import annotations

from math import prod

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.index import Environment, evaluate
from uniep_compiler.ir.tasks import Family


def extents(family: Family, routing: Environment, rank: int) -> tuple[int, ...]:
    """The extents of a family's domain on a rank."""
    return tuple(evaluate(item.extent, routing, rank, {}) for item in family.domain)


def num_tasks(family: Family, routing: Environment, rank: int) -> int:
    """Number of tasks of a family on a rank."""
    return prod(extents(family, routing, rank))


def coordinates_at(family: Family, index: int, routing: Environment, rank: int) -> dict[str, int]:
    """The coordinates of task `index`."""
    sizes = extents(family, routing, rank)
    values = _grouped(index, sizes, family.group) if family.group > 1 else _row_major(index, sizes)
    return {item.coord: value for item, value in zip(family.domain, values, strict=True)}


def _row_major(index: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    values: list[int] = []
    for size in reversed(sizes):
        index, value = divmod(index, size)
        values.append(value)
    return tuple(reversed(values))


def _grouped(index: int, sizes: tuple[int, ...], group: int) -> tuple[int, ...]:
    if len(sizes) != 2:
        raise InternalError(f"a grouped family has two coordinates, not {len(sizes)}")
    first_size, second_size = sizes
    number, inside = divmod(index, group * second_size)
    start = number * group
    second, offset = divmod(inside, min(group, first_size - start))
    return start + offset, second
