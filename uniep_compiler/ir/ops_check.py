"""Checks the lines of an OpGraph's text against the op table, as the front end checks programs: one rule, one code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import assert_never

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label
from uniep_compiler.ir import constraint
from uniep_compiler.ir.op_rules import Problem
from uniep_compiler.ir.op_table import OPS, OpInfo, Slot, SlotKind, infer
from uniep_compiler.ir.ops import Attr, Op, Value
from uniep_compiler.ir.types import LARGEST_F32, Dim, DType, RoutesType, RowsType, TensorType, Type, dims_of
from uniep_compiler.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name, and where it stands."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLine:
    """One op as it was read, with the places of its parts."""

    kind: Name
    operands: tuple[Name, ...]
    results: tuple[Value, ...]
    attrs: tuple[tuple[Name, Attr], ...]
    span: Span

    @property
    def op(self) -> Op:
        """The op that the line stands for."""
        return Op(
            kind=self.kind.text,
            operands=tuple(name.text for name in self.operands),
            results=tuple(value.name for value in self.results),
            attrs=tuple((name.text, value) for name, value in self.attrs),
            span=self.span,
        )


@dataclass(slots=True, kw_only=True)
class OpsCheck:
    """Takes a graph's lines in their order, and keeps in `bag` what is wrong with them.

    A value counts as defined, with the type that the text says, even where its op is wrong: one mistake is one error.
    """

    bag: DiagnosticBag = field(default_factory=DiagnosticBag)
    _values: dict[str, Value] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)  # what ops gave: all but the parameters

    def define(self, value: Value) -> None:
        """Takes a value, whose name has to be new. Its span is that of the name."""
        first = self._values.setdefault(value.name, value)
        if first is not value:
            labels = (
                Label(span=first.span, text="first defined here", primary=False),
                Label(span=value.span, text="defined again here"),
            )
            message, help_ = f"`{value.name}` is defined twice", "a name stands for one value; choose another one here"
            self.bag.add(Diagnostic(code="UEP0202", message=message, labels=labels, help=help_))

    def check_params(self, params: Iterable[Value]) -> None:
        """Each parameter has a type that there can be; rows may name routes that come later."""
        for param in params:
            self.bag.extend(self._param_problems(param))

    def check_condition(self, text: str, span: Span) -> None:
        """The text has to be a comparison of dims."""
        try:
            constraint.sides(text, dict.fromkeys(constraint.names(text), 1))
        except ZeroDivisionError:
            return  # with the dims of a call, the divisor may be another number
        except (ValueError, RecursionError, MemoryError):
            help_ = "a condition compares two numbers made of dims by +, -, *, // and %, like `H % 16 == 0`"
            self.bag.add(_error("UEP0219", "this is not a condition on dims", span, "not a condition", help_))

    def check_op(self, line: OpLine) -> None:
        """The op has to be one of the table, and everything about it as the table says. Defines its results."""
        info = OPS.get(line.kind.text)
        if info is None:
            help_ = _suggestion(line.kind.text, OPS) or "`uniepc ops` lists them all"
            self.bag.add(_error("UEP0203", f"unknown op `{line.kind.text}`", line.kind.span, "not an op", help_))
        problems = [problem for name in line.operands for problem in self._unknown(name)]
        if info is not None:
            problems += [*_attr_problems(line, info)] or [*_missing(line, info)] or [*_operand_problems(line, info)]
            problems += _count_problems(line, info)
        if info is not None and not problems:
            problems += [*self._weight_problems(line, info)] or [*self._type_problems(line)]
        self.bag.extend(problems)
        for value in line.results:
            self.define(value)
            self._made.add(value.name)

    def check_results(self, names: Iterable[Name]) -> None:
        """What is returned has to be defined."""
        for name in names:
            self.bag.extend(self._unknown(name))

    def _unknown(self, name: Name) -> Iterator[Diagnostic]:
        if name.text not in self._values:
            help_ = _suggestion(name.text, self._values) or "define it on a line above, or as a parameter"
            yield _error("UEP0201", f"unknown value `{name.text}`", name.span, "not defined above", help_)

    def _param_problems(self, param: Value) -> Iterator[Diagnostic]:
        empty = [dim for dim in dims_of(param.type) if _is_empty(dim)]
        if empty:
            message = f"a dim of {empty[0]} is empty"
            yield _error("UEP0206", message, param.span, f"this is {param.type}", "dims count from 1")
        match param.type:
            case RowsType(routes=routes) if not self._is_routes(routes):
                known = [name for name in self._values if self._is_routes(name)]
                help_ = _suggestion(routes, known) or f"declare it like `param {routes} : routes[T, K, E]`"
                message = f"`{routes}` is not a value of routes"
                yield _error("UEP0201", message, param.span, f"this is {param.type}", help_)
            case TensorType(shape=()):
                help_ = "constants are made by `const`"
                yield _error("UEP0206", "a tensor without dims", param.span, f"this is {param.type}", help_)
            case _:
                return

    def _is_routes(self, name: str) -> bool:
        return name in self._values and isinstance(self._values[name].type, RoutesType)

    def _weight_problems(self, line: OpLine, info: OpInfo) -> Iterator[Diagnostic]:
        for slot, name in zip(_operand_slots(info), line.operands, strict=False):
            if slot.kind is SlotKind.WEIGHT and name.text in self._made:
                message = f"`{slot.name}` of `{info.name}` is not a parameter"
                yield _error("UEP0214", message, name.span, "expected a parameter", "weights are taken as they come in")

    def _type_problems(self, line: OpLine) -> Iterator[Diagnostic]:
        types: dict[str, Type] = {name: value.type for name, value in self._values.items()}
        operands = tuple(self._values[name.text] for name in line.operands)
        found = infer(line.kind.text, operands, dict(line.op.attrs), types)
        if isinstance(found, Problem):
            yield _misfit(line, found)
            return
        for value, type_ in zip(line.results, found, strict=True):
            if value.type != type_:
                message = f"`{value.name}` is {type_}, and the text says {value.type}"
                label = f"`{line.kind.text}` gives {type_}"
                yield _error("UEP0111", message, value.span, label, f"write `{value.name} : {type_}`")


def _misfit(line: OpLine, problem: Problem) -> Diagnostic:
    labels = tuple(
        Label(span=line.operands[index].span, text=text, primary=position == 0)
        for position, (index, text) in enumerate(problem.labels)
    )
    return Diagnostic(
        code=problem.code, message=problem.message, labels=labels or (Label(span=line.span),), help=problem.help
    )


def _count_problems(line: OpLine, info: OpInfo) -> Iterator[Diagnostic]:
    if len(line.results) != info.num_results:
        message = f"`{info.name}` has {_counted(info.num_results, 'result')}, not {len(line.results)}"
        help_ = "each result is written `name : type`, with commas between"
        yield _error("UEP0213", message, line.span, f"expected {_counted(info.num_results, 'result')}", help_)


def _operand_problems(line: OpLine, info: OpInfo) -> Iterator[Diagnostic]:
    slots, given = _operand_slots(info), dict(line.op.attrs)
    least = sum(not slot.optional or given.get(slot.name) is True for slot in slots)
    most = least + sum(slot.optional and not slot.flag for slot in slots)
    if not least <= len(line.operands) <= most:
        numbers = f"{least}" if least == most else f"{least} or {most}"
        message = f"`{info.name}` has {numbers} operand{'' if most == 1 else 's'} here, not {len(line.operands)}"
        names = ", ".join(f"`{slot.name}`{_when(slot)}" for slot in slots)
        help_ = f"its operands are {names}" if names else "it has no operands"
        yield _error("UEP0204", message, line.span, f"expected {numbers}", help_)


def _when(slot: Slot) -> str:
    if slot.flag:
        return f" (where `{slot.name} = true`)"
    return " (may be left out)" if slot.optional else ""


def _attr_problems(line: OpLine, info: OpInfo) -> Iterator[Diagnostic]:
    slots = {slot.name: slot for slot in _attr_slots(info)}
    names = [name.text for name, _ in line.attrs]
    for position, (name, value) in enumerate(line.attrs):
        if name.text not in slots:
            listed = f"its attributes are {', '.join(f'`{known}`' for known in slots)}" if slots else "it has none"
            help_ = _suggestion(name.text, slots) or listed
            message = f"`{info.name}` has no attribute `{name.text}`"
            yield _error("UEP0204", message, name.span, "not an attribute of it", help_)
        elif name.text in names[:position]:
            yield _error("UEP0204", f"`{name.text}` is given twice", name.span, "given again here", "keep one of them")
        elif not _fits(value, slots[name.text]):
            expected = _expected(slots[name.text])
            message = f"`{name.text}` of `{info.name}` has to be {expected}"
            yield _error("UEP0204", message, name.span, "something else", f"write {expected}")


def _missing(line: OpLine, info: OpInfo) -> Iterator[Diagnostic]:
    names = [name.text for name, _ in line.attrs]
    for slot in _attr_slots(info):
        if slot.name not in names and (slot.flag or slot.default is not None or not slot.optional):
            message, help_ = f"`{info.name}` needs `{slot.name}`", f"write {{{slot.name} = ...}}: {_expected(slot)}"
            yield _error("UEP0204", message, line.span, f"`{slot.name}` is not given", help_)


def _operand_slots(info: OpInfo) -> tuple[Slot, ...]:
    return tuple(slot for slot in info.slots if slot.kind in (SlotKind.VALUE, SlotKind.WEIGHT))


def _attr_slots(info: OpInfo) -> tuple[Slot, ...]:
    return tuple(s for s in (*info.slots, *info.lowered) if s.flag or s.kind not in (SlotKind.VALUE, SlotKind.WEIGHT))


def _fits(value: Attr, slot: Slot) -> bool:
    match slot.kind:
        case SlotKind.VALUE | SlotKind.WEIGHT:
            return isinstance(value, bool)
        case SlotKind.WORD:
            return isinstance(value, str) and value in slot.words
        case SlotKind.NUMBER:
            return isinstance(value, float) and abs(value) <= LARGEST_F32
        case SlotKind.DTYPE:
            return isinstance(value, DType) and value.is_float
        case SlotKind.DIM:
            return isinstance(value, str) and _is_dim(value)
        case _:
            assert_never(slot.kind)


def _expected(slot: Slot) -> str:
    match slot.kind:
        case SlotKind.VALUE | SlotKind.WEIGHT:
            return "`true` or `false`"
        case SlotKind.WORD:
            return " or ".join(f'`"{word}"`' for word in slot.words)
        case SlotKind.NUMBER:
            return "a number of f32, like `1.5`"
        case SlotKind.DTYPE:
            return "a dtype of floating point, like `bf16`"
        case SlotKind.DIM:
            return 'a dim, like `"E"`'
        case _:
            assert_never(slot.kind)


def _is_dim(text: str) -> bool:
    try:
        return not _is_empty(Dim.parse(text))
    except ValueError:
        return False


def _is_empty(dim: Dim) -> bool:
    return not dim.terms and dim.constant < 1


def _suggestion(word: str, words: Iterable[str]) -> str:
    close = get_close_matches(word, sorted(words), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _error(code: str, message: str, span: Span, label: str, help_: str) -> Diagnostic:
    return Diagnostic(code=code, message=message, labels=(Label(span=span, text=label),), help=help_)
