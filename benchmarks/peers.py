"""The systems that are measured: each is set up on the same inputs, and then called.

Each one gets the routing in the dtypes that it takes, converted beforehand. All else that a forward pass needs happens
inside the call: sorting or planning, gathering, the GEMMs, the weighted sum over a token's experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.inputs import DTYPE, Inputs, expected_gradients, expected_rows
from benchmarks.shapes import DENSE_SIZE

PROGRAM = Path(__file__).with_name("swiglu_experts.uniep")

Schedule = Mapping[str, object]
"""Keys of a schedule block, for the one system that has schedules."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system, ready to be called.

    `call` computes `num_rows` rows, by `flops` operations, without waiting for the device. `expected` gives some of
    these rows in float64. `finish` raises what the device reported since. Under `poisoned`, memory that the system
    keeps between calls is filled with NaN before each call. The first call happens within `first_call`. `leaves` are
    the tensors that training wants gradients of, the tokens first.
    """

    call: Callable[[], Tensor]
    num_rows: int
    flops: int
    expected: Callable[[Tensor], Tensor]
    finish: Callable[[], None] = _nothing
    poisoned: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    first_call: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)
    leaves: tuple[Tensor, ...] = ()


def _layer(inputs: Inputs, call: Callable[[], object], weights: Tensor, **more: object) -> System:
    """A layer; `weights` are the router's, as it takes them."""
    shape = inputs.shape
    return System(
        call=call,  # type: ignore[arg-type]  # layers with several results return tuples
        leaves=(inputs.x, inputs.w13, inputs.w2, weights),
        num_rows=shape.T,
        flops=shape.flops,
        expected=lambda tokens: expected_rows(inputs, tokens),
        **more,  # type: ignore[arg-type]
    )


def dense(inputs: Inputs, schedule: Schedule) -> System:
    """`torch.matmul` of square bf16 matrices, the second transposed as a linear layer's weight is."""
    size = DENSE_SIZE if inputs.x.is_cuda else 64
    a, b = (torch.randn(size, size, device=inputs.x.device, dtype=DTYPE) for _ in range(2))
    return System(
        call=lambda: torch.matmul(a, b.T),
        num_rows=size,
        flops=2 * size**3,
        expected=lambda rows: a[rows].double() @ b.double().T,
    )


def torch_grouped(inputs: Inputs, schedule: Schedule) -> System:
    """PyTorch's grouped GEMM with minimal glue, and the arithmetic of `uniep`: float32 router weights, rounded once."""
    return _torch_grouped(inputs, inputs.weights.float())


def torch_grouped_bf16(inputs: Inputs, schedule: Schedule) -> System:
    """The same with bf16 router weights, as models keep them that round twice: less memory traffic, other results."""
    return _torch_grouped(inputs, inputs.weights)


def _torch_grouped(inputs: Inputs, weights: Tensor) -> System:
    """As little around the grouped GEMMs as eager PyTorch allows, without a host synchronisation."""
    shape, x = inputs.shape, inputs.x
    flat_ids = inputs.ids.flatten()
    experts = torch.arange(shape.E, device=x.device)
    places = torch.arange(flat_ids.numel(), device=x.device)
    grouped_mm = getattr(functional, "grouped_mm", None) or torch._grouped_mm

    def call() -> Tensor:
        sorted_ids, order = flat_ids.sort(stable=True)
        ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
        gate, up = grouped_mm(x[order // shape.K], inputs.w13.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        y = grouped_mm(functional.silu(gate) * up, inputs.w2.transpose(1, 2), offs=ends)
        row_of = torch.empty_like(order)
        row_of[order] = places
        return (y[row_of].view(shape.T, shape.K, shape.H) * weights.unsqueeze(-1)).sum(dim=1).to(DTYPE)

    return _layer(inputs, call, weights)


def transformers(inputs: Inputs, schedule: Schedule) -> System:
    """The experts of Qwen3-MoE in Hugging Face transformers, `experts_implementation="grouped_mm"`."""
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    shape = inputs.shape
    config = Qwen3MoeConfig(
        hidden_size=shape.H,
        moe_intermediate_size=shape.I,
        num_experts=shape.E,
        num_experts_per_tok=shape.K,
        hidden_act="silu",
    )
    config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        experts = Qwen3MoeExperts(config)
    experts.gate_up_proj = torch.nn.Parameter(inputs.w13, requires_grad=False)
    experts.down_proj = torch.nn.Parameter(inputs.w2, requires_grad=False)
    system = _layer(inputs, lambda: experts(inputs.x, inputs.ids, inputs.weights), inputs.weights)
    return replace(system, leaves=(inputs.x, experts.gate_up_proj, experts.down_proj, inputs.weights))


def liger(inputs: Inputs, schedule: Schedule) -> System:
    """Liger-Kernel's Triton MoE. It tunes its kernels during the first call."""
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    from benchmarks.compile_ahead import candidates_compiled_at_once

    ids = inputs.ids.int()
    return _layer(
        inputs,
        lambda: LigerFusedMoEFunction.apply(inputs.x, inputs.w13, inputs.w2, ids, inputs.weights),
        inputs.weights,
        first_call=candidates_compiled_at_once,
    )


def uniep(inputs: Inputs, schedule: Schedule) -> System:
    """A layer compiled by this package. A call makes the plan and runs the kernel."""
    import uniep_compiler
    from uniep_compiler.runtime.workspace import workspace_of

    device = inputs.x.device
    layer = uniep_compiler.compile(
        uniep_compiler.parse_file(PROGRAM),
        dims=inputs.shape.dims,
        target="cuda" if device.type == "cuda" else "cpu",
        schedule=schedule,
    )
    ids, weights = inputs.ids.int(), inputs.weights.float()

    @contextmanager
    def poisoned() -> Iterator[None]:
        workspace = workspace_of(device)
        workspace.poisoned = True
        try:
            yield
        finally:
            workspace.poisoned = False

    return _layer(
        inputs,
        lambda: layer(inputs.x, ids, weights, inputs.w13, inputs.w2),
        weights,
        finish=layer.check,
        poisoned=poisoned,
    )


def in_training(system: System, inputs: Inputs, seed: int) -> System:
    """The system's forward and backward pass, with the gradients of all its leaves. A call gives that of the tokens."""
    shape, leaves = inputs.shape, system.leaves
    for leaf in leaves:
        leaf.requires_grad_()
    generator = torch.Generator(inputs.x.device).manual_seed(seed)
    upstream = torch.randn(shape.T, shape.H, generator=generator, device=inputs.x.device, dtype=DTYPE)

    def call() -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(system.call(), leaves, upstream)[0]

    return replace(
        system,
        call=call,
        flops=3 * system.flops,
        expected=lambda tokens: expected_gradients(inputs, upstream, tokens),
    )


SETUPS: Mapping[str, Callable[[Inputs, Schedule], System]] = {
    "dense": dense,
    "torch_grouped": torch_grouped,
    "torch_grouped_bf16": torch_grouped_bf16,
    "transformers": transformers,
    "liger": liger,
    "uniep": uniep,
}
"""Every system by the name that the command line knows it by."""

TUNES_ITSELF = frozenset({"liger"})
"""Systems whose first call times kernels on the device, which must be theirs alone then."""

PACKAGES = ("torch", "triton", "transformers", "liger_kernel")
"""Distributions whose versions are recorded."""
