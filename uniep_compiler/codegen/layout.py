"""Lays out generated source as a formatter would. Templates write lists of items one a line; what fits becomes a line.

value = call(                value = call(first, second)
    first,             =>
    second,
)
"""

from __future__ import annotations

WIDTH = 120
"""Columns of a line at most."""

_INDENT = 4
_BRACKETS = {"(": ")", "[": "]"}


def fit_lines(text: str) -> str:
    """The text with every bracket whose items stand one a line closed on the line that opens it, where that fits."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append(line)
        if line.strip()[:1] in _BRACKETS.values():
            _close(lines)
    return "\n".join(lines)


def _close(lines: list[str]) -> None:
    """Join the last line, which closes a bracket, with those back to where that opens, if they fit on one."""
    margin = _margin(lines[-1])
    start = next((i for i in range(len(lines) - 2, -1, -1) if _margin(lines[i]) <= margin), None)
    if start is None or _BRACKETS.get(lines[start][-1:]) != lines[-1].strip()[0]:
        return
    items = lines[start + 1 : -1]
    if any(_margin(item) != margin + _INDENT or item.lstrip().startswith("#") for item in items):
        return
    opening, inside, closing = lines[start], " ".join(item.strip() for item in items), lines[-1].strip()
    if all(item.endswith(",") for item in items):
        joined = opening + inside.removesuffix(",") + closing
    else:  # an expression in parentheses, which only serve to break the line
        joined = opening[:-1] + inside + closing[1:]
        if len(joined) > WIDTH and margin + _INDENT + len(inside) <= WIDTH:
            lines[start + 1 : -1] = [" " * (margin + _INDENT) + inside]
    if len(joined) <= WIDTH:
        lines[start:] = [joined]


def _margin(line: str) -> int:
    """Columns before the text; of an empty line, more than any."""
    return len(line) - len(line.lstrip()) if line.strip() else WIDTH
