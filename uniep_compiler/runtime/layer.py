"""Layers: programs compiled for dims, a target and a group, and called like functions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from uniep_compiler import compiler
from uniep_compiler.compiler import Compiled
from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.frontend.bind import bind_dims
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import Program
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import BufferKind, TaskGraph
from uniep_compiler.ir.types import DType, RoutesType, RowsType
from uniep_compiler.passes.names import buffer_names
from uniep_compiler.passes.target import TARGETS, Target, find_target
from uniep_compiler.runtime.arguments import (
    TORCH_DTYPES,
    RankArguments,
    Signature,
    argument_error,
    check_routes,
    merge_arguments,
)
from uniep_compiler.runtime.errors import raise_if_failed
from uniep_compiler.runtime.launch import Call, CallShape
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import Plan, PlanShape, allocate_plan, run_plan
from uniep_compiler.runtime.proofs import check_once
from uniep_compiler.runtime.reference import run_reference
from uniep_compiler.runtime.routes import Routes
from uniep_compiler.runtime.workspace import Workspace, workspace_of
from uniep_compiler.transports.virtual import VirtualGroup

DEFAULT_TIMEOUT = 10.0
"""Seconds that a task may wait before the watchdog ends the call."""


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
    "f32") replaces the element type that the program's rows have. `placement`: experts per rank, balanced by default.
    `schedule`: keys of a schedule block that go over the program's. `timeout`: seconds that a task may wait.
    `debug`: errors of kernels are raised by the call itself, which then waits for them.

    The compiler's work is done and checked here; kernels are built on the first call. Raises UniepError with everything
    that is wrong with the program, the dims or the options.
    """
    if group is not None and not isinstance(group, VirtualGroup):
        raise argument_error(f"group has to be uniep.virtual_group(n) or None, not {type(group).__name__}")
    ops = lower(program)
    bound = bind_dims(ops, dims, program)
    if dtype is not None and _dtype(dtype) is not compiler.row_dtype(ops):
        ops, program = compiler.retype(ops, _dtype(dtype)), compiler.without_tiles(program)
    return Layer(
        program,
        ops=ops,
        dims=bound,
        target=resolve_target(target),
        group=group,
        placement=_placement(ops, bound, group, placement),
        overrides=dict(schedule or {}),
        timeout=timeout,
        debug=debug,
    )


def resolve_target(name: str) -> Target:
    """The target of that name, looking at this machine for "auto" and "cuda". UEP0604 if there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise _target_error("target is `cuda`, but PyTorch sees no GPU here")
        major, minor = torch.cuda.get_device_capability()
        known = [t for t in TARGETS if not t.interpreted and t.capability <= 10 * major + minor]
        if not known:
            raise _target_error(f"this GPU has compute capability {major}.{minor}; 8.0 is the least that is supported")
        return known[-1]
    found = find_target(name)
    if found is None:
        raise _target_error(f"unknown target `{name}`")
    return found


def _target_error(message: str) -> UniepError:
    names = ", ".join(f"`{target.name}`" for target in TARGETS)
    return UniepError([Diagnostic(code="UEP0604", message=message, help=f"targets are `auto`, `cuda`, {names}")])


def _dtype(name: str) -> DType:
    if name not in ("bf16", "f16", "f32"):
        raise argument_error(f"dtype is one of bf16, f16, f32, not {name!r}")
    return DType(name)


def _placement(
    ops: OpGraph, dims: Mapping[str, int], group: VirtualGroup | None, given: Sequence[int] | None
) -> tuple[int, ...]:
    routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
    experts, ranks = routes.experts.value(dims), 1 if group is None else group.num_ranks
    if given is None:
        return balanced_placement(experts, ranks)
    placement = tuple(given)
    if len(placement) != ranks or sum(placement) != experts or any(count < 0 for count in placement):
        raise argument_error(
            f"placement {placement} does not fit {experts} experts on {ranks} ranks",
            "it holds the number of experts of each rank, zeros allowed",
        )
    return placement


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
    ) -> None:
        self.program = program
        self.ops = ops
        self.dims = dict(dims)
        self.target = target
        self.group = group
        self.placement = placement
        self.timeout = timeout
        self.debug = debug
        self._overrides = dict(overrides)
        self._signature = Signature(ops, self.dims, compiler.token_dim(ops))
        self._compiled: dict[object, Compiled] = {}
        self._lock = threading.Lock()
        self._default = self._compile({})

    # -- what was compiled ------------------------------------------------------------------------------------------

    @property
    def source(self) -> dict[str, str]:
        """The generated modules: "forward", and "plan" where the program routes."""
        return self._default.sources

    @property
    def schedule(self) -> Schedule:
        """The linear order of tasks; `str()` of it is a text that can be read back."""
        return self._default.schedule

    @property
    def graph(self) -> TaskGraph:
        """The task graph."""
        return self._default.schedule.graph

    def rows_bound(self, tokens: int) -> int:
        """Rows that a rows value has room for, with that many tokens: one per route."""
        return tokens * self._signature.topk

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
        with self._lock:
            if settings.options not in self._compiled:
                self._compiled[settings.options] = compiler.build(self.ops, settings, check_once)
            return self._compiled[settings.options]

    def _compiled_for(self, tokens: int) -> Compiled:
        """Only a program whose schedule has a condition on the number of tokens is compiled more than once."""
        if not any(block.conditions for block in self.program.schedules):
            return self._default
        return self._compile({self._signature.token: tokens})

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    # -- calls ------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the layer runs now: the CPU, or the current CUDA device."""
        if self.target.interpreted:
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise _target_error(f"the layer was compiled for {self.target.name}, but PyTorch sees no GPU here")
        return torch.device("cuda", torch.cuda.current_device())

    def __call__(self, *args: object) -> object:
        """Run the layer on the current stream. Does not wait for the device, unless `debug` is set.

        Results are new tensors: one, or a tuple if the program returns several. Under a virtual group each argument is
        a list with one tensor per rank, and so is each result. Raises UEP0601 for arguments that do not fit, and what
        an earlier call's kernels reported (HangError, UEP0603).
        """
        device = self._device_of(args)
        ranks = self._rank_arguments(args, device)
        workspace = workspace_of(device)
        with workspace.lock:
            raise_if_failed(workspace)
            try:
                results = self._run(ranks, device, workspace)
            except BaseException:
                with suppress(RuntimeError):  # a device that is lost cannot be reset either
                    workspace.reset()
                raise
            if self.debug and device.type == "cuda":
                torch.cuda.synchronize(device)
            if self.debug or device.type == "cpu":
                raise_if_failed(workspace)
        return results[0] if len(results) == 1 else results

    def check(self) -> None:
        """Wait for the device, and raise what the kernels of this thread's stream have reported."""
        device = self.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        workspace = workspace_of(device)
        with workspace.lock:
            raise_if_failed(workspace)

    def reference(self, *args: object, dtype: torch.dtype | None = None) -> object:
        """The same program in plain PyTorch, on one rank's arguments. With `dtype`, computed in it, never rounded."""
        inputs = {param.name: arg for param, arg in zip(self.ops.params, args, strict=True)}
        results = run_reference(self.ops, self.dims, inputs, dtype)  # type: ignore[arg-type]
        return results[0] if len(results) == 1 else results

    def _device_of(self, args: Sequence[object]) -> torch.device:
        if self.target.interpreted:
            return torch.device("cpu")
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        on_gpu = [item.device for item in flat if isinstance(item, Tensor) and item.is_cuda]
        return on_gpu[0] if on_gpu else self.device

    def _rank_arguments(self, args: Sequence[object], device: torch.device) -> tuple[RankArguments, ...]:
        if self.group is None:
            return (self._signature.check(args, device, self._signature.experts),)
        ranks = self.group.num_ranks
        self._signature.check_count(args)
        lists: list[Sequence[object]] = []
        for param, arg in zip(self.ops.params, args, strict=True):
            if not isinstance(arg, list | tuple) or len(arg) != ranks:
                raise argument_error(f"`{param.name}` has to be a list with one tensor for each of {ranks} ranks")
            lists.append(arg)
        return tuple(
            self._signature.check(mine, device, self.placement[rank], f" (of rank {rank})")
            for rank, mine in enumerate(zip(*lists, strict=True))
        )

    def _run(self, ranks: tuple[RankArguments, ...], device: torch.device, workspace: Workspace) -> tuple[object, ...]:
        tokens = tuple(rank.tokens for rank in ranks)
        compiled = self._compiled_for(max(tokens))
        shape = self._plan_shape(compiled, tokens)
        inputs = merge_arguments([self._signature.lay_out(rank) for rank in ranks])
        tables = {**self._tables(tokens, device), **self._ids(inputs)}
        passed = [value for rank in ranks for value in rank.values.values() if isinstance(value, Routes)]
        if passed:
            check_routes(passed, shape, self.placement)
        plan = passed[0].plan if passed else self._make_plan(compiled, shape, tables, workspace)
        if shape.total_tokens == 0:
            outputs = self._empty_outputs(compiled, shape, device)
        else:
            buffers = buffer_names(self.ops)
            call = Call(
                compiled=compiled,
                module=load_module(compiled.forward.source, f"{self.ops.name}_forward", self.target.interpreted),
                shape=CallShape(plan=shape),
                plan=plan,
                inputs={buffers[name]: value for name, value in inputs.items()},
                tables=tables,
                workspace=workspace,
                time_limit_ns=int(self.timeout * 1e9),
                workers=self._workers(compiled, device),
            )
            outputs = call.run()
        return tuple(self._result(name, outputs, plan) for name in self.ops.results)

    def _plan_shape(self, compiled: Compiled, tokens: tuple[int, ...]) -> PlanShape:
        graph = compiled.schedule.graph
        try:
            return PlanShape(
                tokens=tokens, experts=graph.experts, topk=graph.topk, tile_rows=graph.tile_rows, block=graph.block
            )
        except ValueError as error:
            raise UniepError([Diagnostic(code="UEP0402", message=str(error), help="split the batch")]) from None

    def _tables(self, tokens: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
        """Where each rank's experts and tokens start. One rank's tokens start at 0, so no table is made per call."""
        tables = {"expert_first": _prefix(self.placement, device)}
        return tables if self.group is None else {**tables, "token_start": _prefix(tokens, device)}

    def _ids(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The expert ids under the name that kernels know them by."""
        ids = [inputs[op.operands[0]] for op in self.ops.ops if op.kind == "route"]
        return {"experts": ids[0]} if ids else {}

    def _make_plan(
        self, compiled: Compiled, shape: PlanShape, tables: Mapping[str, Tensor], workspace: Workspace
    ) -> Plan:
        """The plan for the ids, on its way."""
        plan = allocate_plan(shape, workspace.device)
        run_plan(
            load_module(compiled.plan_source, f"{self.ops.name}_plan", self.target.interpreted),
            plan,
            tables["experts"],
            state=workspace.state,
            error=workspace.record_of(compiled),
            token_start=tables.get("token_start"),
            expert_first=tables["expert_first"],
        )
        return plan

    def _workers(self, compiled: Compiled, device: torch.device) -> int:
        if compiled.settings.options.workers is not None:
            return compiled.settings.options.workers
        return 1 if device.type == "cpu" else _num_multiprocessors(device)

    def _empty_outputs(self, compiled: Compiled, shape: PlanShape, device: torch.device) -> dict[str, Tensor]:
        sizes = CallShape(plan=shape)
        return {
            buffer.name: torch.empty(sizes.buffer_shape(buffer), dtype=TORCH_DTYPES[buffer.dtype], device=device)
            for buffer in compiled.schedule.graph.buffers
            if buffer.kind is BufferKind.OUTPUT
        }

    def _result(self, name: str, outputs: Mapping[str, Tensor], plan: Plan) -> object:
        """A result as the caller gets it: under a group, the list of the ranks' parts."""
        shape, kind = plan.shape, self.ops.types[name]
        if isinstance(kind, RoutesType):
            routes = [Routes(plan=plan, placement=self.placement, rank=rank) for rank in range(shape.ranks)]
            return routes[0] if self.group is None else routes
        out = outputs[buffer_names(self.ops)[name]]
        if self.group is None:
            return out
        if isinstance(kind, RowsType):
            return list(out.reshape(shape.ranks, shape.rows_bound, out.shape[1]))
        return list(torch.split(out, list(shape.tokens)))


@cache
def _prefix(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """i32[n + 1]: sums of the counts before each."""
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return torch.tensor(sums, dtype=torch.int32, device=device)


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
