"""The table of ops. To add one: an entry here, its gradient rule, and its template piece.

`uniepc ops` prints this table, the front end reads calls by it, and the verifier checks graphs by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from uniep_compiler.ir import op_rules
from uniep_compiler.ir.op_rules import Misfit, Problem, Site
from uniep_compiler.ir.ops import Attr, Value
from uniep_compiler.ir.types import Type


class SlotKind(Enum):
    """What stands in one place of a call."""

    VALUE = auto()  # an expression; an operand of the op
    WEIGHT = auto()  # a parameter that is sharded by expert; an operand of the op
    WORD = auto()  # one of some words; an attribute
    NUMBER = auto()  # a constant; an attribute
    DTYPE = auto()  # an element type of floating point; an attribute
    DIM = auto()  # a dim, as text; an attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place of a call. An optional one is given by keyword, and `flag` keeps whether it was as an attribute.

    `positive` is about a number.
    """

    name: str
    kind: SlotKind = SlotKind.VALUE
    words: tuple[str, ...] = ()
    default: str | None = None
    optional: bool = False
    flag: bool = False
    positive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """What there is to know about one kind of op.

    `moves` tells that the numbers of the first operand are only moved: the result is as rounded as that was.
    `surface` tells that programs call it by this name; the others come from operators and from lowering.
    `lowered` are attributes for which nothing stands in a call: lowering knows them.
    """

    name: str
    signature: str
    doc: str
    rule: Callable[[Site], tuple[Type, ...]]
    slots: tuple[Slot, ...] = (Slot(name="v"),)
    lowered: tuple[Slot, ...] = ()
    num_results: int = 1
    moves: bool = False
    surface: bool = True


def _elementwise(name: str, doc: str, *slots: str, surface: bool = True, signature: str = "") -> OpInfo:
    return OpInfo(
        name=name,
        signature=signature or f"{name}({', '.join(slots or ('v',))})",
        doc=doc,
        rule=op_rules.elementwise,
        slots=tuple(Slot(name=slot) for slot in slots or ("v",)),
        surface=surface,
    )


_ROUTES = Slot(name="r")

_ENTRIES = (
    OpInfo(
        name="route",
        signature="route(ids: i32[T, K]) -> routes[T, K, E]",
        doc="The plan of which rows go to which expert; -1 is no expert.",
        rule=op_rules.route,
        slots=(Slot(name="ids"),),
        lowered=(Slot(name="experts", kind=SlotKind.DIM),),
    ),
    OpInfo(
        name="dispatch",
        signature="dispatch(x: D[T, h], r: routes[T, K, E]) -> D[rows(r), h]",
        doc="Each token's row, once per route, to where its expert is. `dispatch(x, ids)` routes first.",
        rule=op_rules.dispatch,
        slots=(Slot(name="x"), _ROUTES),
        moves=True,
    ),
    OpInfo(
        name="to_rows",
        signature="to_rows(v: f32[T, K], r: routes[T, K, E]) -> f32[rows(r)]",
        doc="One number per route, to where the route's row is.",
        rule=op_rules.to_rows,
        slots=(Slot(name="v"), _ROUTES),
        moves=True,
    ),
    OpInfo(
        name="group_gemm",
        signature="group_gemm(rows: D[rows(r), k], w: D[E, n, k], bias=: D[E, n], layout=nk|kn) -> f32[rows(r), n]",
        doc="Each row times its expert's weight, plus its expert's bias; with layout=kn the weight is [E, k, n].",
        rule=op_rules.group_gemm,
        slots=(
            Slot(name="rows"),
            Slot(name="w", kind=SlotKind.WEIGHT),
            Slot(name="bias", kind=SlotKind.WEIGHT, optional=True, flag=True),
            Slot(name="layout", kind=SlotKind.WORD, words=("nk", "kn"), default="nk", optional=True),
        ),
    ),
    OpInfo(
        name="split",
        signature="split(h: D[..., 2*n], halves|interleaved) -> D[..., n], D[..., n]",
        doc="The columns in two: first and second half, or even and odd ones.",
        rule=op_rules.split,
        slots=(Slot(name="h"), Slot(name="how", kind=SlotKind.WORD, words=("halves", "interleaved"))),
        num_results=2,
        moves=True,
    ),
    OpInfo(
        name="combine",
        signature="combine(rows: D[rows(r), h], weights: f32[T, K]) -> f32[T, h]",
        doc="The sum of each token's rows, each times its route's weight if weights are given, in the order of k.",
        rule=op_rules.combine,
        slots=(Slot(name="rows"), Slot(name="weights", optional=True)),
    ),
    OpInfo(
        name="counts",
        signature="counts(r: routes[T, K, E]) -> i32[E]",
        doc="How many routes each expert has.",
        rule=op_rules.counts,
        slots=(_ROUTES,),
    ),
    _elementwise("add", "a + b", "a", "b", surface=False, signature="a + b"),
    _elementwise("sub", "a - b", "a", "b", surface=False, signature="a - b"),
    _elementwise("mul", "a * b", "a", "b", surface=False, signature="a * b"),
    _elementwise("neg", "-v", surface=False, signature="-v"),
    _elementwise("silu", "v * sigmoid(v)"),
    _elementwise("sigmoid", "1 / (1 + exp(-v))"),
    _elementwise("gelu", "v * Phi(v), with the error function"),
    _elementwise("gelu_tanh", "GELU by its approximation with tanh"),
    _elementwise("relu", "max(v, 0); NaN stays NaN"),
    _elementwise("square", "v * v"),
    OpInfo(
        name="clamp",
        signature="clamp(v, min=, max=)",
        doc="v, but at least min and at most max (constants, one of them at least); NaN stays NaN.",
        rule=op_rules.clamp,
        slots=(
            Slot(name="v"),
            Slot(name="min", kind=SlotKind.NUMBER, optional=True),
            Slot(name="max", kind=SlotKind.NUMBER, optional=True),
        ),
    ),
    _elementwise("gelu_slope", "the derivative of gelu", surface=False),
    _elementwise("gelu_tanh_slope", "the derivative of gelu_tanh", surface=False),
    _elementwise("step", "1 if v > 0, else 0", surface=False),
    OpInfo(
        name="within",
        signature="within(v, min=, max=)",
        doc="1 if v is at least min and at most max, else 0.",
        rule=op_rules.clamp,
        slots=(
            Slot(name="v"),
            Slot(name="min", kind=SlotKind.NUMBER, optional=True),
            Slot(name="max", kind=SlotKind.NUMBER, optional=True),
        ),
        surface=False,
    ),
    OpInfo(
        name="join",
        signature="join(a: D[..., n], b: D[..., n], halves|interleaved) -> D[..., 2*n]",
        doc="What `split` takes apart.",
        rule=op_rules.join,
        slots=(
            Slot(name="a"),
            Slot(name="b"),
            Slot(name="how", kind=SlotKind.WORD, words=("halves", "interleaved")),
        ),
        surface=False,
    ),
    OpInfo(
        name="row_sum",
        signature="row_sum(v: D[rows(r), n]) -> f32[rows(r)]",
        doc="The sum of each row.",
        rule=op_rules.row_sum,
        slots=(Slot(name="v"),),
        surface=False,
    ),
    OpInfo(
        name="to_routes",
        signature="to_routes(v: f32[rows(r)]) -> f32[T, K]",
        doc="Each row's number to where its route is; 0 for routes without an expert.",
        rule=op_rules.to_routes,
        slots=(Slot(name="v"),),
        surface=False,
    ),
    OpInfo(
        name="bias_rows",
        signature="bias_rows(bias: D[E, n], r: routes[T, K, E]) -> D[rows(r), n]",
        doc="For each row its expert's bias.",
        rule=op_rules.bias_rows,
        slots=(Slot(name="bias"), _ROUTES),
        surface=False,
    ),
    OpInfo(
        name="group_outer",
        signature="group_outer(a: D[rows(r), n], b: D[rows(r), k]) -> f32[E, n, k]",
        doc="For each expert the sum of its rows' outer products, in the order of rows.",
        rule=op_rules.group_outer,
        slots=(Slot(name="a"), Slot(name="b")),
        surface=False,
    ),
    OpInfo(
        name="group_sum",
        signature="group_sum(rows: D[rows(r), n]) -> f32[E, n]",
        doc="For each expert the sum of its rows, in their order.",
        rule=op_rules.group_sum,
        slots=(Slot(name="rows"),),
        surface=False,
    ),
    OpInfo(
        name="round",
        signature="cast(v, D)",
        doc="The same numbers in another dtype, rounded to nearest, ties to even. Naming a value does it too.",
        rule=op_rules.round_,
        lowered=(Slot(name="dtype", kind=SlotKind.DTYPE),),
        surface=False,
    ),
    OpInfo(
        name="const",
        signature="1.5",
        doc="A number, in f32.",
        rule=op_rules.const,
        slots=(),
        lowered=(Slot(name="value", kind=SlotKind.NUMBER),),
        surface=False,
    ),
)

OPS: Mapping[str, OpInfo] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every kind of op by its name."""


def infer(
    kind: str, operands: tuple[Value, ...], attrs: Mapping[str, Attr], types: Mapping[str, Type]
) -> tuple[Type, ...] | Problem:
    """The types of the results of an op, or why there can be none. `types` holds the type of every value in sight."""
    try:
        return OPS[kind].rule(Site(kind=kind, operands=operands, attrs=attrs, types=types))
    except Misfit as misfit:
        return misfit.problem
