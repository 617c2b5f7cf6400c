"""Type rules: what the results of an op are, given its operands and attributes, or what does not fit.

A rule is a function of a `Site`. It returns the result types, or stops with a `Problem`, which names operands by
number, so that the front end can point at their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from uniep_compiler.ir.ops import Attr, Value
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why an op cannot be: a diagnostic without places. `labels` says what is to be said about which operand."""

    code: str
    message: str
    labels: tuple[tuple[int, str], ...] = ()
    help: str = ""
    about_rounding: bool = False


class Misfit(Exception):  # noqa: N818 - it carries a finding from a rule to `op_table.infer`, and is never an error
    """Stops a type rule."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One use of an op: operands, attributes, and the types of all values in sight (for the routes behind rows)."""

    kind: str
    operands: tuple[Value, ...]
    attrs: Mapping[str, Attr]
    types: Mapping[str, Type]

    @property
    def shown(self) -> str:
        """The op as programs write it."""
        return {"add": "+", "sub": "-", "mul": "*", "neg": "-", "round": "cast"}.get(self.kind, self.kind)

    def wrong(
        self, code: str, message: str, *labels: tuple[int, str], help: str, about_rounding: bool = False
    ) -> NoReturn:
        """Stops the rule."""
        raise Misfit(Problem(code=code, message=message, labels=labels, help=help, about_rounding=about_rounding))

    def tensor(self, index: int, rank: int, what: str) -> TensorType:
        """Operand `index`, which has to be a tensor of `rank` dims."""
        type_ = self.operands[index].type
        if not isinstance(type_, TensorType):
            help_ = f"`uniepc ops` shows what `{self.shown}` takes"
            self.wrong("UEP0209", f"`{self.shown}` takes {what}", (index, f"this is {type_}"), help=help_)
        if len(type_.shape) != rank:
            message = f"`{self.shown}` takes {what}, with {rank} dims"
            help_ = f"declare it with {rank} dims"
            self.wrong("UEP0207", message, (index, f"this is {type_}, with {len(type_.shape)}"), help=help_)
        return type_

    def rows(self, index: int) -> RowsType:
        """Operand `index`, which has to be rows."""
        type_ = self.operands[index].type
        if not isinstance(type_, RowsType):
            help_ = "`dispatch` makes rows of a tensor with one row per token"
            self.wrong("UEP0209", f"`{self.shown}` takes rows", (index, f"this is {type_}"), help=help_)
        return type_

    def routes(self, index: int) -> RoutesType:
        """Operand `index`, which has to be routes."""
        type_ = self.operands[index].type
        if self.kind == "dispatch" and isinstance(type_, TensorType) and len(type_.shape) == 2:
            _refuse_ids(self, index, type_)
        if not isinstance(type_, RoutesType):
            help_ = "`route` makes routes of the experts' ids"
            self.wrong("UEP0209", f"`{self.shown}` takes routes", (index, f"this is {type_}"), help=help_)
        return type_

    def routes_of(self, rows: RowsType) -> RoutesType:
        """The routes that `rows` belong to."""
        type_ = self.types.get(rows.routes)
        if not isinstance(type_, RoutesType):
            message = f"`{rows.routes}` in {rows} is not a value of routes"
            help_ = "rows name the routes that they belong to: `bf16[rows(r), H]` goes with an `r : routes[T, K, E]`"
            self.wrong("UEP0209", message, (0, f"this is {rows}"), help=help_)
        return type_

    def same(self, what: str, first: tuple[int, Dim], second: tuple[int, Dim], help: str = "") -> None:
        """Two operands' dims have to be equal."""
        if first[1] != second[1]:
            help = help or f"use one dim for both, {first[1]} or {second[1]}"
            message = f"{what} of `{self.shown}` do not fit: {first[1]} and {second[1]}"
            self.wrong(
                "UEP0207", message, (first[0], f"has {first[1]} here"), (second[0], f"has {second[1]} here"), help=help
            )

    def float_dtype(self, index: int) -> DType:
        """The dtype of operand `index`, which has to be of floating point."""
        type_ = self.operands[index].type
        if isinstance(type_, RoutesType) or not type_.dtype.is_float:
            self.wrong(
                "UEP0208",
                f"`{self.shown}` takes floating point values",
                (index, f"this is {type_}"),
                help="ids, counts and routes are not computed with",
            )
        return type_.dtype


_ONE_DIM = "rows of numbers are like `bf16[rows(r), H]`"


def route(site: Site) -> tuple[Type, ...]:
    """`ids : i32[T, K]` to `routes[T, K, E]`; the attribute `experts` is E."""
    ids = site.tensor(0, 2, "the experts' ids, an i32[T, K]")
    if ids.dtype.is_float:
        _refuse_ids(site, 0, ids)
    return (RoutesType(tokens=ids.shape[0], topk=ids.shape[1], experts=Dim.parse(str(site.attrs["experts"]))),)


def _refuse_ids(site: Site, index: int, ids: TensorType) -> NoReturn:
    """Ids of a dtype that ids do not have."""
    dims = ", ".join(map(str, ids.shape))
    message = f"the ids of experts are integers, and not {ids.dtype}"
    site.wrong("UEP0208", message, (index, f"this is {ids}"), help=f"the ids are declared `i32[{dims}]`")


def dispatch(site: Site) -> tuple[Type, ...]:
    """`x : D[T, h]` by `r : routes[T, K, E]` to `D[rows(r), h]`."""
    x = site.tensor(0, 2, "a tensor with one row per token")
    routes = site.routes(1)
    site.float_dtype(0)
    site.same("the tokens", (0, x.shape[0]), (1, routes.tokens))
    return (RowsType(dtype=x.dtype, routes=site.operands[1].name, shape=x.shape[1:]),)


def to_rows(site: Site) -> tuple[Type, ...]:
    """`v : f32[T, K]` by `r : routes[T, K, E]` to `f32[rows(r)]`."""
    values = site.tensor(0, 2, "one number per route, an f32[T, K]")
    routes = site.routes(1)
    _router_weights(site, 0, routes)
    return (RowsType(dtype=values.dtype, routes=site.operands[1].name, shape=()),)


def group_gemm(site: Site) -> tuple[Type, ...]:
    """Each row times its expert's weight, plus its expert's bias: `D[rows(r), k]` to `f32[rows(r), n]`."""
    rows = site.rows(0)
    if len(rows.shape) != 1:
        site.wrong("UEP0207", "`group_gemm` takes rows of numbers", (0, f"this is {rows}"), help=_ONE_DIM)
    weight = site.tensor(1, 3, "the weights of experts")
    row_dtype, weight_dtype = site.float_dtype(0), site.float_dtype(1)
    nk = site.attrs["layout"] == "nk"
    inner, outer = (weight.shape[2], weight.shape[1]) if nk else (weight.shape[1], weight.shape[2])
    site.same("the experts", (0, site.routes_of(rows).experts), (1, weight.shape[0]))
    layout, other, order = ("nk", "kn", "[E, n, k]") if nk else ("kn", "nk", "[E, k, n]")
    help_ = f"with `layout={layout}`{', the default,' if nk else ''} the weight is {order}"
    if outer == rows.shape[0]:
        help_ = f"the weight would fit with `layout={other}`"
    site.same("the inner dims", (0, rows.shape[0]), (1, inner), help=help_)
    if row_dtype is not weight_dtype:
        message = f"`group_gemm` multiplies values of one dtype, not {row_dtype} by {weight_dtype}"
        help_ = f"name the rows first, so that they are rounded, or write `cast(..., {weight_dtype})`"
        site.wrong(
            "UEP0208", message, (0, f"this is {rows}"), (1, f"this is {weight}"), help=help_, about_rounding=True
        )
    if site.attrs["bias"]:
        bias = site.tensor(2, 2, "the biases of experts, a D[E, n]")
        site.float_dtype(2)
        site.same("the experts", (1, weight.shape[0]), (2, bias.shape[0]))
        site.same("the widths", (1, outer), (2, bias.shape[1]))
    return (RowsType(dtype=DType.F32, routes=rows.routes, shape=(outer,)),)


def split(site: Site) -> tuple[Type, ...]:
    """The last dim in two: first and second half, or even and odd columns."""
    type_ = site.operands[0].type
    if isinstance(type_, RoutesType) or len(type_.shape) < (1 if isinstance(type_, RowsType) else 2):
        site.wrong("UEP0209", "`split` takes rows of numbers", (0, f"this is {type_}"), help=_ONE_DIM)
    half = type_.shape[-1].half()
    if half is None:
        help_ = (
            f"declare that dim as an even number, like `2*{type_.shape[-1].names[0]}`" if type_.shape[-1].names else ""
        )
        site.wrong("UEP0221", f"`split` cannot halve {type_.shape[-1]}", (0, f"this is {type_}"), help=help_)
    shape = (*type_.shape[:-1], half)
    match type_:
        case RowsType():
            result: Type = RowsType(dtype=type_.dtype, routes=type_.routes, shape=shape)
        case TensorType():
            result = TensorType(dtype=type_.dtype, shape=shape)
    return (result, result)


def combine(site: Site) -> tuple[Type, ...]:
    """The (weighted) sum of each token's rows: `D[rows(r), h]` to `f32[T, h]`."""
    rows = site.rows(0)
    site.float_dtype(0)
    routes = site.routes_of(rows)
    if len(rows.shape) != 1:
        site.wrong("UEP0207", "`combine` takes rows of numbers", (0, f"this is {rows}"), help=_ONE_DIM)
    if len(site.operands) > 1:
        site.tensor(1, 2, "one weight per route, an f32[T, K]")
        _router_weights(site, 1, routes)
    return (TensorType(dtype=DType.F32, shape=(routes.tokens, *rows.shape)),)


def to_routes(site: Site) -> tuple[Type, ...]:
    """One number per row back to its route: `f32[rows(r)]` to `f32[T, K]`, 0 where a route has no row."""
    rows = site.rows(0)
    if rows.shape:
        site.wrong("UEP0207", "`to_routes` takes one number per row", (0, f"this is {rows}"), help="sum the rows first")
    routes = site.routes_of(rows)
    return (TensorType(dtype=DType.F32, shape=(routes.tokens, routes.topk)),)


def bias_rows(site: Site) -> tuple[Type, ...]:
    """For each row its expert's bias: `D[E, n]` to `D[rows(r), n]`."""
    bias, routes = site.tensor(0, 2, "the biases of experts, a D[E, n]"), site.routes(1)
    site.same("the experts", (0, bias.shape[0]), (1, routes.experts))
    return (RowsType(dtype=bias.dtype, routes=site.operands[1].name, shape=(bias.shape[1],)),)


def group_outer(site: Site) -> tuple[Type, ...]:
    """For each expert the sum of its rows' outer products: `D[rows(r), n]`, `D[rows(r), k]` to `f32[E, n, k]`."""
    left, right = site.rows(0), site.rows(1)
    if len(left.shape) != 1 or len(right.shape) != 1 or left.routes != right.routes:
        labels = ((0, f"this is {left}"), (1, f"this is {right}"))
        site.wrong("UEP0207", "`group_outer` takes rows of numbers of one routing", *labels, help=_ONE_DIM)
    if site.float_dtype(0) is not site.float_dtype(1):
        labels = ((0, f"this is {left}"), (1, f"this is {right}"))
        site.wrong("UEP0208", "`group_outer` multiplies values of one dtype", *labels, help="cast one of them")
    return (TensorType(dtype=DType.F32, shape=(site.routes_of(left).experts, *left.shape, *right.shape)),)


def group_sum(site: Site) -> tuple[Type, ...]:
    """For each expert the sum of its rows: `D[rows(r), n]` to `f32[E, n]`."""
    rows = site.rows(0)
    site.float_dtype(0)
    return (TensorType(dtype=DType.F32, shape=(site.routes_of(rows).experts, *rows.shape)),)


def row_sum(site: Site) -> tuple[Type, ...]:
    """The sum over the last dim, in f32."""
    site.float_dtype(0)
    type_ = site.operands[0].type
    if isinstance(type_, RoutesType) or not type_.shape:
        site.wrong("UEP0209", "`row_sum` takes rows of numbers", (0, f"this is {type_}"), help=_ONE_DIM)
    return (replace(type_, dtype=DType.F32, shape=type_.shape[:-1]),)


def join(site: Site) -> tuple[Type, ...]:
    """Twice `D[..., n]` to `D[..., 2*n]`: columns side by side or in turn, as `split` found them.

    One operand may be a constant.
    """
    first, second = (operand.type for operand in site.operands)
    wide = second if isinstance(first, TensorType) and not first.shape else first
    narrow = first if wide is second else second
    if isinstance(wide, RoutesType) or not wide.shape or narrow not in (wide, TensorType(dtype=DType.F32, shape=())):
        labels = ((0, f"this is {first}"), (1, f"this is {second}"))
        site.wrong("UEP0207", "`join` takes two values of one type", *labels, help=_ONE_DIM)
    return (replace(wide, shape=(*wide.shape[:-1], wide.shape[-1].times(2))),)


def counts(site: Site) -> tuple[Type, ...]:
    """How many routes each expert has: `routes[T, K, E]` to `i32[E]`."""
    return (TensorType(dtype=DType.I32, shape=(site.routes(0).experts,)),)


def const(site: Site) -> tuple[Type, ...]:
    """One number, the attribute `value`, rounded to f32."""
    return (TensorType(dtype=DType.F32, shape=()),)


def round_(site: Site) -> tuple[Type, ...]:
    """The same numbers in the dtype of the attribute, rounded to nearest, ties to even."""
    site.float_dtype(0)
    dtype = DType(str(site.attrs["dtype"]))
    match site.operands[0].type:
        case TensorType(shape=shape):
            return (TensorType(dtype=dtype, shape=shape),)
        case RowsType(routes=routes, shape=shape):
            return (RowsType(dtype=dtype, routes=routes, shape=shape),)
        case RoutesType():
            raise AssertionError("float_dtype refused it")


def elementwise(site: Site) -> tuple[Type, ...]:
    """Number by number, in f32. One operand of two may be a constant, or hold one number per row of the other."""
    for index in range(len(site.operands)):
        site.float_dtype(index)
    wide = max(range(len(site.operands)), key=lambda index: _num_dims(site.operands[index].type))
    for index in range(len(site.operands)):
        if index != wide:
            _check_broadcast(site, index, wide)
    match site.operands[wide].type:
        case TensorType(shape=shape):
            return (TensorType(dtype=DType.F32, shape=shape),)
        case RowsType(routes=routes, shape=shape):
            return (RowsType(dtype=DType.F32, routes=routes, shape=shape),)
        case RoutesType():
            raise AssertionError("float_dtype refused it")


def clamp(site: Site) -> tuple[Type, ...]:
    """Number by number, with the attributes `min` and `max`, of which at least one is there."""
    low, high = site.attrs.get("min"), site.attrs.get("max")
    if low is None and high is None:
        site.wrong("UEP0204", "`clamp` bounds nothing", (0, "without bounds"), help="give `min=`, `max=` or both")
    if isinstance(low, float) and isinstance(high, float) and low > high:
        site.wrong("UEP0204", f"`clamp` from {low} up to {high} is empty", (0, "clamped to nothing"), help="swap them")
    return elementwise(site)


def _num_dims(type_: Type) -> int:
    match type_:
        case TensorType():
            return len(type_.shape)
        case RowsType():
            return 1 + len(type_.shape)
        case RoutesType():
            return 0


def _check_broadcast(site: Site, index: int, wide: int) -> None:
    """Operand `index` has to be like operand `wide`, or have one number for each of its rows, or be a constant."""
    narrow_type, wide_type = site.operands[index].type, site.operands[wide].type
    first, second = sorted((index, wide))
    labels = tuple((i, f"this is {site.operands[i].type}") for i in (first, second))
    match narrow_type, wide_type:
        case TensorType(shape=()), _:
            return
        case RowsType(), RowsType():
            if narrow_type.routes != wide_type.routes:
                message = f"rows of two routes, `{narrow_type.routes}` and `{wide_type.routes}`, meet"
                help_ = "their rows stand for different tokens and experts; `combine` both, and join the tensors"
                site.wrong("UEP0210", message, *labels, help=help_)
            fits = narrow_type.shape in ((), wide_type.shape)
        case TensorType(), TensorType():
            fits = narrow_type.shape in (wide_type.shape[:1], wide_type.shape)
        case _:
            per_expert = _about_experts(site, index, wide)
            if per_expert:
                message = f"`{site.shown}` cannot join rows and what is kept by expert"
                site.wrong("UEP0209", message, *labels, help=per_expert)
            help_ = "`dispatch` and `to_rows` make rows of what is kept by token, and `combine` makes tokens of rows"
            site.wrong("UEP0209", f"`{site.shown}` cannot join rows and what is kept by token", *labels, help=help_)
    if not fits:
        site.wrong(
            "UEP0207",
            f"the shapes of `{site.shown}` do not fit: {narrow_type} and {wide_type}",
            *labels,
            help="shapes are equal, or one has a single number per row",
        )


def _about_experts(site: Site, *pair: int) -> str:
    """What to do with a weight or a bias of experts that stands beside rows; nothing if there is none."""
    rows = next((site.operands[i].type for i in pair if isinstance(site.operands[i].type, RowsType)), None)
    if not isinstance(rows, RowsType):
        return ""
    experts = site.routes_of(rows).experts
    for value in (site.operands[i] for i in pair):
        if isinstance(value.type, TensorType) and value.type.shape[0] == experts:
            if len(value.type.shape) == 2 and site.kind == "add":
                return f"each row gets its expert's bias by `group_gemm(rows, w, bias={value.name})`"
            return "each row meets its expert's weights in `group_gemm(rows, w)` only"
    return ""


def _router_weights(site: Site, index: int, routes: RoutesType) -> None:
    """Operand `index` has to hold one f32 per route."""
    type_ = site.tensor(index, 2, "one number per route")
    if type_.dtype is not DType.F32:
        help_ = "declare it f32; callers may pass any float dtype, which is widened exactly"
        site.wrong("UEP0208", f"`{site.shown}` takes router weights in f32", (index, f"this is {type_}"), help=help_)
    other = 1 - index
    site.same("the tokens", (index, type_.shape[0]), (other, routes.tokens))
    site.same("the routes per token", (index, type_.shape[1]), (other, routes.topk))
