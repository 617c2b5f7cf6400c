"""Leaves `as_int` out of modules that are compiled: only the interpreter tells a scalar from a Python integer.

first = as_int(tl.load(start + rank)) * 2    =>    first = tl.load(start + rank) * 2
"""

from __future__ import annotations

import re

from uniep_compiler.diagnostics import InternalError

_CALL = re.compile(r"\bas_int\(")
_NAME = re.compile(r"[\w.]+")


def without_as_int(text: str) -> str:
    """The text with what `as_int` is called with in place of each call. That has to be a name, a number or a call."""
    parts: list[str] = []
    end = 0
    while call := _CALL.search(text, end):
        close = _closing(text, call.end())
        inside = without_as_int(text[call.end() : close])
        if not _is_operand(inside):
            raise InternalError(f"as_int({inside}) cannot be left out: it would need parentheses")
        parts += [text[end : call.start()], inside]
        end = close + 1
    return "".join((*parts, text[end:]))


def _is_operand(text: str) -> bool:
    name = _NAME.match(text)
    if name is None:
        return False
    rest = text[name.end() :]
    return not rest or (rest[0] == "(" and _closing(rest, 1) == len(rest) - 1)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that was opened before `start` is closed."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise InternalError(f"a parenthesis is not closed: {text[start : start + 80]}")
