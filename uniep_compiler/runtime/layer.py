"""Layers: programs compiled for dims, a target and a group, and called like functions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from uniep_compiler import compiler
from uniep_compiler.compiler import Compiled, Direction
from uniep_compiler.diagnostics import Diagnostic, InternalError, UniepError
from uniep_compiler.frontend.bind import bind_dims
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import Program
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import TaskGraph
from uniep_compiler.ir.types import RoutesType, RowsType
from uniep_compiler.passes.names import buffer_names
from uniep_compiler.passes.settings import backward_settings
from uniep_compiler.passes.target import Target
from uniep_compiler.runtime import torch_op, training
from uniep_compiler.runtime.arguments import Signature, argument_error
from uniep_compiler.runtime.calls import Calls
from uniep_compiler.runtime.errors import raise_if_failed
from uniep_compiler.runtime.keywords import (
    check_debug,
    check_dims,
    check_group,
    check_schedule,
    check_timeout,
    dtype_named,
    is_count,
    placement_of,
)
from uniep_compiler.runtime.layout import Layout
from uniep_compiler.runtime.locks import lock_across_forks
from uniep_compiler.runtime.memory import MemoryReport, memory_report
from uniep_compiler.runtime.plan import Plan, PlanShape
from uniep_compiler.runtime.proofs import check_once
from uniep_compiler.runtime.reference import run_reference
from uniep_compiler.runtime.routes import Routes, is_counts
from uniep_compiler.runtime.targets import current_device, resolve_target
from uniep_compiler.runtime.training import Training
from uniep_compiler.runtime.workspace import workspaces_on
from uniep_compiler.transports.virtual import VirtualGroup

DEFAULT_TIMEOUT = 10.0
"""Seconds that a task may wait before the watchdog ends the call."""

_lock = lock_across_forks()


def compile(
    program: Program,
    *,
    dims: Mapping[str, int],
    target: str = "auto",
    group: VirtualGroup | None = None,
    dtype: str | None = None,
    placement: Sequence[int] | None = None,
    schedule: Mapping[str, object] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    debug: bool = False,
) -> Layer:
    """Compile a program with one layer (`program["name"]` picks one of several).

    `dims`: every dim but the token dim. `target`: "auto" (a GPU if there is one, else the interpreter), "cpu", "cuda"
    or an architecture such as "sm_90". `group`: `uniep.virtual_group(n)`; None is one rank. `dtype` ("bf16", "f16",
    "f32") replaces the element type that the program's rows have, as if its text said that one. `placement`: experts
    per rank, balanced by default. `schedule`: keys of a schedule block that go over the program's. `timeout`: seconds
    that a task may wait. `debug`: errors of kernels are raised by the call itself, which then waits for them.

    The compiler's work is done and checked here; kernels are built on the first call. Raises UniepError with everything
    that is wrong with the program, the dims or the options.
    """
    if not isinstance(program, Program):
        raise argument_error(
            f"compile takes a parsed program, not {type(program).__name__}",
            "parse it first: uniep.compile(uniep.parse_file(path), ...), or uniep.parse(text)",
        )
    check_dims(dims)
    check_group(group)
    check_schedule(schedule)
    check_timeout(timeout)
    check_debug(debug)
    ops = lower(program)
    bound = bind_dims(ops, dims, program)
    found = resolve_target(target)
    if dtype is not None:
        written = program
        program, ops = compiler.in_dtype(program, ops, dtype_named(dtype))
        for warning in compiler.tiles_left_out(written, program, found, bound):
            warnings.warn(warning.render(program.source), stacklevel=2)
    return Layer(
        program,
        ops=ops,
        dims=bound,
        target=found,
        group=group,
        placement=placement_of(ops, bound, group, placement),
        overrides=dict(schedule or {}),
        timeout=timeout,
        debug=debug,
    )


class Layer:
    """A compiled layer. Call it with the program's parameters, in order; under a group, with one list per parameter.

    Instances are safe to copy and to pickle; kernels are built (or found in the cache) on first use.
    """

    def __init__(
        self,
        program: Program,
        *,
        ops: OpGraph,
        dims: Mapping[str, int],
        target: Target,
        group: VirtualGroup | None,
        placement: tuple[int, ...],
        overrides: Mapping[str, object],
        timeout: float,
        debug: bool,
        direction: Direction = Direction.FORWARD,
        kept: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.ops = ops
        self.dims = dict(dims)
        self.target = target
        self.group = group
        self.placement = placement
        self.timeout = timeout
        self.debug = debug
        self.direction = direction
        self.kept = tuple(kept)
        self._overrides = dict(overrides)
        self.signature = Signature(ops, self.dims, compiler.token_dim(ops))
        self._returns_tensors = group is None and not any(isinstance(ops.types[r], RoutesType) for r in ops.results)
        self._is_conditional = any(block.conditions for block in program.schedules)
        self._compiled: dict[object, Compiled] = {}
        self._default = self._compile({})
        self.digest = self._digest()
        self.calls = Calls(self)
        self.training = Training(self)

    # -- what was compiled ------------------------------------------------------------------------------------------

    @property
    def source(self) -> dict[str, str]:
        """The generated modules: "forward", "plan" where the program routes, and "backward" where it has that pass.

        The backward pass shown is the one for the gradients of all parameters. It is compiled when it is first seen.
        """
        try:
            backward = self.training.of_all().backward
        except InternalError:
            raise
        except UniepError:
            backward = None
        return {**self._default.sources, **({} if backward is None else backward._default.sources)}

    @property
    def schedule(self) -> Schedule:
        """The linear order of tasks; `str()` of it is a text that can be read back."""
        return self._default.schedule

    @property
    def graph(self) -> TaskGraph:
        """The task graph."""
        return self._default.schedule.graph

    @property
    def backward_schedule(self) -> Schedule:
        """The order of tasks of the backward pass for the gradients of all parameters, with its graph as `graph`.

        Raises UEP0606 if the program has no backward pass.
        """
        backward = self.training.of_all().backward
        if backward is None:
            raise training.no_derivative_error(f"no result of `{self.ops.name}` has a gradient", "")
        return backward.schedule

    def rows_bound(self, tokens: int) -> int:
        """Rows that a rows value has room for, with that many tokens: one per route. UEP0601 for no such number."""
        if not is_count(tokens) or tokens < 0:
            raise argument_error(f"{tokens!r} is not a number of tokens")
        return tokens * self.signature.topk

    def _compile(self, tokens: Mapping[str, int]) -> Compiled:
        """The layer compiled under the schedule that holds for a number of tokens."""
        settings = compiler.make_settings(
            self.program,
            dims=self.dims,
            target=self.target,
            placement=self.placement,
            local=self.group is None,
            overrides=self._overrides,
            tokens=tokens,
        )
        if self.direction is Direction.BACKWARD:
            settings = backward_settings(settings)
        with _lock:
            if settings.options not in self._compiled:
                self._compiled[settings.options] = compiler.build(self.ops, settings, check_once, self.direction)
            return self._compiled[settings.options]

    def compiled_for(self, tokens: int) -> Compiled:
        """Only a program whose schedule has a condition on the number of tokens is compiled more than once."""
        return self._compile({self.signature.token: tokens}) if self._is_conditional else self._default

    def _digest(self) -> str:
        """Equal for layers that do the same in all calls."""
        settings = (self._overrides, self.program.schedules, self.placement, self.group, self.timeout, self.debug)
        return sha256(repr((self._default.sources, self.target.name, settings)).encode()).hexdigest()

    def _forward_pass(self, ops: OpGraph) -> Layer:
        """The layer that also returns what `ops` keep for a backward pass."""
        return self._other(ops, Direction.FORWARD, kept=ops.results[len(self.ops.results) :])

    def _backward_pass(self, ops: OpGraph) -> Layer:
        """A backward pass of this layer, with its options as far as they are for both passes."""
        return self._other(ops, Direction.BACKWARD)

    def _other(self, ops: OpGraph, direction: Direction, kept: Sequence[str] = ()) -> Layer:
        return Layer(
            self.program,
            ops=ops,
            dims=self.dims,
            target=self.target,
            group=self.group,
            placement=self.placement,
            overrides=self._overrides,
            timeout=self.timeout,
            debug=self.debug,
            direction=direction,
            kept=kept,
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("calls", "training")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.calls = Calls(self)
        self.training = Training(self)

    # -- calls ------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the layer runs now: the CPU, or the current CUDA device."""
        return current_device(self.target)

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}={value}" for name, value in sorted(self.dims.items()))
        ranks = "" if self.group is None else f", {len(self.placement)} ranks"
        return f"<Layer {self.ops.name} for {self.target.name}: {dims}{ranks}>"

    def __call__(self, /, *args: object, **named: object) -> object:
        """Run the layer on the current stream. Does not wait for the device, unless `debug` is set.

        Arguments are those of the program's parameters, by place or by name.
        Results are new tensors: one, or a tuple if the program returns several. Under a virtual group each argument is
        a list with one tensor per rank, and so is each result. Raises UEP0601 for arguments that do not fit, and what
        an earlier call's kernels reported (HangError, UEP0603). In grad mode, gradients pass through the results to the
        arguments that require one; where there is no backward pass yet, one that comes to them is an error (UEP0606).
        """
        if named:
            args = self.signature.bind(args, named)
        if torch_op.is_traced(args):
            tensors = torch_op.call(self, args)
        elif torch.is_grad_enabled() and training.wants_gradient(args):
            tensors = training.call(self, args)
        else:
            tensors = self.calls.run(args)
        results = tensors if self._returns_tensors else self._results(tensors, self.num_tokens(args))
        return results[0] if len(results) == 1 else results

    def register(self, name: str) -> Any:
        """Make the layer known as `torch.ops.uniep.NAME`, and return that. Again for an equal layer is fine.

        Routes are passed as two arguments, and come back as one tensor: see docs/pytorch.md. Raises UEP0601 for a name
        that cannot be, and UEP0608 for one that stands for another layer.
        """
        return torch_op.register(self, name)

    def _as_operator(self, name: str) -> str:
        """The name, once there is an operator of that name for the layer. Tracers call this, and keep the name."""
        return torch_op.define(self, name)

    # What torch.compiler.assume_constant_result does, which would load a tracer. It has to be a method: as an argument,
    # torch 2.11 takes no layer for a constant.
    _as_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def memory(self, tokens: int | Sequence[int], *, training: bool = False) -> MemoryReport:
        """What a call with that many tokens (under a group: on each rank) takes of a device's memory.

        With `training`: a training step, for the gradients of all parameters. UEP0606 if there is no backward pass.
        """
        ranks = tuple(tokens) if isinstance(tokens, Sequence) else (tokens,)
        if len(ranks) != len(self.placement) or not all(is_count(mine) and mine >= 0 for mine in ranks):
            raise argument_error(f"{tokens!r} is not a number of tokens for each of {len(self.placement)} ranks")
        if not training:
            return memory_report(self._layout(ranks))
        passes = self.training.of_all()
        backward = None if passes.backward is None else passes.backward._layout(ranks)
        names = buffer_names(passes.forward.ops)
        return memory_report(passes.forward._layout(ranks), backward, [names[kept] for kept in passes.forward.kept])

    def _layout(self, tokens: tuple[int, ...]) -> Layout:
        device = torch.device("cpu" if self.target.interpreted else "cuda")
        runner = self.calls.runner(self.compiled_for(max(tokens)), device)
        return runner.layout(self.plan_shape(tokens), self.signature.examples(tokens))

    def num_tokens(self, args: Sequence[object]) -> tuple[int, ...]:
        """Tokens of each rank, from arguments that fit."""
        if self.group is None:
            return (self.signature.num_tokens(args),)
        lists: Sequence[Any] = args
        return tuple([self.signature.num_tokens(mine) for mine in zip(*lists, strict=True)])

    def plan_shape(self, tokens: tuple[int, ...]) -> PlanShape:
        """The shape of the plan for that many tokens on each rank. UEP0402 if they are too many."""
        graph = self.compiled_for(max(tokens)).schedule.graph
        try:
            return PlanShape(
                tokens=tokens, experts=graph.experts, topk=graph.topk, tile_rows=graph.tile_rows, block=graph.block
            )
        except ValueError as error:
            raise UniepError([Diagnostic(code="UEP0402", message=str(error), help="split the batch")]) from None

    def _results(self, tensors: Sequence[Tensor], tokens: tuple[int, ...]) -> tuple[object, ...]:
        """Results as the caller gets them: routes as such, and under a group lists of the ranks' parts."""
        shape = self.plan_shape(tokens)
        return tuple([self._result(*pair, shape) for pair in zip(self.ops.results, tensors, strict=True)])

    def _result(self, name: str, tensor: Tensor, shape: PlanShape) -> object:
        kind = self.ops.types[name]
        if isinstance(kind, RoutesType):
            plan = Plan(shape=shape, storage=tensor)
            routes = [Routes(plan=plan, placement=self.placement, rank=rank) for rank in range(shape.ranks)]
            return routes[0] if self.group is None else routes
        if self.group is None:
            return tensor
        if isinstance(kind, RowsType):
            return list(tensor.reshape(shape.ranks, shape.rows_bound, tensor.shape[1]))
        if is_counts(self.ops, name):
            return list(tensor.reshape(shape.ranks, shape.experts))
        return list(torch.split(tensor, list(shape.tokens)))

    def check(self) -> None:
        """Wait for the device, and raise what kernels have reported, on any stream of it, or in a CUDA graph."""
        device = self.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        raise_if_failed(*workspaces_on(device))

    def reference(self, /, *args: object, dtype: torch.dtype | None = None, **named: object) -> object:
        """The same program in plain PyTorch, on one rank's arguments. With `dtype`, computed in it, never rounded.

        UEP0601 for arguments that do not fit the program, and for a dtype without fractions; UEP0603 for an id that is
        no expert's.
        """
        args = self.signature.bind(args, named) if named else args
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise argument_error(f"dtype has to be a floating-point torch.dtype, not {dtype!r}")
        self.signature.check_plain(args)
        inputs = {param.name: arg for param, arg in zip(self.ops.params, args, strict=True)}
        results = run_reference(self.ops, self.dims, inputs, dtype)  # type: ignore[arg-type]
        return results[0] if len(results) == 1 else results
