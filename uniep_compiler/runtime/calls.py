"""A layer's calls: arguments of new shapes are checked and sized up, those of known shapes are as before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uniep_compiler.compiler import Compiled
from uniep_compiler.ir.types import RoutesType
from uniep_compiler.passes.names import buffer_names
from uniep_compiler.runtime.arguments import RankArguments, argument_error, check_routes, merge_arguments
from uniep_compiler.runtime.errors import raise_if_failed
from uniep_compiler.runtime.launch import Call, Prepared, Runner
from uniep_compiler.runtime.locks import lock_across_forks
from uniep_compiler.runtime.plan import PlanShape
from uniep_compiler.runtime.routes import Routes
from uniep_compiler.runtime.targets import current_device
from uniep_compiler.runtime.workspace import is_capturing, workspace_of

if TYPE_CHECKING:
    from uniep_compiler.runtime.layer import Layer

MOST_KNOWN = 128
"""Shapes of arguments that a layer remembers, with all that follows from them."""

_HERE = nullcontext()
_lock = lock_across_forks()


@dataclass(frozen=True, slots=True)
class Known:
    """Arguments that fit, by shape, strides, dtype and device. `as_they_are`: kernels read them without a copy."""

    prepared: Prepared
    as_they_are: bool


class Calls:
    """What a layer knows of its calls in this process."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._known: dict[object, Known] = {}
        self._runners: dict[tuple[int, torch.device], Runner] = {}
        names, types = buffer_names(layer.ops), layer.ops.types
        self._outputs = [None if isinstance(types[r], RoutesType) else names[r] for r in layer.ops.results]
        shown = self._outputs[: len(self._outputs) - len(layer.kept)]
        self._returns_routes = None in shown
        self._takes_routes = any(isinstance(param.type, RoutesType) for param in layer.ops.params)

    def run(self, args: Sequence[object]) -> tuple[Tensor, ...]:
        """Run the layer on the current stream: a tensor for each of the program's results, not waited for.

        Under a group it holds the parts of all ranks, one after the other; for routes it is the storage of their plan.
        """
        key = _key(args)
        known, inputs = self._known.get(key), None
        if known is None:
            known, inputs = self._prepare(args, key)
        prepared, device = known.prepared, known.prepared.device
        passed = self._passed_routes(args, prepared.layout.plan) if self._takes_routes else []
        with _on(device):
            workspace = workspace_of(device)
            with workspace.lock:
                raise_if_failed(workspace)
                if inputs is None:
                    inputs = self._as_they_are(args) if known.as_they_are else self._laid_out(args)
                plan = passed[0].plan if passed else prepared.new_plan(is_result=self._returns_routes)
                try:
                    outputs = Call(prepared=prepared, inputs=inputs, plan=plan, workspace=workspace).run()
                except BaseException:
                    workspace.reset()
                    raise
                if self._layer.debug and device.type == "cuda" and not workspace.captured:
                    torch.cuda.synchronize(device)
                if self._layer.debug or device.type == "cpu":
                    raise_if_failed(workspace)
        return tuple([plan.storage if name is None else outputs[name] for name in self._outputs])

    def check(self, args: Sequence[object], device: torch.device | None = None) -> tuple[RankArguments, ...]:
        """The arguments of each rank. UEP0601 if they do not fit, or are not on the layer's device (or that one)."""
        device = device or self._device_of(args)
        layer = self._layer
        if layer.group is None:
            return (layer.signature.check(args, device, layer.signature.experts),)
        ranks = layer.group.num_ranks
        layer.signature.check_count(args)
        lists: list[Sequence[object]] = []
        for param, arg in zip(layer.ops.params, args, strict=True):
            if not isinstance(arg, list | tuple) or len(arg) != ranks:
                raise argument_error(f"`{param.name}` has to be a list with one tensor for each of {ranks} ranks")
            lists.append(arg)
        return tuple(
            layer.signature.check(mine, device, layer.placement[rank], f" (of rank {rank})")
            for rank, mine in enumerate(zip(*lists, strict=True))
        )

    def runner(self, compiled: Compiled, device: torch.device) -> Runner:
        """The kernels of one compilation, for a device."""
        key = (id(compiled), device)
        with _lock:
            if key not in self._runners:
                self._runners[key] = Runner(compiled, device, self._layer.timeout)
            return self._runners[key]

    # -- arguments of new shapes --------------------------------------------------------------------------------------

    def _prepare(self, args: Sequence[object], key: object) -> tuple[Known, Sequence[Tensor]]:
        """Check arguments one by one, and work out what follows from their sizes. UEP0601 if they do not fit.

        The arguments come back as kernels read them.
        """
        layer = self._layer
        device = self._device_of(args)
        ranks = self.check(args, device)
        tokens = tuple(rank.tokens for rank in ranks)
        shape = layer.plan_shape(tokens)  # a call that is too large is refused before anything is copied
        inputs = merge_arguments([layer.signature.lay_out(rank.values) for rank in ranks])
        prepared = self.runner(layer.compiled_for(max(tokens)), device).prepare(shape, inputs)
        given = ranks[0].values
        as_they_are = layer.group is None and all(inputs[name] is given[name] for name in inputs)
        known = Known(prepared, as_they_are)
        # What is made during a capture has no values before the graph runs.
        if key is not None and not is_capturing(device):
            with _lock:
                if len(self._known) >= MOST_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        return known, list(inputs.values())

    def _device_of(self, args: Sequence[object]) -> torch.device:
        if self._layer.target.interpreted:
            return torch.device("cpu")
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        on_gpu = [item.device for item in flat if isinstance(item, Tensor) and item.is_cuda]
        return on_gpu[0] if on_gpu else current_device(self._layer.target)

    # -- arguments that fit -------------------------------------------------------------------------------------------

    def _as_they_are(self, args: Sequence[object]) -> Sequence[Tensor]:
        return [arg for arg in args if isinstance(arg, Tensor)]

    def _laid_out(self, args: Sequence[object]) -> Sequence[Tensor]:
        """The arguments as kernels read them, those of all ranks together."""
        names = [param.name for param in self._layer.ops.params]
        lists: Sequence[Any] = args
        ranks: list[Any] = [args] if self._layer.group is None else list(zip(*lists, strict=True))
        with torch.no_grad():
            laid_out = [self._layer.signature.lay_out(dict(zip(names, mine, strict=True))) for mine in ranks]
            return list(merge_arguments(laid_out).values())

    def _passed_routes(self, args: Sequence[object], shape: PlanShape) -> list[Routes]:
        """The routes among the arguments, by rank. UEP0601 unless they belong together, and to this layer."""
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        passed = [item for item in flat if isinstance(item, Routes)]
        check_routes(passed, shape, self._layer.placement)
        return passed


def _key(args: Sequence[object]) -> object:
    """What tells whether arguments fit, and how to run with them; None for something that no layer takes."""
    try:
        return tuple([_part_of_key(arg) for arg in args])
    except (TypeError, RuntimeError):  # a sparse tensor has no strides
        return None


def _part_of_key(arg: object) -> object:
    if isinstance(arg, Tensor):
        return arg.shape, arg.stride(), arg.dtype, arg.device, arg.is_neg(), arg.data_ptr() == 0
    if isinstance(arg, Routes):
        return arg.plan.shape, arg.placement, arg.rank, arg.plan.storage.device
    if isinstance(arg, list | tuple):
        return tuple([_part_of_key(item) for item in arg])
    raise TypeError(f"{type(arg).__name__} is no argument")


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Makes the device current where it is not."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(device)
