"""Fits the arguments of a call to the slots of its op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from uniep_compiler.diagnostics import Diagnostic, Label
from uniep_compiler.frontend import syntax
from uniep_compiler.frontend.scope import error, suggestion
from uniep_compiler.frontend.syntax import Argument, Call, Expr
from uniep_compiler.ir.op_table import Slot


@dataclass(slots=True, kw_only=True)
class Fit:
    """The argument of each slot that has one, and what does not fit."""

    arguments: dict[str, Expr] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


def fit_call(call: Call, slots: tuple[Slot, ...], signature: str) -> Fit:
    """Positional arguments go to the slots in order, keywords to the slots of their name."""
    fit = Fit()
    positional = [argument for argument in call.arguments if argument.keyword is None]
    for slot, argument in zip(slots, positional, strict=False):
        fit.arguments[slot.name] = argument.value
    fit.problems.extend(_too_many(call, positional[len(slots) :], len(slots), signature))
    fit.problems.extend(_after_keyword(call, signature))
    for argument in call.arguments:
        if argument.keyword is not None:
            fit.problems.extend(_take_keyword(argument, fit, call, slots))
    missing = [slot for slot in slots if not slot.optional and slot.name not in fit.arguments]
    if missing and not fit.problems:
        fit.problems.append(_missing(call, missing, signature))
    return fit


def _too_many(call: Call, rest: list[Argument], num_slots: int, signature: str) -> Iterable[Diagnostic]:
    if rest:
        message = f"`{call.function.name}` takes at most {num_slots} argument{'s' if num_slots != 1 else ''}"
        yield error("UEP0204", message, rest[0].span, "one too many", f"it is called as `{signature}`")


def _after_keyword(call: Call, signature: str) -> Iterable[Diagnostic]:
    keywords = [index for index, argument in enumerate(call.arguments) if argument.keyword is not None]
    for index, argument in enumerate(call.arguments):
        if argument.keyword is None and keywords and index > keywords[0]:
            message = "an argument without a name behind one with a name"
            yield error("UEP0204", message, argument.span, "has no name", f"it is called as `{signature}`")
            return


def _take_keyword(argument: Argument, fit: Fit, call: Call, slots: tuple[Slot, ...]) -> Iterable[Diagnostic]:
    assert argument.keyword is not None
    name = argument.keyword.name
    names = [slot.name for slot in slots]
    if name not in names:
        help_ = suggestion(name, names) or f"its arguments are {', '.join(f'`{n}`' for n in names)}"
        message = f"`{call.function.name}` has no argument `{name}`"
        yield error("UEP0204", message, argument.keyword.span, "not an argument of it", help_)
    elif name in fit.arguments:
        labels = (
            Label(span=fit.arguments[name].span, text="given here", primary=False),
            Label(span=argument.span, text="and again here"),
        )
        yield Diagnostic(code="UEP0204", message=f"`{name}` is given twice", labels=labels, help="keep one of them")
    else:
        fit.arguments[name] = argument.value


def _missing(call: Call, missing: list[Slot], signature: str) -> Diagnostic:
    words = [f"`{slot.name}`" + (f" ({' or '.join(slot.words)})" if slot.words else "") for slot in missing]
    message = f"`{call.function.name}` needs {', '.join(words)}"
    return error("UEP0204", message, call.span, "not given", f"it is called as `{signature}`")


def word_of(expr: Expr, slot: Slot, function: str) -> str | Diagnostic:
    """The word that stands in `slot`."""
    if isinstance(expr, syntax.NameExpr) and expr.name in slot.words:
        return expr.name
    words = " or ".join(f"`{word}`" for word in slot.words)
    text = syntax.text_of(expr)
    help_ = suggestion(text, slot.words) or f"write {words}"
    return error("UEP0204", f"`{slot.name}` of `{function}` cannot be `{text}`", expr.span, f"expected {words}", help_)
