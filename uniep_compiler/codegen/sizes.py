"""The extents of buffers in the program's own words: `2 * I`, where the task graph only has a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.index import Expr, Int, Sym, as_expr
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.tasks import CopyBody, GemmBody, MapBody, TaskGraph
from uniep_compiler.ir.types import Dim, RoutesType, RowsType, TensorType
from uniep_compiler.passes.names import ROW_ROUTE, name_buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Dims of the buffers' columns, of the rows of one expert's weight, and of the routes per token."""

    cols: Mapping[str, Dim]
    weight_rows: Mapping[str, Dim]
    topk: Dim

    def acc_cols(self, body: GemmBody) -> Dim:
        """Columns of each of a GEMM's accumulators: all of the weight's output, or a half of it."""
        weight = body.accumulators[0].weight
        width = self.weight_rows[weight] if body.layout == "nk" else self.cols[weight]
        half = width.half() if any(acc.first for acc in body.accumulators) else width
        if half is None:
            raise InternalError(f"{width} was split in halves")
        return half


def find_sizes(ops: OpGraph, graph: TaskGraph) -> Sizes:
    """The sizes of the buffers of `graph`, which was made of `ops`."""
    cols: dict[str, Dim] = {ROW_ROUTE: Dim(constant=1)}
    weight_rows: dict[str, Dim] = {}
    named = name_buffers(ops)
    for name, kind in named.types.items():
        match kind:
            case RowsType(shape=shape):
                cols[name] = shape[0] if shape else Dim(constant=1)
            case TensorType(shape=(_, rows, width)):
                cols[name], weight_rows[name] = width, rows
            case TensorType(shape=(_, width)):
                cols[name] = width
            case _:
                pass
    for family in graph.families:  # in data-flow order: a copy's source is known before its target
        if isinstance(family.body, GemmBody | MapBody):
            sums = (graph.buffer(store.buffer) for store in family.body.stores if store.summed)
            cols.update((b.name, Dim(constant=b.cols.value)) for b in sums if isinstance(b.cols, Int))
        if isinstance(family.body, CopyBody):
            cols.setdefault(family.body.target, cols[family.body.source])
    routes = next(kind for kind in named.types.values() if isinstance(kind, RoutesType))
    return Sizes(cols=cols, weight_rows=weight_rows, topk=routes.topk)


def dim_expr(dim: Dim, names: Mapping[str, str]) -> Expr:
    """A dim in the index language; `names` holds what its names are called there."""
    positive = [(name, factor) for name, factor in dim.terms if factor > 0]
    total: Expr = Int(0)
    for name, factor in positive:
        total = total + as_expr(factor) * Sym(names[name])
    if dim.constant > 0:
        total = total + dim.constant
    for name, factor in dim.terms:
        if factor < 0:
            total = total - as_expr(-factor) * Sym(names[name])
    return total - -dim.constant if dim.constant < 0 else total
