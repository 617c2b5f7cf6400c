"""What colours and shapes of a picture mean: the lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from uniep_compiler.ir.tasks import Role
from uniep_compiler.pictures.style import MEANINGS
from uniep_compiler.pictures.svg import SMALL, element, number, text, text_width

LINE_HEIGHT = 20.0
_SAMPLE = 34.0
_COLUMN_GAP = 30.0

_Entry = tuple[str, str]
"""A sample, drawn from (0, 0) to (26, 12), and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendKey:
    """What there is to explain."""

    roles: tuple[Role, ...]
    symmetric: bool
    signals: bool
    remote: bool

    def columns(self) -> tuple[list[_Entry], list[_Entry]]:
        """Roles, and shapes beside them."""
        return list(_roles(self.roles)), list(_shapes(self))


def legend(key: LegendKey, *, x: float, y: float) -> Iterator[str]:
    """The legend as SVG, from its upper left corner."""
    for column in key.columns():
        for row, (sample, meaning) in enumerate(column):
            top = y + row * LINE_HEIGHT
            yield element("g", sample, transform=f"translate({number(x)} {number(top)})")
            yield text(meaning, x + _SAMPLE, top + 10, class_="u-small")
        x += _width(column) + _COLUMN_GAP


def legend_size(key: LegendKey) -> tuple[float, float]:
    """Width and height of the legend."""
    columns = key.columns()
    return sum(map(_width, columns)) + _COLUMN_GAP, max(map(len, columns)) * LINE_HEIGHT


def _width(column: list[_Entry]) -> float:
    return _SAMPLE + max((text_width(meaning, SMALL) for _, meaning in column), default=0.0)


def _roles(roles: Iterable[Role]) -> Iterator[_Entry]:
    for role in roles:
        sample = element("rect", class_="u-box", width=26.0, height=12.0, rx=3.0)
        yield element("g", sample, class_=f"u-{role}"), f"{role}: {MEANINGS[role]}"


def _shapes(key: LegendKey) -> Iterator[_Entry]:
    yield _buffer("workspace"), "buffer; white ones are arguments and results"
    if key.symmetric:
        yield _buffer("symmetric"), "buffer that other ranks write to"
    yield _line("u-read"), "reads and writes"
    if key.signals:
        points = "0,6 6,0 20,0 26,6 20,12 6,12"
        signal = element("g", element("polygon", class_="u-box", points=points), class_="u-signal")
        yield signal, "signal: counters; who waits for one goes on when it is ≥ its target"
        yield _line("u-post"), "posts and waits"
    if key.remote:
        yield _line("u-read u-remote"), "may lead to another rank"


def _buffer(kind: str) -> str:
    return element("g", element("rect", class_="u-box", width=26.0, height=12.0, rx=6.0), class_=f"u-buffer u-{kind}")


def _line(style: str) -> str:
    return element("path", class_=f"u-wire {style}", d="M0 6H26")
