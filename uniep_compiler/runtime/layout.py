"""What a call's kernels are given, as far as it follows from the sizes of the arguments.

Sizes are worked out once for all calls of one size. What is left for each call is to say where its memories are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from uniep_compiler.codegen.constants import RAGGED_ROWS
from uniep_compiler.compiler import Compiled
from uniep_compiler.ir.index import Expr, Sym, evaluate
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.tasks import Buffer, BufferKind
from uniep_compiler.passes.names import ROW_ROUTE, buffer_names
from uniep_compiler.runtime.arguments import TORCH_DTYPES
from uniep_compiler.runtime.plan import PlanShape
from uniep_compiler.runtime.routes import is_counts
from uniep_compiler.runtime.workspace import ALIGNMENT_BYTES

TOKENS = Sym("tokens")

LONGEST = 0x7FFF0000
"""What a ragged descriptor's outer dims have: any index is inside."""

ARENA = "arena"
PLAN = "plan"
OF_WORKSPACE = ("state", "scoreboard", "error")
OF_RANKS = ("token_start", "expert_first")
"""Memories of a call beside its inputs and outputs. But for the first two, kernels know them by these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor in one of a call's memories, `offset` bytes after its start. Without a shape: that memory as it is."""

    memory: str
    offset: int = 0
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of a part that has a shape."""
        return prod(self.shape or (0,)) * self.dtype.itemsize

    def inside(self, memory: Tensor) -> Tensor:
        """The part as a tensor."""
        if self.shape is None:
            return memory
        return memory.view(torch.uint8)[self.offset : self.offset + self.num_bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A buffer that kernels read in blocks, through a tensor descriptor. Its rows are `stride` elements apart."""

    buffer: str
    part: Part
    rows: int
    cols: int
    stride: int
    block: tuple[int, int]
    ragged: bool

    def descriptor(self, base: object) -> TensorDescriptor:
        """The descriptor of the matrix at `base`: a tensor, or what Triton takes for one.

        A ragged one has two dims more, both as long as can be, which cancel where all rows that are read exist: their
        steps are -1 and 1 rows, in 64 bits that wrap (see `load_ragged` in the generated module).
        """
        if self.ragged:
            shape = [LONGEST, LONGEST, RAGGED_ROWS, self.cols]
            strides = [2**34 - self.stride, self.stride, self.stride, 1]
            return TensorDescriptor(base, shape, strides, [1, 1, *self.block])
        return TensorDescriptor(base, [self.rows, self.cols], [self.stride, 1], list(self.block))


Argument = int | Part | Matrix | None
"""What a kernel's parameter gets: a number, a pointer, a tensor descriptor, or nothing where nothing is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all calls of one size share: kernel arguments by name, and the memory that each call takes.

    `rows` are the buffers in the arena and `outputs` those with memory of their own, both by buffer name. `counts` are
    the outputs that no kernel of the layer writes: they are copies of the plan's `expert_rows`, one for each rank.
    `counters` are those of all ranks, in one half of the scoreboard.
    """

    plan: PlanShape
    arguments: Mapping[str, Argument]
    rows: Mapping[str, Part]
    outputs: Mapping[str, Part]
    counts: tuple[str, ...]
    arena_bytes: int
    counters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts of a call, as symbols of the index language."""

    plan: PlanShape

    def symbol(self, name: str, rank: int) -> int:
        """Value of a symbol. Buffers are the same size on every rank, so the rank matters to `tokens` alone."""
        value: int = self.plan.tokens[rank] if name == "tokens" else getattr(self.plan, name)
        return value  # it may be symbolic: no `int` around it

    def lookup(self, table: str, indices: tuple[int, ...], rank: int) -> int:
        """Sizes depend on no table."""
        raise KeyError(table)

    def value(self, expr: Expr) -> int:
        """The value of a size."""
        return evaluate(expr, self, 0, {})

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Shape of a buffer over all ranks: those per token lie one after the other, the rest side by side."""
        cols = self.value(buffer.cols)
        if buffer.experts:
            return (buffer.experts, self.value(buffer.rows), cols)
        if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT) and buffer.rows == TOKENS:
            return (self.plan.total_tokens, cols)
        return (self.plan.ranks * self.value(buffer.rows), cols)


def make_layout(
    compiled: Compiled, plan: PlanShape, inputs: Mapping[str, Tensor], ids: str | None, scratch: Mapping[str, int]
) -> Layout:
    """The layout of calls with `inputs` such as these, by buffer name. `ids` is the one with expert ids, if any.

    `scratch`: words of the tables that the plan's kernels need for themselves. They lie where rows will lie later.
    """
    sizes = Sizes(plan=plan)
    buffers = {buffer.name: buffer for buffer in compiled.schedule.graph.buffers}
    shapes = {name: sizes.shape(buffer) for name, buffer in buffers.items()}
    dtypes = {name: TORCH_DTYPES[buffer.dtype] for name, buffer in buffers.items()}
    rows = _stacked((name, shapes[name], dtypes[name]) for name in buffers if _dies_with_call(buffers[name]))
    scratch_parts = _stacked((name, (words,), torch.int32) for name, words in scratch.items())
    outputs = {
        name: Part(memory=f"{name}_ptr", shape=shapes[name], dtype=dtypes[name])
        for name, buffer in buffers.items()
        if buffer.kind is BufferKind.OUTPUT
    }
    counts = {
        name: Part(memory=f"{name}_ptr", shape=counts_shape(plan), dtype=torch.int32)
        for name in counts_results(compiled.ops)
    }
    given = {name: Part(memory=f"{name}_ptr", dtype=tensor.dtype) for name, tensor in inputs.items()}
    strides = {name: shape[-1] for name, shape in shapes.items()}
    strides |= {name: _row_stride(tensor) for name, tensor in inputs.items() if name in shapes}
    parts = {**given, **rows, **outputs}
    board = compiled.schedule.scoreboard_size
    board_size = 0 if board is None else sizes.value(board)
    arguments: dict[str, Argument] = {
        **_counts(plan),
        "board_size": board_size,
        **_common_parts(plan, compiled.settings.local),
        **scratch_parts,
        **({} if ids is None else dict.fromkeys(("ids", "experts"), given[ids])),
        **{f"{name}_ptr": part for name, part in parts.items()},
        **{f"{name}_stride": stride for name, stride in strides.items()},
        **{f"{name}_size": prod(shapes[name]) for name in outputs},
        **{
            view.name: Matrix(
                buffer=view.buffer,
                part=parts[view.buffer],
                rows=prod(shapes[view.buffer][:-1]),
                cols=shapes[view.buffer][-1],
                stride=strides[view.buffer],
                block=view.block,
                ragged=view.ragged,
            )
            for view in compiled.kernels.view.descriptors
        },
    }
    return Layout(
        plan=plan,
        arguments=arguments,
        rows=rows,
        outputs={**outputs, **counts},
        counts=tuple(counts),
        arena_bytes=max(_end(rows), _end(scratch_parts)),
        counters=board_size * plan.ranks,
    )


def counts_results(ops: OpGraph) -> tuple[str, ...]:
    """The results that count routes, by buffer name."""
    names = buffer_names(ops)
    return tuple(names[result] for result in dict.fromkeys(ops.results) if is_counts(ops, result))


def counts_shape(plan: PlanShape) -> tuple[int, ...]:
    """The shape of such a result: every rank gets a number for every expert."""
    return (plan.ranks * plan.experts,)


def _dies_with_call(buffer: Buffer) -> bool:
    """Whether the buffer lies in the arena. What a row's route is, the plan says."""
    return buffer.kind in (BufferKind.WORKSPACE, BufferKind.SYMMETRIC) and buffer.name != ROW_ROUTE


def _stacked(tensors: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> dict[str, Part]:
    """Parts of the arena for some tensors, one after the other."""
    parts: dict[str, Part] = {}
    for name, shape, dtype in tensors:
        parts[name] = Part(memory=ARENA, offset=_end(parts), shape=shape, dtype=dtype)
    return parts


def _end(parts: Mapping[str, Part]) -> int:
    """The first aligned byte after the last part."""
    last = max((part.offset + part.num_bytes for part in parts.values()), default=0)
    return -(-last // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _row_stride(tensor: Tensor) -> int:
    """Elements from one row to the next. A matrix of one row may have any, and a weight's rows lie side by side."""
    return tensor.stride(0) if tensor.dim() == 2 and tensor.shape[0] > 1 else tensor.shape[-1]


def _counts(plan: PlanShape) -> dict[str, Argument]:
    return {
        "tokens": plan.tokens[0],  # read where there is one rank
        "rows_bound": plan.rows_bound,
        "tiles_bound": plan.tiles_bound,
        "tokens_bound": plan.tokens_bound,
        "routes_bound": plan.tokens_bound * plan.topk,
        "blocks_bound": plan.blocks_bound,
    }


def _common_parts(plan: PlanShape, local: bool) -> dict[str, Argument]:
    """What a call has beside inputs and outputs."""
    starts = plan.table_starts
    return {
        **{name: Part(memory=name, dtype=torch.int64) for name in OF_WORKSPACE},
        **{name: Part(memory=name, dtype=torch.int32) for name in OF_RANKS},
        **({"token_start": None} if local else {}),  # one rank's tokens start at 0
        **{
            name: Part(memory=PLAN, offset=4 * starts[name], shape=shape, dtype=torch.int32)
            for name, shape in plan.tables.items()
        },
    }
