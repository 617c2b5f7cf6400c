"""A layer tried out: on random inputs, or given ones, twice, against the reference in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from math import sqrt
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from uniep_compiler import compiler
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.types import DType, RoutesType, RowsType, TensorType
from uniep_compiler.runtime.arguments import TORCH_DTYPES, ParamRole, Signature, param_roles
from uniep_compiler.runtime.layer import Layer
from uniep_compiler.runtime.layer import compile as compile_layer
from uniep_compiler.runtime.routes import Routes, is_counts
from uniep_compiler.transports.virtual import VirtualGroup

TOLERANCE = {DType.BF16: 1e-2, DType.F16: 2e-3, DType.F32: 1e-5}
"""The largest relative error (in the Frobenius norm) by the element type of a program's rows."""

ROUTING = """
uniep 1

moe routing(x : {dtype}[T, 1], ids : i32[T, K], _w : {dtype}[E, 1, 1]) -> routes[T, K, E], {dtype}[rows(r), 1] {{
    r = route(ids)
    return r, dispatch(x, r)
}}
"""
"""Makes routes for layers that take them. It dispatches as well: under a group that tells a row where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck:
    """One result against the reference. `sha256` is of its bytes (of rows: of valid ones), to compare with other runs.

    It is the same for any number of ranks.
    """

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


def try_layer(layer: Layer, arguments: Mapping[str, Tensor | Routes]) -> Trial:
    """Run a layer twice on the arguments of one big rank; a virtual group gets them split.

    UEP0601 for arguments that do not fit.
    """
    whole = [arguments[param.name] for param in layer.ops.params]
    Signature(layer.ops, layer.dims, compiler.token_dim(layer.ops)).check(whole, layer.device, sum(layer.placement))
    split = _Split(layer, arguments)
    call = whole if layer.group is None else [split.parts(param.name) for param in layer.ops.params]
    outs, seconds = [], []
    for _ in range(2):
        start = perf_counter()
        out = layer(*call)
        results = out if isinstance(out, tuple) else (out,)
        outs.append(results if layer.group is None else split.joined(results))
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


def _compare(first: Tensor, second: Tensor, reference: Tensor, tolerance: float) -> ResultCheck:
    """The reference of rows holds valid rows only; those after it have to be zero."""
    wanted = reference.to("cpu", torch.float64)
    digest = sha256(_bits(first[: len(wanted)])).hexdigest()
    out = first.to("cpu", torch.float64)
    if out.shape[0] > wanted.shape[0]:
        wanted = torch.cat([wanted, wanted.new_zeros(out.shape[0] - wanted.shape[0], *out.shape[1:])])
    return ResultCheck(
        shape=tuple(first.shape),
        dtype=str(first.dtype).removeprefix("torch."),
        relative_error=_relative_error(out, wanted),
        tolerance=tolerance if first.is_floating_point() else 0.0,
        same_bits=_bits(first) == _bits(second),
        sha256=digest,
    )


def _relative_error(out: Tensor, wanted: Tensor) -> float:
    difference, norm = (float(torch.linalg.vector_norm(value)) for value in (out - wanted, wanted))
    return difference / norm if norm else difference


def _bits(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


# -- inputs -----------------------------------------------------------------------------------------------------------


def random_arguments(layer: Layer, tokens: int, seed: int) -> dict[str, Tensor | Routes]:
    """Random arguments of one big rank, by parameter: made on the CPU, so they are the same for every device.

    Ids are distinct experts per token, router weights sum to 1, and weights are scaled so that values keep their size.
    Routes are those of such ids, and rows that come in are zero behind the last valid one, as layers return them.
    """
    source = torch.Generator().manual_seed(seed)
    roles = param_roles(layer.ops)
    sizes = {**layer.dims, compiler.token_dim(layer.ops): tokens}
    return {
        param.name: routes_of(layer, _random_ids(tokens, layer.signature, source).to(layer.device), None)
        if isinstance(param.type, RoutesType)
        else _random(layer, param.type, roles[param.name], sizes, source).to(layer.device)
        for param in layer.ops.params
    }


def _random(
    layer: Layer, kind: TensorType | RowsType, role: ParamRole, sizes: Mapping[str, int], source: torch.Generator
) -> Tensor:
    shape, dtype = [dim.value(sizes) for dim in kind.shape], TORCH_DTYPES[kind.dtype]
    match role:
        case ParamRole.IDS:
            return _random_ids(shape[0], layer.signature, source)
        case ParamRole.ROUTE_WEIGHTS:
            return torch.randn(shape, generator=source).softmax(dim=1).to(dtype)
        case ParamRole.EXPERTS:
            return (torch.randn(shape, generator=source) / sqrt(shape[-1])).to(dtype)
        case ParamRole.ROWS:
            rows = sizes[compiler.token_dim(layer.ops)] * layer.signature.topk  # all of them valid
            return torch.randn([rows, *shape], generator=source).to(dtype)
        case _:
            return torch.randn(shape, generator=source).to(dtype)


def _random_ids(tokens: int, signature: Signature, source: torch.Generator) -> Tensor:
    scores = torch.rand(tokens, signature.experts, generator=source)
    return torch.argsort(scores, dim=1)[:, : signature.topk].to(torch.int32)


def num_tokens(layer: Layer, arguments: Mapping[str, Tensor | Routes]) -> int | None:
    """Tokens of some arguments: the first size of the first one that has one row per token; None if there is none."""
    token = compiler.token_dim(layer.ops)
    for param in layer.ops.params:
        kind, value = param.type, arguments.get(param.name)
        if isinstance(value, Tensor) and isinstance(kind, TensorType) and kind.shape[0].names == (token,):
            return value.shape[0] if value.dim() else None
    return None


# -- routes, and the ranks of a group ----------------------------------------------------------------------------------


def routes_of(layer: Layer, ids: Tensor, group: VirtualGroup | None) -> Any:
    """Routes for a layer that takes them, from ids [T, K] of one big rank; under a group a list with those of each."""
    dtype = compiler.row_dtype(layer.ops)
    routing = compile_layer(
        parse(ROUTING.format(dtype=dtype)),
        dims={"E": layer.signature.experts, "K": layer.signature.topk},
        target=layer.target.name,
        group=group,
        placement=None if group is None else layer.placement,
        schedule={"block": layer.compiled_for(len(ids)).settings.options.block},
        timeout=layer.timeout,
    )
    x = torch.zeros(len(ids), 1, dtype=TORCH_DTYPES[dtype], device=ids.device)
    unread = x.new_zeros(layer.signature.experts, 1, 1)
    ranks = 0 if group is None else len(layer.placement)
    call: Any = [value.tensor_split(ranks) for value in (x, ids)] if ranks else (x, ids)
    result: Any = routing(*call, [unread] * ranks if ranks else unread)
    return result[0]


class _Split:
    """What one big rank has, in parts for a virtual group: as many tokens each as can be, and experts as they lie."""

    def __init__(self, layer: Layer, arguments: Mapping[str, Tensor | Routes]) -> None:
        self.layer = layer
        self.arguments = arguments
        self.roles = param_roles(layer.ops)

    def parts(self, name: str) -> Sequence[Tensor | Routes]:
        """A parameter's argument on each rank."""
        value, placement = self.arguments[name], self.layer.placement
        if isinstance(value, Routes):
            routes: list[Routes] = routes_of(self.layer, self.ids, self.layer.group)
            return routes
        match self.roles[name]:
            case ParamRole.EXPERTS:
                return torch.split(value, list(placement))
            case ParamRole.ROWS:
                valid = torch.split(value[: sum(self.num_rows)], self.num_rows)
                return [torch.cat([mine, torch.zeros_like(value[len(mine) :])]) for mine in valid]
            case _:
                return value.tensor_split(len(placement))

    def joined(self, results: Sequence[Any]) -> tuple[object, ...]:
        """The results of all ranks as one big rank would have them. Routes stay as they are."""
        return tuple([self._joined(*pair) for pair in zip(self.layer.ops.results, results, strict=True)])

    def _joined(self, name: str, parts: Sequence[Any]) -> object:
        kind = self.layer.ops.types[name]
        if isinstance(kind, RoutesType):
            return parts
        if is_counts(self.layer.ops, name):
            agree = all(torch.equal(part, parts[0]) for part in parts)
            return parts[0] if agree else torch.full_like(parts[0], -1)
        if isinstance(kind, RowsType):
            counted = list(zip(parts, self.num_rows, strict=True))
            return torch.cat([*(part[:count] for part, count in counted), *(part[count:] for part, count in counted)])
        return torch.cat(list(parts))

    @cached_property
    def ids(self) -> Tensor:
        """[T, K]: the expert of each route, or -1."""
        routed = next((op.operands[0] for op in self.layer.ops.ops if op.kind == "route"), None)
        given = self.arguments[routed] if routed is not None else self._routes()
        if isinstance(given, Tensor):
            return given
        last_rows = given.expert_rows.cumsum(0)
        experts = torch.searchsorted(last_rows, given.row_of.to(last_rows.dtype).contiguous(), right=True)
        return experts.where(given.row_of >= 0, -1).to(torch.int32)

    def _routes(self) -> Routes:
        return next(value for value in self.arguments.values() if isinstance(value, Routes))

    @cached_property
    def num_rows(self) -> list[int]:
        """Valid rows of each rank."""
        ends = list(accumulate(self.layer.placement, initial=0))
        return [int(((first <= self.ids) & (self.ids < end)).sum()) for first, end in pairwise(ends)]
