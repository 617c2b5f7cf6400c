"""The syntax tree: a program as written, with names unresolved and nothing typed. Every node carries its span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from uniep_compiler.source import Source, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Ident:
    """A word of the program where it stands for a name, a dtype, an op or a key."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class NameExpr:
    """A name inside an expression."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An integer or real constant; `text` is as written."""

    text: str
    span: Span

    @property
    def value(self) -> int | float:
        """The number: an int where it is written as one."""
        return int(self.text) if self.text.isdigit() else float(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a call: positional where `keyword` is None."""

    keyword: Ident | None
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`function(arguments)`."""

    function: Ident
    arguments: tuple[Argument, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """`-operand`."""

    operand: Expr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """`left operator right`, where the operator is one of + - * / // %."""

    operator: Ident
    left: Expr
    right: Expr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class TupleExpr:
    """`(a, b, ...)`: only a schedule's tiles are written so."""

    items: tuple[Expr, ...]
    span: Span


Expr = NameExpr | Number | Call | Negative | Binary | TupleExpr


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeExpr:
    """`name[dims]`."""

    name: Ident
    dims: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """`name : type`."""

    name: Ident
    type: TypeExpr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`left operator right` between dims, as in `where H % 16 == 0`."""

    left: Expr
    operator: str
    right: Expr
    span: Span

    def __str__(self) -> str:
        return f"{text_of(self.left)} {self.operator} {text_of(self.right)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A name that a statement defines, with the dtype that it is declared to have, if any."""

    name: Ident
    dtype: Ident | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """`targets = value`."""

    targets: tuple[Target, ...]
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """`return values`."""

    values: tuple[Expr, ...]
    span: Span


Statement = Assign | Return


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeDecl:
    """One `moe` block."""

    name: Ident
    params: tuple[Param, ...]
    results: tuple[TypeExpr, ...]
    constraints: tuple[Comparison, ...]
    body: tuple[Statement, ...]
    span: Span
    source: Source = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    """`key = value` or `key(argument) = value` of a schedule block, as written."""

    key: Ident
    argument: Expr | None
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDecl:
    """One `schedule` block as written; `frontend/schedule_block.py` types it."""

    moe: Ident
    target: Ident | None
    conditions: tuple[Comparison, ...]
    entries: tuple[ScheduleEntry, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDecl:
    """A whole file: its blocks in order."""

    version: Ident
    moes: tuple[MoeDecl, ...]
    schedules: tuple[ScheduleDecl, ...]
    source: Source = field(repr=False, compare=False)


_PRECEDENCE: Mapping[str, int] = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}


def text_of(expr: Expr) -> str:
    """The expression as text with the fewest brackets; parses back to the same tree."""
    match expr:
        case NameExpr():
            return expr.name
        case Number():
            return expr.text
        case Call():
            return f"{expr.function.name}({', '.join(_argument_text(a) for a in expr.arguments)})"
        case Negative():
            return f"-{_wrapped(expr.operand, 3)}"
        case Binary():
            level = _PRECEDENCE[expr.operator.name]
            return f"{_wrapped(expr.left, level)} {expr.operator.name} {_wrapped(expr.right, level + 1)}"
        case TupleExpr():
            return f"({', '.join(map(text_of, expr.items))})"
        case _:
            assert_never(expr)


def _argument_text(argument: Argument) -> str:
    prefix = f"{argument.keyword.name}=" if argument.keyword is not None else ""
    return prefix + text_of(argument.value)


def _wrapped(expr: Expr, level: int) -> str:
    inner = _PRECEDENCE[expr.operator.name] if isinstance(expr, Binary) else 4
    return f"({text_of(expr)})" if inner < level else text_of(expr)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside `expr`."""
    match expr:
        case NameExpr() | Number():
            return ()
        case Call():
            return tuple(argument.value for argument in expr.arguments)
        case Negative():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case TupleExpr():
            return expr.items
        case _:
            assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and every expression inside it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)
