"""Collects the ops of a layer while its statements are read.

Values are known by handles until the graph is finished: only then do they get their names, the program's own or `_1`,
`_2`, ... in order, and ops that nothing needs fall away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label
from uniep_compiler.ir.op_rules import Problem
from uniep_compiler.ir.op_table import OPS, infer
from uniep_compiler.ir.ops import Attr, Op, OpGraph, Value
from uniep_compiler.ir.types import DType, RoutesType, RowsType, Type
from uniep_compiler.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an expression gave: a value of the graph. `rounded` is False for f32 that comes straight from arithmetic."""

    handle: str
    rounded: bool
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """What an expression of numbers gave: a number, not yet part of the graph."""

    value: float
    span: Span


@dataclass(slots=True, kw_only=True)
class Builder:
    """A graph in the making."""

    bag: DiagnosticBag
    rounding: str = ""  # the rule by which names round, to be shown where dtypes do not fit
    ops: list[Op] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def param(self, name: str, type_: Type, span: Span) -> Result:
        """Adds a parameter. Its handle is its name."""
        self.types[name] = type_
        return Result(handle=name, rounded=True, span=span)

    def is_param(self, value: Result) -> bool:
        """Whether it is a parameter."""
        return not value.handle.startswith("%")

    def name(self, value: Result, name: str) -> None:
        """Gives a value its name, unless it is a parameter or has one."""
        if not self.is_param(value):
            self.names.setdefault(value.handle, name)

    def emit(
        self, kind: str, operands: tuple[Result, ...], span: Span, attrs: Mapping[str, Attr] | None = None
    ) -> tuple[Result, ...] | None:
        """Adds an op and gives its results. None if it does not fit, which is then in the bag."""
        attrs = {} if attrs is None else attrs
        values = tuple(Value(name=operand.handle, type=self.types[operand.handle]) for operand in operands)
        types = infer(kind, values, attrs, self.types)
        if isinstance(types, Problem):
            self.bag.add(self._diagnostic(types, operands, span))
            return None
        handles = tuple(f"%{len(self.types) + index}" for index in range(len(types)))
        self.types.update(zip(handles, types, strict=True))
        names = tuple(operand.handle for operand in operands)
        self.ops.append(Op(kind=kind, operands=names, results=handles, attrs=tuple(attrs.items()), span=span))
        rounded = kind in ("round", "const") or not _is_float(types[0]) or (OPS[kind].moves and operands[0].rounded)
        return tuple(Result(handle=handle, rounded=rounded, span=span) for handle in handles)

    def emit_one(
        self,
        kind: str,
        operands: tuple[Result | Constant | None, ...],
        span: Span,
        attrs: Mapping[str, Attr] | None = None,
    ) -> Result | None:
        """Adds an op with one result. Constants among its operands become ops; None among them gives None."""
        solid = tuple(self.solid(operand) for operand in operands if operand is not None)
        if len(solid) < len(operands):
            return None
        results = self.emit(kind, solid, span, attrs)
        return results[0] if results is not None else None

    def solid(self, operand: Result | Constant) -> Result:
        """The operand as a value of the graph."""
        if isinstance(operand, Result):
            return operand
        results = self.emit("const", (), operand.span, {"value": operand.value})
        assert results is not None
        return results[0]

    def round(self, value: Result, dtype: DType, span: Span) -> Result | None:
        """The value in `dtype`; itself, if it is that already."""
        type_ = self.types[value.handle]
        if not isinstance(type_, RoutesType) and type_.dtype is dtype:
            return Result(handle=value.handle, rounded=True, span=value.span)
        return self.emit_one("round", (value,), span, {"dtype": dtype})

    def show(self, text: object) -> str:
        """A type or message for the user, with names for handles."""
        return re.sub(r"%\d+", lambda found: self.names.get(found[0], "_"), str(text))

    def _diagnostic(self, problem: Problem, operands: tuple[Result, ...], span: Span) -> Diagnostic:
        labels = tuple(
            Label(span=operands[index].span, text=self.show(text), primary=position == 0)
            for position, (index, text) in enumerate(problem.labels)
        )
        return Diagnostic(
            code=problem.code,
            message=self.show(problem.message),
            labels=labels or (Label(span=span),),
            notes=(self.rounding,) if problem.about_rounding else (),
            help=self.show(problem.help),
        )

    def finish(
        self, name: str, params: tuple[Value, ...], results: tuple[str, ...], constraints: tuple[str, ...], span: Span
    ) -> OpGraph:
        """The graph of what `results` (handles) need."""
        ops = _needed(self.ops, results)
        final = {param.name: param.name for param in params}
        numbers = count(1)
        for handle in (handle for op in ops for handle in op.results):
            final[handle] = self.names.get(handle) or f"_{next(numbers)}"
        return OpGraph(
            name=name,
            params=params,
            values=tuple(
                Value(name=final[handle], type=_renamed(self.types[handle], final), span=op.span)
                for op in ops
                for handle in op.results
            ),
            ops=tuple(
                Op(
                    kind=op.kind,
                    operands=tuple(final[operand] for operand in op.operands),
                    results=tuple(final[result] for result in op.results),
                    attrs=op.attrs,
                    span=op.span,
                )
                for op in ops
            ),
            results=tuple(final[result] for result in results),
            constraints=constraints,
            span=span,
        )


def _is_float(type_: Type) -> bool:
    return not isinstance(type_, RoutesType) and type_.dtype.is_float


def _needed(ops: list[Op], results: tuple[str, ...]) -> list[Op]:
    wanted = set(results)
    kept = []
    for op in reversed(ops):
        if wanted.intersection(op.results):
            wanted.update(op.operands)
            kept.append(op)
    return kept[::-1]


def _renamed(type_: Type, names: Mapping[str, str]) -> Type:
    if isinstance(type_, RowsType):
        return RowsType(dtype=type_.dtype, routes=names[type_.routes], shape=type_.shape)
    return type_
