"""Cuts the row-wise part of an OpGraph into stages: one grouped GEMM each, with the elementwise ops of its epilogue.

Before:                                          After:
    _1 = group_gemm(xs, w13)                         stage a: rows xs
    h = round(_1)                                      gate_acc = w13[:, 0:I], up_acc = w13[:, I:2I]
    gate, up = split(h, halves)                        gate = round(gate_acc); up = round(up_acc)
    _2 = silu(gate); _3 = mul(_2, up)                  _2 = silu(gate); _3 = mul(_2, up); a = round(_3)
    a = round(_3)                                      store a

A split is turned into two accumulators, so it costs nothing; values before it are carried as two halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.tasks import Accumulator
from uniep_compiler.ir.types import DType, RowsType, TensorType
from uniep_compiler.source import Source, Span

ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "neg", "silu", "sigmoid", "gelu", "gelu_tanh", "relu", "square", "clamp", "round"}
)
"""Ops that an epilogue can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One grouped GEMM and what follows it in registers.

    `stores` holds each value that leaves the stage, its buffer, and its first column there; `num_cols` is the number of
    columns of an accumulator.
    """

    gemm: Op
    rows: str
    depth: int
    num_cols: int
    layout: str
    accumulators: tuple[Accumulator, ...]
    epilogue: tuple[Op, ...]
    stores: tuple[tuple[str, str, int], ...]
    span: Span


def unsupported(message: str, span: Span, help_text: str, source: Source | None) -> UniepError:
    """An error for what the language has and this compiler can't lower yet (UEP0401)."""
    label = Label(span=span, text="not supported yet", primary=True)
    return UniepError([Diagnostic(code="UEP0401", message=message, labels=(label,), help=help_text)], source)


def build_stages(graph: OpGraph, dims: Mapping[str, int], source: Source | None) -> tuple[Stage, ...]:
    """The stages of `graph`, in program order. Raises UEP0401 for row-wise ops that no stage can hold."""
    gemms = [op for op in graph.ops if op.kind == "group_gemm"]
    owner = _stage_of_values(graph, source)
    return tuple(_build_stage(graph, gemm, owner, dims, source) for gemm in gemms)


def _stage_of_values(graph: OpGraph, source: Source | None) -> dict[str, str]:
    """For every value that a GEMM's epilogue makes, the name of that GEMM's result."""
    owner: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "group_gemm":
            owner[op.results[0]] = op.results[0]
        elif op.kind in ELEMENTWISE or op.kind == "split":
            types = graph.types
            if not any(isinstance(types[name], RowsType) for name in op.operands):
                continue
            stages = {owner.get(name) for name in op.operands if isinstance(types[name], RowsType)}
            if len(stages) != 1 or None in stages:
                raise unsupported(
                    f"`{op.kind}` joins rows that no single group_gemm makes",
                    op.span,
                    "apply elementwise operations to the result of one group_gemm only",
                    source,
                )
            owner.update({name: stage for stage in stages if stage is not None for name in op.results})
    return owner


def _build_stage(
    graph: OpGraph, gemm: Op, owner: Mapping[str, str], dims: Mapping[str, int], source: Source | None
) -> Stage:
    result = gemm.results[0]
    members = [op for op in graph.ops if op is not gemm and any(owner.get(name) == result for name in op.results)]
    split = next((op for op in members if op.kind == "split"), None)
    types = graph.types
    result_type, rows_type = types[result], types[gemm.operands[0]]
    if not isinstance(result_type, RowsType) or not isinstance(rows_type, RowsType):
        raise TypeError(f"group_gemm {result} is not typed as rows")
    width = result_type.shape[0].value(dims)
    leaving = _leaving_values(graph, members, gemm, owner)
    stores: tuple[tuple[str, str, int], ...]
    if split is None:
        halves: tuple[str, ...] = (result,)
        epilogue = tuple(members)
        stores = tuple((name, name, 0) for name in leaving)
    else:
        if split.attr("how") != "halves":
            raise unsupported("an interleaved split", split.span, "store the weight's rows as two halves", source)
        before, epilogue = _halve(result, members, split)
        width //= 2
        halves = before[result]
        stores = tuple(
            (part, name, half * width) for name in leaving for half, part in enumerate(before.get(name, (name,)))
        )
    return Stage(
        gemm=gemm,
        rows=gemm.operands[0],
        depth=rows_type.shape[0].value(dims),
        num_cols=width,
        layout=str(gemm.attr("layout")),
        accumulators=tuple(_accumulator(name, gemm, half * width) for half, name in enumerate(halves)),
        epilogue=(*_constants(graph, epilogue), *epilogue),
        stores=stores,
        span=gemm.span,
    )


def _accumulator(value: str, gemm: Op, first: int) -> Accumulator:
    bias = gemm.operands[2] if len(gemm.operands) > 2 else None
    return Accumulator(value=value, weight=gemm.operands[1], first=first, bias=bias)


def _constants(graph: OpGraph, epilogue: tuple[Op, ...]) -> tuple[Op, ...]:
    """The `const` ops that the epilogue reads."""
    read = {name for op in epilogue for name in op.operands}
    return tuple(op for op in graph.ops if op.kind == "const" and op.results[0] in read)


def _leaving_values(graph: OpGraph, members: list[Op], gemm: Op, owner: Mapping[str, str]) -> tuple[str, ...]:
    """Values of the stage that something outside reads, in program order."""
    inside = {id(op) for op in members}
    made = [*gemm.results, *(name for op in members for name in op.results)]
    outside = {name for op in graph.ops if id(op) not in inside for name in op.operands} | set(graph.results)
    return tuple(name for name in made if name in outside and name in owner)


def _halve(result: str, members: list[Op], split: Op) -> tuple[dict[str, tuple[str, ...]], tuple[Op, ...]]:
    """Carry the values before the split as two halves. Returns their names and the ops that replace `members`.

    The op that makes the split's operand gets the split's own results as names, so the split itself disappears.
    """
    upstream: set[str] = {split.operands[0]}
    for op in reversed(members):
        if op.kind != "split" and upstream & set(op.results):
            upstream |= set(op.operands)
    halves = {split.operands[0]: split.results}
    for name in (result, *(name for op in members for name in op.results)):
        if name in upstream and name not in halves:
            first, second = (f"{part}_acc" for part in split.results)
            halves[name] = (first, second) if name == result else (f"{name}_0", f"{name}_1")
    ops: list[Op] = []
    for op in members:
        if op.kind == "split":
            continue
        if op.results[0] not in halves:
            ops.append(op)
            continue
        for half in (0, 1):
            operands = tuple(halves[name][half] if name in halves else name for name in op.operands)
            ops.append(replace(op, operands=operands, results=(halves[op.results[0]][half],)))
    return halves, tuple(ops)


def value_dtype(graph: OpGraph, name: str) -> DType:
    """Element type of a rows or tensor value."""
    kind = graph.types[name]
    if isinstance(kind, RowsType | TensorType):
        return kind.dtype
    raise TypeError(f"{name} has no element type")
