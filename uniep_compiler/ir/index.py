"""The index language: one small expression language for every domain, map and target in the task graph.

An expression is made of integers, symbols (dims and counts that are known when a kernel runs), task coordinates and
look-ups in the plan's tables. The same expression is printed as Triton, evaluated in Python and reasoned about by the
verifier, so it is data: never a callable, never a string.

Comparisons give 1 or 0. `//` and `%` are floor division and its remainder; operands are never negative where they are
used, so Triton's truncating division agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, assert_never


class BinaryOp(StrEnum):
    """Operators. The value is the spelling in printed IR."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    FLOORDIV = "//"
    MOD = "%"
    EQ = "=="
    LT = "<"
    MIN = "min"
    MAX = "max"
    CEILDIV = "cdiv"


class _Operators:
    """Arithmetic on expressions, with constants folded."""

    __slots__ = ()

    def __add__(self, other: Expr | int) -> Expr:
        return binary(BinaryOp.ADD, self, other)

    def __radd__(self, other: int) -> Expr:
        return binary(BinaryOp.ADD, other, self)

    def __sub__(self, other: Expr | int) -> Expr:
        return binary(BinaryOp.SUB, self, other)

    def __mul__(self, other: Expr | int) -> Expr:
        return binary(BinaryOp.MUL, self, other)

    def __rmul__(self, other: int) -> Expr:
        return binary(BinaryOp.MUL, other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary(BinaryOp.FLOORDIV, self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary(BinaryOp.MOD, self, other)


@dataclass(frozen=True, slots=True)
class Int(_Operators):
    """An integer constant."""

    value: int


@dataclass(frozen=True, slots=True)
class Sym(_Operators):
    """A scalar known when a kernel runs on a rank: a count such as `num_tiles`, or `rank` itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Coord(_Operators):
    """A coordinate of a task, or the variable of a range inside one."""

    name: str


@dataclass(frozen=True, slots=True)
class Lookup(_Operators):
    """An entry of a plan table (`ir/plan_tables.py`) of the own rank, or of `rank` where one is given."""

    table: str
    indices: tuple[Expr, ...]
    rank: Expr | None = None


@dataclass(frozen=True, slots=True)
class Binary(_Operators):
    """An operator applied to two expressions."""

    op: BinaryOp
    lhs: Expr
    rhs: Expr


Expr = Int | Sym | Coord | Lookup | Binary


def as_expr(value: Expr | int | _Operators) -> Expr:
    """The expression itself, or an integer as one."""
    if isinstance(value, int):
        return Int(value)
    if isinstance(value, Int | Sym | Coord | Lookup | Binary):
        return value
    raise TypeError(f"not an index expression: {value!r}")


def apply(op: BinaryOp, a: int, b: int) -> int:
    """The value of `a op b`."""
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL:
            return a * b
        case BinaryOp.FLOORDIV:
            return a // b
        case BinaryOp.MOD:
            return a % b
        case BinaryOp.EQ:
            return int(a == b)
        case BinaryOp.LT:
            return int(a < b)
        case BinaryOp.MIN:
            return min(a, b)
        case BinaryOp.MAX:
            return max(a, b)
        case BinaryOp.CEILDIV:
            return -(-a // b)
        case _:
            assert_never(op)


_RIGHT_NEUTRAL = {
    (BinaryOp.ADD, 0),
    (BinaryOp.SUB, 0),
    (BinaryOp.MUL, 1),
    (BinaryOp.FLOORDIV, 1),
    (BinaryOp.CEILDIV, 1),
}


def binary(op: BinaryOp, lhs: Expr | int | _Operators, rhs: Expr | int | _Operators) -> Expr:
    """`lhs op rhs`, folded where both are constants or one is neutral."""
    a, b = as_expr(lhs), as_expr(rhs)
    match a, b:
        case Int(x), Int(y):
            return Int(apply(op, x, y))
        case _, Int(y) if (op, y) in _RIGHT_NEUTRAL:
            return a
        case Int(0), _ if op is BinaryOp.ADD:
            return b
        case Int(1), _ if op is BinaryOp.MUL:
            return b
        case (Int(0), _) | (_, Int(0)) if op is BinaryOp.MUL:
            return Int(0)
        case _ if op is BinaryOp.SUB and a == b:
            return Int(0)
        case _, Int(1) if op is BinaryOp.MOD:
            return Int(0)
        case _:
            return Binary(op, a, b)


def cdiv(lhs: Expr | int, rhs: Expr | int) -> Expr:
    """`lhs / rhs` rounded up."""
    return binary(BinaryOp.CEILDIV, lhs, rhs)


def minimum(lhs: Expr | int, rhs: Expr | int) -> Expr:
    """The smaller of two."""
    return binary(BinaryOp.MIN, lhs, rhs)


def maximum(lhs: Expr | int, rhs: Expr | int) -> Expr:
    """The larger of two."""
    return binary(BinaryOp.MAX, lhs, rhs)


def equal(lhs: Expr | int, rhs: Expr | int) -> Expr:
    """1 where two are equal, else 0."""
    return binary(BinaryOp.EQ, lhs, rhs)


def less(lhs: Expr | int, rhs: Expr | int) -> Expr:
    """1 where the first is smaller, else 0."""
    return binary(BinaryOp.LT, lhs, rhs)


class Environment(Protocol):
    """What evaluation needs to know: symbols and plan tables, per rank."""

    def symbol(self, name: str, rank: int) -> int:
        """Value of a symbol on a rank."""
        ...

    def lookup(self, table: str, indices: tuple[int, ...], rank: int) -> int:
        """Entry of a plan table on a rank."""
        ...


def evaluate(expr: Expr, env: Environment, rank: int, coords: Mapping[str, int]) -> int:
    """The value of `expr` for a task of `rank` at `coords`."""
    match expr:
        case Int(value):
            return value
        case Sym("rank"):
            return rank
        case Sym(name):
            return env.symbol(name, rank)
        case Coord(name):
            return coords[name]
        case Lookup(table, indices, where):
            at = rank if where is None else evaluate(where, env, rank, coords)
            return env.lookup(table, tuple(evaluate(i, env, rank, coords) for i in indices), at)
        case Binary(op, lhs, rhs):
            return apply(op, evaluate(lhs, env, rank, coords), evaluate(rhs, env, rank, coords))
        case _:
            assert_never(expr)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that `expr` is made of directly."""
    match expr:
        case Int() | Sym() | Coord():
            return ()
        case Lookup(_, indices, rank):
            return indices if rank is None else (*indices, rank)
        case Binary(_, lhs, rhs):
            return (lhs, rhs)
        case _:
            assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything inside it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def substitute(expr: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """`expr` with every occurrence of a key replaced by its value, outermost first; constants fold again."""
    if expr in replacements:
        return replacements[expr]
    match expr:
        case Int() | Sym() | Coord():
            return expr
        case Lookup(table, indices, rank):
            where = None if rank is None else substitute(rank, replacements)
            return Lookup(table, tuple(substitute(i, replacements) for i in indices), where)
        case Binary(op, lhs, rhs):
            return binary(op, substitute(lhs, replacements), substitute(rhs, replacements))
        case _:
            assert_never(expr)


def coordinates(expr: Expr) -> frozenset[str]:
    """Names of the coordinates in `expr`."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Coord))


def symbols(expr: Expr) -> frozenset[str]:
    """Names of the symbols in `expr`."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Sym))


def tables(expr: Expr) -> frozenset[str]:
    """Names of the plan tables that `expr` looks into."""
    return frozenset(e.table for e in walk(expr) if isinstance(e, Lookup))
