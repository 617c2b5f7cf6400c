"""Turns clusters of ops into stages: accumulators, what an epilogue loads and stores, and what it does between.

Before:                                          After:
    _1 = group_gemm(xs, w13)                         stage a: rows xs
    h = round(_1)                                      gate_acc = w13[:, 0:I], up_acc = w13[:, I:2I]
    gate, up = split(h, halves)                        gate = round(gate_acc); up = round(up_acc)
    _2 = silu(gate); _3 = mul(_2, up)                  _2 = silu(gate); _3 = mul(_2, up); a = round(_3)
    a = round(_3)                                      store a

A split in halves is turned into two accumulators, so it costs nothing; values before it are carried as two halves, and
so are those after a join. An interleaved one stays: it takes pairs of neighbouring columns apart, which one thread
holds.

`clusters.py` says which ops share a stage. One without a GEMM is a map.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.tasks import Accumulator, BiasLoad, RowLoad, Store, Term
from uniep_compiler.ir.types import Dim, DType, RowsType, TensorType
from uniep_compiler.passes.clusters import (
    Members,
    is_gemm,
    is_matrix,
    is_row_number,
    members_of_stages,
    narrowest,
    stages_of_values,
    sums_of_gemms,
    width_of,
)
from uniep_compiler.passes.names import fresh, is_named
from uniep_compiler.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Grouped GEMMs of the same rows and what follows them in registers.

    `row_numbers` are the values with one number per row that the epilogue reads, and `loads` the rows of numbers that
    it reads besides the GEMMs' own. `terms` are what accumulators sum besides their first products. `stores` are the
    values that leave the stage; `num_cols` is the number of columns of an accumulator. `values` are all values of the
    program that the stage makes.
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
    terms: tuple[Term, ...]
    stores: tuple[Store, ...]
    values: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStage:
    """Ops on rows in memory: dispatched ones, a parameter, or what other stages left there.

    `rows` are the first of those, and `first` is the first value that the ops make. `num_cols` is the number of columns
    of most values; others have twice as many. `stores` are the values that leave the stage.
    """

    rows: str
    first: str
    num_cols: int
    epilogue: tuple[Op, ...]
    row_numbers: tuple[str, ...]
    loads: tuple[RowLoad, ...]
    biases: tuple[BiasLoad, ...]
    stores: tuple[Store, ...]
    span: Span


def build_maps(graph: OpGraph, dims: Mapping[str, int]) -> tuple[MapStage, ...]:
    """The maps of `graph`, which `check_support` has accepted, in the order of their first ops."""
    stage, _ = stages_of_values(graph)
    members = members_of_stages(graph, stage)
    return tuple(_build_map(graph, members[first], dims) for first in members if not is_gemm(graph, first))


def _build_map(graph: OpGraph, members: Members, dims: Mapping[str, int]) -> MapStage:
    width = narrowest(graph, members.ops)
    parts = _Parts(graph, members.ops, width)
    num_cols = width.value(dims)
    biases = {op.results[0]: op.operands[0] for op in graph.ops if op.kind == "bias_rows"}
    return MapStage(
        rows=next(name for name in parts.loaded if name not in biases),
        first=members.ops[0].results[0],
        num_cols=num_cols,
        epilogue=(*_constants(graph, parts.ops), *parts.ops),
        row_numbers=_row_numbers(graph, members.ops),
        loads=tuple(
            RowLoad(value=part, buffer=name, first=first, doubled=share == DOUBLED)
            for name in parts.loaded
            if name not in biases
            for part, first, share in parts.places(name, num_cols, dims)
        ),
        biases=tuple(
            BiasLoad(value=part, buffer=biases[name], first=first, doubled=share == DOUBLED)
            for name in parts.loaded
            if name in biases
            for part, first, share in parts.places(name, num_cols, dims)
        ),
        stores=_stores(graph, members, parts, num_cols, dims),
        span=members.ops[0].span,
    )


def _row_numbers(graph: OpGraph, members: Iterable[Op]) -> tuple[str, ...]:
    """The values with one number per row that ops read, and do not make."""
    made = {name for op in members for name in op.results}
    read = (name for op in members for name in op.operands if is_row_number(graph, name) and name not in made)
    return tuple(dict.fromkeys(read))


def build_stages(graph: OpGraph, dims: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of `graph` with GEMMs, which `check_support` has accepted, in the order of their first GEMMs."""
    stage, _ = stages_of_values(graph)
    members = members_of_stages(graph, stage)
    return tuple(_build_stage(graph, first, members[first], dims) for first in members if is_gemm(graph, first))


def _build_stage(graph: OpGraph, first: str, members: Members, dims: Mapping[str, int]) -> Stage:
    sums = sums_of_gemms(graph)
    gemms = [op for op in members.ops if op.kind == "group_gemm"]
    gemm, *others = gemms
    terms = [op for op in others if op.results[0] in sums]
    width = width_of(graph, first)
    parts = _Parts(graph, members.ops, width)
    num_cols = width.value(dims) // len(parts.names(parts.total(first)))
    accumulators = tuple(
        _accumulator(name, op, part * num_cols)
        for op in gemms
        if op not in terms
        for part, name in enumerate(parts.names(parts.total(op.results[0])))
    )
    epilogue, accumulators = _name_accumulators(graph, parts.ops, accumulators, members.stored)
    return Stage(
        gemm=gemm,
        rows=gemm.operands[0],
        depth=width_of(graph, gemm.operands[0]).value(dims),
        num_cols=num_cols,
        layout=str(gemm.attr("layout")),
        accumulators=accumulators,
        epilogue=(*_constants(graph, epilogue), *epilogue),
        row_numbers=_row_numbers(graph, members.ops),
        loads=tuple(
            RowLoad(value=part, buffer=name, first=at, doubled=share == DOUBLED)
            for name in parts.loaded
            for part, at, share in parts.places(name, num_cols, dims)
        ),
        terms=tuple(
            Term(rows=op.operands[0], depth=width_of(graph, op.operands[0]).value(dims), weight=op.operands[1])
            for op in terms
        ),
        stores=_stores(graph, members, parts, num_cols, dims),
        values=frozenset(name for op in members.ops for name in op.results),
        span=gemm.span,
    )


def _stores(
    graph: OpGraph, members: Members, parts: _Parts, num_cols: int, dims: Mapping[str, int]
) -> tuple[Store, ...]:
    """What a stage leaves in memory, part by part."""
    return tuple(
        Store(value=part, buffer=name, first=first, halved=share == HALVED, doubled=share == DOUBLED)
        if is_matrix(graph, name)
        else Store(value=name, buffer=name, summed=True)
        for name in members.stored
        for part, first, share in (parts.places(name, num_cols, dims) if is_matrix(graph, name) else ((name, 0, 0),))
    )


HALVED, DOUBLED = 1, 4
"""Columns of a part, for two of an accumulator: those of one half of its pairs, or two for each of its columns."""


class _Parts:
    """A stage's values in parts: two halves each where the stage splits or joins halves, else one.

    The results of a split are the halves of what it splits, and the operands of a join those of what it makes, so that
    both disappear. `ops` make the parts, in order. `loaded` are the values that are read from memory.
    """

    def __init__(self, graph: OpGraph, members: list[Op], width: Dim) -> None:
        self._graph = graph
        self._parts: dict[str, tuple[str, ...]] = {}
        self._sums = sums_of_gemms(graph)
        made = {name for op in members for name in op.results}
        held = [op for op in members if op.kind != "group_gemm" and op.results[0] not in self._sums]
        read = [name for op in held for name in op.operands if name not in made and is_matrix(graph, name)]
        self.loaded = tuple(dict.fromkeys(read))
        halves = [op for op in members if op.kind in ("split", "join") and op.attr("how") == "halves"]
        wide = self._wide_width(halves, width)
        splits = [op for op in halves if op.kind == "split"]
        joined = {op.results[0]: op.operands for op in halves if op.kind == "join"}
        self._new = _new_names(graph)
        for name in (*self.loaded, *(name for op in members for name in op.results)):
            if is_matrix(graph, name) and width_of(graph, name) == wide:
                own = _half_names(name, splits, graph) or (next(self._new), next(self._new))
                self._parts[name] = joined.get(name) or own
        for split in splits:
            parts = self._parts[split.operands[0]]
            self._parts.update((half, (part,)) for half, part in zip(split.results, parts, strict=True))
        kept = [op for op in held if op not in halves]
        self.ops = tuple(part for op in kept for part in self._ops_of(op, splits))

    def _wide_width(self, halves: list[Op], width: Dim) -> Dim | None:
        """The width of values that are carried as two halves: that of the GEMM, or twice that; None for nothing."""
        if not halves:
            return None
        splits_gemm = any(op.kind == "split" and width_of(self._graph, op.operands[0]) == width for op in halves)
        return width if splits_gemm else width.times(2)

    def names(self, value: str) -> tuple[str, ...]:
        """The names of a value's parts, first columns first."""
        parts = self._parts.get(value, (value,))
        return parts if parts == (value,) else tuple(name for part in parts for name in self.names(part))

    def total(self, gemm: str) -> str:
        """What becomes of the result of a GEMM in its accumulator: a sum, or just that."""
        return next((name for name in reversed(self._sums) if self._sums[name] == gemm), gemm)

    def places(self, value: str, num_cols: int, dims: Mapping[str, int]) -> Iterable[tuple[str, int, int]]:
        """Each part of a value: its name, its first column in memory, and its columns, for two of `num_cols`."""
        names, width = self.names(value), width_of(self._graph, value).value(dims)
        for number, name in enumerate(names):
            yield name, number * num_cols, 2 * width // len(names) // num_cols

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
    graph: OpGraph, epilogue: tuple[Op, ...], accumulators: tuple[Accumulator, ...], stored: Collection[str]
) -> tuple[tuple[Op, ...], tuple[Accumulator, ...]]:
    """Unnamed accumulators that become a named value by rounding are called after that: `gate_acc`."""
    names: dict[str, str] = {}
    for value in (acc.value for acc in accumulators if not is_named(acc.value) and acc.value not in stored):
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
