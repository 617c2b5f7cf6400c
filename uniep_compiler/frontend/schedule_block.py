"""Types the `schedule` blocks of a file: keys and values against the fields of `options.ScheduleOptions`."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import get_args, get_type_hints

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.syntax import MoeDecl, ScheduleDecl
from uniep_compiler.ir.constraint import holds
from uniep_compiler.options import ScheduleOptions
from uniep_compiler.source import Span

_TARGET = re.compile(r"cpu|cuda|sm_[0-9]{2,3}a?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of one key: a word or a number."""

    value: str | int
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSetting:
    """`tile(value) = (rows, columns, depth)`; `value` is a name of the program or `grad(name)`."""

    value: str
    shape: tuple[int, int, int]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison of a `when` clause, as canonical text."""

    text: str
    span: Span = field(compare=False)

    def holds(self, dims: Mapping[str, int]) -> bool:
        """Whether it is true for these dims; KeyError if one is missing, UniepError if it divides by zero."""
        try:
            return holds(self.text, dims)
        except ZeroDivisionError:
            message, help_ = f"`{self.text}` divides by zero", "change the condition, or bind other dims"
            raise UniepError([_problem("UEP0219", message, self.span, "for these dims", help_)]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBlock:
    """A `schedule` block: for which layer, target (None: any) and dims it is, and what it sets."""

    moe: str
    target: str | None
    conditions: tuple[Condition, ...]
    entries: Mapping[str, Setting]
    tiles: tuple[TileSetting, ...]
    span: Span = field(compare=False)

    def applies(self, target: str, dims: Mapping[str, int]) -> bool:
        """Whether this block is for `target` and `dims` (with the token dim, where a condition names it)."""
        return self.target in (None, target) and all(condition.holds(dims) for condition in self.conditions)


def type_schedules(
    decls: tuple[ScheduleDecl, ...], moes: Mapping[str, MoeDecl]
) -> tuple[tuple[ScheduleBlock, ...], tuple[Diagnostic, ...]]:
    """The typed blocks, and everything that is wrong with them."""
    problems: list[Diagnostic] = []
    blocks = tuple(_block(decl, moes, problems) for decl in decls)
    return blocks, tuple(problems)


def _block(decl: ScheduleDecl, moes: Mapping[str, MoeDecl], problems: list[Diagnostic]) -> ScheduleBlock:
    problems.extend(_check_moe(decl, moes))
    problems.extend(_check_target(decl))
    entries: dict[str, Setting] = {}
    tiles: list[TileSetting] = []
    seen: dict[str, Span] = {}
    for entry in decl.entries:
        name = _entry_name(entry)
        if name in seen:
            problems.append(_twice(name, seen[name], entry.key.span))
            continue
        seen[name] = entry.key.span
        parsed = _tile(entry, name) if entry.key.name == "tile" else _setting(entry)
        match parsed:
            case Diagnostic():
                problems.append(parsed)
            case TileSetting():
                tiles.append(parsed)
            case Setting():
                entries[name] = parsed
    return ScheduleBlock(
        moe=decl.moe.name,
        target=decl.target.name if decl.target is not None else None,
        conditions=tuple(Condition(text=str(c), span=c.span) for c in decl.conditions),
        entries=entries,
        tiles=tuple(tiles),
        span=decl.span,
    )


def _entry_name(entry: syntax.ScheduleEntry) -> str:
    return entry.key.name if entry.argument is None else f"{entry.key.name}({syntax.text_of(entry.argument)})"


def _check_moe(decl: ScheduleDecl, moes: Mapping[str, MoeDecl]) -> Iterable[Diagnostic]:
    if decl.moe.name not in moes:
        yield _problem(
            "UEP0303",
            f"no layer is called `{decl.moe.name}`",
            decl.moe.span,
            "not in this file",
            _suggestion(decl.moe.name, moes) or "a schedule stands in the file of its layer",
        )


def _check_target(decl: ScheduleDecl) -> Iterable[Diagnostic]:
    if decl.target is not None and not _TARGET.fullmatch(decl.target.name):
        help_ = "targets are `cpu`, `cuda`, and architectures such as `sm_90`"
        yield _problem("UEP0306", f"unknown target `{decl.target.name}`", decl.target.span, "not a target", help_)


@cache
def setting_values() -> Mapping[str, tuple[str, ...] | None]:
    """Every key of a block besides `tile`, with the words it takes; None where it takes a number of at least 1."""
    hints = get_type_hints(ScheduleOptions)
    keys = [option.name for option in fields(ScheduleOptions) if option.name != "tiles"]
    return MappingProxyType({key: _words(hints[key]) for key in keys})


def _words(hint: object) -> tuple[str, ...] | None:
    choices = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, StrEnum):
            return tuple(str(word) for word in choice)
    return None


def _setting(entry: syntax.ScheduleEntry) -> Setting | Diagnostic:
    key = entry.key.name
    if key not in setting_values() or entry.argument is not None:
        keys = (*setting_values(), "tile")
        help_ = _suggestion(key, keys) or f"keys are {_listed(keys)}"
        return _problem("UEP0301", f"unknown schedule key `{_entry_name(entry)}`", entry.key.span, "not a key", help_)
    words = setting_values()[key]
    value = entry.value
    if words is None:
        if isinstance(value, syntax.Number) and isinstance(value.value, int) and value.value >= 1:
            return Setting(value=value.value, span=value.span)
        return _bad_value(key, value, "expected an integer of at least 1", f"for example `{key} = 8`")
    if isinstance(value, syntax.NameExpr) and value.name in words:
        return Setting(value=value.name, span=value.span)
    help_ = _suggestion(syntax.text_of(value), words) or f"`{key}` takes {_listed(words)}"
    return _bad_value(key, value, f"expected {_listed(words)}", help_)


def _tile(entry: syntax.ScheduleEntry, name: str) -> TileSetting | Diagnostic:
    value = _tile_value(entry.argument)
    if value is None:
        help_ = "name a value, like `tile(h) = (128, 256, 64)`, or a gradient, like `tile(grad(w13)) = ...`"
        return _problem("UEP0302", f"`{name}` names no value", entry.key.span, "a tile of what?", help_)
    items = entry.value.items if isinstance(entry.value, syntax.TupleExpr) else ()
    sizes = [item.value for item in items if isinstance(item, syntax.Number)]
    match sizes:
        case [int(rows), int(columns), int(depth)] if len(items) == 3 and min(rows, columns, depth) >= 1:
            return TileSetting(value=value, shape=(rows, columns, depth), span=entry.span)
        case _:
            return _bad_value(
                name, entry.value, "expected (rows, columns, depth)", f"for example `{name} = (128, 256, 64)`"
            )


def _tile_value(argument: syntax.Expr | None) -> str | None:
    match argument:
        case syntax.NameExpr():
            return argument.name
        case syntax.Call(arguments=(syntax.Argument(keyword=None, value=syntax.NameExpr()),)):
            return syntax.text_of(argument) if argument.function.name == "grad" else None
        case _:
            return None


def _bad_value(key: str, value: syntax.Expr, expected: str, help_: str) -> Diagnostic:
    return _problem("UEP0302", f"`{key}` cannot be `{syntax.text_of(value)}`", value.span, expected, help_)


def _twice(name: str, first: Span, again: Span) -> Diagnostic:
    labels = (Label(span=first, text="first here", primary=False), Label(span=again, text="again here"))
    return Diagnostic(code="UEP0305", message=f"`{name}` is set twice", labels=labels, help="keep one of them")


def _problem(code: str, message: str, span: Span, label: str, help_: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, labels=(Label(span=span, text=label),), help=help_)


def _suggestion(word: str, words: Iterable[str]) -> str:
    close = get_close_matches(word, list(words), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _listed(words: Iterable[str]) -> str:
    *most, last = [f"`{word}`" for word in words]
    return f"{', '.join(most)} or {last}" if most else last
