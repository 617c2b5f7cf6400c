"""Triton kernels that tune themselves, with all their candidates compiled at once instead of one after the other.

What is chosen, and how, stays the autotuner's own: its candidates are already compiled when it comes to time them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import triton
from triton.runtime.autotuner import Autotuner


@contextmanager
def candidates_compiled_at_once() -> Iterator[None]:
    """Within this, the first launch of each autotuned kernel compiles all its candidates, on all cores."""
    original = Autotuner.run
    seen: set[int] = set()

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen:
            seen.add(id(self))
            with suppress(Exception):  # the autotuner will meet the same error, and knows what to do with it
                compile_candidates(self, args, kwargs)
        return original(self, *args, **kwargs)

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = original


def compile_candidates(kernel: Autotuner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Compile a kernel for every candidate of its autotuner; `kwargs` are those of a launch."""
    meta = {name: value for name, value in kwargs.items() if name != "warmup"}
    with ThreadPoolExecutor(os.cpu_count()) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        kernel.warmup(*args, **meta)
