"""Resolves the types of a layer's header: dims, dtypes, and which dim counts experts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label
from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.retype import Retyping
from uniep_compiler.frontend.syntax import Ident, MoeDecl, TypeExpr
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType, Type
from uniep_compiler.source import Span

_OTHER_SPELLINGS: Mapping[str, DType] = {
    **dict.fromkeys(("bfloat16", "bfloat"), DType.BF16),
    **dict.fromkeys(("float16", "fp16", "half"), DType.F16),
    **dict.fromkeys(("float32", "fp32", "float", "tf32"), DType.F32),
    **dict.fromkeys(("int32", "int"), DType.I32),
    **dict.fromkeys(("int64", "long"), DType.I64),
}


def error(code: str, message: str, span: Span, label: str, help_: str = "") -> Diagnostic:
    """An error at one place."""
    return Diagnostic(code=code, message=message, labels=(Label(span=span, text=label),), help=help_)


def suggestion(word: str, words: Iterable[str]) -> str:
    """`did you mean ...?` where one of `words` is near to `word`, else nothing."""
    close = get_close_matches(word, sorted(set(words)), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def other_spelling(name: str) -> DType | None:
    """The dtype that other libraries call `name`, or that has this name in small letters."""
    plain = name.lower()
    return DType(plain) if plain in set(DType) else _OTHER_SPELLINGS.get(plain)


@dataclass(slots=True, kw_only=True)
class Header:
    """The types of a layer's parameters, as far as they could be resolved, with what was wrong in `bag`."""

    decl: MoeDecl
    bag: DiagnosticBag
    retyping: Retyping | None = None
    params: dict[str, Type] = field(default_factory=dict)
    dims: frozenset[str] = field(init=False)  # that parameters name, of wrong types too: one mistake is one error

    def __post_init__(self) -> None:
        exprs = [expr for param in self.decl.params for expr in param.type.dims if not isinstance(expr, syntax.Call)]
        names = [inner for expr in exprs for inner in syntax.walk(expr)]
        self.dims = frozenset(expr.name for expr in names if isinstance(expr, syntax.NameExpr))
        by_routes_first = sorted(self.decl.params, key=lambda param: _is_rows(param.type))
        others = [param.name.name for param in by_routes_first if not _is_rows(param.type)]
        for param in by_routes_first:
            type_ = self.resolve(param.type, {**dict.fromkeys(others), **self.params})
            if type_ is not None:
                self.params[param.name.name] = self._retyped(param.name.name, type_)
        self.params = {p.name.name: self.params[p.name.name] for p in self.decl.params if p.name.name in self.params}

    def _retyped(self, name: str, type_: Type) -> Type:
        return type_ if self.retyping is None else self.retyping.param(name, type_)

    def resolve(self, expr: TypeExpr, values: Mapping[str, Type | None]) -> Type | None:
        """The type that `expr` stands for; `values` are what `rows(...)` may name. None if it is wrong.

        A value without a type has its error already.
        """
        if expr.name.name == "routes":
            return self._routes(expr)
        dtype = self.dtype(expr.name)
        if expr.dims and isinstance(expr.dims[0], syntax.Call):
            routes = self._rows_of(expr.dims[0], values)
            shape = self._shape(expr.dims[1:])
            return (
                None
                if dtype is None or routes is None or shape is None
                else RowsType(dtype=dtype, routes=routes, shape=shape)
            )
        shape = self._shape(expr.dims)
        if not expr.dims:
            self.bag.add(
                error(
                    "UEP0206",
                    "a tensor without dims",
                    expr.span,
                    "expected dims",
                    "constants are written where they are used",
                )
            )
            return None
        return None if dtype is None or shape is None else TensorType(dtype=dtype, shape=shape)

    def dtype(self, name: Ident) -> DType | None:
        """The dtype that `name` stands for; None if there is no such one."""
        if name.name in set(DType):
            return DType(name.name)
        known = [*DType, "routes"]
        other = other_spelling(name.name)
        help_ = (
            f"write `{other}`"
            if other
            else suggestion(name.name, known) or f"types are {', '.join(f'`{k}`' for k in known)}"
        )
        self.bag.add(error("UEP0205", f"unknown type `{name.name}`", name.span, "not a dtype", help_))
        return None

    def dtype_in_body(self, name: Ident) -> DType | None:
        """The dtype that a body's `name` stands for; None if there is no such one."""
        dtype = self.dtype(name)
        return dtype if dtype is None or self.retyping is None else self.retyping.in_body(dtype)

    def _routes(self, expr: TypeExpr) -> RoutesType | None:
        shape = self._shape(expr.dims)
        if shape is None:
            return None
        if len(shape) != 3:
            help_ = "routes have tokens, routes per token and experts: `routes[T, K, E]`"
            self.bag.add(error("UEP0207", f"routes have 3 dims, not {len(shape)}", expr.span, "expected 3 dims", help_))
            return None
        return RoutesType(tokens=shape[0], topk=shape[1], experts=shape[2])

    def _rows_of(self, call: syntax.Call, values: Mapping[str, Type | None]) -> str | None:
        match call:
            case syntax.Call(arguments=(syntax.Argument(keyword=None, value=syntax.NameExpr() as name),)) if (
                call.function.name == "rows"
            ):
                if isinstance(values.get(name.name), RoutesType):
                    return name.name
                if name.name in values and values[name.name] is None:
                    return None
                help_ = suggestion(name.name, (v for v, t in values.items() if isinstance(t, RoutesType)))
                message = f"`{name.name}` is not a value of routes"
                self.bag.add(
                    error(
                        "UEP0201",
                        message,
                        name.span,
                        "expected routes",
                        help_ or "declare it like `r : routes[T, K, E]`",
                    )
                )
            case _:
                self.bag.add(
                    error(
                        "UEP0206",
                        "the first dim is neither a dim nor rows",
                        call.span,
                        "expected `rows(r)`",
                        "rows are like `bf16[rows(r), H]`",
                    )
                )
        return None

    def _shape(self, exprs: tuple[syntax.Expr, ...]) -> tuple[Dim, ...] | None:
        dims = [self.dim(expr) for expr in exprs]
        return None if None in dims else tuple(dim for dim in dims if dim is not None)

    def dim(self, expr: syntax.Expr) -> Dim | None:
        """The dim that `expr` stands for; None if it is not affine over names, or a constant below 1."""
        found = _affine(expr)
        if isinstance(found, Diagnostic):
            self.bag.add(found)
            return None
        if not found.terms and found.constant < 1:
            self.bag.add(
                error("UEP0206", f"a dim of {found} is empty", expr.span, "expected at least 1", "dims count from 1")
            )
            return None
        return found


def _is_rows(expr: TypeExpr) -> bool:
    return bool(expr.dims) and isinstance(expr.dims[0], syntax.Call)


def _affine(expr: syntax.Expr) -> Dim | Diagnostic:
    match expr:
        case syntax.NameExpr():
            return Dim.of(expr.name)
        case syntax.Number(value=int(number)):
            return Dim(constant=number)
        case syntax.Negative():
            inner = _affine(expr.operand)
            return inner if isinstance(inner, Diagnostic) else inner.times(-1)
        case syntax.Binary() if expr.operator.name in ("+", "-", "*"):
            return _affine_binary(expr)
        case _:
            help_ = "a dim is made of names and integers by +, - and *, like `2*I` or `H + 1`"
            return error("UEP0206", f"`{syntax.text_of(expr)}` is not a dim", expr.span, "not part of dims", help_)


def _affine_binary(expr: syntax.Binary) -> Dim | Diagnostic:
    left, right = _affine(expr.left), _affine(expr.right)
    if isinstance(left, Diagnostic):
        return left
    if isinstance(right, Diagnostic):
        return right
    if expr.operator.name != "*":
        return left.plus(right if expr.operator.name == "+" else right.times(-1))
    if left.terms and right.terms:
        help_ = "give the product a name of its own, such as `N`, and bind that"
        return error("UEP0206", f"`{syntax.text_of(expr)}` multiplies dims", expr.span, "not affine", help_)
    return left.times(right.constant) if left.terms else right.times(left.constant)


def default_dtype(header: Header) -> tuple[DType, str] | None:
    """The dtype that named values are rounded to, and the parameter that it comes from.

    That is the first parameter of floating point with one row per token or per route: the program's x.
    """
    tokens = token_dims(header)
    for name, type_ in header.params.items():
        match type_:
            case TensorType(shape=(first, *_)) if type_.dtype.is_float and first in tokens:
                return type_.dtype, name
            case RowsType() if type_.dtype.is_float:
                return type_.dtype, name
            case _:
                pass
    return None


def token_dims(header: Header) -> tuple[Dim, ...]:
    """The dims that count tokens: of routes parameters, and of the ids that are routed."""
    found = [type_.tokens for type_ in header.params.values() if isinstance(type_, RoutesType)]
    for call, position in (("route", 0), ("dispatch", 1)):
        for name in _named_arguments(header.decl, call, position, "ids" if call == "route" else "r"):
            match header.params.get(name):
                case TensorType(dtype=dtype, shape=(tokens, *_)) if not dtype.is_float:
                    found.append(tokens)
                case _:
                    pass
    return tuple(dict.fromkeys(found))


def expert_dim(header: Header) -> Dim | None:
    """The dim that counts experts: of routes, of expert weights, or the one called E. None if there is none."""
    for type_ in header.params.values():
        if isinstance(type_, RoutesType):
            return type_.experts
    for name in _named_arguments(header.decl, "group_gemm", 1, "w"):
        match header.params.get(name):
            case TensorType(shape=(experts, _, _)):
                return experts
            case _:
                pass
    for result in header.decl.results:
        if result.name.name == "routes" and len(result.dims) == 3:
            found = _affine(result.dims[2])
            return None if isinstance(found, Diagnostic) else found
    return Dim.of("E") if "E" in header.dims else None


def _named_arguments(decl: MoeDecl, function: str, position: int, keyword: str) -> Iterable[str]:
    """The names that stand as one argument of every call of `function`, in the order of the text."""
    for statement in decl.body:
        values = statement.values if isinstance(statement, syntax.Return) else (statement.value,)
        for expr in (inner for value in values for inner in syntax.walk(value)):
            if isinstance(expr, syntax.Call) and expr.function.name == function:
                for index, argument in enumerate(expr.arguments):
                    wanted = argument.keyword.name == keyword if argument.keyword is not None else index == position
                    if wanted and isinstance(argument.value, syntax.NameExpr):
                        yield argument.value.name
