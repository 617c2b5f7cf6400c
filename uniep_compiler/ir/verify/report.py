"""Diagnostics of the rules: every one names the families it is about, with their places in the program."""

from __future__ import annotations

from uniep_compiler.diagnostics import Diagnostic, Label
from uniep_compiler.ir.tasks import Family
from uniep_compiler.source import NO_SPAN


def about(code: str, message: str, *families: Family, note: str = "", help: str = "") -> Diagnostic:
    """A diagnostic about families: the first is where it points, each has a label."""
    labels = [
        Label(span=family.span, text=f"`{family.name}` makes `{family.value}` here", primary=number == 0)
        for number, family in enumerate(dict.fromkeys(families))
        if family.span != NO_SPAN
    ]
    return Diagnostic(code=code, message=message, labels=tuple(labels), notes=(note,) if note else (), help=help)
