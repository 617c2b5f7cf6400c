"""Cuts the row-wise part of an OpGraph into stages: grouped GEMMs of the same rows, and what follows in registers.

Before:                                          After:
    _1 = group_gemm(xs, w13)                         stage a: rows xs
    h = round(_1)                                      gate_acc = w13[:, 0:I], up_acc = w13[:, I:2I]
    gate, up = split(h, halves)                        gate = round(gate_acc); up = round(up_acc)
    _2 = silu(gate); _3 = mul(_2, up)                  _2 = silu(gate); _3 = mul(_2, up); a = round(_3)
    a = round(_3)                                      store a

A split in halves is turned into two accumulators, so it costs nothing; values before it are carried as two halves, and
so are those after a join. An interleaved one stays: it takes pairs of neighbouring columns apart, which one thread
holds. GEMMs whose results meet in an elementwise op share a stage, which reads their rows once.

What is made of rows in memory by elementwise ops alone is made in each stage that needs it. It only becomes a stage of
its own, a map, where it has to be in memory before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.tasks import Accumulator, RowLoad, Store
from uniep_compiler.ir.types import Dim, DType, RowsType, TensorType
from uniep_compiler.passes.names import fresh, is_named
from uniep_compiler.source import Span

ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "neg", "silu", "sigmoid", "gelu", "gelu_tanh", "relu", "square", "clamp", "round"}
    | {"gelu_slope", "gelu_tanh_slope", "step", "within"}
)
"""Ops on numbers that an epilogue can hold."""

IN_STAGES = ELEMENTWISE | {"split", "join", "row_sum"}
"""All ops that an epilogue can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Grouped GEMMs of the same rows and what follows them in registers.

    `row_numbers` are the values with one number per row that the epilogue reads, and `loads` the rows of numbers that
    it reads besides the GEMMs' own. `stores` are the values that leave the stage; `num_cols` is the number of columns
    of an accumulator. `values` are all values of the program that the stage makes.
    """

    gemm: Op
    rows: str
    depth: int
    num_cols: int
    layout: str
    accumulators: tuple[Accumulator, ...]
    epilogue: tuple[Op, ...]
    row_numbers: tuple[str, ...]
    loads: tuple[RowLoad, ...]
    stores: tuple[Store, ...]
    values: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """An elementwise op that no stage can hold, and why."""

    op: Op
    why: str


def stages_of_values(graph: OpGraph) -> tuple[dict[str, str], tuple[Misplaced, ...]]:
    """For every value that a stage makes, what that starts with; and the ops that no stage can hold.

    What depends on a GEMM starts with the result of the first GEMM of its stage. What is made of rows in memory alone
    starts with the first of those.
    """
    stage: dict[str, str] = {}
    misplaced: list[Misplaced] = []
    doubtful: set[str] = set()  # made of what has been reported already
    for op in graph.ops:
        if op.kind == "group_gemm":
            stage[op.results[0]] = op.results[0]
        elif op.kind in IN_STAGES:
            rows = [name for name in op.operands if is_matrix(graph, name)]
            firsts = sorted({stage.get(name, name) for name in rows}, key=[*graph.types].index)
            why = _why_not(graph, op, firsts)
            if doubtful.intersection(op.operands) or why:
                misplaced += [] if doubtful.intersection(op.operands) else [Misplaced(op=op, why=why)]
                doubtful.update(op.results)
            elif rows:
                met = [first for first in firsts if _is_gemm(graph, first)] or firsts
                stage = {name: met[0] if first in met else first for name, first in stage.items()}
                stage.update(dict.fromkeys(op.results, met[0]))
    members = members_of_stages(graph, stage)
    in_maps = [op for first in members if not _is_gemm(graph, first) for op in members[first].ops]
    misplaced += [
        Misplaced(op=op, why="rows that no group_gemm makes") for op in in_maps if op.kind in ("split", "join")
    ]
    return stage, tuple(misplaced)


def _why_not(graph: OpGraph, op: Op, firsts: list[str]) -> str:
    """Why the op cannot be part of a stage; empty if it can."""
    if not firsts:
        numbers = any(is_row_number(graph, name) for name in op.operands)
        return "numbers per row alone" if numbers and not _is_sum_of_parts(graph, op.results[0]) else ""
    makers = [graph.producer(first) for first in firsts]
    gemms = [maker for maker in makers if maker is not None and maker.kind == "group_gemm"]
    if not gemms and firsts[1:]:
        return "rows of several stages"
    kinds = [(gemm.operands[0], _width(graph, gemm.results[0]), gemm.attr("layout")) for gemm in gemms]
    differ = [what for what, *seen in zip(("rows", "widths", "layouts"), *kinds, strict=True) if len(set(seen)) > 1]
    if differ:
        return f"results of group_gemms of other {' and '.join(differ)}"
    if op.kind == "row_sum" and not _is_sum_of_parts(graph, op.results[0]):
        return "rows, for numbers that meet rows again"
    if op.kind == "split" and gemms and _width(graph, op.operands[0]) != _width(graph, gemms[0].results[0]):
        return "a half of a split"
    return ""


@dataclass(slots=True, kw_only=True)
class Members:
    """The ops of a stage, and which of their results it stores, in program order."""

    ops: list[Op]
    stored: tuple[str, ...]


def members_of_stages(graph: OpGraph, stage: Mapping[str, str]) -> dict[str, Members]:
    """The ops of each stage by what it starts with; `stage` is that of `stages_of_values`.

    An op on rows in memory alone belongs to every stage of GEMMs that needs it. Its result is stored by one of those if
    it is only needed in memory once they are done, else by a map.
    """
    ops = {name: op for op in graph.ops for name in op.results if name in stage}
    made: dict[str, set[str]] = {}
    stored: dict[str, set[str]] = {}

    def chain(names: Iterable[str]) -> set[str]:
        """What has to be made for some values out of rows in memory."""
        mine = {name for name in names if name in ops and not _is_gemm(graph, stage[name])}
        return mine | (chain(operand for name in mine for operand in ops[name].operands) if mine else mine)

    for name, first in stage.items():
        if _is_gemm(graph, first):
            read = () if ops[name].kind == "group_gemm" else ops[name].operands  # a GEMM's own rows are in memory
            made.setdefault(first, set()).update((name, *chain(read)))
    hosts = {stage[name]: first for first, names in made.items() for name in names if stage[name] != first}
    for name, root in stage.items():
        readers = [op for op in graph.ops if name in op.operands and op.kind not in IN_STAGES]
        if readers or name in graph.results or ops[name].kind == "row_sum":
            late = all(op.kind in ("group_outer", "group_sum", "to_routes") for op in readers)
            owner = hosts[root] if late and root in hosts else root
            made.setdefault(owner, set()).update(chain((name,)))
            stored.setdefault(owner, set()).add(name)
    return {
        first: Members(
            ops=[op for op in graph.ops if names.intersection(op.results)],
            stored=tuple(name for name in stage if name in stored.get(first, ())),
        )
        for first, names in made.items()
    }


def summands(graph: OpGraph, value: str) -> tuple[str, ...]:
    """The sums of rows that a number per row is the sum of; empty if it is something else."""
    maker = graph.producer(value)
    if maker is not None and maker.kind == "row_sum":
        return (value,)
    if maker is None or maker.kind != "add" or not all(is_row_number(graph, name) for name in maker.operands):
        return ()
    parts = [summands(graph, name) for name in maker.operands]
    return tuple(name for part in parts for name in part) if all(parts) else ()


def _is_sum_of_parts(graph: OpGraph, value: str) -> bool:
    """Whether a number per row is made of sums of rows, and only returned to its route."""
    readers = graph.consumers(value)
    return (
        bool(summands(graph, value))
        and value not in graph.results
        and all(op.kind == "to_routes" or _is_sum_of_parts(graph, op.results[0]) for op in readers)
    )


def is_matrix(graph: OpGraph, name: str) -> bool:
    """Whether a value is rows of numbers."""
    kind = graph.types[name]
    return isinstance(kind, RowsType) and bool(kind.shape)


def is_row_number(graph: OpGraph, name: str) -> bool:
    """Whether a value is one number per row."""
    kind = graph.types[name]
    return isinstance(kind, RowsType) and not kind.shape


def _width(graph: OpGraph, name: str) -> Dim:
    kind = graph.types[name]
    if not isinstance(kind, RowsType):
        raise TypeError(f"{name} is not rows")
    return kind.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStage:
    """Elementwise ops on rows in memory: dispatched ones, or a parameter.

    `first` is the first value that they make, `stores` are the values that leave the stage.
    """

    rows: str
    first: str
    epilogue: tuple[Op, ...]
    row_numbers: tuple[str, ...]
    stores: tuple[Store, ...]
    span: Span


def build_maps(graph: OpGraph) -> tuple[MapStage, ...]:
    """The maps of `graph`, which `check_support` has accepted, in the order of their first ops."""
    stage, _ = stages_of_values(graph)
    members = members_of_stages(graph, stage)
    return tuple(_build_map(graph, first, members[first]) for first in members if not _is_gemm(graph, first))


def _build_map(graph: OpGraph, first: str, members: Members) -> MapStage:
    ops = members.ops
    return MapStage(
        rows=first,
        first=ops[0].results[0],
        epilogue=(*_constants(graph, tuple(ops)), *ops),
        row_numbers=_row_numbers(graph, ops),
        stores=tuple(Store(value=name, buffer=name) for name in members.stored),
        span=ops[0].span,
    )


def _is_gemm(graph: OpGraph, first: str) -> bool:
    maker = graph.producer(first)
    return maker is not None and maker.kind == "group_gemm"


def _row_numbers(graph: OpGraph, members: Iterable[Op]) -> tuple[str, ...]:
    """The values with one number per row that ops read, and do not make."""
    made = {name for op in members for name in op.results}
    read = (name for op in members for name in op.operands if is_row_number(graph, name) and name not in made)
    return tuple(dict.fromkeys(read))


def build_stages(graph: OpGraph, dims: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of `graph` with GEMMs, which `check_support` has accepted, in the order of their first GEMMs."""
    stage, _ = stages_of_values(graph)
    members = members_of_stages(graph, stage)
    return tuple(_build_stage(graph, first, members[first], dims) for first in members if _is_gemm(graph, first))


def _build_stage(graph: OpGraph, first: str, members: Members, dims: Mapping[str, int]) -> Stage:
    gemms = [op for op in members.ops if op.kind == "group_gemm"]
    gemm, width = gemms[0], _width(graph, first)
    parts = _Parts(graph, members.ops, width)
    num_cols = width.value(dims) // len(parts.names(first))
    accumulators = tuple(
        _accumulator(name, gemm, part * num_cols)
        for gemm in gemms
        for part, name in enumerate(parts.names(gemm.results[0]))
    )
    epilogue, accumulators = _name_accumulators(graph, parts.ops, accumulators)

    def share(value: str) -> int:
        """Columns of a part of a value, for two of an accumulator."""
        return 2 * _width(graph, value).value(dims) // len(parts.names(value)) // num_cols

    return Stage(
        gemm=gemm,
        rows=gemm.operands[0],
        depth=_width(graph, gemm.operands[0]).value(dims),
        num_cols=num_cols,
        layout=str(gemm.attr("layout")),
        accumulators=accumulators,
        epilogue=(*_constants(graph, epilogue), *epilogue),
        row_numbers=_row_numbers(graph, members.ops),
        loads=tuple(
            RowLoad(value=part, buffer=name, first=number * num_cols, doubled=share(name) == 4)
            for name in parts.loaded
            for number, part in enumerate(parts.names(name))
        ),
        stores=tuple(
            Store(value=name, buffer=name, summed=True)
            if is_row_number(graph, name)
            else Store(
                value=part,
                buffer=name,
                first=number * num_cols,
                halved=share(name) == 1,
                doubled=share(name) == 4,
            )
            for name in members.stored
            for number, part in enumerate(parts.names(name))
        ),
        values=frozenset(name for op in members.ops for name in op.results),
        span=gemm.span,
    )


class _Parts:
    """A stage's values in parts: two halves each where the stage splits or joins halves, else one.

    The results of a split are the halves of what it splits, and the operands of a join those of what it makes, so that
    both disappear. `ops` make the parts, in order. `loaded` are the values that are read from memory.
    """

    def __init__(self, graph: OpGraph, members: list[Op], width: Dim) -> None:
        self._graph = graph
        self._parts: dict[str, tuple[str, ...]] = {}
        made = {name for op in members for name in op.results}
        gemm_rows = [op for op in members if op.kind != "group_gemm"]
        read = [name for op in gemm_rows for name in op.operands if name not in made and is_matrix(graph, name)]
        self.loaded = tuple(dict.fromkeys(read))
        halves = [op for op in members if op.kind in ("split", "join") and op.attr("how") == "halves"]
        wide = self._wide_width(halves, width)
        splits = [op for op in halves if op.kind == "split"]
        joined = {op.results[0]: op.operands for op in halves if op.kind == "join"}
        self._new = _new_names(graph)
        for name in (*self.loaded, *(name for op in members for name in op.results)):
            if is_matrix(graph, name) and _width(graph, name) == wide:
                own = _half_names(name, splits, graph) or (next(self._new), next(self._new))
                self._parts[name] = joined.get(name) or own
        for split in splits:
            parts = self._parts[split.operands[0]]
            self._parts.update((half, (part,)) for half, part in zip(split.results, parts, strict=True))
        kept = [op for op in members if op.kind != "group_gemm" and op not in halves]
        self.ops = tuple(part for op in kept for part in self._ops_of(op, splits))

    def _wide_width(self, halves: list[Op], width: Dim) -> Dim | None:
        """The width of values that are carried as two halves: that of the GEMM, or twice that; None for nothing."""
        if not halves:
            return None
        splits_gemm = any(op.kind == "split" and _width(self._graph, op.operands[0]) == width for op in halves)
        return width if splits_gemm else width.times(2)

    def names(self, value: str) -> tuple[str, ...]:
        """The names of a value's parts, first columns first."""
        return self._parts.get(value, (value,))

    def _ops_of(self, op: Op, splits: list[Op]) -> Iterable[Op]:
        """The op once for each part of its result. One that makes what is split stands for the split, too."""
        if op.kind == "split":  # interleaved: nothing is carried as halves
            yield op
            return
        if op.kind == "row_sum" and len(self.names(op.operands[0])) > 1:
            yield from self._sum_of_parts(op)
            return
        split = next((split for split in splits if split.operands[0] == op.results[0]), None)
        for number, result in enumerate(self.names(op.results[0])):
            operands = tuple(self._part(name, number) for name in op.operands)
            yield replace(op, operands=operands, results=(result,), span=op.span if split is None else split.span)

    def _sum_of_parts(self, op: Op) -> Iterable[Op]:
        sums = [next(self._new) for _ in self.names(op.operands[0])]
        for part, name in zip(self.names(op.operands[0]), sums, strict=True):
            yield replace(op, operands=(part,), results=(name,))
        yield replace(op, kind="add", operands=tuple(sums))

    def _part(self, value: str, number: int) -> str:
        names = self.names(value)
        return names[number] if len(names) > 1 else names[0]


def _half_names(value: str, splits: list[Op], graph: OpGraph) -> tuple[str, ...] | None:
    """Names for the halves of a value: those of a split's results, or made of its own; None if all have none."""
    named = (split.results for split in splits if split.operands[0] == value and all(map(is_named, split.results)))
    own = (fresh(f"{value}_0", graph.types), fresh(f"{value}_1", graph.types)) if is_named(value) else None
    return next(named, own)


def _new_names(graph: OpGraph) -> Iterator[str]:
    """Names of the compiler's own kind that the graph does not have."""
    return (name for number in count(1) if (name := f"_{number}") not in graph.types)


def _accumulator(value: str, gemm: Op, first: int) -> Accumulator:
    bias = gemm.operands[2] if len(gemm.operands) > 2 else None
    return Accumulator(value=value, weight=gemm.operands[1], first=first, bias=bias)


def _name_accumulators(
    graph: OpGraph, epilogue: tuple[Op, ...], accumulators: tuple[Accumulator, ...]
) -> tuple[tuple[Op, ...], tuple[Accumulator, ...]]:
    """Unnamed accumulators that become a named value by rounding are called after that: `gate_acc`."""
    names: dict[str, str] = {}
    for value in (acc.value for acc in accumulators if not is_named(acc.value)):
        readers = [op for op in epilogue if value in op.operands]
        if [op.kind for op in readers] == ["round"] and is_named(readers[0].results[0]):
            names[value] = fresh(f"{readers[0].results[0]}_acc", (*graph.types, *names.values()))
    renamed = tuple(replace(op, operands=tuple(names.get(name, name) for name in op.operands)) for op in epilogue)
    return renamed, tuple(replace(acc, value=names.get(acc.value, acc.value)) for acc in accumulators)


def _constants(graph: OpGraph, epilogue: tuple[Op, ...]) -> tuple[Op, ...]:
    """The `const` ops that the epilogue reads."""
    read = {name for op in epilogue for name in op.operands}
    return tuple(op for op in graph.ops if op.kind == "const" and op.results[0] in read)


def value_dtype(graph: OpGraph, name: str) -> DType:
    """Element type of a rows or tensor value."""
    kind = graph.types[name]
    if isinstance(kind, RowsType | TensorType):
        return kind.dtype
    raise TypeError(f"{name} has no element type")


def row_dtype(graph: OpGraph) -> DType:
    """The element type of the program's rows: of what its first GEMM reads, or else of the first rows of numbers.

    It decides the tile's shape.
    """
    read = (op.operands[0] for op in graph.ops if op.kind == "group_gemm")
    named = (value.name for value in (*graph.params, *graph.values))
    kinds = (graph.types[name] for name in (*read, *named))
    return next((kind.dtype for kind in kinds if isinstance(kind, RowsType) and kind.shape), DType.F32)
