"""Times calls: by CUDA events on a GPU, by the clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU."""


def flusher(device: torch.device) -> Callable[[], object]:
    """A function that pushes everything out of the device's L2."""
    scratch = torch.ones(FLUSH_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device)
    return lambda: scratch.add_(1)


def time_calls(
    call: Callable[[], Tensor], count: int, device: torch.device, between: Callable[[], object] | None = None
) -> tuple[list[float], Tensor]:
    """Milliseconds of each of `count` calls, and what the last one returned.

    On a GPU calls are queued without waiting, as a training step queues them; `between` runs before each, untimed.
    """
    if device.type == "cuda":
        return _time_by_events(call, count, device, between)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        out = call()
        times.append(1e3 * (time.perf_counter() - start))
    return times, out


def _time_by_events(
    call: Callable[[], Tensor], count: int, device: torch.device, between: Callable[[], object] | None
) -> tuple[list[float], Tensor]:
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        if between is not None:
            between()
        start.record()
        out = call()
        end.record()
    torch.cuda.synchronize(device)
    return [start.elapsed_time(end) for start, end in events], out


def synchronize(device: torch.device) -> None:
    """Wait for everything that was queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Every tensor that PyTorch allocates without a value holds NaN, or the largest integer."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)  # the filling belongs to this mode
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled
