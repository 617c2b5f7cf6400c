"""A program in plain PyTorch, op by op: what kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from uniep_compiler.ir.ops import Op, OpGraph
from uniep_compiler.ir.types import DType, RoutesType, RowsType
from uniep_compiler.runtime.arguments import TORCH_DTYPES
from uniep_compiler.runtime.errors import bad_id_error
from uniep_compiler.runtime.routes import Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoutes:
    """Routes as index tensors: for each row, in (expert, route) order, its route; and its expert."""

    route: Tensor
    expert: Tensor
    num_routes: int
    topk: int


def run_reference(
    ops: OpGraph,
    dims: Mapping[str, int],
    inputs: Mapping[str, Tensor | Routes | PlainRoutes],
    dtype: torch.dtype | None,
) -> tuple[object, ...]:
    """The program's results. With `dtype` (float64, say) everything is computed in it and nothing is rounded.

    Without, values are computed in float32 and rounded where the program rounds, so that results can be compared with
    the kernels' to within the order of summation. Rows results have no rows after the last valid one.
    """
    return _Reference(ops, dims, dtype).run(inputs)


class _Reference:
    def __init__(self, ops: OpGraph, dims: Mapping[str, int], dtype: torch.dtype | None) -> None:
        self.ops = ops
        self.dims = dims
        self.rounds = dtype is None
        self.dtype = dtype or torch.float32
        routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
        self.experts = routes.experts.value(dims)
        self.topk = routes.topk.value(dims)
        self.values: dict[str, object] = {}

    def run(self, inputs: Mapping[str, Tensor | Routes | PlainRoutes]) -> tuple[object, ...]:
        values = self.values
        for name, value in inputs.items():
            if isinstance(value, Routes):
                values[name] = self._from_plan(value)
            else:
                values[name] = value.to(self.dtype) if _is_float(value) else value
        for param in self.ops.params:
            if isinstance(param.type, RowsType):  # what lies behind the last valid row is no row
                values[param.name] = _tensor(values[param.name])[: len(self._routes_of(param.name).expert)]
        for op in self.ops.ops:
            results = self._apply(op, [values[name] for name in op.operands])
            values.update(zip(op.results, results, strict=True))
        return tuple(self._result(name, values[name]) for name in self.ops.results)

    def _result(self, name: str, value: object) -> object:
        kind = self.ops.types[name]
        if isinstance(value, Tensor) and self.rounds and not isinstance(kind, RoutesType):
            return value.to(TORCH_DTYPES[kind.dtype])
        return value

    def _from_plan(self, routes: Routes) -> PlainRoutes:
        plan = routes.plan
        num_rows = int(plan.totals[0, 1])
        expert = torch.repeat_interleave(
            torch.arange(self.experts, device=plan.storage.device), plan.expert_rows.to(torch.int64)
        )
        return PlainRoutes(
            route=plan.row_route[0, :num_rows].to(torch.int64),
            expert=expert,
            num_routes=plan.shape.num_routes,
            topk=self.topk,
        )

    def _route(self, ids: Tensor) -> PlainRoutes:
        flat = ids.reshape(-1).to(torch.int64)
        wrong = ((flat < -1) | (flat >= self.experts)).nonzero()
        if len(wrong):
            token, route = divmod(int(wrong[0]), self.topk)
            raise bad_id_error(int(flat[wrong[0]]), token, route, self.experts)
        order = torch.argsort(flat, stable=True)
        order = order[flat[order] >= 0]
        return PlainRoutes(route=order, expert=flat[order], num_routes=flat.numel(), topk=ids.shape[1])

    def _apply(self, op: Op, operands: list[object]) -> tuple[object, ...]:
        match op.kind:
            case "route":
                return (self._route(_tensor(operands[0])),)
            case "dispatch":
                routes = _routes(operands[1])
                return (_tensor(operands[0])[routes.route // routes.topk],)
            case "to_rows":
                return (_tensor(operands[0]).reshape(-1)[_routes(operands[1]).route],)
            case "counts":
                return (torch.bincount(_routes(operands[0]).expert, minlength=self.experts).to(torch.int32),)
            case "group_gemm":
                return (self._group_gemm(op, operands),)
            case "combine":
                return (self._combine(op, operands),)
            case "to_routes":
                return (self._to_routes(op, _tensor(operands[0])),)
            case "bias_rows":
                return (_tensor(operands[0])[_routes(operands[1]).expert],)
            case "group_outer":
                return (self._by_expert(op, lambda a, b: a.T @ b, operands),)
            case "group_sum":
                return (self._by_expert(op, lambda rows: rows.sum(0), operands),)
            case "row_sum":
                return (_tensor(operands[0]).sum(-1),)
            case "join":
                return (_join(_tensor(operands[0]), _tensor(operands[1]), str(op.attr("how"))),)
            case "split":
                return _split(_tensor(operands[0]), str(op.attr("how")))
            case "const":
                return (torch.tensor(float(str(op.attr("value"))), dtype=self.dtype),)
            case "round":
                return (self._round(_tensor(operands[0]), DType(str(op.attr("dtype")))),)
            case _:
                return (_elementwise(op, [_tensor(value) for value in operands]),)

    def _round(self, value: Tensor, dtype: DType) -> Tensor:
        return value.to(TORCH_DTYPES[dtype]).to(self.dtype) if self.rounds else value

    def _group_gemm(self, op: Op, operands: list[object]) -> Tensor:
        rows, weight = _tensor(operands[0]), _tensor(operands[1])
        expert = self._routes_of(op.operands[0]).expert
        if op.optional("layout") == "kn":
            weight = weight.transpose(1, 2)
        out = rows.new_empty(rows.shape[0], weight.shape[1])
        for e in sorted(set(expert.tolist())):
            mine = expert == e
            out[mine] = rows[mine] @ weight[e].T
            if len(operands) > 2:
                out[mine] += _tensor(operands[2])[e]
        return out

    def _combine(self, op: Op, operands: list[object]) -> Tensor:
        rows = _tensor(operands[0])
        routes = self._routes_of(op.operands[0])
        by_route = rows.new_zeros(routes.num_routes, rows.shape[1])
        by_route[routes.route] = rows
        if len(operands) > 1:
            weights = torch.zeros(routes.num_routes, dtype=self.dtype, device=rows.device)
            weights[routes.route] = _tensor(operands[1]).reshape(-1)[routes.route]
            by_route = by_route * weights[:, None]
        total = rows.new_zeros(routes.num_routes // routes.topk, rows.shape[1])
        for k in range(routes.topk):
            total = total + by_route.view(-1, routes.topk, rows.shape[1])[:, k]
        return total

    def _to_routes(self, op: Op, numbers: Tensor) -> Tensor:
        routes = self._routes_of(op.operands[0])
        by_route = numbers.new_zeros(routes.num_routes)
        by_route[routes.route] = numbers
        return by_route.view(-1, routes.topk)

    def _by_expert(self, op: Op, function: Callable[..., Tensor], operands: list[object]) -> Tensor:
        """What `function` makes of each expert's rows."""
        expert = self._routes_of(op.operands[0]).expert
        rows = [_tensor(value) for value in operands]
        return torch.stack([function(*(value[expert == e] for value in rows)) for e in range(self.experts)])

    def _routes_of(self, rows: str) -> PlainRoutes:
        """The routes that a rows value belongs to."""
        kind = self.ops.types[rows]
        if not isinstance(kind, RowsType):
            raise TypeError(f"{rows} is not rows")
        return _routes(self.values[kind.routes])


def _split(value: Tensor, how: str) -> tuple[Tensor, Tensor]:
    if how == "halves":
        first, second = value.chunk(2, dim=-1)
        return first, second
    return value[..., 0::2], value[..., 1::2]


def _join(a: Tensor, b: Tensor, how: str) -> Tensor:
    like = a if a.dim() else b
    a, b = a.expand_as(like), b.expand_as(like)
    return torch.cat((a, b), -1) if how == "halves" else torch.stack((a, b), -1).flatten(-2)


def _elementwise(op: Op, v: list[Tensor]) -> Tensor:
    match op.kind:
        case "add":
            return torch.add(*_broadcast(v[0], v[1]))
        case "sub":
            return torch.sub(*_broadcast(v[0], v[1]))
        case "mul":
            return torch.mul(*_broadcast(v[0], v[1]))
        case "neg":
            return -v[0]
        case "silu":
            return functional.silu(v[0])
        case "sigmoid":
            return torch.sigmoid(v[0])
        case "gelu":
            return functional.gelu(v[0])
        case "gelu_tanh":
            return functional.gelu(v[0], approximate="tanh")
        case "relu":
            return torch.relu(v[0])
        case "square":
            return v[0] * v[0]
        case "gelu_slope":
            return _slope(functional.gelu, v[0])
        case "gelu_tanh_slope":
            return _slope(partial(functional.gelu, approximate="tanh"), v[0])
        case "step":
            return (v[0] > 0).to(v[0].dtype)
        case "within":
            low, high = op.optional("min"), op.optional("max")
            inside = torch.ones_like(v[0], dtype=torch.bool)
            inside &= v[0] >= float(str(low)) if low is not None else inside
            inside &= v[0] <= float(str(high)) if high is not None else inside
            return inside.to(v[0].dtype)
        case "clamp":
            low, high = op.optional("min"), op.optional("max")
            return torch.clamp(v[0], *(None if limit is None else float(str(limit)) for limit in (low, high)))
        case _:
            raise KeyError(f"the reference does not know op {op.kind}")


def _slope(function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """The derivative of a function of one number."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(v).sum(), v)
    return slope


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """One value per row meets rows of values."""
    if a.dim() == 1 and b.dim() == 2:
        return a[:, None], b
    if a.dim() == 2 and b.dim() == 1:
        return a, b[:, None]
    return a, b


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"not a tensor: {type(value).__name__}")
    return value


def _is_float(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _routes(value: object) -> PlainRoutes:
    if not isinstance(value, PlainRoutes):
        raise TypeError(f"not routes: {type(value).__name__}")
    return value
