"""What a call takes of a device's memory, buffer by buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import torch

from uniep_compiler.codegen.state_layout import STATE_WORDS
from uniep_compiler.runtime.layout import Layout, Part


class Use(StrEnum):
    """What memory is for, which says how long a call keeps it."""

    OUTPUT = "output"
    SAVED = "saved"
    GRADIENT = "gradient"
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

    Of a training step there are also `saved_bytes`, which the forward pass keeps for the backward pass, as it does the
    plan, and `gradient_bytes`, the results of the latter. Both passes use one workspace, so it is that of the larger.

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
        return self._bytes_of(Use.OUTPUT)

    @property
    def saved_bytes(self) -> int:
        """Bytes of all that is kept for the backward pass, beside the plan and parameters of the program."""
        return self._bytes_of(Use.SAVED)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients of parameters."""
        return self._bytes_of(Use.GRADIENT)

    @property
    def total_bytes(self) -> int:
        """Everything."""
        owned = self.output_bytes + self.saved_bytes + self.gradient_bytes
        return owned + self.plan_bytes + self.workspace_bytes

    def _bytes_of(self, use: Use) -> int:
        return sum(buffer.num_bytes for buffer in self.buffers if buffer.use is use)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        tokens = " + ".join(map(str, self.tokens))
        yield f"memory of a call with {tokens} tokens: {_text(self.total_bytes)}"
        for use in Use:
            if all(buffer.use is not use for buffer in self.buffers):
                continue
            total = {Use.PLAN: self.plan_bytes, Use.WORKSPACE: self.workspace_bytes}.get(use, self._bytes_of(use))
            yield f"  {use:<32} {_text(total):>12}"
            for buffer in (buffer for buffer in self.buffers if buffer.use is use):
                kind = str(buffer.dtype).removeprefix("torch.")
                yield f"    {buffer.name:<30} {_text(buffer.num_bytes):>12}   {kind}{list(buffer.shape)}"


def memory_report(forward: Layout, backward: Layout | None = None, kept: Collection[str] = ()) -> MemoryReport:
    """The report for calls of one layout, or for training steps. `kept` are outputs for the backward pass."""
    plan, layouts = forward.plan, [forward] if backward is None else [forward, backward]
    gradients = {} if backward is None else backward.outputs
    counters = (2, max(layout.counters for layout in layouts))
    return MemoryReport(
        tokens=plan.tokens,
        buffers=(
            *(_buffer(Use.SAVED if name in kept else Use.OUTPUT, name, part) for name, part in forward.outputs.items()),
            *(_buffer(Use.GRADIENT, name, part) for name, part in gradients.items()),
            *(Buffer(name=n, use=Use.PLAN, shape=shape, dtype=torch.int32) for n, shape in plan.tables.items()),
            *(_buffer(Use.WORKSPACE, name, part) for layout in layouts for name, part in layout.rows.items()),
            Buffer(name="scoreboard", use=Use.WORKSPACE, shape=counters, dtype=torch.int64),
            Buffer(name="state", use=Use.WORKSPACE, shape=(STATE_WORDS,), dtype=torch.int64),
        ),
        workspace_bytes=max(layout.arena_bytes for layout in layouts) + 8 * (prod(counters) + STATE_WORDS),
        plan_bytes=4 * plan.num_words,
    )


def _buffer(use: Use, name: str, part: Part) -> Buffer:
    return Buffer(name=name, use=use, shape=part.shape or (), dtype=part.dtype)


def _text(num_bytes: int) -> str:
    """A size to read."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
