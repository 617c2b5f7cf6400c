"""A layer tried out: on random inputs, or given ones, twice, against the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from time import perf_counter

import torch
from torch import Tensor

from uniep_compiler import compiler
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.types import DType, RoutesType, TensorType
from uniep_compiler.runtime.arguments import TORCH_DTYPES, ParamRole, Signature, argument_error, param_roles
from uniep_compiler.runtime.layer import Layer

TOLERANCE = {DType.BF16: 1e-2, DType.F16: 2e-3, DType.F32: 1e-5}
"""The largest relative error (in the Frobenius norm) by the element type of a program's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck:
    """One result against the reference. `sha256` is of its bytes, to be compared with other runs."""

    shape: tuple[int, ...]
    dtype: str
    relative_error: float
    tolerance: float
    same_bits: bool
    sha256: str

    @property
    def ok(self) -> bool:
        """Whether it is close to the reference (NaN is not), and the same in both runs."""
        return self.same_bits and self.relative_error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Outcome of a trial. `first_seconds` includes building the kernels."""

    results: tuple[ResultCheck, ...]
    first_seconds: float
    second_seconds: float

    @property
    def ok(self) -> bool:
        """Whether all results are right."""
        return all(result.ok for result in self.results)


def try_layer(layer: Layer, arguments: Mapping[str, Tensor]) -> Trial:
    """Run a layer twice on the arguments of one big rank; a virtual group gets them split.

    UEP0601 for arguments that do not fit.
    """
    whole = [arguments[param.name] for param in layer.ops.params]
    Signature(layer.ops, layer.dims, compiler.token_dim(layer.ops)).check(whole, layer.device, sum(layer.placement))
    call = whole if layer.group is None else _split(layer, arguments)
    outs, seconds = [], []
    for _ in range(2):
        start = perf_counter()
        outs.append(_joined(layer(*call)))
        layer.check()
        seconds.append(perf_counter() - start)
    wanted = layer.reference(*whole, dtype=torch.float64)
    tolerance = TOLERANCE[compiler.row_dtype(layer.ops)]
    references = wanted if isinstance(wanted, tuple) else (wanted,)
    return Trial(
        results=tuple(
            _compare(first, second, reference, tolerance)
            for first, second, reference in zip(*outs, references, strict=True)
            if isinstance(first, Tensor) and isinstance(second, Tensor) and isinstance(reference, Tensor)
        ),
        first_seconds=seconds[0],
        second_seconds=seconds[1],
    )


def _joined(out: object) -> tuple[object, ...]:
    """The results of a call, those of a group's ranks one after the other."""
    results = out if isinstance(out, tuple) else (out,)
    return tuple(torch.cat(result) if isinstance(result, list) else result for result in results)


def _compare(first: Tensor, second: Tensor, reference: Tensor, tolerance: float) -> ResultCheck:
    """The reference of rows holds valid rows only; those after it have to be zero."""
    wanted = reference.to("cpu", torch.float64)
    out = first.to("cpu", torch.float64)
    if out.shape[0] > wanted.shape[0]:
        wanted = torch.cat([wanted, wanted.new_zeros(out.shape[0] - wanted.shape[0], *out.shape[1:])])
    return ResultCheck(
        shape=tuple(first.shape),
        dtype=str(first.dtype).removeprefix("torch."),
        relative_error=_relative_error(out, wanted),
        tolerance=tolerance,
        same_bits=_bits(first) == _bits(second),
        sha256=sha256(_bits(first)).hexdigest(),
    )


def _relative_error(out: Tensor, wanted: Tensor) -> float:
    difference, norm = (float(torch.linalg.vector_norm(value)) for value in (out - wanted, wanted))
    return difference / norm if norm else difference


def _bits(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


# -- inputs -----------------------------------------------------------------------------------------------------------


def random_arguments(layer: Layer, tokens: int, seed: int) -> dict[str, Tensor]:
    """Random arguments of one big rank, by parameter: made on the CPU, so they are the same for every device.

    Ids are distinct experts per token, router weights sum to 1, and weights are scaled so that values keep their size.
    UEP0601 for a layer that takes routes or rows, which only another layer can make.
    """
    roles = param_roles(layer.ops)
    made = [name for name, role in roles.items() if role in (ParamRole.ROUTES, ParamRole.ROWS)]
    if made:
        message = f"`{layer.ops.name}` takes routes or rows ({', '.join(made)}), which another layer makes"
        raise argument_error(message, "run that layer and this one from Python")
    source = torch.Generator().manual_seed(seed)
    sizes = {**layer.dims, compiler.token_dim(layer.ops): tokens}
    return {
        param.name: _random(layer.ops, param.type, roles[param.name], sizes, source).to(layer.device)
        for param in layer.ops.params
        if isinstance(param.type, TensorType)
    }


def _random(
    ops: OpGraph, kind: TensorType, role: ParamRole, sizes: Mapping[str, int], source: torch.Generator
) -> Tensor:
    shape = [dim.value(sizes) for dim in kind.shape]
    match role:
        case ParamRole.IDS:
            routes = next(each for each in ops.types.values() if isinstance(each, RoutesType))
            scores = torch.rand(shape[0], routes.experts.value(sizes), generator=source)
            return torch.argsort(scores, dim=1)[:, : shape[1]].to(torch.int32)
        case ParamRole.ROUTE_WEIGHTS:
            return torch.randn(shape, generator=source).softmax(dim=1).to(TORCH_DTYPES[kind.dtype])
        case ParamRole.EXPERTS:
            return (torch.randn(shape, generator=source) / sqrt(shape[-1])).to(TORCH_DTYPES[kind.dtype])
        case _:
            return torch.randn(shape, generator=source).to(TORCH_DTYPES[kind.dtype])


def num_tokens(layer: Layer, arguments: Mapping[str, Tensor]) -> int | None:
    """Tokens of some arguments: the first size of the first one that has one row per token; None if there is none."""
    token = compiler.token_dim(layer.ops)
    for param in layer.ops.params:
        kind = param.type
        if param.name in arguments and isinstance(kind, TensorType) and kind.shape[0].names == (token,):
            return arguments[param.name].shape[0] if arguments[param.name].dim() else None
    return None


def _split(layer: Layer, arguments: Mapping[str, Tensor]) -> list[Sequence[Tensor]]:
    """Each argument as a list over ranks: tokens in parts that are as equal as can be, and each rank's own experts."""
    roles = param_roles(layer.ops)
    return [
        torch.split(arguments[name], list(layer.placement))
        if roles[name] is ParamRole.EXPERTS
        else arguments[name].tensor_split(len(layer.placement))
        for name in (param.name for param in layer.ops.params)
    ]
