"""Checks a call's arguments against the program, and names the one that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto

import torch
from torch import Tensor

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.ir.ops import OpGraph, Value
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.runtime.plan import PlanShape
from uniep_compiler.runtime.routes import Routes

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.F32: torch.float32,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}


class ParamRole(Enum):
    """What a parameter is to a layer. It decides which dtypes and layouts are taken."""

    ROUTES = auto()
    ROWS = auto()
    IDS = auto()
    ROUTE_WEIGHTS = auto()
    TOKENS = auto()
    EXPERTS = auto()
    UNUSED = auto()


def argument_error(message: str, help_text: str = "") -> UniepError:
    """The error for an argument that does not fit (UEP0601)."""
    return UniepError([Diagnostic(code="UEP0601", message=message, help=help_text)])


def nested_error(name: str) -> UniepError:
    """The error for a nested tensor (UEP0601)."""
    return argument_error(f"{name} is a nested tensor", "pass one tensor with the tokens of all its parts")


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is just that, with values in memory: of no subclass that means something else by it."""
    return type(tensor) is Tensor or type(tensor) is torch.nn.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class RankArguments:
    """One rank's arguments, checked: by parameter name, and the number of its tokens. Nothing is copied yet."""

    values: Mapping[str, Tensor | Routes]
    tokens: int


def param_roles(ops: OpGraph) -> dict[str, ParamRole]:
    """The role of each parameter, from the ops that read it."""
    uses = {
        ("route", 0): ParamRole.IDS,
        ("dispatch", 0): ParamRole.TOKENS,
        ("group_gemm", 1): ParamRole.EXPERTS,
        ("group_gemm", 2): ParamRole.EXPERTS,
        ("bias_rows", 0): ParamRole.EXPERTS,
        ("combine", 1): ParamRole.ROUTE_WEIGHTS,
        ("to_rows", 0): ParamRole.ROUTE_WEIGHTS,
    }
    used = {name: uses.get((op.kind, i)) for op in ops.ops for i, name in enumerate(op.operands)}
    roles: dict[str, ParamRole] = {}
    for param in ops.params:
        match param.type:
            case RoutesType():
                roles[param.name] = ParamRole.ROUTES
            case RowsType():
                roles[param.name] = ParamRole.ROWS
            case TensorType():
                roles[param.name] = used.get(param.name, ParamRole.UNUSED) or ParamRole.TOKENS
    return roles


class Signature:
    """What a layer's call takes: the program's parameters with bound dims. `token` is the name of the token dim."""

    def __init__(self, ops: OpGraph, dims: Mapping[str, int], token: str) -> None:
        self.ops = ops
        self.dims = dims
        self.token = token
        self.roles = param_roles(ops)
        self._kinds = {param.name: param.type for param in ops.params}
        self._tells_tokens = next((i for i, param in enumerate(ops.params) if self._has_tokens(param.type)), 0)
        self.routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))

    @property
    def topk(self) -> int:
        """Routes per token."""
        return self.routes.topk.value(self.dims)

    @property
    def experts(self) -> int:
        """Experts of the whole group."""
        return self.routes.experts.value(self.dims)

    def check(self, args: Sequence[object], device: torch.device, num_experts: int, where: str = "") -> RankArguments:
        """The arguments of one rank. `num_experts` is its share; `where` says which rank, for errors.

        Raises UEP0601 for the first that does not fit.
        """
        self.check_count(args)
        call = _Call(signature=self, device=device, num_experts=num_experts, where=where)
        # Routes first: they say how many tokens and rows there are.
        named = sorted(zip(self.ops.params, args, strict=True), key=lambda pair: not isinstance(pair[1], Routes))
        checked = {param.name: call.take(param, arg) for param, arg in named}
        return RankArguments(
            values={param.name: checked[param.name] for param in self.ops.params}, tokens=call.tokens or 0
        )

    def check_plain(self, args: Sequence[object]) -> None:
        """UEP0601 unless these are one rank's arguments for the reference, which computes in any dtype, on any device.

        Rows need not go on after the last valid one.
        """
        self.check_count(args)
        call = _Call(signature=self, device=_device_of(args), num_experts=self.experts, where="")
        named = sorted(zip(self.ops.params, args, strict=True), key=lambda pair: not isinstance(pair[1], Routes))
        for param, arg in named:
            call.take_plain(param, arg)

    def lay_out(self, values: Mapping[str, Tensor | Routes]) -> dict[str, Tensor | Routes]:
        """One rank's arguments as kernels read them. Small or odd ones are copied; expert weights never are."""
        return {
            name: value if isinstance(value, Routes) else _laid_out(self.roles[name], self._kinds[name], value)
            for name, value in values.items()
        }

    def examples(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Tensors without memory, like those that kernels read in a call with that many tokens on each rank."""
        sizes = {**self.dims, self.token: sum(tokens)}
        examples: dict[str, Tensor] = {}
        for name, kind in self._kinds.items():
            if isinstance(kind, RoutesType):
                continue
            rows = [len(tokens) * sum(tokens) * self.topk] if isinstance(kind, RowsType) else []
            shape = [*rows, *(dim.value(sizes) for dim in kind.shape)]
            examples[name] = torch.empty(shape, dtype=TORCH_DTYPES[kind.dtype], device="meta")
        return examples

    def num_tokens(self, args: Sequence[object]) -> int:
        """The number of tokens of one rank, from arguments that fit. It may be symbolic."""
        arg = args[self._tells_tokens]
        if isinstance(arg, Routes):
            return arg.plan.shape.tokens[arg.rank]
        assert isinstance(arg, Tensor)
        return arg.shape[0]

    def _has_tokens(self, kind: Type) -> bool:
        if isinstance(kind, TensorType):
            return bool(kind.shape) and kind.shape[0] == Dim.of(self.token)
        return isinstance(kind, RoutesType)

    def bind(self, args: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
        """The arguments in order, of which some were given by the name of their parameter.

        UEP0601 for a name that no parameter has, one that is given twice, and a parameter without an argument.
        """
        names = [param.name for param in self.ops.params]
        for name in named:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                help_ = f"did you mean `{near[0]}`?" if near else f"its parameters are {', '.join(names)}"
                raise argument_error(f"{self.ops.name} has no parameter `{name}`", help_)
            if name in names[: len(args)]:
                raise argument_error(f"`{name}` is given twice: by its place, and by its name", "leave one of them out")
        missing = [name for name in names[len(args) :] if name not in named]
        if missing:
            raise argument_error(f"{self.ops.name} is called without {', '.join(f'`{name}`' for name in missing)}")
        return (*args, *(named[name] for name in names[len(args) :]))

    def check_count(self, args: Sequence[object]) -> None:
        """UEP0601 unless there is one argument per parameter."""
        params = self.ops.params
        if len(args) != len(params):
            names = ", ".join(param.name for param in params)
            raise argument_error(f"{self.ops.name} takes {len(params)} arguments ({names}), not {len(args)}")


class _Call:
    """One call's arguments, checked one after the other: the first that has the token dim says how many tokens."""

    def __init__(self, *, signature: Signature, device: torch.device, num_experts: int, where: str) -> None:
        self.signature = signature
        self.device = device
        self.num_experts = num_experts
        self.where = where
        self.tokens: int | None = None
        self.rows: int | None = None

    def take(self, param: Value, arg: object) -> Tensor | Routes:
        """The argument, if it fits."""
        name, role = f"`{param.name}`{self.where}", self.signature.roles[param.name]
        if isinstance(param.type, RoutesType):
            return self._take_routes(name, arg)
        if not isinstance(arg, Tensor):
            raise argument_error(f"{name} has to be a tensor, not {type(arg).__name__}")
        if arg.is_nested:
            raise nested_error(name)
        if _place(arg.device) != _place(self.device):
            raise argument_error(
                f"{name} is on {arg.device}, but the layer runs on {self.device}",
                f"move it there: {param.name}.to('{self.device}')",
            )
        if arg.layout is not torch.strided:
            raise argument_error(f"{name} has layout {arg.layout}", f"pass a dense tensor: {param.name}.to_dense()")
        self._check_dtype(name, role, param.type, arg)
        self._check_shape(name, role, param.type, arg)
        if role is ParamRole.EXPERTS:
            _check_is_readable(name, arg)
        if not arg.is_meta and is_plain(arg) and arg.numel() > 0 and arg.data_ptr() == 0:
            raise argument_error(f"{name} has no memory", "it was freed, or never allocated: pass a tensor with values")
        return arg.detach()

    def take_plain(self, param: Value, arg: object) -> None:
        """Checks an argument of the reference. Routes come first."""
        name, role = f"`{param.name}`", self.signature.roles[param.name]
        if isinstance(param.type, RoutesType):
            routes = self._take_routes(name, arg)
            if len(routes.placement) > 1:
                raise argument_error(f"{name} are those of a group, but the reference computes on one rank")
            self.rows = int(routes.num_rows)
            return
        if not isinstance(arg, Tensor):
            raise argument_error(f"{name} has to be a tensor, not {type(arg).__name__}")
        if arg.is_nested:
            raise nested_error(name)
        if _place(arg.device) != _place(self.device):
            raise argument_error(f"{name} is on {arg.device}, but others are on {self.device}")
        if arg.dtype is torch.bool or arg.is_complex() or arg.is_floating_point() != param.type.dtype.is_float:
            raise argument_error(f"{name} is {_named(arg.dtype)}, but the program says {param.type}")
        rows = arg[: self.rows] if isinstance(param.type, RowsType) and arg.dim() > 0 else arg
        self._check_shape(name, role, param.type, rows)

    def _take_routes(self, name: str, arg: object) -> Routes:
        if not isinstance(arg, Routes):
            message = f"{name} has to be uniep.Routes, not {type(arg).__name__}"
            raise argument_error(message, "pass the routes that a layer with `route` returned")
        shape = arg.plan.shape
        have = {"topk": shape.topk, "experts": shape.experts}
        want = {"topk": self.signature.topk, "experts": self.signature.experts}
        if have != want:
            raise argument_error(f"{name} has {have}, but the layer was compiled for {want}")
        if _place(arg.plan.storage.device) != _place(self.device):
            raise argument_error(f"{name} is on {arg.plan.storage.device}, but the layer runs on {self.device}")
        self.tokens, self.rows = shape.tokens[arg.rank], shape.rows_bound
        return arg

    def _check_dtype(self, name: str, role: ParamRole, kind: TensorType | RowsType, arg: Tensor) -> None:
        match role:
            case ParamRole.IDS:
                allowed: tuple[torch.dtype, ...] = (torch.int32, torch.int64)
            case ParamRole.ROUTE_WEIGHTS:
                allowed = _WIDENED_BY[kind.dtype]
            case _:
                allowed = (TORCH_DTYPES[kind.dtype],)
        if arg.dtype not in allowed:
            names = " or ".join(map(_named, allowed))
            raise argument_error(f"{name} is {_named(arg.dtype)}, but the program says {kind}: it takes {names}")

    def _check_shape(self, name: str, role: ParamRole, kind: TensorType | RowsType, arg: Tensor) -> None:
        want = [self._size(dim) for dim in kind.shape]
        if role is ParamRole.EXPERTS or self._may_be_sharded(role, kind, arg):
            want[0] = self.num_experts
        if isinstance(kind, RowsType):
            want.insert(0, self.rows)
        have = tuple(arg.shape)
        if len(have) != len(want) or any(w not in (None, h) for w, h in zip(want, have, strict=True)):
            token = self.signature.token
            text = ", ".join(token if size is None else str(size) for size in want)
            raise argument_error(f"{name} has shape {list(have)}, but has to be [{text}]", f"the program says {kind}")
        if isinstance(kind, TensorType) and kind.shape[0] == Dim.of(self.signature.token):
            self.tokens = have[0]

    def _may_be_sharded(self, role: ParamRole, kind: TensorType | RowsType, arg: Tensor) -> bool:
        """Whether this is one rank's part of a parameter by expert that no result needs: it may be whole, too."""
        by_expert = bool(kind.shape) and kind.shape[0] == self.signature.routes.experts
        return role is ParamRole.UNUSED and by_expert and arg.dim() > 0 and arg.shape[0] == self.num_experts

    def _size(self, dim: Dim) -> int | None:
        if self.signature.token not in dim.names:
            return dim.value(self.signature.dims)
        if self.tokens is None:
            return None
        return dim.value({**self.signature.dims, self.signature.token: self.tokens})


_WIDENED_BY: Mapping[DType, tuple[torch.dtype, ...]] = {
    DType.F32: (torch.float32, torch.bfloat16, torch.float16),
    DType.BF16: (torch.bfloat16,),
    DType.F16: (torch.float16,),
}
"""The dtypes whose every value a router weight of that type can hold."""


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_of(args: Sequence[object]) -> torch.device:
    """That of the first tensor."""
    tensors = (arg.plan.storage if isinstance(arg, Routes) else arg for arg in args)
    return next((tensor.device for tensor in tensors if isinstance(tensor, Tensor)), torch.device("cpu"))


def _place(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def _check_is_readable(name: str, weights: Tensor) -> None:
    """UEP0601 for expert weights that would have to be copied before a kernel could read them."""
    if weights.is_contiguous() and not weights.is_neg():
        return
    what, mend = f"not contiguous: its strides are {tuple(weights.stride())}", ".contiguous()"
    if weights.is_neg():
        what, mend = "a view that negates the values in memory", ".resolve_neg()"
    raise argument_error(
        f"{name} is {what}", f"copying weights on each call would cost more than the layer: call {mend} once"
    )


def _laid_out(role: ParamRole, kind: Type, arg: Tensor) -> Tensor:
    arg = arg.resolve_neg()
    match role:
        case ParamRole.EXPERTS:
            return arg
        case ParamRole.TOKENS:
            return dense_rows(arg)
        case ParamRole.ROUTE_WEIGHTS if isinstance(kind, TensorType):
            return arg.to(TORCH_DTYPES[kind.dtype]).contiguous()
        case _:
            return arg.contiguous()


def merge_arguments(ranks: Sequence[Mapping[str, Tensor | Routes]]) -> dict[str, Tensor]:
    """The tensors of all ranks as one each: tokens, rows and experts, one rank after the other."""
    merged: dict[str, Tensor] = {}
    for name in ranks[0]:
        parts = [part for rank in ranks if isinstance(part := rank[name], Tensor)]
        if parts:
            merged[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return merged


def check_routes(routes: Sequence[Routes], shape: PlanShape, placement: tuple[int, ...]) -> None:
    """UEP0601 unless the ranks' routes were made by one call, and for what the called layer needs."""
    made = routes[0]
    for rank, mine in enumerate(routes):
        if mine.rank != rank or not _is_same(mine.plan.storage, made.plan.storage):
            raise argument_error("the ranks' routes are not those of one call, in order", "pass the list as it came")
    if made.placement != placement:
        raise argument_error(f"routes are for the placement {made.placement}, but the layer has {placement}")
    if made.plan.shape.bound != shape.bound:
        raise argument_error(
            f"routes are for {made.plan.shape}, but the layer needs {shape}",
            "compile both layers for the same target, group, dtype and `block`",
        )


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one is other or one.data_ptr() == other.data_ptr()


def dense_rows(x: Tensor) -> Tensor:
    """`x` itself if the elements of each row lie side by side and rows do not overlap, else a contiguous copy."""
    rows, cols = x.shape
    if (cols <= 1 or x.stride(1) == 1) and (rows <= 1 or x.stride(0) >= cols):
        return x
    return x.contiguous()
