"""Layers for modules that hold expert weights: compiled once for all modules that are alike, and called with theirs.

Which layer a module needs can be found out while it is traced: functions with a mark are called then, and their results
become constants of the traced program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from uniep_compiler.programs import Dtype, ExpertsForm
from uniep_compiler.runtime.arguments import argument_error
from uniep_compiler.runtime.layer import Layer, compile
from uniep_compiler.transports.virtual import VirtualGroup

DTYPES: Mapping[torch.dtype, Dtype] = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""The dtypes that weights may have, as programs write them."""

Options = tuple[tuple[str, Any], ...]
"""Arguments of `ExpertsForm` by name, but for the dtype."""

Function = TypeVar("Function", bound=Callable[..., Any])


class ExpertsSize(NamedTuple):
    """The numbers of an expert layer: of experts (of the whole group), routes per token, hidden and inner columns."""

    experts: int
    topk: int
    hidden: int
    inner: int


def constant(function: Function) -> Function:
    """Marks a function that tracers call, and whose result they keep, as `torch.compiler.assume_constant_result` does.

    Its arguments have to be constants, or objects that tracers then take for always the same.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # that decorator would load a tracer
    return function


def experts_layer(
    options: Options,
    size: ExpertsSize,
    dtype: torch.dtype,
    device: torch.device,
    target: str = "auto",
    ranks: int | None = None,
) -> Layer:
    """The layer for weights of that dtype on that device: the same one for the same arguments, in a whole process.

    With target "auto" it runs where the weights are. `ranks` makes a virtual group. Raises UEP0601 for weights that no
    kernel can read, and what `uniep.compile` raises.
    """
    layer: Layer = getattr(_layers, _name_of_layer(options, *size, dtype, device, target, ranks))
    return layer


_layers = SimpleNamespace()  # every layer under a name of its own: a tracer reads an attribute where it comes to it
_numbers = count()


@constant
def _name_of_layer(*args: Any) -> str:
    return make_layer(*args)


@cache
def make_layer(
    options: Options,
    experts: int,
    topk: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    device: torch.device,
    target: str,
    ranks: int | None,
) -> str:
    """Compiles the layer that `experts_layer` gives, and returns its name."""
    if dtype not in DTYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
        raise argument_error(f"expert weights are {str(dtype).removeprefix('torch.')}, but have to be one of {names}")
    if device.type == "meta":
        raise argument_error(
            "expert weights are on the meta device", "give them memory first: `module.to_empty(device=...)`"
        )
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        layer = compile(
            ExpertsForm(**dict(options), dtype=DTYPES[dtype]).program(),
            dims={"E": experts, "K": topk, "H": hidden, "I": inner},
            target=device.type if target == "auto" else target,
            group=None if ranks is None else VirtualGroup(num_ranks=ranks),
        )
    name = f"layer_{next(_numbers)}"
    setattr(_layers, name, layer)
    return name


def call_experts(layer: Layer, hidden: Tensor, ids: Tensor, weights: Tensor, params: Sequence[Tensor]) -> Tensor:
    """The layer's output [..., H] for hidden[..., H], ids[..., K] and weights[..., K], in the dtype of `hidden`.

    Tokens of another dtype than that of the expert weights (`params`), as under autocast, are computed in theirs.
    """
    out = layer(*_by_token(layer, hidden, ids, weights, params[0].dtype), *params)
    return _like(hidden, out)


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
    return [_like(mine, out) for mine, out in zip(hidden, outs, strict=True)]


def _by_token(
    layer: Layer, hidden: Tensor, ids: Tensor, weights: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, expert ids and router weights as the layer takes them, without batch dims."""
    topk, columns = layer.dims["K"], layer.dims["H"]
    for name, value, size in (("hidden", hidden, columns), ("ids", ids, topk), ("weights", weights, topk)):
        if value.dim() == 0 or value.shape[-1] != size:
            raise argument_error(f"{name} of experts have shape {list(value.shape)}, but have to be [..., {size}]")
    if not hidden.is_floating_point():
        raise argument_error(f"hidden of experts are {hidden.dtype}, but have to be of a floating-point dtype")
    return hidden.reshape(-1, columns).to(dtype), ids.reshape(-1, topk), weights.reshape(-1, topk)


def _like(hidden: Tensor, out: object) -> Tensor:
    """The layer's output in the shape and dtype of the tokens that it is for."""
    if not isinstance(out, Tensor):
        raise TypeError(f"an expert layer returns one tensor, not {type(out).__name__}")
    return out.to(hidden.dtype).view(hidden.shape)
