"""Memory that dies with a call: row buffers, the scoreboard, the state. One workspace per device and stream.

A workspace never shrinks. Calls of different layers on one stream share it: they run one after the other, and each call
clears the half of the scoreboard that the next one will use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from uniep_compiler.codegen.state_layout import ERROR_KIND, ERROR_WORDS, STATE_WORDS
from uniep_compiler.compiler import Compiled

ALIGNMENT_BYTES = 256
"""Buffers start at multiples of this: enough for tensor descriptors and for whole cache lines."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What the kernels of one module report: int64[ERROR_WORDS] that the host can read while they run."""

    compiled: Compiled
    words: Tensor


@dataclass(slots=True)
class Workspace:
    """The memory of one device and stream.

    `arena`: uint8, buffers are carved from it for each call. `board`: int64, both halves of the scoreboard.
    `state`: int64[STATE_WORDS] on the device. `records`: one error record per module, by its source, since errors show
    up in later calls, which may be those of another layer. `poisoned`: calls find NaN in the arena, for tests.
    """

    device: torch.device
    arena: Tensor
    board: Tensor
    state: Tensor
    records: dict[str, ErrorRecord] = field(default_factory=dict)
    poisoned: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def board_capacity(self) -> int:
        """Counters of one half of the scoreboard."""
        return self.board.numel() // 2

    def reserve(self, arena_bytes: int, counters: int) -> None:
        """Make room for a call. Memory is replaced only where it is too small."""
        if self.arena.numel() < arena_bytes:
            self.arena = torch.empty(_grown(arena_bytes), dtype=torch.uint8, device=self.device)
        if self.poisoned:
            self.arena.fill_(0xFF)  # NaN in every float format, -1 in every integer
        if self.board_capacity < counters:
            self.board = torch.zeros(2 * _grown(counters), dtype=torch.int64, device=self.device)

    def record_of(self, compiled: Compiled) -> Tensor:
        """Where the kernels of a module report errors."""
        source = compiled.forward.source
        if source not in self.records:
            words = torch.zeros(ERROR_WORDS, dtype=torch.int64, pin_memory=self.device.type == "cuda")
            self.records[source] = ErrorRecord(compiled=compiled, words=words)
        return self.records[source].words

    def failures(self) -> Iterator[ErrorRecord]:
        """The records that kernels have filled. Reads host memory, so it waits for nothing."""
        return (record for record in self.records.values() if record.words[ERROR_KIND] != 0)

    def reset(self) -> None:
        """Forget a call that broke off before all of its kernels were launched."""
        self.state.zero_()
        self.board.zero_()
        for record in self.records.values():
            record.words.zero_()


_workspaces: dict[tuple[str, int, int], Workspace] = {}
_lock = threading.Lock()


def workspace_of(device: torch.device) -> Workspace:
    """The workspace of the device's current stream; on the CPU, of the current thread."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else threading.get_ident()
    key = (device.type, device.index or 0, stream)
    with _lock:
        if key not in _workspaces:
            _workspaces[key] = _new_workspace(device)
        return _workspaces[key]


def _new_workspace(device: torch.device) -> Workspace:
    return Workspace(
        device=device,
        arena=torch.empty(0, dtype=torch.uint8, device=device),
        board=torch.zeros(0, dtype=torch.int64, device=device),
        state=torch.zeros(STATE_WORDS, dtype=torch.int64, device=device),
    )


def _grown(size: int) -> int:
    """A little more than asked for, so that slowly growing calls do not allocate each time."""
    return -(-size * 9 // 8 // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
