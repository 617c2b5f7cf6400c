"""Says which ops share a stage: grouped GEMMs of the same rows and what follows them, or a map of rows in memory.

    _1 = group_gemm(xs, w1); _2 = group_gemm(xs, w3)     one stage: they read the same rows, and meet in `mul`
    a = mul(silu(_1), _2)
    _4 = add(group_gemm(a, w2), group_gemm(b, w5))       one stage, of one sum: nothing else reads the two results
    _6 = mul(group_gemm(a, w2), relu(group_gemm(b, w5))) two stages: one leaves its result in memory for the other

What is made of rows in memory by elementwise ops alone is made in each stage that needs it. It only becomes a stage of
its own, a map, where it has to be in memory before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.types import Dim, RowsType

ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "neg", "silu", "sigmoid", "gelu", "gelu_tanh", "relu", "square", "clamp", "round"}
    | {"gelu_slope", "gelu_tanh_slope", "step", "within"}
)
"""Ops on numbers that an epilogue can hold."""

IN_STAGES = ELEMENTWISE | {"split", "join", "row_sum"}
"""All ops that an epilogue can hold."""

_LATE = frozenset({"group_outer", "group_sum", "to_routes"})
"""Ops on rows that have time until all stages are done."""


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
    found = _Assignment(graph)
    for op in graph.ops:
        found.place(op)
    return found.stage, (*found.misplaced, *_misfits(graph, found.stage))


class _Assignment:
    """The stages of the values of the ops that were placed so far."""

    def __init__(self, graph: OpGraph) -> None:
        self.stage: dict[str, str] = {}
        self.misplaced: list[Misplaced] = []
        self._graph = graph
        self._sums = sums_of_gemms(graph)
        self._factored = factored(graph)
        self._doubtful: set[str] = set()  # made of what has been reported already
        self._reads: dict[str, set[str]] = {}  # by GEMM stage: what it reads of memory
        self._order = list(graph.types)

    def place(self, op: Op) -> None:
        """Say to which stage the results of an op belong, if it is one that stages hold."""
        result = op.results[0]
        if op.kind == "group_gemm" or result in self._sums:
            first = self._sums.get(result, result)
            self.stage[result] = first
            self._reads.setdefault(first, set()).update(op.operands[:1] if op.kind == "group_gemm" else ())
        elif op.kind in IN_STAGES and result not in self._factored:
            self._place_in_stage(op)

    def _place_in_stage(self, op: Op) -> None:
        rows = [name for name in op.operands if is_matrix(self._graph, name) and not is_bias(self._graph, name)]
        firsts = sorted({self.stage.get(name, name) for name in rows}, key=self._order.index)
        gemms = [first for first in firsts if is_gemm(self._graph, first)]
        why = _why_not(self._graph, op, firsts, gemms)
        if self._doubtful.intersection(op.operands) or why:
            self.misplaced += [] if self._doubtful.intersection(op.operands) else [Misplaced(op=op, why=why)]
            self._doubtful.update(op.results)
        elif rows:
            host = self._host(op, gemms) if gemms else self._merge(firsts)
            self.stage.update(dict.fromkeys(op.results, host))

    def _host(self, op: Op, gemms: list[str]) -> str:
        """The stage of GEMMs that takes an op in: one that no other operand depends on.

        It becomes one with the stages of the other operands where that can be; else it reads those of memory.
        """
        host = next(one for one in gemms if not any(self._depends(other, one) for other in gemms))
        alike = [one for one in gemms if one == host or self._can_be_one(host, one)]
        merged = self._merge(alike)
        self._reads[merged] = set().union(*(self._reads[one] for one in alike))
        self._reads[merged].update(name for name in op.operands if self.stage.get(name, merged) in {*gemms} - {*alike})
        return merged

    def _merge(self, firsts: list[str]) -> str:
        self.stage = {name: firsts[0] if first in firsts else first for name, first in self.stage.items()}
        return firsts[0]

    def _can_be_one(self, one: str, other: str) -> bool:
        if one in self._sums or other in self._sums or self._depends(one, other) or self._depends(other, one):
            return False
        makers = [self._graph.producer(first) for first in (one, other)]
        shapes = {(op.operands[0], op.attr("layout"), width_of(self._graph, op.results[0])) for op in makers if op}
        return len(shapes) == 1

    def _depends(self, one: str, other: str) -> bool:
        """Whether a stage of GEMMs has to wait for another one, which makes what it reads, or what that reads."""
        before = {self.stage[name] for name in self._reads.get(one, ()) if name in self.stage}
        return other in before or any(self._depends(first, other) for first in before)


def _why_not(graph: OpGraph, op: Op, firsts: list[str], gemms: list[str]) -> str:
    """Why the op cannot be part of a stage; empty if it can."""
    biases = [name for name in op.operands if is_bias(graph, name)]
    if biases and (gemms or not firsts):
        return "biases per row, which meet rows in memory only"
    if not firsts:
        numbers = any(is_row_number(graph, name) for name in op.operands)
        return "numbers per row alone" if numbers and not _is_sum_of_parts(graph, op.results[0]) else ""
    if op.kind == "row_sum" and not _is_sum_of_parts(graph, op.results[0]):
        return "rows, for numbers that meet rows again"
    return ""


def _misfits(graph: OpGraph, stage: Mapping[str, str]) -> Iterator[Misplaced]:
    """What a stage cannot hold beside the rest of it: columns are parted once."""
    for first, members in members_of_stages(graph, stage).items():
        parted = [op for op in members.ops if op.kind in ("split", "join")]
        if not parted:
            continue
        names = {name for op in members.ops for name in (*op.results, *op.operands) if op.kind != "group_gemm"}
        widths = {width_of(graph, name) for name in names if is_matrix(graph, name)}
        unit = width_of(graph, first) if is_gemm(graph, first) else narrowest(graph, members.ops)
        steps = {unit, unit.times(2), *([half] if (half := unit.half()) else [])}
        in_halves = any(op.attr("how") == "halves" for op in parted)
        if widths - steps or (in_halves and len(widths) > 2):
            yield Misplaced(op=parted[-1], why="a half of a split")


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
    sums, fused = sums_of_gemms(graph), factored(graph)
    made: dict[str, set[str]] = {}
    stored: dict[str, set[str]] = {}

    def chain(names: Iterable[str]) -> set[str]:
        """What has to be made for some values out of rows in memory."""
        mine = {name for name in names if name in ops and not is_gemm(graph, stage[name])}
        return mine | (chain(operand for name in mine for operand in ops[name].operands) if mine else mine)

    for name, first in stage.items():
        if is_gemm(graph, first):
            read = () if ops[name].kind == "group_gemm" or name in sums else ops[name].operands
            made.setdefault(first, set()).update((name, *chain(read)))
            for other in read:  # of another stage of GEMMs, so through memory
                if stage.get(other, first) != first and is_gemm(graph, stage[other]):
                    stored.setdefault(stage[other], set()).add(other)
    hosts = {stage[name]: first for first, names in made.items() for name in names if stage[name] != first}
    for name, root in stage.items():
        readers = [op for op in graph.ops if name in op.operands and not _is_held(op, fused)]
        if readers or name in graph.results or ops[name].kind == "row_sum":
            late = all(op.kind in _LATE or op.results[0] in fused for op in readers) and name not in graph.results
            late = late and not any(is_bias(graph, other) for step in chain((name,)) for other in ops[step].operands)
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


def _is_held(op: Op, fused: Mapping[str, tuple[str, str]]) -> bool:
    return op.kind in IN_STAGES and op.results[0] not in fused


def sums_of_gemms(graph: OpGraph) -> dict[str, str]:
    """For results of GEMMs that are only added to those of other rows, and for these sums: the first of the GEMMs.

    All of the products of such a sum are added in one accumulator.
    """
    first: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "add" and _adds_gemms(graph, op, first):
            parts = {first.get(name, name) for name in op.operands}
            mine = [name for name in graph.types if name in parts or first.get(name) in parts]
            first.update(dict.fromkeys((*mine, op.results[0]), mine[0]))
    return first


def _adds_gemms(graph: OpGraph, op: Op, first: Mapping[str, str]) -> bool:
    parts = {first.get(name, name) for name in op.operands}
    added = [graph.producer(name) for name in {*op.operands, *(n for n, one in first.items() if one in parts)}]
    gemms = [maker for maker in added if maker is not None and maker.kind == "group_gemm"]
    known = all(name in first or is_gemm(graph, name) for name in op.operands)
    alone = all(graph.consumers(name) == (op,) and name not in graph.results for name in op.operands)
    if not known or not alone or op.operands[0] == op.operands[1] or any(len(gemm.operands) > 2 for gemm in gemms):
        return False
    return len({gemm.attr("layout") for gemm in gemms}) == 1 < len({gemm.operands[0] for gemm in gemms})


def factored(graph: OpGraph) -> dict[str, tuple[str, str]]:
    """Rows times a number each that are only summed by expert, which is done in one: the rows, and the numbers."""
    found: dict[str, tuple[str, str]] = {}
    for op in graph.ops:
        maker = graph.producer(op.operands[0]) if op.kind == "group_sum" else None
        if maker is None or maker.kind != "mul" or maker.results[0] in graph.results:
            continue
        rows, numbers = sorted(maker.operands, key=lambda name: is_row_number(graph, name))
        known = graph.producer(numbers)
        in_memory = known is None or known.kind == "to_rows"
        if is_row_number(graph, numbers) and in_memory and graph.consumers(maker.results[0]) == (op,):
            found[maker.results[0]] = (rows, numbers)
    return found


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


def is_bias(graph: OpGraph, name: str) -> bool:
    """Whether a value is the same row of numbers for all rows of an expert."""
    maker = graph.producer(name)
    return maker is not None and maker.kind == "bias_rows"


def is_gemm(graph: OpGraph, name: str) -> bool:
    """Whether a value is what a grouped GEMM makes."""
    maker = graph.producer(name)
    return maker is not None and maker.kind == "group_gemm"


def width_of(graph: OpGraph, name: str) -> Dim:
    """The columns of a value that is rows of numbers."""
    kind = graph.types[name]
    if not isinstance(kind, RowsType):
        raise TypeError(f"{name} is not rows")
    return kind.shape[0]


def narrowest(graph: OpGraph, ops: Iterable[Op]) -> Dim:
    """The least width of what some ops read and make: that of all, or half of the others'."""
    names = {name for op in ops for name in (*op.operands, *op.results) if is_matrix(graph, name)}
    widths = {width_of(graph, name) for name in names}
    return next(width for width in widths if width.half() not in widths)
