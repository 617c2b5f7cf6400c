"""Elements: one item of one access, post or wait of one task, in a context.

An element is *assumed* where a proof speaks of any there may be: its ranges and conditions are assumptions. It is a
*witness* where a proof has to show that there is one: then its coordinates are found from what it should match, and its
ranges and conditions have to be proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Expr, Int, Sym, coordinates, substitute, walk
from uniep_compiler.ir.instance import step_ranges
from uniep_compiler.ir.tasks import Access, Family, Post, Range, Wait
from uniep_compiler.ir.verify.context import Context, Frame, Record
from uniep_compiler.ir.verify.facts import Kind
from uniep_compiler.ir.verify.linear import ZERO, Linear

Touched = Access | Post | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task, or for stepwise families a step of one: its rank, and the coordinates that tell it from others."""

    family: Family
    rank: Linear
    coords: Mapping[str, Linear]


@dataclass(slots=True, kw_only=True)
class Element:
    """One item that a task touches: `row` (an index, for posts and waits) of the memory of rank `owner`, and a column.

    `unknowns` are the variables of its coordinates; `inequalities` and `equations` are what has to hold of them.
    """

    task: Task
    coords: dict[str, Linear]
    owner: Linear
    row: Linear
    column: Linear = ZERO
    is_exact: bool = True
    unknowns: list[Linear] = field(default_factory=list)
    inequalities: list[Linear] = field(default_factory=list)
    equations: list[Linear] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def routes(self) -> list[Record]:
        """The routes that it looks up."""
        return [record for record in self.records if record.kind is Kind.ROUTE]


def assumed(context: Context, family: Family, touched: Touched) -> Element:
    """Any element there may be. The context knows afterwards all that follows for it."""
    element = build(context, family, touched, {}, None)
    context.assume(*element.inequalities)
    for equation in element.equations:
        context.assume_equal(equation, ZERO)
    context.saturate()
    return element


def build(
    context: Context,
    family: Family,
    touched: Touched,
    given: Mapping[str, Linear],
    rank: Linear | None,
    *,
    with_column: bool = True,
) -> Element:
    """An element with the coordinates in `given`, and fresh variables for others; its conditions are not assumed."""
    return _Builder(context, family, given, rank).build(touched, with_column)


class _Builder:
    def __init__(self, context: Context, family: Family, given: Mapping[str, Linear], rank: Linear | None) -> None:
        self.context = context
        self.family = family
        self.given = given
        self.first_record = len(context.records)
        self.unknowns: list[Linear] = []
        self.inequalities: list[Linear] = []
        self.equations: list[Linear] = []
        self.is_exact = True
        self.rank = self._unknown() if rank is None else rank
        self._between(self.rank, Linear.number(context.facts.num_ranks))
        self.coords: dict[str, Linear] = {}
        self.frame = Frame(rank=self.rank, coords=self.coords)

    def build(self, touched: Touched, with_column: bool) -> Element:
        self._add_ranges(self.family.domain)
        if not isinstance(touched, Wait):
            self._add_ranges(touched.over)
            self._add_condition(touched.when)
        owner, row, column = self._place(touched, with_column)
        # Every record of the element's rank and of the owner may matter to a proof.
        for rank in (self.rank, owner):
            self.context.term(Sym("tokens"), Frame(rank=rank, coords={}))
        return Element(
            task=Task(family=self.family, rank=self.rank, coords=self._task_coords()),
            coords=self.coords,
            owner=owner,
            row=row,
            column=column,
            is_exact=self.is_exact,
            unknowns=self.unknowns,
            inequalities=self.inequalities,
            equations=self.equations,
            records=self.context.records[self.first_record :],
        )

    def _task_coords(self) -> dict[str, Linear]:
        names = [item.coord for item in self.family.domain]
        if self.family.stepwise:
            names += [item.coord for item in step_ranges(self.family)]
        return {name: self.coords[name] for name in names if name in self.coords}

    def _unknown(self) -> Linear:
        variable = self.context.fresh()
        self.unknowns.append(variable)
        return variable

    def _between(self, value: Linear, high: Linear) -> None:
        self.inequalities += [value, high.minus(value).shifted(-1)]

    def _term(self, expr: Expr) -> Linear:
        return self.context.term(expr, self.frame)

    def _add_ranges(self, ranges: Iterable[Range]) -> None:
        for item in ranges:
            value = self.given.get(item.coord)
            if value is None:
                value = ZERO if item.extent == Int(1) else self._unknown()
            self._between(value, self._term(item.extent))
            self.coords[item.coord] = value

    def _add_condition(self, when: Expr | None) -> None:
        holds = self.context.conditions(when if when is not None else Int(1), self.frame)
        if holds is None:
            self.is_exact = False
            return
        self.inequalities += holds[0]
        self.equations += holds[1]

    def _place(self, touched: Touched, with_column: bool) -> tuple[Linear, Linear, Linear]:
        match touched:
            case Wait(index=index):
                return self.rank, self._term(index), ZERO
            case Post(index=index, rank=rank):
                return self._owner(rank), self._term(index), ZERO
            case Access(rank=rank, row=row, num_rows=num_rows, col=col, num_cols=num_cols):
                first = self._term(row)
                point = first.plus(self._offset(num_rows))
                self._add_row_of_stretch(point)
                column = self._term(col).plus(self._offset(num_cols)) if with_column else ZERO
                return self._owner(rank), point, column

    def _owner(self, rank: Expr | None) -> Linear:
        return self.rank if rank is None else self._term(rank)

    def _offset(self, extent: Expr) -> Linear:
        """A position inside a box of that extent."""
        if extent == Int(1):
            return ZERO
        offset = self._unknown()
        self._between(offset, self._term(extent))
        return offset

    def _add_row_of_stretch(self, row: Linear) -> None:
        """Name the route of a row that is counted from the first row of a tile or of an expert."""
        row = self.context.normal(row)
        key = self.context.facts.kinds[Kind.ROUTE].keys[1]
        for record in self.context.records[self.first_record :]:
            if record.kind in (Kind.TILE, Kind.EXPERT):
                first = self.context.normal(record.attributes["first"])
                if all(row.terms.get(variable) == 1 for variable in first.terms) and first.terms:
                    given = {"dst": record.attributes["rank"], "row": row}
                    self.context.record(Kind.ROUTE, given, key)


# -- witnesses ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a witness has to match: a place, and perhaps a route."""

    owner: Linear
    row: Linear
    route: Record | None = None


def witness(
    context: Context,
    family: Family,
    touched: Touched,
    target: Target,
    *,
    given: Mapping[str, Linear] | None = None,
    rank: Linear | None = None,
    unknowns: Iterable[Linear] = (),
) -> tuple[Context, Element] | None:
    """An element of `family` at the target's place, with the context that knows it; None if none is found.

    Its unknown coordinates, and further `unknowns` of given ones, are solved from the target, so nothing is assumed of
    them; then all that has to hold is proven.
    """
    context = context.copy()
    element = build(context, family, touched, {} if given is None else given, rank, with_column=False)
    element.unknowns += unknowns
    _Solver(context, element, target).solve()
    context.saturate()
    if not element.is_exact or not context.proves(*element.inequalities):
        return None
    equations = [*element.equations, element.owner.minus(target.owner), element.row.minus(target.row)]
    if not all(context.proves_equal(equation, ZERO) for equation in equations):
        return None
    return context, element


_ROUTE_NAMES: Mapping[Kind, Mapping[str, str]] = {
    Kind.TILE: {"rank": "dst", "tile": "tile"},
    Kind.SENDS: {"rank": "src", "peer": "dst"},
    Kind.SEND: {"rank": "src", "peer": "dst", "position": "position"},
    Kind.ROUTE: {"src": "src", "dst": "dst", "route": "route", "row": "row"},
}
"""For each kind of record that can concern a route: which of the route's attributes its key attributes are."""


class _Solver:
    """Finds the unknown coordinates of a witness, each as a term over what is there already."""

    def __init__(self, context: Context, element: Element, target: Target) -> None:
        self.context = context
        self.element = element
        self.target = target
        self.open = {next(iter(unknown.terms)) for unknown in element.unknowns}

    def solve(self) -> None:
        while self.open:
            while self.context.merge_same():
                pass
            if not (self._from_route() or self._from_conditions() or self._from_place() or self._from_blocks()):
                self._set_last_to_zero()

    def _define(self, term: Linear, value: Linear) -> bool:
        """If one unknown is open in `term`, with a unit coefficient: make `term` equal `value` by it."""
        rest = self.context.normal(term.minus(value))
        found = [variable for variable in rest.terms if variable in self.open]
        if len(found) != 1 or abs(rest.terms[found[0]]) != 1:
            return False
        variable = found[0]
        others = Linear({v: c for v, c in rest.terms.items() if v != variable}, rest.const)
        self.context.solve(variable, others.times(-rest.terms[variable]))
        self.open.discard(variable)
        return True

    def _define_all(self, equations: Iterable[tuple[Linear, Linear]]) -> bool:
        """Define by each equation in turn; whether any of them defined something."""
        return sum(self._define(*equation) for equation in equations) > 0

    def _from_conditions(self) -> bool:
        return self._define_all((equation, ZERO) for equation in self.element.equations)

    def _from_route(self) -> bool:
        """By the route that the witness is for: its tile, its row, its place in a list of sends."""
        if self.target.route is None:
            return False
        route = self.target.route.attributes
        return self._define_all(
            (record.attributes[name], route[names[name]])
            for record in self.element.records
            if (names := _ROUTE_NAMES.get(record.kind))
            for name in record.by.attributes
        )

    def _from_place(self) -> bool:
        owner = self._define(self.element.owner, self.target.owner)
        return self._define(self.element.row, self.target.row) or owner

    def _from_blocks(self) -> bool:
        """A row `block * size + i`, both unknown: the block is the row divided by its size. Blocks may be nested."""
        row = self.context.normal(self.element.row.minus(self.target.row))
        found = {variable: row.terms[variable] for variable in row.terms if variable in self.open}
        block = max(found, key=lambda variable: found[variable], default=0)
        size = found.get(block, 0)
        if len(found) < 2 or size < 2 or [*found.values()].count(size) > 1:
            return False
        rest = Linear({v: -c for v, c in row.terms.items() if v not in found}, -row.const)
        self.context.solve(block, self.context.normal(self.context.quotient(rest, size)))
        self.open.discard(block)
        return True

    def _set_last_to_zero(self) -> None:
        """Any value will do for what nothing determines; positions inside a box come last, and are tried first."""
        variable = max(self.open)
        self.context.solve(variable, ZERO)
        self.open.discard(variable)


def column_coords(access: Access) -> frozenset[str]:
    """Names of the coordinates that the columns of an access depend on."""
    return coordinates(access.col) | coordinates(access.num_cols)


def column_divisor(access: Access, coord: str) -> int | None:
    """What a coordinate is divided by, where the columns of an access depend on its remainder alone; else None."""
    parts = [part for expr in (access.col, access.num_cols) for part in walk(expr)]
    found = {
        part.rhs.value
        for part in parts
        if isinstance(part, Binary)
        and part.op is BinaryOp.MOD
        and part.lhs == Coord(coord)
        and isinstance(part.rhs, Int)
    }
    if len(found) != 1:
        return None
    (divisor,) = found
    without = {Coord(coord) % divisor: Int(0)}
    rest = (substitute(expr, without) for expr in (access.col, access.num_cols))
    return None if any(coord in coordinates(expr) for expr in rest) else divisor
