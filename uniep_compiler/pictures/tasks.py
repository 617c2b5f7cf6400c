"""The picture of single tasks under one routing: each at its place in the linear order, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from uniep_compiler.ir.instance import Instance, Task, TaskId, instantiate, linear_order
from uniep_compiler.ir.networkx_view import edges
from uniep_compiler.ir.numbering import num_tasks
from uniep_compiler.ir.routing import Routing
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import TaskGraph
from uniep_compiler.pictures.layout import Point
from uniep_compiler.pictures.style import style_sheet
from uniep_compiler.pictures.svg import SMALL, document, element, number, text, text_width, title

MAX_TASKS = 3000
MAX_EDGES = 20_000

_MARGIN = 24.0
_HEADING = 40.0
_LINE = 22.0
_CELL_HEIGHT = 14.0
_PANEL_GAP = 46.0
_WIDTH = 1100.0
_LEAST, _MOST = 2.0, 22.0  # width of a cell
_WIDE_ENOUGH = 18.0  # for a number


def count_tasks(graph: TaskGraph, routing: Routing) -> int:
    """Tasks of all ranks under a routing."""
    return sum(num_tasks(family, routing, rank) for family in graph.families for rank in range(graph.ranks))


def tasks_svg(schedule: Schedule, routing: Routing, name: str) -> str:
    """The picture as SVG: a panel per rank, a line per family, and time (the order, that is) to the right."""
    order = [linear_order(schedule, routing, rank) for rank in range(schedule.graph.ranks)]
    longest = max(sum(map(len, launches)) for launches in order)
    cell = min(max(_WIDTH / max(longest, 1), _LEAST), _MOST)
    left = _MARGIN + max((text_width(family.name) for family in schedule.graph.families), default=0.0) + 16
    grid = _Grid(schedule=schedule, left=left, cell=cell, order=tuple(order))
    instance = instantiate(schedule, routing)
    links = list(edges(instance))
    note = _note(len(instance.tasks), len(links))
    body = [
        text(name, _MARGIN, _MARGIN + 16, class_="u-heading"),
        *(piece for rank in range(schedule.graph.ranks) for piece in _panel(grid, rank, longest)),
        *(_wires(links, grid) if len(links) <= MAX_EDGES else ()),
        *_cells(grid, instance),
        text(note, _MARGIN, grid.height - 18, class_="u-small"),
    ]
    width = _MARGIN + max(left - _MARGIN + longest * cell, text_width(name, 15.0), text_width(note, SMALL)) + _MARGIN
    page = element("rect", class_="u-page", width=width, height=grid.height)
    return document(width, grid.height, name, style_sheet() + _SHEET, [page, *body])


_SHEET = """\
.u-cell { stroke-width: 0.7 }
.u-number { font-size: 9px; text-anchor: middle }
.u-edge { fill: none; stroke: #be123c; stroke-width: 0.8; stroke-opacity: 0.35 }
.u-far { stroke: #1d4ed8; stroke-opacity: 0.5 }
.u-grid { stroke: #e2e8f0; stroke-width: 1 }
.u-border { stroke: #94a3b8; stroke-width: 1; stroke-dasharray: 4 3 }
"""


def _note(num_tasks: int, num_edges: int) -> str:
    left_out = " (too many to draw)" if num_edges > MAX_EDGES else ""
    waits = f"{num_edges} waits of one for another{left_out}: red on a rank, blue between ranks"
    return f"{num_tasks} tasks, each at its place in its rank's order; {waits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Where panels, lines and tasks are. `order` holds tasks by rank and launch."""

    schedule: Schedule
    left: float
    cell: float
    order: tuple[tuple[tuple[TaskId, ...], ...], ...]

    @property
    def lines(self) -> dict[str, int]:
        return {family.name: line for line, family in enumerate(self.schedule.graph.families)}

    @property
    def panel(self) -> float:
        return len(self.schedule.graph.families) * _LINE + _PANEL_GAP

    @property
    def height(self) -> float:
        return self.top(self.schedule.graph.ranks) + _MARGIN

    def top(self, rank: int) -> float:
        return _MARGIN + _HEADING + 20 + rank * self.panel

    def places(self) -> dict[TaskId, Point]:
        """The upper left corner of each task's cell."""
        lines, found = self.lines, {}
        for rank, launches in enumerate(self.order):
            for place, task in enumerate(task for launch in launches for task in launch):
                found[task] = (
                    self.left + place * self.cell,
                    self.top(rank) + lines[task.family] * _LINE + (_LINE - _CELL_HEIGHT) / 2,
                )
        return found


def _panel(grid: _Grid, rank: int, longest: int) -> Iterator[str]:
    """Names of families, a line for each, and where launches begin."""
    top, right = grid.top(rank), grid.left + longest * grid.cell
    if grid.schedule.graph.ranks > 1:
        yield text(f"rank {rank}", _MARGIN, top - 8, class_="u-launch-name")
    for family, line in grid.lines.items():
        y = top + (line + 0.5) * _LINE
        yield text(family, _MARGIN, y + 4)
        yield element("path", class_="u-grid", d=f"M{number(grid.left)} {number(y)}H{number(right)}")
    x = grid.left
    for launch, tasks in zip(grid.schedule.launches, grid.order[rank], strict=True):
        bottom = top + len(grid.lines) * _LINE
        yield element("path", class_="u-border", d=f"M{number(x)} {number(top - 4)}V{number(bottom)}")
        if tasks:
            yield text(launch.name, x + 3, top - 8, class_="u-small")
        x += len(tasks) * grid.cell


def _cells(grid: _Grid, instance: Instance) -> Iterator[str]:
    roles = {family.name: family.role for family in grid.schedule.graph.families}
    by_family: dict[str, list[str]] = defaultdict(list)
    for task, (x, y) in grid.places().items():
        cell = element(
            "rect",
            title(_describe(instance.tasks[task])),
            class_="u-box u-cell",
            x=x,
            y=y,
            width=grid.cell - min(1.0, grid.cell / 4),
            height=_CELL_HEIGHT,
        )
        by_family[task.family].append(cell)
        if grid.cell >= _WIDE_ENOUGH:
            middle = x + (grid.cell - 1) / 2
            by_family[task.family].append(text(str(task.index), middle, y + 10.5, class_="u-number"))
    for family, cells in by_family.items():
        yield element("g", *cells, class_=f"u-{roles[family]}")


def _describe(task: Task) -> str:
    """The id of a task, its coordinates, and what it waits for and posts."""
    waits = [f"waits {w.signal}[{w.index}] ≥ {w.target}" for step in task.steps for w in step.waits]
    posts = dict.fromkeys(f"posts {p.signal}[{p.index}] of rank {p.rank}" for step in task.steps for p in step.posts)
    coords = ", ".join(f"{name} = {value}" for name, value in task.coords.items())
    return "\n".join([f"{task.id}: {coords}", *waits, *list(posts)[:8]])


def _wires(links: list[tuple[TaskId, TaskId, str]], grid: _Grid) -> Iterator[str]:
    """One path for each signal, near and far."""
    places, half = grid.places(), (grid.cell - 1) / 2
    paths: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for poster, waiter, signal in dict.fromkeys(links):
        (x0, y0), (x1, y1) = places[poster], places[waiter]
        start, end = (y0 + _CELL_HEIGHT, y1) if y1 > y0 else (y0, y1 + _CELL_HEIGHT)
        bend = (start + end) / 2
        paths[signal, poster.rank != waiter.rank].append(
            f"M{number(x0 + half)} {number(start)}C{number(x0 + half)} {number(bend)} "
            f"{number(x1 + half)} {number(bend)} {number(x1 + half)} {number(end)}"
        )
    for (signal, far), parts in paths.items():
        yield element("path", title(signal), class_="u-edge u-far" if far else "u-edge", d="".join(parts))
