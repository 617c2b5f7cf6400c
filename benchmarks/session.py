"""What a system's process does: set it up, check it, and time it when it is its turn."""

from __future__ import annotations

import math
import time
from statistics import median

import torch
from torch import Tensor

from benchmarks.inputs import make_inputs, relative_error, sample_rows
from benchmarks.jobs import Job
from benchmarks.peers import SETUPS, System, in_training
from benchmarks.timing import flusher, nan_in_new_memory, synchronize, time_calls

ESTIMATE_CALLS = 3
MAX_CALLS = 200
"""In one turn: the queue of a device has an end."""


class Session:
    """One system on one shape. Answers are dictionaries of plain values."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = torch.device(job.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device")
        torch.manual_seed(job.seed)
        self._between = flusher(self.device) if job.flush_l2 else None

    @torch.no_grad()
    def prepare(self) -> dict[str, object]:
        """Set the system up, run it on poisoned memory, and compare with float64. Time and memory are noted."""
        inputs = make_inputs(self.job.shape, self.job.seed, self.device)
        started = time.perf_counter()
        self.system: System = SETUPS[self.job.variant.system](inputs, self.job.variant.schedule)
        if self.job.training and self.system.leaves:
            self.system = in_training(self.system, inputs, self.job.seed)
        synchronize(self.device)
        setup_s = time.perf_counter() - started
        before = self._allocated()
        with self.system.first_call():
            self._run()
        first_call_s = time.perf_counter() - started - setup_s
        peak_bytes = self._peak(before)
        with nan_in_new_memory(), self.system.poisoned():
            self.out = self._run()
        self.rows = sample_rows(self.system.num_rows, self.job.check_rows, self.job.seed, self.device)
        self.expected = self.system.expected(self.rows)
        checked = self._checked(self.out)
        self._empty_cache()
        return {
            "setup_s": setup_s,
            "first_call_s": first_call_s,
            "peak_bytes": peak_bytes,
            "checked_rows": len(self.rows),
            "flops": self.system.flops,
            "fingerprint": inputs.fingerprint,
            **checked,
        }

    @torch.no_grad()
    def turn(self, warm_up_ms: float, turn_ms: float) -> dict[str, object]:
        """Time calls for about that long, after others that warm up, and check what the last one computed."""
        estimate = median(self._time(ESTIMATE_CALLS)[0])
        self._time(math.ceil(warm_up_ms / estimate))
        times, out = self._time(max(ESTIMATE_CALLS, math.ceil(turn_ms / estimate)))
        self.system.finish()
        return {"times_ms": times, **self._checked(out)}

    def about_device(self) -> dict[str, object]:
        """What it all ran on, as PyTorch sees it."""
        found: dict[str, object] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            found |= {
                "gpu": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "memory_gib": round(properties.total_memory / 2**30, 1),
            }
        return found

    def _time(self, calls: int) -> tuple[list[float], Tensor]:
        return time_calls(self.system.call, max(1, min(calls, MAX_CALLS)), self.device, self._between)

    def _run(self) -> Tensor:
        """One call, waited for, with the errors that it left on the device."""
        out = self.system.call()
        synchronize(self.device)
        self.system.finish()
        return out

    def _checked(self, out: Tensor) -> dict[str, object]:
        """The relative error, infinite if any element is not finite, and whether the bits are the first call's."""
        error = relative_error(out[self.rows], self.expected) if bool(out.isfinite().all()) else math.inf
        return {"relative_error": error, "same_bits": torch.equal(out, self.out)}

    def _allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def _peak(self, before: int | None) -> int | None:
        """Bytes that a call needs beside inputs and weights, kept or not: of the second call, as the first may tune."""
        if before is None:
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        self._run()
        return torch.cuda.max_memory_allocated(self.device) - before

    def _empty_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
