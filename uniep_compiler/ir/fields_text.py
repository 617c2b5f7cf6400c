"""The text form of plain dataclasses: `{rows = xs, depth = 64, tile = {rows = 128, cols = 256, depth = 64}}`.

Fields come in their order, without those that have their default. The text says no classes: reading goes by the
types of the fields. Ops are written as in an OpGraph, without types: `a = round(_3) {dtype = bf16}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from uniep_compiler.ir.index import Binary, Coord, Expr, Int, Lookup, Sym
from uniep_compiler.ir.index_text import print_expr, read_expr
from uniep_compiler.ir.ops import Attr, Op
from uniep_compiler.ir.reader import Reader
from uniep_compiler.ir.tasks import AtLeast
from uniep_compiler.ir.types import DType

_BARE = re.compile(r"[A-Za-z_][\w.]*")
_RESERVED = frozenset({"true", "false", "none"})


def print_fields(record: Any, without: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass as text, in braces, but for those named in `without`."""
    return "{" + ", ".join(field_texts(record, without)) + "}"


def field_texts(record: Any, without: tuple[str, ...] = ()) -> list[str]:
    """`name = value` of each field that is not its default."""
    return [
        f"{item.name} = {print_value(getattr(record, item.name))}"
        for item in fields(record)
        if item.name not in without and not _is_default(item, getattr(record, item.name))
    ]


def _is_default(item: Field[Any], value: object) -> bool:
    return item.default is not MISSING and bool(item.default == value)


def print_value(value: object) -> str:
    """A field's value as text."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case StrEnum():
            return value.value
        case str():
            return value if _BARE.fullmatch(value) and value not in _RESERVED else json.dumps(value)
        case None:
            return "none"
        case tuple():
            return "[" + ", ".join(map(print_value, value)) + "]"
        case Op():
            return print_op(value)
        case Int() | Sym() | Coord() | Lookup() | Binary():
            return print_expr(value)
        case _:
            return print_fields(value)


def print_op(op: Op) -> str:
    """An op without the types of its results."""
    results = f"{', '.join(op.results)} = " if op.results else ""
    attrs = f" {{{', '.join(f'{name} = {_attr_text(value)}' for name, value in op.attrs)}}}" if op.attrs else ""
    return f"{results}{op.kind}({', '.join(op.operands)}){attrs}"


def _attr_text(value: Attr) -> str:
    return json.dumps(value) if isinstance(value, str) and not isinstance(value, DType) else print_value(value)


# -- reading --------------------------------------------------------------------------------------------------------


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields' types, resolved; numbers with what they are at least."""
    return get_type_hints(kind, include_extras=True)


def least_of(kind: type, name: str) -> int | None:
    """The least number that a field of a dataclass can hold; None if there is none, or the field holds no number."""
    return _least(_hints(kind)[name])


def _least(hint: Any) -> int | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((item.least for item in hint.__metadata__ if isinstance(item, AtLeast)), None)


def read_fields(reader: Reader, kind: type) -> Any:
    """Take the fields of a `kind`, in braces."""
    reader.expect("{")
    return make(reader, kind, read_named(reader, kind))


def read_named(reader: Reader, kind: type) -> dict[str, Any]:
    """Take fields of a `kind` up to and with a closing brace, each at most once."""
    values: dict[str, Any] = {}

    def take() -> None:
        values.update([read_field(reader, kind, values)])

    reader.separated(take, "}")
    return values


def make(reader: Reader, kind: type, values: dict[str, Any]) -> Any:
    """A `kind` with these fields; an error if one is missing."""
    missing = [
        item.name
        for item in fields(kind)
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        reader.fail(f"`{missing[0]} = ...`")
    return kind(**values)


def read_field(reader: Reader, kind: type, taken: Container[str] = ()) -> tuple[str, Any]:
    """Take `name = value` of a field whose name is not among those `taken` before."""
    hints = _hints(kind)
    if reader.token.text not in hints:
        reader.fail(f"one of {', '.join(item.name for item in fields(kind))}")
    if reader.token.text in taken:
        reader.fail(f"`{reader.token.text}` once")
    name = reader.name()
    reader.expect("=")
    return name, _read_value(reader, hints[name])


def _read_value(reader: Reader, kind: Any) -> Any:
    if isinstance(kind, UnionType):
        parts = set(get_args(kind)) - {NoneType}
        if len(parts) < len(get_args(kind)) and reader.accept("none"):
            return None
        return read_expr(reader) if parts == set(get_args(Expr)) else _read_value(reader, parts.pop())
    if get_origin(kind) is tuple:
        reader.expect("[")
        return reader.separated(lambda: _read_value(reader, get_args(kind)[0]), "]")
    if kind is bool:
        return _read_bool(reader)
    if kind is int or get_origin(kind) is Annotated:
        return reader.number(_least(kind))
    if kind is Op:
        return read_op(reader)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_fields(reader, kind)
    return _read_text(reader) if kind is str else _read_choice(reader, kind)


def _read_bool(reader: Reader) -> bool:
    if not reader.at("true", "false"):
        reader.fail("`true` or `false`")
    return reader.advance().text == "true"


def _read_text(reader: Reader) -> str:
    if reader.token.kind == "string":
        return str(json.loads(reader.advance().text))
    return reader.name()


def _read_choice(reader: Reader, kind: type[StrEnum]) -> StrEnum:
    if not reader.at(*kind):
        reader.fail(f"one of {', '.join(kind)}")
    return kind(reader.advance().text)


def read_op(reader: Reader) -> Op:
    """Take an op without types."""
    names = [reader.name()]
    while reader.accept(","):
        names.append(reader.name())
    has_results = reader.accept("=")
    kind = reader.name() if has_results else names.pop()
    reader.expect("(")
    operands = reader.separated(reader.name, ")")
    attrs = reader.separated(lambda: _read_attr(reader), "}") if reader.accept("{") else ()
    return Op(kind=kind, operands=operands, results=tuple(names), attrs=attrs)


def _read_attr(reader: Reader) -> tuple[str, Attr]:
    name = reader.name()
    reader.expect("=")
    return name, _read_attr_value(reader)


def _read_attr_value(reader: Reader) -> Attr:
    if reader.token.kind == "string":
        return str(json.loads(reader.advance().text))
    if reader.at(*DType):
        return DType(reader.advance().text)
    if reader.at("true", "false"):
        return _read_bool(reader)
    sign = -1 if reader.accept("-") else 1
    if reader.token.kind == "float" or reader.at("inf"):
        return sign * float(reader.advance().text)
    return sign * reader.number()
