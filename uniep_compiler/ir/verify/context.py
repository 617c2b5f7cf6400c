"""A context: assumptions, and the records (`facts.py`) that the expressions in them look into.

Index expressions are translated into linear terms over its variables; what is not linear (a division, a minimum, a
table's entry) becomes a variable with what is known about it. `saturate` adds what the facts say of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Expr, Int, Lookup, Sym
from uniep_compiler.ir.verify.assumptions import Assumptions
from uniep_compiler.ir.verify.facts import Fact, Key, Kind, PlanFacts
from uniep_compiler.ir.verify.linear import ZERO, Linear

GLOBALS: Mapping[str, Linear] = {
    "rows_bound": Linear.variable(-1),
    "tiles_bound": Linear.variable(-2),
    "tokens_bound": Linear.variable(-3),
}
"""Symbols that are the same on all ranks, and not negative."""

_RANK_SYMBOLS = ("tokens", "num_tiles", "num_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where an expression stands: the rank that its symbols and tables are of, and its coordinates."""

    rank: Linear
    coords: Mapping[str, Linear]


@dataclass(slots=True, kw_only=True)
class Record:
    """A record in a context. `by` is the key that it was looked up by; `exists` once that is proven."""

    kind: Kind
    attributes: dict[str, Linear]
    by: Key
    exists: bool = False


@dataclass(slots=True, kw_only=True)
class Context(Assumptions):
    """Assumptions about tasks and the plan. Copies are independent."""

    facts: PlanFacts
    records: list[Record] = field(default_factory=list)
    definitions: dict[object, Linear] = field(default_factory=dict)

    def copy(self) -> Context:
        """An independent context with the same assumptions."""
        return Context(
            facts=self.facts,
            solved=dict(self.solved),
            inequalities=list(self.inequalities),
            cases=list(self.cases),
            records=[
                Record(kind=r.kind, attributes=dict(r.attributes), by=r.by, exists=r.exists) for r in self.records
            ],
            definitions=dict(self.definitions),
            next_variable=self.next_variable,
            impossible=self.impossible,
            num_normal=self.num_normal,
            bounds=dict(self.bounds),
        )

    def union(self, other: Context) -> Context:
        """Both contexts' assumptions. Their variables have to be different ones."""
        return Context(
            facts=self.facts,
            solved=self.solved | other.solved,
            inequalities=self.inequalities + other.inequalities,
            cases=self.cases + other.cases,
            records=self.copy().records + other.copy().records,
            definitions=self.definitions | other.definitions,
            next_variable=max(self.next_variable, other.next_variable),
            impossible=self.impossible or other.impossible,
        )

    # -- translation ------------------------------------------------------------------------------------------------

    def term(self, expr: Expr, frame: Frame) -> Linear:
        """The linear term that `expr` stands for in `frame`."""
        match expr:
            case Int(value):
                return Linear.number(value)
            case Sym("rank"):
                return frame.rank
            case Sym(name) if name in GLOBALS:
                return GLOBALS[name]
            case Sym(name) if name in _RANK_SYMBOLS:
                return self._entry(Kind.RANK, {"rank": frame.rank}, name)
            case Coord(name) if name in frame.coords:
                return frame.coords[name]
            case Lookup():
                return self._lookup(expr, frame)
            case Binary(op, lhs, rhs):
                return self._binary(op, self.term(lhs, frame), self.term(rhs, frame))
            case _:
                return self.fresh()

    def conditions(self, expr: Expr, frame: Frame) -> tuple[list[Linear], list[Linear]] | None:
        """`expr != 0` as inequalities (`>= 0`) and equations (`== 0`); None if it is not a product of comparisons."""
        match expr:
            case Int(value) if value:
                return [], []
            case Binary(BinaryOp.LT, lhs, rhs):
                return [self.term(rhs, frame).minus(self.term(lhs, frame)).shifted(-1)], []
            case Binary(BinaryOp.EQ, lhs, rhs):
                return [], [self.term(lhs, frame).minus(self.term(rhs, frame))]
            case Binary(BinaryOp.MUL, lhs, rhs):
                first, second = self.conditions(lhs, frame), self.conditions(rhs, frame)
                if first is None or second is None:
                    return None
                return first[0] + second[0], first[1] + second[1]
            case _:
                return None

    def _binary(self, op: BinaryOp, lhs: Linear, rhs: Linear) -> Linear:
        match op:
            case BinaryOp.ADD:
                return lhs.plus(rhs)
            case BinaryOp.SUB:
                return lhs.minus(rhs)
            case BinaryOp.MUL:
                return self._product(self.normal(lhs), self.normal(rhs))
            case BinaryOp.MIN:
                return self._least(lhs, rhs, 1)
            case BinaryOp.MAX:
                return self._least(lhs.times(-1), rhs.times(-1), -1)
            case BinaryOp.FLOORDIV if rhs.is_constant and rhs.const > 0:
                return self.quotient(lhs, rhs.const)
            case BinaryOp.CEILDIV if rhs.is_constant and rhs.const > 0:
                return self.quotient(lhs.shifted(rhs.const - 1), rhs.const)
            case BinaryOp.MOD if rhs.is_constant and rhs.const > 0:
                return lhs.minus(self.quotient(lhs, rhs.const).times(rhs.const))
            case _:
                return self.fresh()

    def quotient(self, term: Linear, divisor: int) -> Linear:
        """`term // divisor`: the exact part of the division, and a variable for the rest."""
        term = self.normal(term)
        exact = Linear({v: c // divisor for v, c in term.terms.items() if c % divisor == 0}, term.const // divisor)
        rest = term.minus(exact.times(divisor))
        if rest.is_constant:
            return exact
        key = ("//", rest.key, divisor)
        if key not in self.definitions:
            if self.proves(rest, rest.times(-1).shifted(divisor - 1)):
                return exact
            result = self.definitions[key] = self.fresh()
            remainder = rest.minus(result.times(divisor))
            self.assume(remainder, remainder.times(-1).shifted(divisor - 1))
        return exact.plus(self.definitions[key])

    def _least(self, lhs: Linear, rhs: Linear, sign: int) -> Linear:
        """The smaller of two terms, times `sign`."""
        difference = self.normal(rhs.minus(lhs))
        if difference.is_constant:
            return (lhs if difference.const >= 0 else rhs).times(sign)
        key = ("min", self.normal(lhs).key, self.normal(rhs).key)
        if key not in self.definitions:
            result = self.definitions[key] = self.fresh()
            self.assume(lhs.minus(result), rhs.minus(result))
            self.cases.append(((result.minus(lhs), difference), (result.minus(rhs), difference.times(-1).shifted(-1))))
        return self.definitions[key].times(sign)

    def _product(self, lhs: Linear, rhs: Linear) -> Linear:
        """The product; that of two variables is a variable of its own, bounded in `_settle_products`."""
        if lhs.is_constant:
            return rhs.times(lhs.const)
        if rhs.is_constant:
            return lhs.times(rhs.const)
        result = Linear.number(0)
        for v, c in (*lhs.terms.items(), (0, lhs.const)):
            for w, d in (*rhs.terms.items(), (0, rhs.const)):
                result = result.plus(self._monomial(v, w), c * d)
        return result

    def _monomial(self, v: int, w: int) -> Linear:
        """`v * w`, where 0 stands for the number 1."""
        if not v or not w:
            return Linear.variable(v or w) if v or w else Linear.number(1)
        key = ("*", min(v, w), max(v, w))
        if key not in self.definitions:
            self.definitions[key] = self.fresh()
        return self.definitions[key]

    # -- records ----------------------------------------------------------------------------------------------------

    def _lookup(self, expr: Lookup, frame: Frame) -> Linear:
        """A table's entry: an attribute of the record that the indices name."""
        rank = frame.rank if expr.rank is None else self.term(expr.rank, frame)
        if expr.table not in self.facts.tables:
            return self.fresh()
        kind, key, attribute, names = self.facts.tables[expr.table]
        indices = (self.term(index, frame) for index in expr.indices)
        return self._entry(kind, {key.at: rank, **dict(zip(names, indices, strict=True))}, attribute, key)

    def _entry(self, kind: Kind, given: Mapping[str, Linear], attribute: str, key: Key | None = None) -> Linear:
        key = self.facts.kinds[kind].keys[0] if key is None else key
        return self.record(kind, given, key).attributes[attribute]

    def record(self, kind: Kind, given: Mapping[str, Linear], key: Key) -> Record:
        """The record that `given` names by `key`: a known one with the same key, or a new one."""
        for record in self.records:
            if record.kind is kind and record.by is key and self.agree(record.attributes, given, key):
                return record
        names = self.facts.kinds[kind].attributes
        attributes = {name: given[name] if name in given else self.fresh() for name in names}
        record = Record(kind=kind, attributes=attributes, by=key)
        self.records.append(record)
        return record

    def agree(self, one: Mapping[str, Linear], other: Mapping[str, Linear], key: Key) -> bool:
        """Whether two records look the same in all attributes of a key."""
        return all(self.normal(one[name].minus(other[name])).same_as(ZERO) for name in key.attributes)

    def routes(self) -> list[Record]:
        """The valid routes."""
        return [record for record in self.records if record.kind is Kind.ROUTE and record.exists]

    # -- saturation -------------------------------------------------------------------------------------------------

    def saturate(self) -> None:
        """Add what the facts say of the records, until nothing is new."""
        self.assume(*GLOBALS.values())
        while not self.impossible and (self._find_existing() or self.merge_same() or self._find_tiles()):
            pass
        self._settle_products()

    def _find_existing(self) -> bool:
        """Add the facts of every record that is found to exist."""
        found = False
        for record in list(self.records):
            if not record.exists and self._exists(record):
                record.exists = True
                found = True
                if record.kind is Kind.RANK and self.facts.num_ranks == 1:
                    self.assume_equal(record.attributes["rank"], ZERO)
                for fact in self.facts.kinds[record.kind].facts:
                    self._assume_fact(record, fact)
        return found

    def _exists(self, record: Record) -> bool:
        frame = Frame(rank=record.attributes[record.by.at], coords=record.attributes)
        for expr in record.by.exists:
            holds = self.conditions(expr, frame)
            if holds is None or not self.proves(*holds[0]) or not all(self.proves_equal(e, ZERO) for e in holds[1]):
                return False
        return True

    def _assume_fact(self, record: Record, fact: Fact) -> None:
        frame = Frame(rank=record.attributes[fact.at], coords=record.attributes)
        holds = self.conditions(fact.holds, frame)
        if holds is not None:
            self.assume(*holds[0])
            for equation in holds[1]:
                self.assume_equal(equation, ZERO)

    def merge_same(self) -> bool:
        """Make one of two records that agree in a key."""
        for i, one in enumerate(self.records):
            for other in self.records[i + 1 :]:
                if one.kind is other.kind and self._is_same(one, other):
                    self._merge(one, other)
                    return True
        return False

    def _is_same(self, one: Record, other: Record) -> bool:
        """By a key that fits both: each was looked up by it, or exists, so that the tables of every key fit it."""
        return any(
            self.agree(one.attributes, other.attributes, key)
            for key in self.facts.kinds[one.kind].keys
            if (one.exists or one.by is key) and (other.exists or other.by is key)
        )

    def _merge(self, one: Record, other: Record) -> None:
        for name, term in one.attributes.items():
            self.assume_equal(term, other.attributes[name])
        self.records.remove(other if one.exists or not other.exists else one)

    def _find_tiles(self) -> bool:
        """A row in a tile's range is in that tile (`facts.TILES_ARE_DISJOINT`)."""
        for tile in self.records:
            for route in self.routes():
                if tile.kind is Kind.TILE and tile.exists and self._holds_row(tile.attributes, route.attributes):
                    self.assume_equal(tile.attributes["tile"], route.attributes["tile"])
                    return True
        return False

    def _holds_row(self, tile: Mapping[str, Linear], route: Mapping[str, Linear]) -> bool:
        if not self.normal(tile["rank"].minus(route["dst"])).same_as(ZERO):
            return False
        if self.normal(tile["tile"].minus(route["tile"])).same_as(ZERO):
            return False
        offset = route["row"].minus(tile["first"])
        return self.proves(offset, tile["rows"].minus(offset).shifted(-1))

    # -- products with bounds ---------------------------------------------------------------------------------------

    def _settle_products(self) -> None:
        """Products whose factor became known are products of that; others lie between 0 and the last rank's."""
        for key, product in list(self.definitions.items()):
            match key:
                case ("*", int(v), int(w)) if v < 0 < w:
                    bound, factor = Linear.variable(v), Linear.variable(w)
                    if w in self.solved:
                        del self.definitions[key]
                        self.assume_equal(product, self._product(self.normal(factor), bound))
                    elif self.proves(factor, Linear.number(self.facts.num_ranks - 1).minus(factor)):
                        self.assume(product, bound.times(self.facts.num_ranks - 1).minus(product))
                case _:
                    pass

    def split_radix(self, term: Linear) -> tuple[Linear, Linear, int] | None:
        """`(a, b, bound)` if the term is `a * bound + b` with `0 <= b < bound`: then a and b are known from it."""
        term = self.normal(term)
        for key, product in self.definitions.items():
            match key:
                case ("*", int(v), int(w)) if v < 0 < w:
                    variable = next(iter(product.terms))
                    rest = term.minus(product)
                    if term.terms.get(variable) == 1 and self.proves(rest, Linear.variable(v).minus(rest).shifted(-1)):
                        return Linear.variable(w), rest, v
                case _:
                    pass
        return None
