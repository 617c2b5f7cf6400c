"""Calls of a compiled program on one device: what calls of one size share, and the call itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from uniep_compiler.codegen.plan_view import NUM_WARPS as PLAN_WARPS
from uniep_compiler.compiler import Compiled, Direction
from uniep_compiler.passes.names import buffer_names
from uniep_compiler.passes.target import NUM_STAGES, NUM_WARPS
from uniep_compiler.runtime.kernels import Kernel, Launch, Memories
from uniep_compiler.runtime.layout import ARENA, OF_RANKS, OF_WORKSPACE, PLAN, Argument, Layout, make_layout
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import PLAN_KERNELS, Plan, PlanShape, num_send_keys
from uniep_compiler.runtime.workspace import Workspace, is_capturing, lasting, not_built_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What all calls share whose arguments have the same shapes, strides and dtypes.

    `starts`: where the tokens (None for one rank) and the experts of each rank start.
    """

    compiled: Compiled
    device: torch.device
    layout: Layout
    launches: tuple[Launch, ...]
    starts: tuple[Tensor | None, Tensor]
    plan_words: int

    def new_plan(self, *, is_result: bool) -> Plan:
        """A plan with room for a call, unfilled. As a result it is zero where kernels write nothing."""
        make = torch.zeros if is_result else torch.empty
        storage = make(self.plan_words, dtype=torch.int32, device=self.device)
        return Plan(shape=self.layout.plan, storage=storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call. `inputs` are those of all ranks, as kernels read them, in the order of the program's parameters.

    `plan` is filled by the call if the program routes, else it is that of the routes that were passed.
    """

    prepared: Prepared
    inputs: Sequence[Tensor]
    plan: Plan
    workspace: Workspace

    def run(self) -> dict[str, Tensor]:
        """Launch the kernels on the current stream; the outputs by buffer name, not waited for."""
        prepared, workspace = self.prepared, self.workspace
        layout, device = prepared.layout, prepared.device
        make = torch.empty if layout.plan.total_tokens else torch.zeros
        outputs = {n: make(part.shape or (), dtype=part.dtype, device=device) for n, part in layout.outputs.items()}
        workspace.reserve(layout.arena_bytes, layout.counters)
        fixed = (workspace.arena, self.plan.storage, workspace.state, workspace.board)
        record = workspace.record_of(prepared.compiled)
        tensors = (*fixed, record, *prepared.starts, *self.inputs, *outputs.values())
        memories = Memories.of(tensors, workspace.board_capacity, workspace.captured)
        for each in prepared.launches:
            each.run(memories)
        for name in layout.counts:
            outputs[name].view(layout.plan.ranks, -1).copy_(self.plan.expert_rows)
        return outputs


class Runner:
    """A compiled program on one device. Kernels are built when they are launched first."""

    def __init__(self, compiled: Compiled, device: torch.device, timeout: float) -> None:
        ops, target = compiled.ops, compiled.settings.target
        self.compiled = compiled
        self.device = device
        self._time_limit_ns = int(timeout * 1e9)
        self._is_local = compiled.settings.local
        self._expert_starts: Tensor | None = None
        self._buffers = buffer_names(ops)
        self._ids = next((self._buffers[op.operands[0]] for op in ops.ops if op.kind == "route"), None)
        options = {"num_warps": NUM_WARPS, "num_stages": NUM_STAGES, "enable_fp_fusion": False}
        name = ops.name if compiled.direction is Direction.BACKWARD else f"{ops.name}_forward"
        module = load_module(compiled.kernels.source, name, target.interpreted)
        self._kernels = [Kernel(module, view.name, options) for view in compiled.kernels.view.launches]
        self._plan: list[Kernel] = []
        self._num_send_keys = 0
        if compiled.plan_source:
            module = load_module(compiled.plan_source, f"{ops.name}_plan", target.interpreted)
            self._plan = [Kernel(module, name, {"num_warps": PLAN_WARPS}) for name in PLAN_KERNELS]
            self._num_send_keys = num_send_keys(module)

    def layout(self, plan: PlanShape, inputs: Mapping[str, Tensor]) -> Layout:
        """What calls of that size share, with `inputs` such as these, by parameter."""
        scratch = plan.scratch_words(self._programs(plan), self._num_send_keys) if self._plan else {}
        by_buffer = {self._buffers[name]: value for name, value in inputs.items()}
        return make_layout(self.compiled, plan, by_buffer, self._ids, scratch)

    def prepare(self, plan: PlanShape, inputs: Mapping[str, Tensor]) -> Prepared:
        """The same, with kernels to launch. UEP0607 if a CUDA graph is captured, and there was no call before."""
        if self._expert_starts is None:
            if is_capturing(self.device):
                raise not_built_error(self.compiled.ops.name)
            self._expert_starts = _starts(self.compiled.settings.placement, self.device)
        layout = self.layout(plan, inputs)
        own = (ARENA, PLAN, *OF_WORKSPACE, *OF_RANKS)
        inputs_and_outputs = (*(self._buffers[name] for name in inputs), *layout.outputs)
        slots = {name: slot for slot, name in enumerate((*own, *(f"{name}_ptr" for name in inputs_and_outputs)))}
        arguments: dict[str, Argument] = {**layout.arguments, "time_limit": self._time_limit_ns}
        launches = [Launch(kernel, self._programs(plan), arguments, slots) for kernel in self._plan]
        if plan.total_tokens:
            launches += [Launch(kernel, self._workers, arguments, slots) for kernel in self._kernels]
        return Prepared(
            compiled=self.compiled,
            device=self.device,
            layout=layout,
            launches=tuple(launches),
            starts=(None if self._is_local else _starts(plan.tokens, self.device), self._expert_starts),
            plan_words=plan.num_words,
        )

    def _programs(self, plan: PlanShape) -> int:
        """Programs of the plan's kernels."""
        return plan.ranks * (1 if self.device.type == "cpu" else plan.num_parts())

    @property
    def _workers(self) -> int:
        asked = self.compiled.settings.options.workers
        return asked or (1 if self.device.type == "cpu" else _num_multiprocessors(self.device))


def _starts(counts: Sequence[int], device: torch.device) -> Tensor:
    """i32[n + 1]: sums of the counts before each. Waits for the device, but not while a graph is captured."""
    sums = list(accumulate(counts, initial=0))
    if not is_capturing(device):
        return lasting(device, lambda: torch.tensor(sums, dtype=torch.int32, device=device))
    starts = torch.empty(len(sums), dtype=torch.int32, device=device)
    for place, value in enumerate(sums):
        starts[place].fill_(value)
    return starts


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
