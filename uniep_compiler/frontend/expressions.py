"""Lowers expressions: names, numbers, operators and calls become values of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, Label
from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.builder import Builder, Constant, Result
from uniep_compiler.frontend.calls import fit_call, word_of
from uniep_compiler.frontend.scope import Header, error, expert_dim, suggestion
from uniep_compiler.frontend.sugar import SUGAR
from uniep_compiler.frontend.syntax import Call, Expr
from uniep_compiler.ir.op_table import OPS, OpInfo, Slot, SlotKind
from uniep_compiler.ir.ops import Attr
from uniep_compiler.ir.types import LARGEST_F32, Dim, TensorType
from uniep_compiler.source import Span

Found = Result | Constant | None
"""What an expression gave. None: it is wrong, and the bag says why."""

_OPERATORS: Mapping[str, tuple[str, Callable[[float, float], float]]] = MappingProxyType(
    {"+": ("add", operator.add), "-": ("sub", operator.sub), "*": ("mul", operator.mul)}
)
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "swish": "it is `silu` here",
        "logistic": "it is `sigmoid` here",
        **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "it is `gelu_tanh` here"),
        **dict.fromkeys(("relu_squared", "squared_relu", "sqrelu", "relu_square"), "write `square(relu(v))`"),
        "tanh": "write `2 * sigmoid(2 * v) - 1`",
        **dict.fromkeys(("max", "maximum"), "write `clamp(v, min=c)` with a constant, or `relu(a - b) + b`"),
        **dict.fromkeys(("min", "minimum"), "write `clamp(v, max=c)` with a constant, or `a - relu(a - b)`"),
        "abs": "write `relu(v) + relu(-v)`",
        "clip": "it is `clamp` here",
        "chunk": "it is `split` here",
        **dict.fromkeys(("matmul", "mm", "bmm", "dot", "gemm", "linear", "grouped_mm"), "it is `group_gemm` here"),
        **dict.fromkeys(("permute", "gather", "scatter"), "it is `dispatch` here"),
        "unpermute": "it is `combine` here",
        **dict.fromkeys(
            ("softmax", "topk"), "a router's work is done before the layer, which takes its ids and weights"
        ),
    }
)
"""Names that other libraries have for ops, with what to say about them."""
_CAST = (Slot(name="v"), Slot(name="D"))
FUNCTIONS = (*(info.name for info in OPS.values() if info.surface), *SUGAR, "cast")
"""Every name that a program may call."""
WRITTEN = frozenset({*FUNCTIONS, *(kind for kind, _ in _OPERATORS.values()), "neg", "round", "const"})
"""The ops that programs can write, as a call or otherwise; the others are in backward passes alone."""


@dataclass(slots=True, kw_only=True)
class Scope:
    """The names of a layer: what they stand for, where they were defined, and which were used."""

    values: dict[str, Found] = field(default_factory=dict)
    defined: dict[str, Span] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    nameless: int = 0  # values that should have got a name, where a statement is wrong: each may be an unknown one
    later: Mapping[str, Span] = field(
        default_factory=dict
    )  # where each name is defined first, all statements considered


@dataclass(slots=True, kw_only=True)
class Expressions:
    """Lowers the expressions of one layer into `builder`."""

    header: Header
    builder: Builder
    scope: Scope
    bag: DiagnosticBag
    routed: dict[str, Result] = field(default_factory=dict)  # routes made for `dispatch(x, ids)`, by the ids
    num_experts: Dim | None = field(init=False)

    def __post_init__(self) -> None:
        self.num_experts = expert_dim(self.header)

    def wrong(self, code: str, message: str, span: Span, label: str, help_: str = "") -> None:
        """Adds an error."""
        self.bag.add(error(code, message, span, label, help_))

    def lower(self, expr: Expr) -> Found:
        """What `expr` gives."""
        match expr:
            case syntax.NameExpr():
                return self._name(expr)
            case syntax.Number():
                return Constant(value=float(expr.value), span=expr.span)
            case syntax.Call():
                return self._call(expr)
            case syntax.Negative():
                return self._negative(expr)
            case syntax.Binary():
                return self._binary(expr)
            case syntax.TupleExpr():
                self.wrong("UEP0209", "a tuple is not a value", expr.span, "several values", "use one of them")
                return None
            case _:
                assert_never(expr)

    def lower_all(self, expr: Expr) -> tuple[Found, ...] | None:
        """What the right side of a statement gives, which may be several values; None if it is wrong."""
        if isinstance(expr, Call):
            info = OPS.get(expr.function.name)
            if info is not None and info.surface and info.num_results > 1:
                return self._call_op(expr, info)
        found = self.lower(expr)
        return None if found is None else (found,)

    def _name(self, expr: syntax.NameExpr) -> Found:
        self.scope.used.add(expr.name)
        if expr.name not in self.scope.values:
            if self._is_nameless(expr.name):
                self.scope.nameless -= 1
            else:
                self.bag.add(self._unknown(expr))
            self.scope.values[expr.name] = None  # said once
        found = self.scope.values[expr.name]
        match found:
            case Result():
                return Result(handle=found.handle, rounded=found.rounded, span=expr.span)
            case Constant():
                return Constant(value=found.value, span=expr.span)
            case None:
                return None

    def _is_nameless(self, name: str) -> bool:
        """Whether an unknown name may be that of a value that got none: the error about its statement is enough."""
        near = name in self.scope.later or name in self.header.dims or suggestion(name, self.scope.defined)
        return self.scope.nameless > 0 and not near

    def _unknown(self, expr: syntax.NameExpr) -> Diagnostic:
        name, scope = expr.name, self.scope
        if name in scope.later:
            labels = (
                Label(span=expr.span, text="used here"),
                Label(span=scope.later[name], text="defined only here", primary=False),
            )
            message, help_ = f"`{name}` is used before it is defined", "statements run in order: move the definition up"
            return Diagnostic(code="UEP0201", message=message, labels=labels, help=help_)
        if name in self.header.dims:
            help_ = "expressions are made of values and constants; dims stand in types and conditions"
            return error("UEP0201", f"`{name}` is a dim, not a value", expr.span, "not a value", help_)
        return self._similar(expr, suggestion(name, scope.defined))

    def _similar(self, expr: syntax.NameExpr, help_: str) -> Diagnostic:
        labels = [Label(span=expr.span, text="not defined in this layer")]
        if help_:
            near = self.scope.defined[help_.split("`")[1]]
            labels.append(Label(span=near, text="a value with a similar name is defined here", primary=False))
        help_ = help_ or "define it above, or add it to the layer's parameters"
        return Diagnostic(code="UEP0201", message=f"unknown value `{expr.name}`", labels=tuple(labels), help=help_)

    def _negative(self, expr: syntax.Negative) -> Found:
        operand = self.lower(expr.operand)
        if isinstance(operand, Constant):
            return Constant(value=-operand.value, span=expr.span)
        return self.builder.emit_one("neg", (operand,), expr.span)

    def _binary(self, expr: syntax.Binary) -> Found:
        left, right = self.lower(expr.left), self.lower(expr.right)
        if expr.operator.name not in _OPERATORS:
            help_ = _no_division(right) if expr.operator.name == "/" else "it is for conditions on dims only"
            message = f"`{expr.operator.name}` is not an operator of values"
            self.wrong("UEP0223", message, expr.operator.span, "expected `+`, `-` or `*`", help_)
            return None
        kind, fold = _OPERATORS[expr.operator.name]
        if isinstance(left, Constant) and isinstance(right, Constant):
            return self._folded(fold(left.value, right.value), expr.span)
        return self.builder.emit_one(kind, (left, right), expr.span)

    def _folded(self, value: float, span: Span) -> Constant | None:
        if abs(value) <= LARGEST_F32:
            return Constant(value=value, span=span)
        help_ = f"the largest f32 is {LARGEST_F32:.1e}"
        self.wrong("UEP0106", "these constants come to a number that is too large", span, "does not fit f32", help_)
        return None

    def _call(self, call: Call) -> Result | None:
        name = call.function.name
        if name == "cast":
            return self._cast(call)
        if name in SUGAR:
            return self._call_sugar(call)
        info = OPS.get(name)
        if info is None or not info.surface:
            help_ = _meant(name) if info is None else _not_by_name(info)
            self.wrong("UEP0203", f"unknown op `{name}`", call.function.span, "not an op", help_)
            self.mark_used(call)
            return None
        if info.num_results > 1:
            help_ = f"give them names: `a, b = {syntax.text_of(call)}`"
            self.wrong("UEP0213", f"`{name}` gives {info.num_results} values", call.span, "one is needed here", help_)
            self.mark_used(call)
            return None
        found = self._call_op(call, info)
        return found[0] if found is not None else None

    def mark_used(self, expr: Expr) -> None:
        """Takes every name in `expr` as used, where it is not lowered."""
        self.scope.used.update(inner.name for inner in syntax.walk(expr) if isinstance(inner, syntax.NameExpr))

    def _call_op(self, call: Call, info: OpInfo) -> tuple[Result, ...] | None:
        arguments = self._arguments(call, info.slots, info.signature)
        if arguments is None:
            return None
        operands, attrs = arguments
        if info.name == "route":
            experts = self._experts(call.span)
            if experts is None:
                return None
            attrs = {"experts": experts}
        if info.name == "dispatch":
            routes = self._routes_of(operands[1])
            if routes is None:
                return None
            operands = (operands[0], routes)
        return self.builder.emit(info.name, operands, call.span, attrs)

    def _call_sugar(self, call: Call) -> Result | None:
        sugar = SUGAR[call.function.name]
        arguments = self._arguments(call, sugar.slots, sugar.signature)
        if arguments is None:
            return None
        (operand,), attrs = arguments
        return sugar.expand(self.builder, operand, attrs, call.span)

    def _cast(self, call: Call) -> Result | None:
        fit = fit_call(call, _CAST, "cast(v, D)")
        self.bag.extend(fit.problems)
        if fit.problems:
            self.mark_used(call)
            return None
        value, word = self._operand(fit.arguments["v"], _CAST[0], call), fit.arguments["D"]
        dtype = self.header.dtype_in_body(syntax.Ident(name=syntax.text_of(word), span=word.span))
        if dtype is not None and not dtype.is_float:
            self.wrong(
                "UEP0208",
                f"values cannot be cast to {dtype}",
                word.span,
                "not floating point",
                "cast to `bf16`, `f16` or `f32`",
            )
        if value is None or dtype is None or not dtype.is_float:
            return None
        return self.builder.round(value, dtype, call.span)

    def _arguments(
        self, call: Call, slots: tuple[Slot, ...], signature: str
    ) -> tuple[tuple[Result, ...], dict[str, Attr]] | None:
        """The operands and attributes of a call; None if something is wrong with it."""
        fit = fit_call(call, slots, signature)
        self.bag.extend(fit.problems)
        if fit.problems:
            self.mark_used(call)
            return None
        operands: list[Result | None] = []
        attrs: dict[str, Attr | None] = {}
        for slot in slots:
            expr = fit.arguments.get(slot.name)
            if slot.kind in (SlotKind.VALUE, SlotKind.WEIGHT):
                operands.extend([] if expr is None else [self._operand(expr, slot, call)])
                attrs.update({slot.name: expr is not None} if slot.flag else {})
            elif expr is not None:
                attrs[slot.name] = self._attribute(expr, slot, call)
            elif slot.default is not None:
                attrs[slot.name] = slot.default if slot.kind is SlotKind.WORD else float(slot.default)
        solid = tuple(operand for operand in operands if operand is not None)
        known = {name: value for name, value in attrs.items() if value is not None}
        return (solid, known) if len(solid) == len(operands) and len(known) == len(attrs) else None

    def _operand(self, expr: Expr, slot: Slot, call: Call) -> Result | None:
        found = self.lower(expr)
        if isinstance(found, Constant):
            message = f"`{call.function.name}` takes a value for `{slot.name}`, not a constant"
            self.wrong("UEP0209", message, expr.span, "this is a constant", "constants stand beside operators: `2 * v`")
            return None
        if found is not None and slot.kind is SlotKind.WEIGHT and not self.builder.is_param(found):
            message = f"`{slot.name}` of `{call.function.name}` is not a parameter"
            help_ = "weights of experts are sharded over ranks as they come in, so they are taken as they are"
            self.wrong("UEP0214", message, expr.span, "expected a parameter", help_)
            return None
        return found

    def _attribute(self, expr: Expr, slot: Slot, call: Call) -> Attr | None:
        if slot.kind is SlotKind.WORD:
            word = word_of(expr, slot, call.function.name)
            if isinstance(word, Diagnostic):
                self.bag.add(word)
                return None
            return word
        found = self.lower(expr)
        if isinstance(found, Result):
            message = f"`{slot.name}` of `{call.function.name}` is not a constant"
            self.wrong("UEP0209", message, expr.span, "expected a number", "write the number itself")
            return None
        if found is not None and slot.positive and found.value <= 0:
            message = f"`{slot.name}` of `{call.function.name}` is {found.value:g}"
            help_ = f"it is {slot.default}, if you leave it out"
            self.wrong("UEP0204", message, expr.span, "expected a positive number", help_)
            return None
        return found.value if found is not None else None

    def _experts(self, span: Span) -> str | None:
        if self.num_experts is None:
            help_ = "use the routes in a `group_gemm`, or declare them in the header as `routes[T, K, E]`"
            self.wrong("UEP0215", "nothing says how many experts there are", span, "routes to what?", help_)
            return None
        return str(self.num_experts)

    def _routes_of(self, found: Result) -> Result | None:
        """The routes of ids, for `dispatch(x, ids)`; anything else as it is."""
        match self.builder.types[found.handle]:
            case TensorType(dtype=dtype) if not dtype.is_float:
                return self._route(found)
            case _:
                return found

    def _route(self, ids: Result) -> Result | None:
        if ids.handle not in self.routed:
            experts = self._experts(ids.span)
            routes = self.builder.emit("route", (ids,), ids.span, {"experts": experts}) if experts else None
            if routes is None:
                return None
            self.routed[ids.handle] = routes[0]
        return Result(handle=self.routed[ids.handle].handle, rounded=True, span=ids.span)


def _no_division(divisor: Found) -> str:
    if isinstance(divisor, Constant) and abs(divisor.value) >= 1 / LARGEST_F32:
        return f"multiply by the inverse instead: `* {1 / divisor.value:.17g}`"
    return "values are not divided by values; what needs that can be computed in PyTorch, and come in as a parameter"


def _not_by_name(info: OpInfo) -> str:
    """What to say of an op that has a name and is not called by it."""
    if info.name in WRITTEN:
        return f"write `{info.signature}`"
    return "only backward passes have an op of that name; `uniepc ops` lists those that programs can write"


def _meant(name: str) -> str:
    """What may have been meant by the name of an op that there is not."""
    plain = name.lower()
    if plain in FUNCTIONS:
        return f"did you mean `{plain}`?"
    return _OTHER_NAMES.get(plain) or suggestion(plain, FUNCTIONS) or "`uniepc ops` lists them all"
