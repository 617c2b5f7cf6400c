"""TaskGraph: the second level of the IR. One vertex per task family, with everything a family touches as data.

A *family* is a set of like tasks. Its domain gives the tasks' coordinates; reads, writes, waits and posts are maps
from those coordinates to what a task touches, in the index language. A map may range over items inside a task
(`over`, `when`): rows of a tile, chunks of a lane, routes of a token.

Lifetimes: a task first performs its waits, in order; then its reads and writes; then a CTA barrier; then its posts.
A family with `stepwise` set does the latter once per item of the ranges that all it touches have in common (a lane
posts chunk by chunk).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from uniep_compiler.ir.index import Environment, Expr, Int
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.types import DType
from uniep_compiler.options import Send
from uniep_compiler.source import NO_SPAN, Span

if TYPE_CHECKING:
    import networkx as nx

    from uniep_compiler.ir.instance import Instance


ROW_ROUTE = "row_route"
"""The buffer that holds where each row came from (source rank and route); whoever sends a row writes it beside."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Says of a field which number is the least that it can hold. The text form and the checker go by it."""

    least: int


Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]


class Role(StrEnum):
    """What a family does for the layer."""

    COMM = "comm"
    RELAY = "relay"
    COMPUTE = "compute"
    PUSH = "push"
    REDUCE = "reduce"


class Scope(StrEnum):
    """Who a release or an acquire speaks to: this GPU, or every rank."""

    GPU = "gpu"
    SYS = "sys"


class Proxy(StrEnum):
    """The path a memory access takes. Tensor memory accelerator (TMA) accesses take the async proxy."""

    GENERIC = "generic"
    ASYNC = "async"


class BufferKind(StrEnum):
    """Where a buffer comes from and how long it lives."""

    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    SYMMETRIC = "symmetric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A coordinate and its extent: 0 <= coordinate < extent."""

    coord: str
    extent: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A two-dimensional piece of memory on each rank. Only SYMMETRIC ones are written by other ranks.

    Weights are three-dimensional: `experts` is their leading extent, and 0 for everything else.
    """

    name: str
    dtype: DType
    rows: Expr
    cols: Expr
    kind: BufferKind
    experts: Natural = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """An array of counters in the scoreboard of each rank, zero at the start of a call.

    `scope` is GPU where only the own rank posts, else SYS; `phase` numbers posts between ranks (dispatch 1, push 2),
    and is 0 for signals that stay on a rank.
    """

    name: str
    extent: Expr
    scope: Scope = Scope.GPU
    phase: Natural = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A box of a buffer that a task reads or writes: `num_rows` rows from `row`, `num_cols` columns from `col`.

    `rank` is the rank whose memory it is (None: the own). The box is touched once per item of `over` for which `when`
    holds (None: always).
    """

    buffer: str
    row: Expr
    num_rows: Expr
    col: Expr = field(default_factory=lambda: Int(0))
    num_cols: Expr
    rank: Expr | None = None
    over: tuple[Range, ...] = ()
    when: Expr | None = None
    proxy: Proxy = Proxy.GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait until counter `index` of a signal on the own rank is at least `target`.

    `scope` is that of the acquire; `fence` says that a proxy fence follows, so that TMA reads see generic writes.
    """

    signal: str
    index: Expr
    target: Expr
    scope: Scope = Scope.GPU
    fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Add 1 to counter `index` of a signal of `rank` (None: the own), once per item of `over` for which `when` holds.

    `scope` is that of the release, which follows a CTA barrier.
    """

    signal: str
    index: Expr
    rank: Expr | None = None
    over: tuple[Range, ...] = ()
    when: Expr | None = None
    scope: Scope = Scope.GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tile of a grouped GEMM: rows, columns over all its accumulators, and the reduction step, in elements."""

    rows: Positive
    cols: Positive
    depth: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """One fp32 accumulator of a tile: its value's name, and which columns of the weight's output it covers.

    Column `n` of the accumulator is output column `first + n` of `weight` (and of `bias`), for `0 <= n < num_cols`.
    """

    value: str
    weight: str
    first: Natural
    bias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Further products in the sums of a tile: of `rows`, with the columns of `weight` that an accumulator covers.

    They are added after the others. `depth` is the number of columns of `rows`.
    """

    rows: str
    depth: Positive
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The value that an epilogue leaves in a buffer, at column offset `first`.

    A value that is made of pairs of columns has half of them: then `halved` is set; one that has a pair for each column
    is `doubled`. One that is `summed` has a number for each row: the columns of a buffer with one are the tasks
    side by side, so that each leaves its part of the sum.
    """

    value: str
    buffer: str
    first: Natural = 0
    halved: bool = False
    doubled: bool = False
    summed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoad:
    """Rows of numbers that an epilogue reads from `buffer` under the name `value`: the task's columns, from `first` on.

    With `doubled` they are twice as many, two for each column of the task.
    """

    value: str
    buffer: str
    first: Natural = 0
    doubled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasLoad:
    """One row of numbers per expert in `buffer`, which an epilogue reads under the name `value` for all its rows.

    Columns are those of `RowLoad`.
    """

    value: str
    buffer: str
    first: Natural = 0
    doubled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValue:
    """A number for each row, which an epilogue reads from `buffer` under the name `value`.

    `by_route` says that the buffer has one number per route, looked up through `route_at`; otherwise one per row.
    """

    value: str
    buffer: str
    by_route: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Numbers, one per route in `source`, that travel beside the rows to one per row in `target`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBody:
    """Rows of `source` go to `target` unchanged. `cols` elements each; `chunk` rows are handled at a time."""

    source: str
    target: str
    cols: Positive
    chunk: Positive
    companions: tuple[Companion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBody:
    """Rows go through an epilogue: `chunk` of an M tile, and of each `cols` columns, at a time.

    `gather` says that `source` holds one row per token and is read through `route_at` (and `source`); other loads are
    of rows in place. What is `summed` is the sum of a whole row.
    """

    source: str
    cols: Positive
    chunk: Positive
    loads: tuple[RowLoad, ...]
    epilogue: tuple[Op, ...]
    stores: tuple[Store, ...]
    row_values: tuple[RowValue, ...] = ()
    biases: tuple[BiasLoad, ...] = ()
    gather: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmBody:
    """One output tile of a grouped GEMM with its epilogue: `acc += rows @ weight[expert].T` over `depth` columns.

    `gather` says that `rows` holds one row per token and is read through `route_at` (and `source`). `terms` are more
    products of the same sums, of weights with the same layout.
    """

    rows: str
    depth: Positive
    num_cols: Positive
    layout: str
    accumulators: tuple[Accumulator, ...]
    epilogue: tuple[Op, ...]
    stores: tuple[Store, ...]
    tile: Tile
    gather: bool = False
    row_values: tuple[RowValue, ...] = ()
    loads: tuple[RowLoad, ...] = ()
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceBody:
    """The sum over a token's routes, in k order, in fp32, times the router weight if `weights` is given.

    `by_route` says that `rows` has one row per route (returned by pushes); otherwise it is read through `row_of`.
    """

    rows: str
    weights: str | None
    target: str
    cols: Positive
    topk: Positive
    block: Positive
    dtype: DType
    by_route: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterTerm:
    """Further outer products in the sums of a tile, of the rows of two more buffers."""

    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterBody:
    """One tile of the sum of outer products over an expert's rows, in their order: `left.T @ right`, rounded once.

    The expert's part of `target` has `num_rows` rows (columns of `left`) and `num_cols` columns (those of `right`). The
    tile has `tile.rows` of those rows and `tile.cols` columns, and adds `tile.depth` rows at a time, zeros after them.
    Tasks of an expert are numbered along the columns first. An expert without rows gets zeros. `terms` are summed after
    the others, all rows of one after those of another.
    """

    left: str
    right: str
    target: str
    num_rows: Positive
    num_cols: Positive
    tile: Tile
    terms: tuple[OuterTerm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SumBody:
    """Some columns of the sum over an expert's rows, in their order, rounded once: `width` of `num_cols`.

    With `factor`, each row is multiplied with its number there. `depth` rows are added at a time. An expert without
    rows gets zeros.
    """

    rows: str
    target: str
    num_cols: Positive
    width: Positive
    depth: Positive
    factor: RowValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesPart:
    """`cols` numbers for each row, or each route, to be added up."""

    rows: str
    cols: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesBody:
    """For each route of a block of tokens the sum of all numbers that its row has in `parts`, in their order.

    A route without an expert gets 0. `by_route` says that parts have one row per route; otherwise they are read through
    `row_of`.
    """

    parts: tuple[RoutesPart, ...]
    target: str
    topk: Positive
    block: Positive
    by_route: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBody:
    """Zeros for the rows of `target` after the last valid one, `chunk` at a time."""

    target: str
    cols: Positive
    chunk: Positive


Body = CopyBody | MapBody | GemmBody | ReduceBody | OuterBody | SumBody | RoutesBody | ZeroBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Like tasks. `value` names the program's value that the family makes, `span` where that stands.

    Tasks are numbered by `domain`, last coordinate fastest; with `group` > 1 (two coordinates only), in groups of
    `group` values of the first coordinate, and inside a group first coordinate fastest, so that neighbours share
    operands in L2.
    """

    name: str
    role: Role
    value: str
    domain: tuple[Range, ...]
    body: Body
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    waits: tuple[Wait, ...] = ()
    posts: tuple[Post, ...] = ()
    group: Positive = 1
    stepwise: bool = False
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """The families of one direction of a layer, in data-flow order, with their buffers and signals.

    `ranks` is the size of the group; `topk` and `experts` are bound, as all dims are at this level but the tokens'.
    `block` is the number of tokens of a reduce task, `tile_rows` the rows of an M tile; `send` says what the plan's
    lists of sends hold: tokens, or routes.
    """

    name: str
    ranks: Positive
    experts: Positive
    topk: Positive
    tile_rows: Positive
    block: Positive
    buffers: tuple[Buffer, ...]
    signals: tuple[Signal, ...]
    families: tuple[Family, ...]
    send: Send = Send.RANK

    def family(self, name: str) -> Family:
        """The family of that name; KeyError if there is none."""
        return {family.name: family for family in self.families}[name]

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError if there is none."""
        return {buffer.name: buffer for buffer in self.buffers}[name]

    def signal(self, name: str) -> Signal:
        """The signal of that name; KeyError if there is none."""
        return {signal.name: signal for signal in self.signals}[name]

    def __str__(self) -> str:
        from uniep_compiler.ir.tasks_text import print_tasks

        return print_tasks(self)

    def to_networkx(self) -> nx.DiGraph:
        """A networkx copy: families, and which waits for which (`ir/networkx_view.py` says what is in it)."""
        from uniep_compiler.ir.networkx_view import families_graph

        return families_graph(self)

    def instantiate(self, routing: Environment) -> Instance:
        """Every single task of every rank under one routing (`ir/routing.py`)."""
        from uniep_compiler.ir.instance import instantiate

        return instantiate(self, routing)
