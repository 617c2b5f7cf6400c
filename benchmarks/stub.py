"""A Triton driver without a device: kernels are compiled for it, and launched into nothing.

With it a machine without a GPU can run all of the host's side of a call, on tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from uniep_compiler.runtime import calls

CAPABILITY = 90
DEVICE = 1000
"""Kernels that were built for no device must never be found for one."""
LEADING_ARGUMENTS = 8
"""What a launcher gets between the grid's first size and the kernel's arguments."""

Launched = Callable[[str, int, tuple[Any, ...]], None]
"""What is told of each launch: the kernel's name, the number of programs, the arguments."""


class StubDriver:
    """What Triton asks of a driver. Kernels keep their launcher, so who is told of launches may change."""

    launched: Launched

    def launcher_cls(self, _source: object, metadata: Any) -> Callable[..., None]:
        """A launcher of one kernel."""

        def launch(programs: int, *arguments: Any) -> None:
            self.launched(metadata.name, programs, arguments[LEADING_ARGUMENTS:])

        return launch

    @property
    def utils(self) -> StubDriver:
        return self

    def load_binary(self, *_: object) -> tuple[object, int, int, int, int]:
        return object(), 0, 0, 0, 1024  # module, function, registers, spills, threads

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return DEVICE

    def get_current_stream(self, _device: int) -> int:
        return 0


_stub = StubDriver()


@contextmanager
def stub_device(launched: Launched) -> Iterator[None]:
    """Layers for `sm_90` take tensors of the CPU, and their kernels do nothing but tell that they were launched."""
    before, find = driver._active, calls.current_device
    _stub.launched = launched
    driver.set_active(_stub)
    calls.current_device = lambda target: torch.device("cpu")
    try:
        yield
    finally:
        driver._active = before
        calls.current_device = find
