"""The text form of index expressions: `$num_tiles * 4`, `tile_row[tile] + i`, `cdiv($tokens, 8)`.

Symbols have a `$`, coordinates have none; `table[i, j]` looks into a plan table of the own rank, `table[i]@peer` into
that of another. `parse_expr(print_expr(e)) == e` for every expression: parsing folds nothing.
"""

from __future__ import annotations

from typing import assert_never

from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Expr, Int, Lookup, Sym, children
from uniep_compiler.ir.reader import Reader

_CALLS = {op.value: op for op in (BinaryOp.MIN, BinaryOp.MAX, BinaryOp.CEILDIV)}
_LEVELS: tuple[tuple[BinaryOp, ...], ...] = (
    (BinaryOp.EQ, BinaryOp.LT),
    (BinaryOp.ADD, BinaryOp.SUB),
    (BinaryOp.MUL, BinaryOp.FLOORDIV, BinaryOp.MOD),
)
"""Infix operators, loosest first. Each level groups from the left, but comparisons don't chain."""

_MOST_LEVELS = 100
"""Operators and look-ups of a text that are nested, as those of a sum are."""


def print_expr(expr: Expr) -> str:
    """The text of `expr`, with no more parentheses than needed."""
    return _print(expr, 0)


def print_term(expr: Expr) -> str:
    """The text of `expr` where a comparison stands beside it."""
    return _print(expr, 1)


def print_atom(expr: Expr) -> str:
    """The text of `expr` where it has to be one piece, as after `@`."""
    return _print(expr, len(_LEVELS))


def _print(expr: Expr, level: int) -> str:
    """The text of `expr` where operators looser than `level` need parentheses."""
    match expr:
        case Int(value):
            return str(value)
        case Sym(name):
            return f"${name}"
        case Coord(name):
            return name
        case Lookup(table, indices, rank):
            entry = f"{table}[{', '.join(map(print_expr, indices))}]"
            return entry if rank is None else f"{entry}@{print_atom(rank)}"
        case Binary(op, lhs, rhs) if op.value in _CALLS:
            return f"{op}({print_expr(lhs)}, {print_expr(rhs)})"
        case Binary(op, lhs, rhs):
            own = next(i for i, ops in enumerate(_LEVELS) if op in ops)
            text = f"{_print(lhs, max(own, 1))} {op} {_print(rhs, own + 1)}"
            return f"({text})" if own < level else text
        case _:
            assert_never(expr)


def parse_expr(text: str) -> Expr:
    """The expression that `text` stands for. Raises UniepError (UEP0112) where it stands for none."""
    reader = Reader(text)
    expr = read_expr(reader)
    reader.end()
    return expr


def read_expr(reader: Reader) -> Expr:
    """Take an expression."""
    return _read_shallow(reader, 0)


def read_term(reader: Reader) -> Expr:
    """Take an expression beside which a comparison may stand."""
    return _read_shallow(reader, 1)


def read_atom(reader: Reader) -> Expr:
    """Take an expression that is one piece."""
    return _read_shallow(reader, len(_LEVELS))


def _read_shallow(reader: Reader, level: int) -> Expr:
    """Take an expression that whoever walks it can walk by recursion."""
    start = reader.token
    expr = _read(reader, level)
    parts: list[Expr] = [expr]
    for _ in range(_MOST_LEVELS):
        parts = [child for part in parts for child in children(part)]
    if parts:
        reader.fail(f"an expression of at most {_MOST_LEVELS} levels", start)
    return expr


def _read(reader: Reader, level: int) -> Expr:
    if level == len(_LEVELS):
        return _read_atom(reader)
    expr = _read(reader, level + 1)
    while reader.at(*_LEVELS[level]):
        op = BinaryOp(reader.advance().text)
        expr = Binary(op, expr, _read(reader, level + 1))
        if level == 0:
            break
    return expr


def _read_atom(reader: Reader) -> Expr:
    with reader.nested():
        return _read_inside(reader)


def _read_inside(reader: Reader) -> Expr:
    if reader.accept("("):
        expr = read_expr(reader)
        reader.expect(")")
        return expr
    if reader.accept("$"):
        return Sym(reader.name())
    if reader.at("-") or reader.token.kind == "int":
        return Int(reader.number())
    if reader.token.kind != "name":
        reader.fail("an expression")
    return _read_named(reader, reader.name())


def _read_named(reader: Reader, name: str) -> Expr:
    """What starts with a name: a coordinate, a look-up or a call."""
    if name in _CALLS and reader.accept("("):
        lhs = read_expr(reader)
        reader.expect(",")
        rhs = read_expr(reader)
        reader.expect(")")
        return Binary(_CALLS[name], lhs, rhs)
    if not reader.accept("["):
        return Coord(name)
    indices = reader.separated(lambda: read_expr(reader), "]")
    return Lookup(name, indices, read_atom(reader) if reader.accept("@") else None)
