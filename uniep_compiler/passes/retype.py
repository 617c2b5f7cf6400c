"""The same program in another element type, as if its header said that one.

Before (f32):   _1 = group_gemm(xs, w1); a = silu(_1)          after (bf16):  _1 = group_gemm(xs, w1); _2 = silu(_1)
                                                                              a = round(_2) {dtype = bf16}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.op_rules import Problem
from uniep_compiler.ir.op_table import OPS, infer
from uniep_compiler.ir.ops import Op, OpGraph, Value
from uniep_compiler.ir.types import DType, RowsType, TensorType, Type
from uniep_compiler.passes.names import is_named
from uniep_compiler.passes.stages import row_dtype


def retype(graph: OpGraph, dtype: DType) -> OpGraph:
    """The program with `dtype` for that of its rows: in tokens, rows, weights, and where values are rounded to it.

    Router weights stay fp32. A program in fp32 rounds nothing; in another dtype it rounds the values that have a name,
    and its results.
    """
    old = row_dtype(graph)
    return graph if old is dtype else _Retyper(graph, old, dtype).run()


class _Retyper:
    def __init__(self, graph: OpGraph, old: DType, new: DType) -> None:
        self.graph = graph
        self.old = old
        self.new = new
        router = {op.operands[1] for op in graph.ops if op.kind == "combine" and len(op.operands) > 1}
        router |= {op.operands[0] for op in graph.ops if op.kind == "to_rows"}
        self.params = tuple(p if p.name in router else replace(p, type=self._change(p.type)) for p in graph.params)
        self.types: dict[str, Type] = {param.name: param.type for param in self.params}
        self.unnamed = (f"_{number}" for number in count(1) if f"_{number}" not in graph.types)
        self.ops: list[Op] = []
        self.values: list[Value] = []

    def run(self) -> OpGraph:
        for op in self.graph.ops:
            attrs = tuple((name, self.new if value is self.old else value) for name, value in op.attrs)
            for part in self._rounded(replace(op, attrs=attrs)):
                self._add(part)
        return replace(self.graph, params=self.params, values=tuple(self.values), ops=tuple(self.ops))

    def _change(self, kind: Type) -> Type:
        if isinstance(kind, TensorType | RowsType) and kind.dtype is self.old:
            return replace(kind, dtype=self.new)
        return kind

    def _rounded(self, op: Op) -> Iterator[Op]:
        """The op; where its result got no rounding only because the program was in fp32, with one behind it."""
        result = op.results[0]
        is_kept = is_named(result) or result in self.graph.results
        computes = not OPS[op.kind].moves and op.kind not in ("route", "counts", "const", "round")
        if self.old is not DType.F32 or not is_kept or not computes:
            yield op
            return
        before = next(self.unnamed)
        yield replace(op, results=(before,))
        yield Op(kind="round", operands=(before,), results=(result,), attrs=(("dtype", self.new),), span=op.span)

    def _add(self, op: Op) -> None:
        operands = tuple(Value(name=name, type=self.types[name]) for name in op.operands)
        types = infer(op.kind, operands, dict(op.attrs), self.types)
        if isinstance(types, Problem):
            raise InternalError(f"in {self.new}, `{op.kind}` does not fit: {types.message}")
        for name, kind in zip(op.results, types, strict=True):
            self.types[name] = kind
            self.values.append(Value(name=name, type=kind, span=op.span))
        self.ops.append(op)
