"""Calls that stand for several ops. Each is written here once, as the ops that it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from uniep_compiler.frontend.builder import Builder, Constant, Result
from uniep_compiler.ir.op_table import Slot, SlotKind
from uniep_compiler.ir.ops import Attr
from uniep_compiler.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Sugar:
    """A call that programs may write. `meaning` is the same in the language's own words."""

    name: str
    signature: str
    meaning: str
    slots: tuple[Slot, ...]
    expand: Callable[[Builder, Result, Mapping[str, Attr], Span], Result | None]


_HOW = ("halves", "interleaved")


def _split(builder: Builder, h: Result, attrs: Mapping[str, Attr], span: Span) -> tuple[Result | None, Result | None]:
    found = builder.emit("split", (h,), span, {"how": attrs["how"]})
    return (found[0], found[1]) if found is not None else (None, None)


def _gated(activation: str) -> Callable[[Builder, Result, Mapping[str, Attr], Span], Result | None]:
    def expand(builder: Builder, h: Result, attrs: Mapping[str, Attr], span: Span) -> Result | None:
        gate, up = _split(builder, h, attrs, span)
        return builder.emit_one("mul", (builder.emit_one(activation, (gate,), span), up), span)

    return expand


def _relu2(builder: Builder, h: Result, attrs: Mapping[str, Attr], span: Span) -> Result | None:
    return builder.emit_one("square", (builder.emit_one("relu", (h,), span),), span)


def _swiglu_clamped(builder: Builder, h: Result, attrs: Mapping[str, Attr], span: Span) -> Result | None:
    gate, up = _split(builder, h, attrs, span)
    alpha, limit = float(attrs["alpha"]), float(attrs["limit"])
    gate = builder.emit_one("clamp", (gate,), span, {"max": limit})
    up = builder.emit_one("clamp", (up,), span, {"min": -limit, "max": limit})
    scaled = builder.emit_one("mul", (gate, Constant(value=alpha, span=span)), span)
    swish = builder.emit_one("mul", (gate, builder.emit_one("sigmoid", (scaled,), span)), span)
    return builder.emit_one("mul", (swish, builder.emit_one("add", (up, Constant(value=1.0, span=span)), span)), span)


def _how(default: str) -> Slot:
    return Slot(name="how", kind=SlotKind.WORD, words=_HOW, default=default, optional=True)


_ENTRIES = (
    Sugar(
        name="swiglu",
        signature="swiglu(h, how=halves)",
        meaning="silu(gate) * up, where gate, up = split(h, how)",
        slots=(Slot(name="h"), _how("halves")),
        expand=_gated("silu"),
    ),
    Sugar(
        name="geglu",
        signature="geglu(h, how=halves)",
        meaning="gelu(gate) * up, where gate, up = split(h, how)",
        slots=(Slot(name="h"), _how("halves")),
        expand=_gated("gelu"),
    ),
    Sugar(name="relu2", signature="relu2(h)", meaning="square(relu(h))", slots=(Slot(name="h"),), expand=_relu2),
    Sugar(
        name="swiglu_clamped",
        signature="swiglu_clamped(h, alpha=1.702, limit=7.0, how=interleaved)",
        meaning="g * sigmoid(g * alpha) * (clamp(up, min=-limit, max=limit) + 1), where gate, up = split(h, how) and "
        "g = clamp(gate, max=limit)",
        slots=(
            Slot(name="h"),
            Slot(name="alpha", kind=SlotKind.NUMBER, default="1.702", optional=True, positive=True),
            Slot(name="limit", kind=SlotKind.NUMBER, default="7.0", optional=True, positive=True),
            _how("interleaved"),
        ),
        expand=_swiglu_clamped,
    ),
)

SUGAR: Mapping[str, Sugar] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every such call by its name, besides `cast` and `dispatch(x, ids)`, which lowering knows."""
