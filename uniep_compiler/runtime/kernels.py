"""Launches generated kernels.

Triton's own way to launch takes some tens of microseconds for thirty arguments, most of them to find the variant of the
kernel that fits. A kernel's first launch goes that way. Later ones know the variant by the few things that differ
between calls of one size, and hand it addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.compiler import CompiledKernel

from uniep_compiler.runtime.arguments import argument_error
from uniep_compiler.runtime.layout import Argument, Matrix, Part
from uniep_compiler.runtime.modules import interpreter_lock
from uniep_compiler.runtime.workspace import not_built_error

POINTER_ALIGNMENT = 16
"""In bytes: where memory may start that is read through a tensor descriptor, or with Triton's widest loads."""
CAPACITY = "board_capacity"
"""The one number that depends on the workspace."""
MOST_DESCRIPTORS = 1024
"""Tensor descriptors that are kept per kernel and size. Layers that are alike share a kernel, each with its weights."""


@dataclass(frozen=True, slots=True)
class Address:
    """A pointer, as Triton takes it for a tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        """The address itself."""
        return self.address


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories of one call, in the order of its slots: as tensors, and where they start.

    `odd` are the slots of those that start at an address that is not a multiple of POINTER_ALIGNMENT.
    """

    tensors: Sequence[Tensor | None]
    addresses: Sequence[int]
    odd: tuple[int, ...]
    board_capacity: int
    is_captured: bool

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None], board_capacity: int, is_captured: bool) -> Memories:
        """Some tensors, by slot."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        odd = tuple([slot for slot, address in enumerate(addresses) if address % POINTER_ALIGNMENT])
        return cls(tensors, addresses, odd, board_capacity, is_captured)


class Kernel:
    """A kernel of a generated module on one device, and the variants of it that Triton has built."""

    def __init__(self, module: object, name: str, options: Mapping[str, object]) -> None:
        self.function: Any = getattr(module, name)
        self.options = dict(options)
        self.names: tuple[str, ...] = tuple(self.function.arg_names)
        self.is_interpreted = not hasattr(self.function, "do_not_specialize")
        self.counts = frozenset(() if self.is_interpreted else self.function.do_not_specialize)
        self.variants: dict[object, CompiledKernel] = {}

    def variant_of(self, name: str, argument: Argument) -> object:
        """What Triton's choice of a variant depends on, of an argument; alignment of pointers comes on top."""
        match argument:
            case int():
                return argument.bit_length() > 31 if name in self.counts else argument
            case Part():
                return argument.dtype
            case Matrix():
                return argument.part.dtype
            case None:
                return None


class Launch:
    """A kernel with arguments for calls of one size: what is left open is where the memories of a call are.

    Calls may use it in several threads at once.
    """

    def __init__(
        self, kernel: Kernel, programs: int, arguments: Mapping[str, Argument], slots: Mapping[str, int]
    ) -> None:
        self.kernel = kernel
        self.programs = programs
        self._arguments = [0 if name == CAPACITY else arguments[name] for name in kernel.names]
        self._slots = slots
        self._variant = tuple(map(kernel.variant_of, kernel.names, self._arguments))
        self._capacity = kernel.names.index(CAPACITY) if CAPACITY in kernel.names else None
        places = list(enumerate(self._arguments))
        self._pointers = [(i, slots[part.memory], part.offset) for i, part in places if isinstance(part, Part)]
        self._matrices = [(i, slots[m.part.memory], m) for i, m in places if isinstance(m, Matrix)]
        self._descriptors: dict[tuple[int, int], object] = {}
        self._ready: dict[tuple[int, ...], Callable[..., None]] = {}

    def run(self, memories: Memories) -> None:
        """Launch the kernel on the current stream of the current device.

        UEP0601 for memory that a tensor descriptor cannot start at, UEP0607 if a kernel would have to be built while a
        CUDA graph is captured.
        """
        launch = self._ready.get(memories.odd)
        if launch is not None:
            launch(*self._at(memories))
            return
        if self.kernel.is_interpreted:
            with interpreter_lock, np.errstate(all="ignore"):  # NaN and infinities are as silent as on a GPU
                self._through_triton(memories)
            return
        self._check_starts(memories)
        variant = (self._variant, memories.odd)
        built = self.kernel.variants.get(variant)
        if built is None:
            if memories.is_captured:
                raise not_built_error(self.kernel.function.__name__)
            built = self.kernel.variants[variant] = self._through_triton(memories)
            self._ready[memories.odd] = built[(self.programs, 1, 1)]
        else:
            self._ready[memories.odd] = built[(self.programs, 1, 1)]
            self.run(memories)

    def _at(self, memories: Memories) -> list[object]:
        """The arguments as a built kernel takes them: pointers are integers."""
        values: list[object] = self._arguments.copy()  # type: ignore[assignment]
        addresses = memories.addresses
        for place, slot, offset in self._pointers:
            values[place] = addresses[slot] + offset
        for place, slot, matrix in self._matrices:
            values[place] = self._descriptor(place, matrix, addresses[slot] + matrix.part.offset)
        if self._capacity is not None:
            values[self._capacity] = memories.board_capacity
        return values

    def _descriptor(self, place: int, matrix: Matrix, address: int) -> object:
        """The tensor descriptor for that place; it keeps nothing alive."""
        found = self._descriptors.get((place, address))
        if found is None:
            if len(self._descriptors) >= MOST_DESCRIPTORS:
                self._descriptors.clear()
            found = self._descriptors[place, address] = matrix.descriptor(Address(address, matrix.part.dtype))
        return found

    def _through_triton(self, memories: Memories) -> Any:
        """Launch as Triton's users do: it finds the variant, builds it if it has to, and returns it."""
        values = [self._as_tensor(argument, memories) for argument in self._arguments]
        if self._capacity is not None:
            values[self._capacity] = memories.board_capacity
        return self.kernel.function[(self.programs,)](*values, **self.kernel.options)

    def _as_tensor(self, argument: Argument, memories: Memories) -> object:
        match argument:
            case Part():
                return self._inside(argument, memories)
            case Matrix():
                return argument.descriptor(self._inside(argument.part, memories))
            case _:
                return argument

    def _inside(self, part: Part, memories: Memories) -> Tensor:
        memory = memories.tensors[self._slots[part.memory]]
        assert memory is not None, part.memory
        return part.inside(memory)

    def _check_starts(self, memories: Memories) -> None:
        for _, slot, matrix in self._matrices:
            if slot in memories.odd:
                message = f"`{matrix.buffer}` starts at an address that is not a multiple of {POINTER_ALIGNMENT}"
                raise argument_error(message, "tensors that PyTorch allocates do: pass a copy (`.clone()`)")
