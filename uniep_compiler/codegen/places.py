"""Where things of a schedule stand in a kernel, as texts: buffers, plan tables, counters, and all sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from uniep_compiler.codegen.names import ModuleNames
from uniep_compiler.codegen.sizes import Sizes, dim_expr
from uniep_compiler.codegen.triton_text import ATOM, expr_text
from uniep_compiler.ir.index import Binary, BinaryOp, Expr, Int, Sym, cdiv, substitute, walk
from uniep_compiler.ir.schedule import Interleave, Launch, Schedule
from uniep_compiler.ir.tasks import (
    Buffer,
    BufferKind,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    ReduceBody,
    RoutesBody,
    SumBody,
    TaskGraph,
)
from uniep_compiler.ir.types import Dim
from uniep_compiler.passes.accesses import EXPERT, FIRST_ROW, NUM_ROWS, ROUTE_AT, SOURCE
from uniep_compiler.passes.names import ROW_ROUTE, fresh
from uniep_compiler.passes.settings import Settings

TILE_LOOKUPS: Mapping[Expr, str] = {
    FIRST_ROW: "first_row",
    NUM_ROWS: "num_rows",
    EXPERT: "expert",
    ROUTE_AT: "route",
    SOURCE: "source",
}
"""What tasks over M tiles call the entries of the plan that they have read."""

TOKENS = Sym("tokens")

COPY, MAP, REDUCE = "COPY_COLS", "MAP_COLS", "REDUCE_COLS"

MOST_COLS: Mapping[str, int] = {COPY: 1024, MAP: 256, REDUCE: 256}
"""Columns at a time: a copy's threads have several loads in flight, and so has a reduce, with one for each route."""


def piece_cols(kind: str, cols: int) -> int:
    """Columns of a row of `cols` that are handled at a time: a power of two."""
    return min(MOST_COLS[kind], 1 << max(cols - 1, 0).bit_length())


def piece_names(graph: TaskGraph, taken: Collection[str]) -> dict[tuple[str, int], str]:
    """A constant for each number of columns that copies and reduces of a graph handle at a time."""
    names: dict[tuple[str, int], str] = {}
    for family in graph.families:
        if isinstance(family.body, GemmBody | OuterBody | SumBody | RoutesBody):
            continue
        kind = {ReduceBody: REDUCE, MapBody: MAP}.get(type(family.body), COPY)
        key = (kind, piece_cols(kind, family.body.cols))
        if key not in names:
            names[key] = fresh(kind, (*names.values(), *taken))
    return names


def lag_names(schedule: Schedule, group: int, taken: Collection[str]) -> dict[int, str]:
    """A constant for each lag: by how many groups of tiles a family runs behind the one that it reads from."""
    names: dict[int, str] = {}
    for launch in schedule.launches:
        lags = starts(launch, Sym("num_tiles") // group)
        if lags and lags[0] not in names:
            names[lags[0]] = fresh("LAG", (*names.values(), *taken))
    return names


def starts(launch: Launch, groups: Expr) -> tuple[int, ...]:
    """By how many groups of tiles the second, third, ... family of a launch's pipeline run behind the first."""
    steps = [segment.steps for segment in launch.segments if isinstance(segment, Interleave)]
    found = {expr.lhs for count in steps for expr in walk(count) if _is_limit(expr, groups)}
    return tuple(sorted(lag.value for lag in found if isinstance(lag, Int)))


def _is_limit(expr: Expr, groups: Expr) -> TypeGuard[Binary]:
    return isinstance(expr, Binary) and expr.op is BinaryOp.MIN and expr.rhs == groups


def num_columns(body: GemmBody) -> int:
    """Tiles side by side in a GEMM's result."""
    return -(-body.num_cols // (body.tile.cols // len(body.accumulators)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The texts for one schedule.

    `tma` names the tensor descriptor through which a family reads a buffer, by both; `pieces` the constants that say
    how many columns copies (and reduces) handle at a time, by COPY_COLS or REDUCE_COLS and that number; `lags` those
    for how many groups of tiles a family runs behind the one before it, by that number.
    """

    schedule: Schedule
    settings: Settings
    names: ModuleNames
    sizes: Sizes
    tma: Mapping[tuple[str, str], str]
    pieces: Mapping[tuple[str, int], str]
    lags: Mapping[int, str]

    @property
    def local(self) -> bool:
        """Whether there is one rank, so that nothing depends on a rank."""
        return self.settings.local

    @property
    def rank(self) -> str:
        """The own rank."""
        return "0" if self.local else "rank"

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return self.schedule.graph.buffer(name)

    # -- sizes ------------------------------------------------------------------------------------------------------

    def dim(self, dim: Dim) -> str:
        """A dim."""
        return expr_text(dim_expr(dim, self.names.dims), {})

    def factor(self, dim: Dim) -> str:
        """A dim to multiply by: in parentheses unless it is a name or a number."""
        return expr_text(dim_expr(dim, self.names.dims), {}, ATOM)

    def cols(self, buffer: str) -> str:
        """The columns of a buffer."""
        return self.dim(self.sizes.cols[buffer])

    @property
    def topk(self) -> str:
        """Routes per token, to multiply by."""
        return self.factor(self.sizes.topk)

    def tile_rows(self, rows: int) -> str:
        """Rows of a tile."""
        return "TILE_ROWS" if rows == self.schedule.graph.tile_rows else str(rows)

    def piece(self, kind: str, cols: int) -> str:
        """Columns of a row of `cols` that are handled at a time."""
        return self.pieces[kind, piece_cols(kind, cols)]

    def has_tail(self, kind: str, cols: int) -> bool:
        """Whether the last of those pieces is shorter."""
        return cols % piece_cols(kind, cols) != 0

    def text(self, expr: Expr, lookups: Mapping[Expr, str] | None = None, outer: int = 0) -> str:
        """An index expression, with names for the numbers in it."""
        return expr_text(substitute(expr, self._named_numbers()), lookups or {}, outer)

    def tasks_by_name(self, family: str, count: Expr) -> Expr:
        """A number of tasks of a family over M tiles, with names for the numbers of tiles and of columns in it."""
        group, groups = self.settings.options.group, self.groups
        named: dict[Expr, Expr] = {}
        if group > 1:
            named = {
                groups: groups,
                groups * group: Binary(BinaryOp.MUL, groups, Sym("GROUP")),
                Int(group): Sym("GROUP"),
            }
        body, tiles = self.schedule.graph.family(family).body, self.names.tiles.get(family)
        if isinstance(body, GemmBody) and tiles is not None:
            per_tile = num_columns(body)
            named |= {Int(per_tile * group): Sym(tiles.step), Int(per_tile): Sym(tiles.columns)}
        return substitute(count, named)

    @property
    def groups(self) -> Expr:
        """Full groups of M tiles of a rank."""
        return Sym("num_tiles") // self.settings.options.group

    def _named_numbers(self) -> Mapping[Expr, Expr]:
        graph = self.schedule.graph
        topk = dim_expr(self.sizes.topk, self.names.dims)
        token = Binary(BinaryOp.FLOORDIV, ROUTE_AT, topk)
        block = Sym("BLOCK")
        named: dict[Expr, Expr] = {
            ROUTE_AT // graph.topk // graph.block: Binary(BinaryOp.FLOORDIV, token, block),
            ROUTE_AT // graph.topk: token,
            cdiv(TOKENS, graph.block): Binary(BinaryOp.CEILDIV, TOKENS, block),
            cdiv(Sym("tokens_bound"), graph.block): Binary(BinaryOp.CEILDIV, Sym("tokens_bound"), block),
            self.groups: Sym("groups"),
            Sym("tokens_bound") * graph.topk: Binary(BinaryOp.MUL, Sym("tokens_bound"), topk),
        }
        return {expr: name for expr, name in named.items() if isinstance(expr, Binary)}  # division by 1 folds away

    # -- memory -----------------------------------------------------------------------------------------------------

    def pointer(self, name: str, rank: str = "rank") -> str:
        """Start of a buffer on the own rank, or on the rank whose text is given."""
        buffer = self.buffer(name)
        base = name if name == ROW_ROUTE else f"{name}_ptr"
        is_shared = buffer.experts or (buffer.kind is BufferKind.INPUT and isinstance(buffer.rows, Int))
        if self.local or is_shared:
            return base  # the experts of all ranks lie together
        if _is_by_token(buffer):
            return f"advance({base}, first_token, 1, {self.stride(name)})"
        return f"advance({base}, {rank}, {self.text(buffer.rows)}, {self.cols(name)})"

    def stride(self, name: str) -> str:
        """Elements from one row of a buffer to the next. Tokens may come with any stride; the rest is dense."""
        return f"{name}_stride" if self.has_stride(self.buffer(name)) else self.factor(self.sizes.cols[name])

    def has_stride(self, buffer: Buffer) -> bool:
        """Whether the buffer's stride is an argument. Router weights are dense: they are as small as the ids."""
        return buffer.kind is BufferKind.INPUT and _is_by_token(buffer) and self._is_read_as_matrix(buffer)

    def _is_read_as_matrix(self, buffer: Buffer) -> bool:
        readers = [f for f in self.schedule.graph.families if buffer.name in {access.buffer for access in f.reads}]
        return any(buffer.name in _rows_of(family) for family in readers)

    def counter(self, signal: str, index: str, rank: str = "rank") -> str:
        """Address of a counter of a signal."""
        place = next(place for place in self.schedule.scoreboard if place.signal == signal)
        parts = ["board"]
        if not self.local:
            parts.append(f"{rank} * board_size")
        if place.offset != Int(0):
            parts.append(self.text(place.offset, outer=2))
        if index != "0":
            parts.append(index)
        return " + ".join(parts)


def _rows_of(family: Family) -> tuple[str, ...]:
    """The buffers whose rows a family reads as such."""
    match family.body:
        case GemmBody(rows=rows):
            return (rows,)
        case CopyBody(source=source) | MapBody(source=source):
            return (source,)
        case _:
            return ()


def _is_by_token(buffer: Buffer) -> bool:
    """Whether the buffer holds one row for each token of a rank."""
    return buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT) and buffer.rows == TOKENS
