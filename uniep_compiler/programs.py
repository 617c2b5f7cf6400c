"""Programs for the expert layers that models have, made from options: `experts(activation="gelu", bias=True)`.

What comes out is an ordinary program: its text is built here and parsed, so errors, source lines and `uniepc show` are
those of a file, and `program.source.text` is a start for one's own. Loads neither torch nor triton.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal

from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.frontend.parse import Program, parse
from uniep_compiler.ir.types import LARGEST_F32

Layout = Literal["nk", "kn"]
"""Weights as `torch.nn.Linear` keeps them, `[E, out, in]`, or transposed, `[E, in, out]`."""

Split = Literal["halves", "interleaved"]
"""Gate columns before up columns, or one of each in turn."""

WeightOn = Literal["combine", "input", "activation"]
"""What the router's weight multiplies: an expert's output, its input, or what goes into its second GEMM."""

Dtype = Literal["bf16", "f16", "f32"]

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "silu": "silu({v})",
        "gelu": "gelu({v})",
        "gelu_tanh": "gelu_tanh({v})",
        "quick_gelu": "{v} * sigmoid(1.702 * {v})",
        "relu": "relu({v})",
        "relu2": "square(relu({v}))",
        "relu6": "clamp({v}, min=0.0, max=6.0)",
        "hardswish": "{v} * clamp({v} + 3.0, min=0.0, max=6.0) * 0.16666666666666666",
        "sigmoid": "sigmoid({v})",
        "tanh": "(2.0 * sigmoid(2.0 * {v}) - 1.0)",
        "identity": "{v}",
    }
)
"""Every activation that has a name, as an expression of the language; `{v}` is what it is applied to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsForm:
    """What an expert layer computes, but for its sizes. Two layers of one form and of the same sizes are the same.

    `activation`: a name of `ACTIVATIONS`, or an expression of the language: over `gate` and `up` if `gated`, else over
    `h`. `limit` bounds the gate from above and the up projection on both sides; `alpha` makes `silu` into
    `g * sigmoid(alpha * g)`; `up_offset` is added to the up projection: gpt-oss has limit 7.0, alpha 1.702 and
    offset 1.0. `separate_gate`: two weights instead of a packed one. `weight_on`: where the router's weight is applied.

    Raises UEP0601 with all options that cannot be, or that do not go together.
    """

    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    layout: Layout = "nk"
    split: Split = "halves"
    separate_gate: bool = False
    weight_on: WeightOn = "combine"
    limit: float | None = None
    alpha: float | None = None
    up_offset: float = 0.0
    dtype: Dtype = "bf16"
    name: str = "experts"

    def __post_init__(self) -> None:
        wrong = list(_types_fit(self)) or [diagnostic for rule in _RULES for diagnostic in rule(self)]
        if wrong:
            raise UniepError(wrong)

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the parameters that hold weights and biases, in the order of the layer's arguments."""
        return tuple(name for name, *_ in _weight_params(self))

    @property
    def text(self) -> str:
        """The program."""
        return "\n".join(_lines(self)) + "\n"

    def program(self) -> Program:
        """The program, parsed."""
        return parse(self.text, name=f"<uniep.programs.{self.name}>")


def experts(
    *,
    activation: str = "silu",
    gated: bool = True,
    bias: bool = False,
    layout: Layout = "nk",
    split: Split = "halves",
    separate_gate: bool = False,
    weight_on: WeightOn = "combine",
    limit: float | None = None,
    alpha: float | None = None,
    up_offset: float = 0.0,
    dtype: Dtype = "bf16",
    name: str = "experts",
) -> Program:
    """The program of an expert layer. Its dims are H (hidden), I (intermediate), E (experts) and K (routes per token).

    The layer takes x[T, H], experts[T, K], weights[T, K], and then the weights, each followed by its bias if there are
    any: w13 and w2; or w1, w3 and w2 with `separate_gate`; or w1 and w2 if not `gated`. `ExpertsForm` says what the
    options mean. Raises UEP0601 for options that do not go together, and the errors of `parse` for an expression.
    """
    return ExpertsForm(
        activation=activation,
        gated=gated,
        bias=bias,
        layout=layout,
        split=split,
        separate_gate=separate_gate,
        weight_on=weight_on,
        limit=limit,
        alpha=alpha,
        up_offset=up_offset,
        dtype=dtype,
        name=name,
    ).program()


# -- the text ----------------------------------------------------------------------------------------------------------


def _lines(form: ExpertsForm) -> Iterable[str]:
    yield "uniep 1"
    yield ""
    yield f"moe {form.name}("
    yield from _aligned(_params(form))
    yield f") -> {form.dtype}[T, H] {{"
    yield from (f"    {line}" for line in _body(form))
    yield "}"


def _params(form: ExpertsForm) -> Iterable[tuple[str, str, str]]:
    yield "x", f"{form.dtype}[T, H]", "this rank's tokens"
    yield "experts", "i32[T, K]", 'expert of each route; -1 means "no expert"'
    yield "weights", "f32[T, K]", "router weight of each route"
    yield from _weight_params(form)


def _weight_params(form: ExpertsForm) -> Iterable[tuple[str, str, str]]:
    """Name, type and comment of each weight and bias."""
    for name, rows, cols, comment in _weights(form):
        size = f"{rows}, {cols}" if form.layout == "nk" else f"{cols}, {rows}"
        yield name, f"{form.dtype}[E, {size}]", comment
        if form.bias:
            yield _bias_of(name), f"{form.dtype}[E, {rows}]", ""


def _weights(form: ExpertsForm) -> Iterable[tuple[str, str, str, str]]:
    """Name, outputs, inputs and comment of each weight."""
    if not form.gated:
        yield "w1", "I", "H", ""
    elif form.separate_gate:
        yield "w1", "I", "H", "gate"
        yield "w3", "I", "H", "up"
    else:
        packed = {"halves": "gate, then up", "interleaved": "gate and up in turn"}
        yield "w13", "2*I", "H", packed[form.split]
    yield "w2", "H", "I", ""


def _bias_of(weight: str) -> str:
    return "b" + weight.removeprefix("w")


def _aligned(params: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    """One parameter a line, types and comments each in a column."""
    rows = [(name, f"{kind},", comment) for name, kind, comment in params]
    names, kinds = (max(len(row[i]) for row in rows) for i in (0, 1))
    for name, kind, comment in rows:
        yield f"    {name:{names}} : {kind:{kinds}}    {'# ' if comment else ''}{comment}".rstrip()


def _body(form: ExpertsForm) -> Iterable[str]:
    yield "r = route(experts)"
    if form.weight_on != "combine":
        yield "p = to_rows(weights, r)"
    yield "xs = dispatch(x, r)" + (" * p" if form.weight_on == "input" else "")
    yield from _first_gemms(form)
    yield from _clamps(form)
    activation = _activation(form)
    if form.weight_on == "activation":
        activation = f"{_in_brackets(activation)} * p"
    yield f"a = {activation}"
    yield f"y = {_gemm(form, 'a', 'w2')}"
    yield "return combine(y, weights)" if form.weight_on == "combine" else "return combine(y)"


def _first_gemms(form: ExpertsForm) -> Iterable[str]:
    if not form.gated:
        yield f"h = {_gemm(form, 'xs', 'w1')}"
    elif form.separate_gate:
        yield f"gate = {_gemm(form, 'xs', 'w1')}"
        yield f"up = {_gemm(form, 'xs', 'w3')}"
    else:
        yield f"h = {_gemm(form, 'xs', 'w13')}"
        yield f"gate, up = split(h, {form.split})"


def _gemm(form: ExpertsForm, rows: str, weight: str) -> str:
    bias = f", bias={_bias_of(weight)}" if form.bias else ""
    layout = f", layout={form.layout}" if form.layout != "nk" else ""
    return f"group_gemm({rows}, {weight}{bias}{layout})"


def _clamps(form: ExpertsForm) -> Iterable[str]:
    if form.limit is not None:
        limit = _constant(form.limit)
        yield f"g : f32 = clamp(gate, max={limit})"
        yield f"u : f32 = clamp(up, min=-{limit}, max={limit})"


def _activation(form: ExpertsForm) -> str:
    """What becomes of the results of the first GEMMs, as one expression."""
    if form.activation not in ACTIVATIONS:
        return form.activation
    gate, up = ("gate", "up") if form.limit is None else ("g", "u")
    template = ACTIVATIONS[form.activation]
    if form.alpha is not None:
        template = f"{{v}} * sigmoid({_constant(form.alpha)} * {{v}})"
    if not form.gated:
        return template.format(v="h")
    offset = f"({up} + {_constant(form.up_offset)})" if form.up_offset else up
    return f"{template.format(v=gate)} * {offset}"


def _constant(number: float) -> str:
    return repr(float(number))


def _in_brackets(expression: str) -> str:
    """The expression as a factor: a sum gets brackets around it."""
    outside, found = expression, 1
    while found:
        outside, found = re.subn(r"\([^()]*\)", "", outside)
    return f"({expression})" if re.search("[-+]", outside) else expression


# -- options that cannot be --------------------------------------------------------------------------------------------


def _types_fit(form: ExpertsForm) -> Iterable[Diagnostic]:
    """Flags are bools, numbers are numbers that f32 has, and the activation and the name are text."""
    for option in ("gated", "bias", "separate_gate"):
        if not isinstance(getattr(form, option), bool):
            yield _wrong(f"{option} is True or False, not {getattr(form, option)!r}")
    for option in ("limit", "alpha", "up_offset"):
        value = getattr(form, option)
        if not (_is_number(value) or (value is None and _DEFAULTS[option] is None)):
            yield _wrong(f"{option} is a number, not {value!r}")
    for option in ("activation", "name"):
        if not isinstance(getattr(form, option), str):
            yield _wrong(f"{option} is text, not {getattr(form, option)!r}")


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and bool(abs(value) <= LARGEST_F32)


def _name_is_a_name(form: ExpertsForm) -> Iterable[Diagnostic]:
    """The program's text has it behind `moe`."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", form.name) is None:
        yield _wrong(f"{form.name!r} cannot be the name of a layer", "use letters, digits and underscores")


def _words_are_known(form: ExpertsForm) -> Iterable[Diagnostic]:
    """Options whose values are words have one of theirs."""
    words = {
        "layout": ("nk", "kn"),
        "split": ("halves", "interleaved"),
        "weight_on": ("combine", "input", "activation"),
        "dtype": ("bf16", "f16", "f32"),
    }
    for option, known in words.items():
        value = getattr(form, option)
        if value not in known:
            yield _wrong(f"{option} is one of {', '.join(known)}, not {value!r}")


def _activation_is_known(form: ExpertsForm) -> Iterable[Diagnostic]:
    """A word alone is the name of an activation; everything else is an expression."""
    if not _is_expression(form) and form.activation not in ACTIVATIONS:
        close = get_close_matches(form.activation, ACTIVATIONS, n=1)
        names = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(ACTIVATIONS)}"
        variables = "`gate` and `up`" if form.gated else "`h`"
        yield _wrong(f"there is no activation {form.activation!r}", f"{names}; or write an expression of {variables}")


def _is_expression(form: ExpertsForm) -> bool:
    return re.fullmatch(r"\s*\w*\s*", form.activation) is None


def _bounds_are_positive(form: ExpertsForm) -> Iterable[Diagnostic]:
    """A limit leaves something between its bounds, and alpha bends the way of silu."""
    for option in ("limit", "alpha"):
        value = getattr(form, option)
        if value is not None and value <= 0:
            yield _wrong(f"{option} is a positive number, not {value!r}")


def _options_of_gates_need_one(form: ExpertsForm) -> Iterable[Diagnostic]:
    """Without a gate there is nothing to split, to keep apart, or to bound."""
    if not form.gated:
        for option in ("split", "separate_gate", "limit", "up_offset"):
            if getattr(form, option) != _DEFAULTS[option]:
                yield _wrong(
                    f"{option}={getattr(form, option)!r} needs gated experts", "leave it out, or say gated=True"
                )
    elif form.separate_gate and form.split != "halves":
        yield _wrong("a gate with a weight of its own is not split off", "leave `split` out")


def _alpha_is_of_silu(form: ExpertsForm) -> Iterable[Diagnostic]:
    """It changes one activation only."""
    if form.alpha is not None and form.activation != "silu":
        yield _wrong(f"alpha belongs to silu, not to {form.activation!r}", "leave it out")


def _expressions_are_complete(form: ExpertsForm) -> Iterable[Diagnostic]:
    """The other options change activations that have a name."""
    for option in ("limit", "up_offset"):
        if _is_expression(form) and getattr(form, option) != _DEFAULTS[option]:
            yield _wrong(f"{option} goes with an activation by name", "write it into the expression")


def _biases_are_weighted(form: ExpertsForm) -> Iterable[Diagnostic]:
    """With the weight on the activation, the second bias would be added unweighted, which no model means."""
    if form.bias and form.weight_on == "activation":
        message = "with weight_on='activation' the bias of the second GEMM would not be weighted"
        yield _wrong(message, "weight_on='combine' weights both, and is the same but for rounding")


def _wrong(message: str, help_text: str = "") -> Diagnostic:
    return Diagnostic(code="UEP0601", message=message, help=help_text)


_DEFAULTS = {field.name: field.default for field in fields(ExpertsForm)}
_RULES: tuple[Callable[[ExpertsForm], Iterable[Diagnostic]], ...] = (
    _name_is_a_name,
    _words_are_known,
    _activation_is_known,
    _bounds_are_positive,
    _options_of_gates_need_one,
    _alpha_is_of_silu,
    _expressions_are_complete,
    _biases_are_weighted,
)
