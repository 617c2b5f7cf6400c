"""Layers for modules that hold expert weights: compiled once for all modules that are alike, and called with theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.programs import Dtype, ExpertsForm
from uniep_compiler.runtime.arguments import argument_error
from uniep_compiler.runtime.layer import Layer, compile
from uniep_compiler.transports.virtual import VirtualGroup

DTYPES: Mapping[torch.dtype, Dtype] = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""The dtypes that weights may have, as programs write them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSize:
    """The numbers of an expert layer: of experts (of the whole group), routes per token, hidden and inner columns."""

    experts: int
    topk: int
    hidden: int
    inner: int

    @property
    def dims(self) -> dict[str, int]:
        """As programs name them."""
        return {"E": self.experts, "K": self.topk, "H": self.hidden, "I": self.inner}


@cache
def experts_layer(
    form: ExpertsForm,
    size: ExpertsSize,
    dtype: torch.dtype,
    device: torch.device,
    target: str = "auto",
    group: VirtualGroup | None = None,
) -> Layer:
    """The layer for weights of that dtype on that device: the same one for the same arguments, in a whole process.

    With target "auto" it runs where the weights are. Raises UEP0601 for weights that no kernel can read, and what
    `uniep.compile` raises.
    """
    if dtype not in DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
        raise argument_error(f"expert weights are {str(dtype).removeprefix('torch.')}, but have to be one of {names}")
    if device.type == "meta":
        raise argument_error(
            "expert weights are on the meta device", "give them memory first: `module.to_empty(device=...)`"
        )
    if target == "auto":
        target = device.type
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return compile(replace(form, dtype=DTYPES[dtype]).program(), dims=size.dims, target=target, group=group)


def call_experts(layer: Layer, hidden: Tensor, ids: Tensor, weights: Tensor, params: Sequence[Tensor]) -> Tensor:
    """The layer's output [..., H] for hidden[..., H], ids[..., K] and weights[..., K], in the dtype of `hidden`.

    Tokens of another dtype than that of the expert weights (`params`), as under autocast, are computed in theirs.
    """
    out = layer(*_by_token(layer, hidden, ids, weights, params[0].dtype), *params)
    return _like(hidden, out, (hidden, weights, *params))


def call_ranks(
    layer: Layer,
    hidden: Sequence[Tensor],
    ids: Sequence[Tensor],
    weights: Sequence[Tensor],
    params: Sequence[Tensor],
) -> list[Tensor]:
    """The same for a layer of a virtual group: a list per argument. `params` hold the experts of all ranks."""
    ranks = [_by_token(layer, *rank, params[0].dtype) for rank in zip(hidden, ids, weights, strict=True)]
    placed = [list(torch.split(param, list(layer.placement))) for param in params]
    outs = layer(*([rank[i] for rank in ranks] for i in range(3)), *placed)
    if not isinstance(outs, list):
        raise TypeError(f"a layer of a group returns a list, not {type(outs).__name__}")
    return [_like(mine, out, (*hidden, *weights, *params)) for mine, out in zip(hidden, outs, strict=True)]


def _by_token(
    layer: Layer, hidden: Tensor, ids: Tensor, weights: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, expert ids and router weights as the layer takes them, without batch dims."""
    topk, columns = layer.dims["K"], layer.dims["H"]
    return hidden.reshape(-1, columns).to(dtype), ids.reshape(-1, topk), weights.reshape(-1, topk)


def _like(hidden: Tensor, out: object, inputs: Sequence[Tensor]) -> Tensor:
    """The layer's output in the shape and dtype of the tokens that it is for."""
    if not isinstance(out, Tensor):
        raise TypeError(f"an expert layer returns one tensor, not {type(out).__name__}")
    return with_gradient(out, inputs).to(hidden.dtype).view(hidden.shape)


def with_gradient(out: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """`out`, so that a backward pass through a layer that has none is an error, and not a gradient of nothing."""
    if out.requires_grad or not (torch.is_grad_enabled() and any(value.requires_grad for value in inputs)):
        return out
    return _NoGradient.apply(out, *inputs)  # type: ignore[no-any-return, no-untyped-call]


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> None:
        message, help_ = "cannot build the backward pass yet", "call the layer under torch.no_grad()"
        raise UniepError([Diagnostic(code="UEP0401", message=message, help=help_)])
