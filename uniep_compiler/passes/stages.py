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

    `stores` are the values that leave the stage; `num_cols` is the number of columns of an accumulator. `values` are
    all values of the program that the stage makes.
    """

    gemm: Op
    rows: str
    depth: int
    num_cols: int
    layout: str
    accumulators: tuple[Accumulator, ...]
    epilogue: tuple[Op, ...]
    stores: tuple[Store, ...]
    values: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """An elementwise op that no stage can hold, and why."""

    op: Op
    why: str


def stages_of_values(graph: OpGraph) -> tuple[dict[str, str], tuple[Misplaced, ...]]:
    """For every value that an epilogue makes, the first GEMM (by its result) of its stage; and ops that have none."""
    stage: dict[str, str] = {}
    misplaced: list[Misplaced] = []
    doubtful: set[str] = set()  # made of what has been reported already
    for op in graph.ops:
        if op.kind == "group_gemm":
            stage[op.results[0]] = op.results[0]
        elif op.kind in ELEMENTWISE or op.kind == "split":
            rows = [name for name in op.operands if isinstance(graph.types[name], RowsType)]
            why = _why_not(graph, op, [stage.get(name) for name in rows])
            if doubtful.intersection(rows) or why:
                misplaced += [] if doubtful.intersection(rows) else [Misplaced(op=op, why=why)]
                doubtful.update(op.results)
                continue
            if not rows:
                continue
            joined = sorted({stage[name] for name in rows}, key=[*graph.types].index)
            stage = {name: joined[0] if first in joined else first for name, first in stage.items()}
            stage.update(dict.fromkeys(op.results, joined[0]))
    return stage, tuple(misplaced)


def _why_not(graph: OpGraph, op: Op, stages: list[str | None]) -> str:
    """Why the op cannot be part of a stage; empty if it can."""
    if any(stage is None for stage in stages):
        return "rows that no group_gemm makes"
    gemms = [gemm for gemm in map(graph.producer, dict.fromkeys(filter(None, stages))) if gemm is not None]
    shapes = {(gemm.operands[0], gemm.attr("layout"), _width(graph, gemm.results[0])) for gemm in gemms}
    if len(shapes) > 1:
        return "results of group_gemms of other rows, or of other widths"
    if op.kind == "split" and any(_width(graph, op.operands[0]) != _width(graph, gemm.results[0]) for gemm in gemms):
        return "a half of a split"
    return ""


def _width(graph: OpGraph, name: str) -> Dim:
    kind = graph.types[name]
    if not isinstance(kind, RowsType):
        raise TypeError(f"{name} is not rows")
    return kind.shape[0]


def build_stages(graph: OpGraph, dims: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of `graph`, which `check_support` has accepted, in the order of their first GEMMs."""
    stage, _ = stages_of_values(graph)
    return tuple(_build_stage(graph, first, stage, dims) for first in dict.fromkeys(stage.values()))


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
