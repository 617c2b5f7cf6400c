"""Another element type for a program's rows: what it changes of the types that the program declares.

A program is retyped where its declarations are read, before anything is lowered: so one rule of rounding holds for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.types import DType, RoutesType, RowsType, TensorType, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Retyping:
    """`new` in place of `old` in the header, and in the body, where `h : old = ...` and `cast(v, old)` become `new`.

    The parameters in `kept` stay: numbers per route, which are fp32 in every program. What a body says of f32 stays
    too: in a program in f32, the name `h : f32 = ...` tells that h is never to be rounded.
    """

    old: DType
    new: DType
    kept: frozenset[str] = frozenset()

    def param(self, name: str, type_: Type) -> Type:
        """The type of a parameter that is declared as `type_`."""
        return type_ if name in self.kept else self.changed(type_)

    def changed(self, type_: Type) -> Type:
        """The type, with the new element type for the old."""
        if isinstance(type_, RoutesType) or type_.dtype is not self.old:
            return type_
        return replace(type_, dtype=self.new)

    def result(self, declared: TensorType | RowsType, rounded: TensorType | RowsType | None) -> Type:
        """The type of a result that is declared so. A value that has been rounded already is returned as it is."""
        return self.changed(declared) if rounded is None else replace(declared, dtype=rounded.dtype)

    def in_body(self, dtype: DType) -> DType:
        """The dtype that a body's `dtype` stands for."""
        return self.new if dtype is self.old and dtype is not DType.F32 else dtype


def retyping_of(graph: OpGraph, old: DType, new: DType) -> Retyping:
    """The retyping of the program that `graph` was lowered from."""
    return Retyping(old=old, new=new, kept=frozenset(_numbers_per_route(graph)))


def _numbers_per_route(graph: OpGraph) -> Iterable[str]:
    shapes = {(type_.tokens, type_.topk) for type_ in graph.types.values() if isinstance(type_, RoutesType)}
    return (p.name for p in graph.params if isinstance(p.type, TensorType) and p.type.shape in shapes)
