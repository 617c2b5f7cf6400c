"""Cuts the row-wise part of an OpGraph into stages: grouped GEMMs of the same rows, and what follows in registers.

Before:                                          After:
    _1 = group_gemm(xs, w13)                         stage a: rows xs
    h = round(_1)                                      gate_acc = w13[:, 0:I], up_acc = w13[:, I:2I]
    gate, up = split(h, halves)                        gate = round(gate_acc); up = round(up_acc)
    _2 = silu(gate); _3 = mul(_2, up)                  _2 = silu(gate); _3 = mul(_2, up); a = round(_3)
    a = round(_3)                                      store a

A split in halves is turned into two accumulators, so it costs nothing; values before it are carried as two halves. An
interleaved one stays: it takes pairs of neighbouring columns apart, which one thread holds. GEMMs whose results meet in
an elementwise op share a stage, which reads their rows once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.tasks import Accumulator, Store
from uniep_compiler.ir.types import Dim, DType, RowsType, TensorType
from uniep_compiler.passes.names import fresh, is_named
from uniep_compiler.source import Span

ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "neg", "silu", "sigmoid", "gelu", "gelu_tanh", "relu", "square", "clamp", "round"}
)
"""Ops that an epilogue can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Grouped GEMMs of the same rows and what follows them in registers.

    `row_numbers` are the values with one number per row that the epilogue reads. `stores` are the values that leave the
    stage; `num_cols` is the number of columns of an accumulator. `values` are all values of the program that the stage
    makes.
    """

    gemm: Op
    rows: str
    depth: int
    num_cols: int
    layout: str
    accumulators: tuple[Accumulator, ...]
    epilogue: tuple[Op, ...]
    row_numbers: tuple[str, ...]
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

    A stage of GEMMs starts with the result of its first GEMM, and a map with the rows that it reads from memory, which
    it does not make itself.
    """
    stage: dict[str, str] = {}
    misplaced: list[Misplaced] = []
    doubtful: set[str] = set()  # made of what has been reported already
    for op in graph.ops:
        if op.kind == "group_gemm":
            stage[op.results[0]] = op.results[0]
        elif op.kind in ELEMENTWISE or op.kind == "split":
            rows = [name for name in op.operands if is_matrix(graph, name)]
            firsts = sorted({stage.get(name, name) for name in rows}, key=[*graph.types].index)
            why = _why_not(graph, op, firsts)
            if doubtful.intersection(op.operands) or why:
                misplaced += [] if doubtful.intersection(op.operands) else [Misplaced(op=op, why=why)]
                doubtful.update(op.results)
            elif rows:
                stage = {name: firsts[0] if first in firsts else first for name, first in stage.items()}
                stage.update(dict.fromkeys(op.results, firsts[0]))
    return stage, tuple(misplaced)


def _why_not(graph: OpGraph, op: Op, firsts: list[str]) -> str:
    """Why the op cannot be part of a stage; empty if it can."""
    if not firsts:
        return "numbers per row alone" if any(is_row_number(graph, name) for name in op.operands) else ""
    makers = [graph.producer(first) for first in firsts]
    gemms = [maker for maker in makers if maker is not None and maker.kind == "group_gemm"]
    if len(gemms) < len(firsts):
        return "rows that no group_gemm makes" if op.kind == "split" else "rows of several stages" if firsts[1:] else ""
    kinds = [(gemm.operands[0], _width(graph, gemm.results[0]), gemm.attr("layout")) for gemm in gemms]
    differ = [what for what, *seen in zip(("rows", "widths", "layouts"), *kinds, strict=True) if len(set(seen)) > 1]
    if differ:
        return f"results of group_gemms of other {' and '.join(differ)}"
    if op.kind == "split" and _width(graph, op.operands[0]) != _width(graph, firsts[0]):
        return "a half of a split"
    return ""


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
    return tuple(
        _build_map(graph, first, stage) for first in dict.fromkeys(stage.values()) if not _is_gemm(graph, first)
    )


def _build_map(graph: OpGraph, first: str, stage: Mapping[str, str]) -> MapStage:
    members = [op for op in graph.ops if any(stage.get(name) == first for name in op.results)]
    return MapStage(
        rows=first,
        first=members[0].results[0],
        epilogue=(*_constants(graph, tuple(members)), *members),
        row_numbers=_row_numbers(graph, members),
        stores=tuple(Store(value=name, buffer=name) for name in _leaving_values(graph, members)),
        span=members[0].span,
    )


def _is_gemm(graph: OpGraph, first: str) -> bool:
    maker = graph.producer(first)
    return maker is not None and maker.kind == "group_gemm"


def _row_numbers(graph: OpGraph, members: Iterable[Op]) -> tuple[str, ...]:
    """The values with one number per row that ops read."""
    return tuple(dict.fromkeys(name for op in members for name in op.operands if is_row_number(graph, name)))


def build_stages(graph: OpGraph, dims: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of `graph` with GEMMs, which `check_support` has accepted, in the order of their first GEMMs."""
    stage, _ = stages_of_values(graph)
    firsts = [first for first in dict.fromkeys(stage.values()) if _is_gemm(graph, first)]
    return tuple(_build_stage(graph, first, stage, dims) for first in firsts)


def _build_stage(graph: OpGraph, first: str, stage: Mapping[str, str], dims: Mapping[str, int]) -> Stage:
    members = [op for op in graph.ops if any(stage.get(name) == first for name in op.results)]
    gemms = [op for op in members if op.kind == "group_gemm"]
    gemm, width = gemms[0], _width(graph, first)
    parts = _Parts(graph, members, width)
    half = width.value(dims) // parts.count
    accumulators = tuple(
        _accumulator(name, gemm, part * half)
        for gemm in gemms
        for part, name in enumerate(parts.names(gemm.results[0]))
    )
    epilogue, accumulators = _name_accumulators(graph, parts.ops, accumulators)
    return Stage(
        gemm=gemm,
        rows=gemm.operands[0],
        depth=_width(graph, gemm.operands[0]).value(dims),
        num_cols=half,
        layout=str(gemm.attr("layout")),
        accumulators=accumulators,
        epilogue=(*_constants(graph, epilogue), *epilogue),
        row_numbers=_row_numbers(graph, members),
        stores=tuple(
            Store(value=part, buffer=name, first=number * half, halved=_is_halved(graph, name, width, parts.count))
            for name in _leaving_values(graph, members)
            for number, part in enumerate(parts.names(name))
        ),
        values=frozenset(name for op in members for name in op.results),
        span=gemm.span,
    )


class _Parts:
    """A stage's values in parts: two halves each where the stage splits in halves, else one. `ops` make them, in order.

    A split's results are the halves of what it splits, so that the split itself disappears.
    """

    def __init__(self, graph: OpGraph, members: list[Op], width: Dim) -> None:
        self._parts: dict[str, tuple[str, ...]] = {}
        splits = [op for op in members if op.kind == "split" and op.attr("how") == "halves"]
        self.count = 2 if splits else 1
        new = _new_names(graph)
        for name in (name for op in members for name in op.results):
            if splits and _width(graph, name) == width:
                self._parts[name] = _half_names(name, splits, graph) or (next(new), next(new))
        for split in splits:
            halves = self._parts[split.operands[0]]
            self._parts.update((half, (part,)) for half, part in zip(split.results, halves, strict=True))
        kept = [op for op in members if op.kind != "group_gemm" and op not in splits]
        self.ops = tuple(part for op in kept for part in self._ops_of(op, splits))

    def names(self, value: str) -> tuple[str, ...]:
        """The names of a value's parts, first columns first."""
        return self._parts.get(value, (value,))

    def _ops_of(self, op: Op, splits: list[Op]) -> Iterable[Op]:
        """The op once for each part of its result. One that makes what is split stands for the split, too."""
        if op.kind == "split":  # interleaved: nothing is carried as halves
            yield op
            return
        split = next((split for split in splits if split.operands[0] == op.results[0]), None)
        for number, result in enumerate(self.names(op.results[0])):
            operands = tuple(self._part(name, number) for name in op.operands)
            yield replace(op, operands=operands, results=(result,), span=op.span if split is None else split.span)

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


def _is_halved(graph: OpGraph, value: str, width: Dim, num_parts: int) -> bool:
    """Whether the value has half of the columns of an accumulator."""
    return num_parts == 1 and _width(graph, value) != width


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


def _leaving_values(graph: OpGraph, members: list[Op]) -> tuple[str, ...]:
    """Values of the stage that something outside reads, in program order."""
    inside = {id(op) for op in members}
    outside = {name for op in graph.ops if id(op) not in inside for name in op.operands} | set(graph.results)
    return tuple(name for op in members for name in op.results if name in outside)


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
