"""Memory that dies with a call: row buffers, the scoreboard, the state.

There is one workspace per device and stream: calls of one stream run one after the other and share it, calls of two
streams never meet in it. It never shrinks. Each call clears the half of the scoreboard that the next one will use.

A call that is captured into a CUDA graph gets memory of its own instead, from the graph's pool, as any tensor does that
dies inside the graph. So no graph holds a workspace, and a graph may be replayed on any stream, beside calls and other
graphs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from uniep_compiler.codegen.state_layout import ERROR_KIND, ERROR_WORDS, STATE_WORDS
from uniep_compiler.compiler import Compiled
from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.runtime.locks import lock_across_forks

ALIGNMENT_BYTES = 256
"""Buffers start at multiples of this: enough for tensor descriptors and for whole cache lines."""

RECORDS_PER_SHEET = 64
"""Error records that are allocated at a time."""

MOST_SLACK = 64 * 2**20
"""Bytes or counters that a workspace takes beyond what is needed, at most."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What the kernels of one module report: int64[ERROR_WORDS] that the host can read while they run."""

    compiled: Compiled
    words: Tensor


class Records:
    """Error records by the source of their module: errors show up in later calls, which may be those of another layer.

    Records lie side by side in sheets, so that one look tells whether any of them is filled. They never move.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_pinned = device.type == "cuda"
        self._by_source: dict[str, ErrorRecord] = {}
        self._sheets: list[Tensor] = []
        self._kinds: list[Any] = []

    def find(self, compiled: Compiled) -> ErrorRecord | None:
        """The record of a module, if it has one."""
        return self._by_source.get(compiled.kernels.source)

    def make(self, compiled: Compiled) -> ErrorRecord:
        """The record of a module, an empty one if it had none."""
        with _lock:
            place = len(self._by_source) % RECORDS_PER_SHEET
            source = compiled.kernels.source
            if source not in self._by_source:
                if place == 0:
                    self._add_sheet()
                self._by_source[source] = ErrorRecord(compiled, self._sheets[-1][place])
            return self._by_source[source]

    def filled(self) -> Iterator[ErrorRecord]:
        """The records in which kernels have reported something. Reads host memory, so it waits for nothing."""
        if any(kinds.any() for kinds in self._kinds):
            yield from [record for record in self._by_source.values() if record.words[ERROR_KIND] != 0]

    def clear(self) -> None:
        """Empty all records."""
        for sheet in self._sheets:
            sheet.zero_()

    def _add_sheet(self) -> None:
        shape = (RECORDS_PER_SHEET, ERROR_WORDS)
        with torch.inference_mode(False):
            sheet = torch.zeros(shape, dtype=torch.int64, device="cpu", pin_memory=self._is_pinned)
        self._sheets.append(sheet)
        self._kinds.append(sheet.numpy()[:, ERROR_KIND])


@dataclass(slots=True, kw_only=True)
class Workspace:
    """The memory of one device and stream, or of one captured call.

    `arena`: uint8, buffers are carved from it for each call. `board`: int64, both halves of the scoreboard.
    `state`: int64[STATE_WORDS] on the device. `poisoned`: calls find NaN in the arena, for tests.
    """

    device: torch.device
    arena: Tensor
    board: Tensor
    state: Tensor
    records: Records
    captured: bool = False
    poisoned: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def board_capacity(self) -> int:
        """Counters of one half of the scoreboard."""
        return self.board.numel() // 2

    def reserve(self, arena_bytes: int, counters: int) -> None:
        """Make room for a call. Memory is replaced only where it is too small."""
        if self.captured:
            self._take_once(arena_bytes, counters)
            return
        if self.arena.numel() < arena_bytes:
            self.arena = self._replace(self.arena, torch.empty, _grown(arena_bytes))
        if self.board_capacity < counters:
            self.board = self._replace(self.board, torch.zeros, 2 * _grown(counters))
        if self.poisoned:
            self.arena.fill_(0xFF)  # NaN in every float format, -1 in every integer

    def record_of(self, compiled: Compiled) -> Tensor:
        """Where the kernels of a module report errors. UEP0607 in a capture, if the module has not been called yet."""
        record = self.records.find(compiled)
        if record is None:
            if self.captured:
                raise not_built_error(compiled.ops.name)
            if self.device.type == "cuda":  # pinned memory cannot be had during a capture
                _records_of_graphs(self.device).make(compiled)
            record = self.records.make(compiled)
        return record.words

    def failures(self) -> Iterator[ErrorRecord]:
        """The records that kernels have filled, those of CUDA graphs on this device included."""
        yield from self.records.filled()
        yield from _records_of_graphs(self.device).filled()

    def reset(self) -> None:
        """Forget a call that broke off before all of its kernels were launched."""
        if self.captured:
            return
        self.state.zero_()
        self.board.zero_()
        self.records.clear()

    def _replace(self, old: Tensor, make: Callable[..., Tensor], size: int) -> Tensor:
        """A larger tensor for `old`."""
        if old.is_cuda:  # kernels of this stream may still use it, which the allocator cannot know
            old.record_stream(torch.cuda.current_stream(self.device))
        return lasting(self.device, lambda: make(size, dtype=old.dtype, device=self.device))

    def _take_once(self, arena_bytes: int, counters: int) -> None:
        """Memory for one captured call. State and scoreboard start at zero in each replay, by a memset in the graph."""
        self.arena = torch.empty(arena_bytes, dtype=torch.uint8, device=self.device)
        zeros = torch.zeros(STATE_WORDS + 2 * counters, dtype=torch.int64, device=self.device)
        self.state, self.board = zeros[:STATE_WORDS], zeros[STATE_WORDS:]


def workspace_of(device: torch.device) -> Workspace:
    """The workspace of the device's current stream; on the CPU, of the current thread. A new one during a capture."""
    if device.type != "cuda":
        return _find(device, threading.get_ident())
    if is_capturing(device):
        return _empty_workspace(device, _records_of_graphs(device), captured=True)
    return _find(device, torch._C._cuda_getCurrentRawStream(device.index or 0))


def workspaces_on(device: torch.device) -> list[Workspace]:
    """All workspaces whose errors concern a caller that waits for the device; on the CPU, that of the thread."""
    if device.type != "cuda":
        return [workspace_of(device)]
    with _lock:
        return [workspace for key, workspace in _workspaces.items() if key[:2] == _place(device)]


def is_capturing(device: torch.device) -> bool:
    """Whether the device, which is the current one, records launches for a CUDA graph instead of running them."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def lasting(device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """A tensor that outlives the call that needs it first, whatever the caller has set up for tensors of its own.

    Memory pools (those of CUDA graphs, which are warmed up in them, among them) and inference mode hold in the thread
    that entered them: so memory is taken in another one, on the default stream.
    """
    if device.type != "cuda":
        with torch.inference_mode(False):
            return make()
    with ThreadPoolExecutor(max_workers=1) as thread:
        made = thread.submit(make).result()
    torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
    return made


def not_built_error(name: str) -> UniepError:
    """The error for a call that would have to build kernels while it is captured (UEP0607)."""
    return UniepError(
        [
            Diagnostic(
                code="UEP0607",
                message=f"`{name}` would have to be built while a CUDA graph is captured",
                help="call the layer once before, with arguments like these",
            )
        ]
    )


_workspaces: dict[tuple[str, int, int], Workspace] = {}
_graph_records: dict[tuple[str, int], Records] = {}
_lock = lock_across_forks()


def _forget_other_threads() -> None:
    """In a forked process: a new thread may get the number of one that was within a call, and is not here."""
    for key in [key for key in _workspaces if key[0] == "cpu" and key[2] != threading.get_ident()]:
        del _workspaces[key]


os.register_at_fork(after_in_child=_forget_other_threads)


def _place(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def _find(device: torch.device, stream_or_thread: int) -> Workspace:
    key = (*_place(device), stream_or_thread)
    found = _workspaces.get(key)
    if found is None:
        with _lock:
            found = _workspaces.get(key) or _workspaces.setdefault(key, _new_workspace(device))
    return found


def _new_workspace(device: torch.device) -> Workspace:
    with torch.inference_mode(False):
        workspace = _empty_workspace(device, Records(device))
    workspace.state = lasting(device, lambda: torch.zeros(STATE_WORDS, dtype=torch.int64, device=device))
    return workspace


def _empty_workspace(device: torch.device, records: Records, *, captured: bool = False) -> Workspace:
    """A workspace with tensors that have no memory yet."""
    arena, words = (torch.empty(0, dtype=dtype, device=device) for dtype in (torch.uint8, torch.int64))
    return Workspace(device=device, arena=arena, board=words, state=words, records=records, captured=captured)


def _records_of_graphs(device: torch.device) -> Records:
    """The error records of captured calls. They outlive every graph, which may be replayed at any time."""
    found = _graph_records.get(_place(device))
    return found or _graph_records.setdefault(_place(device), Records(device))


def _grown(size: int) -> int:
    """A little more than asked for, so that slowly growing calls do not allocate each time."""
    return -(-(size + min(size // 8, MOST_SLACK)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
