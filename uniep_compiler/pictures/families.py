"""The picture of a task graph: families by role, with buffers, signals and launches, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import BufferKind, Role, TaskGraph
from uniep_compiler.pictures.diagram import Diagram, Flow, Group, Item, Link, Shape, diagram, name_of
from uniep_compiler.pictures.layout import Box, Layout, Point, Rect, place
from uniep_compiler.pictures.legend import LegendKey, legend, legend_size
from uniep_compiler.pictures.style import style_sheet
from uniep_compiler.pictures.svg import (
    LINE,
    SMALL,
    document,
    element,
    number,
    shorten,
    text,
    text_width,
    title,
)

_MARGIN = 24.0
_PADDING = 10.0
_GUTTER = 34.0  # left of everything, where the names of launches stand
_HEADING = 40.0
_ROW_GAP = 34.0
_LAUNCH_GAP = 26.0
_LEGEND_GAP = 40.0
_MAX_CHARACTERS = 46


def families_svg(schedule: Schedule, name: str) -> str:
    """The picture as SVG. `name` stands above it."""
    shown = diagram(schedule)
    layout = place([_box(item) for item in shown.items], [(w.source, w.target) for w in shown.links], _row_gaps(shown))
    top = _MARGIN + _HEADING
    left = _MARGIN + _GUTTER
    key = _key(schedule.graph, shown)
    key_width, key_height = legend_size(key)
    width = max(left + layout.width + _GUTTER, _MARGIN + text_width(name, 15.0), _MARGIN + key_width) + _MARGIN
    height = top + layout.height + _LEGEND_GAP + key_height + _MARGIN
    body = [
        element("rect", class_="u-page", width=width, height=height),
        text(name, _MARGIN, _MARGIN + 16, class_="u-heading"),
        element(
            "g",
            "\n",
            *(f"{piece}\n" for piece in _drawing(shown, layout)),
            transform=f"translate({number(left)} {number(top)})",
        ),
        *legend(key, x=_MARGIN, y=top + layout.height + _LEGEND_GAP),
    ]
    return document(width, height, name, style_sheet(), body)


def _key(graph: TaskGraph, shown: Diagram) -> LegendKey:
    """What the legend has to explain."""
    present = {family.role for family in graph.families}
    return LegendKey(
        roles=tuple(role for role in Role if role in present),
        symmetric=any(buffer.kind is BufferKind.SYMMETRIC for buffer in graph.buffers),
        signals=bool(graph.signals),
        remote=any(link.remote for link in shown.links),
    )


def _drawing(shown: Diagram, layout: Layout) -> Iterator[str]:
    for group in shown.groups:
        yield _launch(group, layout)
    for link in shown.links:
        yield _wire(link, layout.wires[link.source, link.target])
    for item in shown.items:
        yield _item(item, layout.boxes[item.id])


# -- sizes ------------------------------------------------------------------------------------------------------------


def _box(item: Item) -> Box:
    first = text_width(item.name) + (text_width(item.note, SMALL) + 14 if item.note else 0)
    rest = [text_width(shorten(line, _MAX_CHARACTERS), SMALL) for line in item.lines]
    slant = 10.0 if item.shape is Shape.SIGNAL else 0.0
    return Box(
        name=item.id,
        row=item.row,
        width=max(first, *rest) + 2 * (_PADDING + slant),
        height=LINE * (1 + len(item.lines)) + _PADDING,
    )


def _row_gaps(shown: Diagram) -> dict[int, float]:
    """More room where a launch begins or ends, for its frame."""
    rows = [item.row for item in shown.items]
    gaps = dict.fromkeys(range(min(rows, default=0), max(rows, default=-1) + 1), _ROW_GAP)
    for group in shown.groups:
        gaps[group.first] = gaps.get(group.first, 0.0) + _LAUNCH_GAP
        gaps[group.last + 1] = gaps.get(group.last + 1, 0.0) + _LAUNCH_GAP
    return gaps


# -- what is drawn ----------------------------------------------------------------------------------------------------


def _launch(group: Group, layout: Layout) -> str:
    """A frame around the rows of a launch, with its name upright at the left, where no wire passes."""
    top = layout.rows[group.first].y - _LAUNCH_GAP / 1.5
    bottom = layout.rows[group.last].bottom + _LAUNCH_GAP / 1.5
    frame = element(
        "rect",
        class_="u-launch",
        x=-_GUTTER + 2,
        y=top,
        width=layout.width + 2 * _GUTTER - 4,
        height=bottom - top,
        rx=10.0,
    )
    middle = (top + bottom) / 2
    name = text(
        group.name,
        -_GUTTER + 20,
        middle,
        class_="u-launch-name",
        text_anchor="middle",
        transform=f"rotate(-90 {number(-_GUTTER + 20)} {number(middle)})",
    )
    return element("g", frame, name)


def _item(item: Item, rect: Rect) -> str:
    whole = title("\n".join([f"{item.name} ({item.note or item.kind})", *item.lines]))
    lines = [text(item.name, *_at(item, rect, 0), class_="u-name")]
    if item.note:
        inset = _inset(item)
        y = rect.y + _PADDING / 2 + LINE - 4
        style = "u-role" if item.shape is Shape.FAMILY else "u-small"
        lines.append(text(item.note, rect.right - inset, y, class_=style, text_anchor="end", font_size=SMALL))
    for row, line in enumerate(item.lines, 1):
        lines.append(text(shorten(line, _MAX_CHARACTERS), *_at(item, rect, row), class_="u-small"))
    return element("g", whole, _outline(item, rect), *lines, class_=f"u-{item.shape} u-{item.kind}", id=item.id)


def _inset(item: Item) -> float:
    return _PADDING + (10.0 if item.shape is Shape.SIGNAL else 0.0)


def _at(item: Item, rect: Rect, row: int) -> Point:
    return rect.x + _inset(item), rect.y + _PADDING / 2 + LINE * (row + 1) - 4


def _outline(item: Item, rect: Rect) -> str:
    """Families have corners, buffers round ones, signals points."""
    if item.shape is Shape.SIGNAL:
        middle, x, y, right, bottom = rect.y + rect.height / 2, rect.x, rect.y, rect.right, rect.bottom
        corners = [(x, middle), (x + 10, y), (right - 10, y), (right, middle), (right - 10, bottom), (x + 10, bottom)]
        return element("polygon", class_="u-box", points=" ".join(f"{number(a)},{number(b)}" for a, b in corners))
    return element(
        "rect",
        class_="u-box",
        x=rect.x,
        y=rect.y,
        width=rect.width,
        height=rect.height,
        rx=4.0 if item.shape is Shape.FAMILY else 14.0,
    )


def _wire(link: Link, points: tuple[Point, ...]) -> str:
    """A line that bends between rows, with a tip at its end."""
    down = 1.0 if points[-1][1] >= points[0][1] else -1.0
    end = (points[-1][0], points[-1][1] - 7 * down)
    signal = link.flow in (Flow.POST, Flow.WAIT)
    names = " → ".join(name_of(part) for part in (link.source, link.target))
    line = element(
        "path",
        title(f"{link.flow}: {names}{' of any rank' if link.remote else ''}"),
        class_=f"u-wire u-{link.flow}" + (" u-remote" if link.remote else ""),
        d=_path((*points[:-1], end)),
    )
    return line + _tip(points[-1], down, "u-tip-signal" if signal else "u-tip")


def _path(points: tuple[Point, ...]) -> str:
    parts = [f"M{number(points[0][0])} {number(points[0][1])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 == x1:
            parts.append(f"V{number(y1)}")
        else:
            middle = number((y0 + y1) / 2)
            parts.append(f"C{number(x0)} {middle} {number(x1)} {middle} {number(x1)} {number(y1)}")
    return "".join(parts)


def _tip(point: Point, down: float, style: str) -> str:
    x, y = point
    corners = [(x, y), (x - 4, y - 8 * down), (x + 4, y - 8 * down)]
    return element("polygon", class_=style, points=" ".join(f"{number(a)},{number(b)}" for a, b in corners))
