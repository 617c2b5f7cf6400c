"""Calls generated kernels: carves buffers, collects arguments by name, launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from uniep_compiler.compiler import Compiled
from uniep_compiler.ir.index import Expr, Sym, evaluate
from uniep_compiler.ir.tasks import Buffer, BufferKind
from uniep_compiler.passes.names import ROW_ROUTE
from uniep_compiler.runtime.arguments import TORCH_DTYPES, argument_error
from uniep_compiler.runtime.modules import interpreter_lock
from uniep_compiler.runtime.plan import Plan, PlanShape
from uniep_compiler.runtime.workspace import ALIGNMENT_BYTES, Workspace

NUM_WARPS = 8
NUM_STAGES = 3
DESCRIPTOR_ALIGNMENT = 16
"""In bytes: where memory that is read through a tensor descriptor may start."""
TOKENS = Sym("tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """Counts of one call, as symbols of the index language."""

    plan: PlanShape

    def symbol(self, name: str, rank: int) -> int:
        """Value of a symbol. Buffers are the same size on every rank, so the rank matters to `tokens` alone."""
        shape = self.plan
        return {
            "rank": rank,
            "tokens": shape.tokens[rank],
            "rows_bound": shape.rows_bound,
            "tiles_bound": shape.tiles_bound,
            "tokens_bound": shape.tokens_bound,
        }[name]

    def lookup(self, table: str, indices: tuple[int, ...], rank: int) -> int:
        """Sizes depend on no table."""
        raise KeyError(table)

    def value(self, expr: Expr) -> int:
        """The value of a size."""
        return evaluate(expr, self, 0, {})

    def buffer_shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Shape of a buffer over all ranks: those per token lie one after the other, the rest side by side."""
        cols = self.value(buffer.cols)
        if buffer.experts:
            return (buffer.experts, self.value(buffer.rows), cols)
        if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT) and buffer.rows == TOKENS:
            return (self.plan.total_tokens, cols)
        return (self.plan.ranks * self.value(buffer.rows), cols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Everything that one call hands to its kernels."""

    compiled: Compiled
    module: ModuleType
    shape: CallShape
    plan: Plan
    inputs: Mapping[str, Tensor]
    tables: Mapping[str, Tensor]
    workspace: Workspace
    time_limit_ns: int
    workers: int

    def run(self) -> dict[str, Tensor]:
        """Launch the kernels on the current stream; the outputs by buffer name, not waited for."""
        buffers = self._buffers()
        values = self._values(buffers)
        arguments = self.compiled.forward.view.arguments
        options = {"num_warps": NUM_WARPS, "num_stages": NUM_STAGES, "enable_fp_fusion": False}
        with _launching(self.workspace.device):
            for launch in self.compiled.forward.view.launches:
                getattr(self.module, launch.name)[(self.workers,)](*(values[name] for name in arguments), **options)
        return {b.name: buffers[b.name] for b in self._graph_buffers() if b.kind is BufferKind.OUTPUT}

    def _graph_buffers(self) -> tuple[Buffer, ...]:
        return self.compiled.schedule.graph.buffers

    def _buffers(self) -> dict[str, Tensor]:
        """Inputs as they are, outputs fresh, the rest from the workspace."""
        device = self.workspace.device
        carved = [b for b in self._graph_buffers() if b.kind in (BufferKind.WORKSPACE, BufferKind.SYMMETRIC)]
        carved = [b for b in carved if b.name != ROW_ROUTE]
        sizes = {b.name: prod(self.shape.buffer_shape(b)) * b.dtype.num_bytes for b in carved}
        self.workspace.reserve(sum(map(_aligned, sizes.values())), self.board_size * self.shape.plan.ranks)
        buffers: dict[str, Tensor] = dict(self.inputs)
        first = 0
        for buffer in carved:
            piece = self.workspace.arena[first : first + sizes[buffer.name]]
            buffers[buffer.name] = piece.view(TORCH_DTYPES[buffer.dtype]).view(self.shape.buffer_shape(buffer))
            first += _aligned(sizes[buffer.name])
        for buffer in self._graph_buffers():
            if buffer.kind is BufferKind.OUTPUT:
                shape = self.shape.buffer_shape(buffer)
                buffers[buffer.name] = torch.empty(shape, dtype=TORCH_DTYPES[buffer.dtype], device=device)
        return buffers

    @property
    def board_size(self) -> int:
        """Counters of one rank."""
        size = self.compiled.schedule.scoreboard_size
        return 0 if size is None else self.shape.value(size)

    def _values(self, buffers: Mapping[str, Tensor]) -> dict[str, object]:
        """Every kernel argument by name."""
        plan, shape = self.plan, self.shape.plan
        values: dict[str, object] = {
            "state": self.workspace.state,
            "scoreboard": self.workspace.board,
            "board_capacity": self.workspace.board_capacity,
            "error": self.workspace.record_of(self.compiled),
            "time_limit": self.time_limit_ns,
            "tokens": shape.tokens[0],
            "rows_bound": shape.rows_bound,
            "tiles_bound": shape.tiles_bound,
            "tokens_bound": shape.tokens_bound,
            "routes_bound": shape.tokens_bound * shape.topk,
            "blocks_bound": shape.blocks_bound,
            "board_size": self.board_size,
            **{name: getattr(plan, name) for name in shape.tables},
            **self.tables,
        }
        for name, tensor in buffers.items():
            values[f"{name}_ptr"] = tensor
            values[f"{name}_stride"] = tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[-1]
            values[f"{name}_size"] = tensor.numel()
        for view in self.compiled.forward.view.descriptors:
            tensor = buffers[view.buffer]
            if tensor.data_ptr() % DESCRIPTOR_ALIGNMENT:
                message = f"`{view.buffer}` starts at an address that is not a multiple of {DESCRIPTOR_ALIGNMENT}"
                raise argument_error(message, "tensors that PyTorch allocates do: pass a copy (`.clone()`)")
            values[view.name] = TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), list(view.block))
        return values


@contextmanager
def _launching(device: torch.device) -> Iterator[None]:
    """What holds while kernels are launched. Interpreted ones take NaN and infinities as silently as a GPU does."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        with interpreter_lock, np.errstate(all="ignore"):
            yield


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
