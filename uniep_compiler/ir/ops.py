"""OpGraph: the first level of the IR. Typed values and ops with symbolic shapes; rounding is an op.

A value is one static assignment. `OpGraph.ops` is in program order, which is a topological order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uniep_compiler.ir.types import DType, Type
from uniep_compiler.source import NO_SPAN, Span

Attr = int | float | str | bool | DType
"""Value of an op's attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A typed value. `name` is unique in its graph: the program's name, or `_1`, `_2`, ... for unnamed steps."""

    name: str
    type: Type
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of the op table (`ir/op_table.py`). Operands and results are names of values."""

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False)

    def attr(self, name: str) -> Attr:
        """The attribute `name`; KeyError if the op has none of that name."""
        return dict(self.attrs)[name]

    def optional(self, name: str) -> Attr | None:
        """The attribute `name`, or None."""
        return dict(self.attrs).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """One direction of a layer as typed ops.

    `params` are in the order of the program's signature; `results` are names of the returned values, in order.
    `constraints` are the program's `where` conditions as (text) comparisons, checked when dims are bound.
    """

    name: str
    params: tuple[Value, ...]
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False)

    @property
    def types(self) -> Mapping[str, Type]:
        """Type of each value by name, parameters included."""
        return {value.name: value.type for value in (*self.params, *self.values)}

    def producer(self, name: str) -> Op | None:
        """The op whose result is `name`; None for a parameter."""
        return next((op for op in self.ops if name in op.results), None)

    def consumers(self, name: str) -> tuple[Op, ...]:
        """The ops that read `name`, in program order."""
        return tuple(op for op in self.ops if name in op.operands)
