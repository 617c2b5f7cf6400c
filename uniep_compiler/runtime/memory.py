"""What a call takes of a device's memory, buffer by buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import torch

from uniep_compiler.codegen.state_layout import STATE_WORDS
from uniep_compiler.runtime.layout import Layout


class Use(StrEnum):
    """What memory is for, which says how long a call keeps it."""

    OUTPUT = "output"
    PLAN = "plan"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor of a call. All ranks' parts together, where several share a device."""

    name: str
    use: Use
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What a call with `tokens` tokens (of each rank) takes, beside its arguments; `str()` of it is a table.

    `output_bytes`: results, which are the caller's. `plan_bytes`: the plan, which lives as long as routes of it do, and
    else dies with the call. `workspace_bytes`: what all calls on a stream share; a workspace grows to the largest call,
    and then by an eighth more (at most 64 MiB), so that slowly growing calls do not allocate each time.

    These are the bytes that are asked for: PyTorch rounds allocations up, small ones to 512 bytes. Copies of arguments
    that kernels cannot read as they are (router weights that are not float32, say) come on top.
    """

    tokens: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    workspace_bytes: int
    plan_bytes: int

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(buffer.num_bytes for buffer in self.buffers if buffer.use is Use.OUTPUT)

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return self.output_bytes + self.plan_bytes + self.workspace_bytes

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        tokens = " + ".join(map(str, self.tokens))
        yield f"memory of a call with {tokens} tokens: {_text(self.total_bytes)}"
        totals = {Use.OUTPUT: self.output_bytes, Use.PLAN: self.plan_bytes, Use.WORKSPACE: self.workspace_bytes}
        for use, total in totals.items():
            yield f"  {use:<32} {_text(total):>12}"
            for buffer in (buffer for buffer in self.buffers if buffer.use is use):
                kind = str(buffer.dtype).removeprefix("torch.")
                yield f"    {buffer.name:<30} {_text(buffer.num_bytes):>12}   {kind}{list(buffer.shape)}"


def memory_report(layout: Layout) -> MemoryReport:
    """The report for calls of one layout."""
    plan = layout.plan
    outputs = [(Use.OUTPUT, name, part.shape, part.dtype) for name, part in layout.outputs.items()]
    tables = [(Use.PLAN, name, shape, torch.int32) for name, shape in plan.tables.items()]
    rows = [(Use.WORKSPACE, name, part.shape, part.dtype) for name, part in layout.rows.items()]
    counters = (2, layout.counters)
    control = [
        (Use.WORKSPACE, "scoreboard", counters, torch.int64),
        (Use.WORKSPACE, "state", (STATE_WORDS,), torch.int64),
    ]
    return MemoryReport(
        tokens=plan.tokens,
        buffers=tuple(
            Buffer(name=name, use=use, shape=shape or (), dtype=dtype)
            for use, name, shape, dtype in [*outputs, *tables, *rows, *control]
        ),
        workspace_bytes=layout.arena_bytes + 8 * (prod(counters) + STATE_WORDS),
        plan_bytes=4 * plan.num_words,
    )


def _text(num_bytes: int) -> str:
    """A size to read."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
