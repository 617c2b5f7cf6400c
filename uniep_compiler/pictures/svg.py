"""Small pieces of SVG: elements, numbers, and how wide a text is."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

FONT = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
FONT_SIZE = 12.0
SMALL = 10.5
LINE = 16.0

_CHARACTER = 0.615
"""Width of a character by font size: the widest of the fonts above has 0.602."""


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """How wide a text is at the most. The fonts have one width for all characters."""
    return len(text) * size * _CHARACTER


def shorten(text: str, most: int) -> str:
    """The text, cut where it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def number(value: float) -> str:
    """A coordinate, as short as can be."""
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, *children: str, **attributes: object) -> str:
    """An element, of children that are SVG. `class_` stands for `class`, `_` for `-`; None leaves an attribute out."""
    parts = [
        f" {name.rstrip('_').replace('_', '-')}={quoteattr(number(value) if isinstance(value, float) else str(value))}"
        for name, value in attributes.items()
        if value is not None
    ]
    inside = "".join(children)
    return f"<{tag}{''.join(parts)}>{inside}</{tag}>" if inside else f"<{tag}{''.join(parts)}/>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """A text whose baseline starts (or, by `text_anchor`, lies) at a point."""
    return element("text", escape(content), x=float(x), y=float(y), **attributes)


def title(content: str) -> str:
    """What shows when the mouse rests on the element that this is the first child of."""
    return element("title", escape(content))


def document(width: float, height: float, name: str, style: str, body: Iterable[str]) -> str:
    """A whole picture, with what it is for those who can't see it."""
    return (
        element(
            "svg",
            "\n",
            title(name),
            "\n",
            element("style", escape(style)),
            "\n",
            "\n".join(body),
            "\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {number(width)} {number(height)}",
            width=float(width),
            height=float(height),
            role="img",
            font_family=FONT,
            font_size=FONT_SIZE,
        )
        + "\n"
    )
