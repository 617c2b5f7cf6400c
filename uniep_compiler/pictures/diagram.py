"""What a picture of a task graph shows: families, buffers and signals as boxes of text, and the wires between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from uniep_compiler.ir.index import Expr
from uniep_compiler.ir.index_text import print_expr, print_term
from uniep_compiler.ir.schedule import Schedule, families_of
from uniep_compiler.ir.tasks import (
    Body,
    Buffer,
    BufferKind,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    ReduceBody,
    RoutesBody,
    Signal,
    SumBody,
    TaskGraph,
    Wait,
    ZeroBody,
)


class Shape(StrEnum):
    """What a box stands for."""

    FAMILY = "family"
    BUFFER = "buffer"
    SIGNAL = "signal"


class Flow(StrEnum):
    """What a wire stands for."""

    READ = "read"
    WRITE = "write"
    POST = "post"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A box: `name` in its first line, with `note` at the right end of that; `kind` is its role, or kind of buffer."""

    name: str
    shape: Shape
    kind: str
    note: str
    lines: tuple[str, ...]
    row: int

    @property
    def id(self) -> str:
        """A name that no other box has: families, buffers and signals have names of their own."""
        return f"{self.shape}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A wire between the boxes with these ids. `remote` says that it may lead to another rank."""

    source: str
    target: str
    flow: Flow
    remote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A kernel launch, and the rows of its families, first and last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """A picture before anything has a place. Families stand in odd rows; what they share, in even ones."""

    items: tuple[Item, ...]
    links: tuple[Link, ...]
    groups: tuple[Group, ...]


def plain(expr: Expr) -> str:
    """An index expression as people read it."""
    return print_expr(expr).replace("$", "")


def name_of(item: str) -> str:
    """The name in the id of a box."""
    return item.partition(":")[2]


def diagram(schedule: Schedule) -> Diagram:
    """The diagram of a schedule's task graph, with its launches."""
    graph = schedule.graph
    layers = _layers(schedule)
    rows = {name: 2 * layer + 1 for name, layer in layers.items()}
    links = tuple(dict.fromkeys(link for family in graph.families for link in _links(family)))
    items = [
        *(_family_item(family, rows[family.name]) for family in graph.families),
        *(_buffer_item(buffer, _row(f"buffer:{buffer.name}", links, rows)) for buffer in _used(graph, links)),
        *(_signal_item(signal, graph, _row(f"signal:{signal.name}", links, rows)) for signal in graph.signals),
    ]
    return Diagram(items=tuple(items), links=links, groups=tuple(_groups(schedule, rows)))


def _used(graph: TaskGraph, links: Iterable[Link]) -> Iterable[Buffer]:
    ends = {end for link in links for end in (link.source, link.target)}
    return (buffer for buffer in graph.buffers if f"buffer:{buffer.name}" in ends)


# -- layers -----------------------------------------------------------------------------------------------------------


def launch_families(schedule: Schedule) -> dict[str, list[str]]:
    """The families of each launch, in order. One that is in several stands in its first."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for launch in schedule.launches:
        names = dict.fromkeys(name for segment in launch.segments for name in families_of(segment))
        found[launch.name] = [name for name in names if name not in seen]
        seen.update(names)
    return found


def _layers(schedule: Schedule) -> dict[str, int]:
    """The layer of each family: after those it gets data or signals from, and after all earlier launches."""
    import networkx as nx

    flow = nx.DiGraph(_dependences(schedule.graph))
    layers: dict[str, int] = {}
    for names in launch_families(schedule).values():
        first = max(layers.values(), default=-1) + 1
        part = nx.DiGraph()
        part.add_nodes_from(names)
        part.add_edges_from(flow.subgraph(names).edges)
        for layer, generation in enumerate(nx.topological_generations(part), first):
            layers.update(dict.fromkeys(generation, layer))
    return layers


def _dependences(graph: TaskGraph) -> list[tuple[str, str]]:
    """From maker to user, for families in data-flow order: whatever would lead backwards is left out, so no cycle."""
    pairs = []
    for number, maker in enumerate(graph.families):
        made = {access.buffer for access in maker.writes} | {post.signal for post in maker.posts}
        for user in graph.families[number + 1 :]:
            used = {access.buffer for access in user.reads} | {wait.signal for wait in user.waits}
            if made & used:
                pairs.append((maker.name, user.name))
    return pairs


def _row(item: str, links: Iterable[Link], rows: Mapping[str, int]) -> int:
    """The row of a buffer or a signal: below the last that writes it, or else above the first that reads it."""
    makers = [rows[name_of(link.source)] for link in links if link.target == item]
    users = [rows[name_of(link.target)] for link in links if link.source == item]
    return max(makers) + 1 if makers else min(users, default=1) - 1


def _groups(schedule: Schedule, rows: Mapping[str, int]) -> Iterable[Group]:
    for name, families in launch_families(schedule).items():
        inside = [rows[family] for family in families]
        if inside:
            yield Group(name=name, first=min(inside), last=max(inside))


# -- boxes and wires --------------------------------------------------------------------------------------------------


def _links(family: Family) -> Iterable[Link]:
    own = f"{Shape.FAMILY}:{family.name}"
    for access in family.reads:
        yield Link(source=f"buffer:{access.buffer}", target=own, flow=Flow.READ, remote=access.rank is not None)
    for buffer in _operands(family.body):
        yield Link(source=f"buffer:{buffer}", target=own, flow=Flow.READ)
    for wait in family.waits:
        yield Link(source=f"signal:{wait.signal}", target=own, flow=Flow.WAIT)
    for access in family.writes:
        yield Link(source=own, target=f"buffer:{access.buffer}", flow=Flow.WRITE, remote=access.rank is not None)
    for post in family.posts:
        yield Link(source=own, target=f"signal:{post.signal}", flow=Flow.POST, remote=post.rank is not None)


def _operands(body: Body) -> Iterable[str]:
    """Buffers that a body reads which need no access of their own, as nobody writes them: biases."""
    if isinstance(body, GemmBody):
        yield from (part.bias for part in body.accumulators if part.bias is not None)


def _family_item(family: Family, row: int) -> Item:
    where = f", line {family.span.line}" if family.span.line else ""
    lines = (f"makes {family.value}{where}", domain_text(family), body_text(family))
    return Item(
        name=family.name,
        shape=Shape.FAMILY,
        kind=family.role,
        note=family.role,
        lines=tuple(line for line in lines if line),
        row=row,
    )


def domain_text(family: Family) -> str:
    """The tasks of a family: its coordinates with their extents."""
    return ", ".join(f"{part.coord} < {print_term(part.extent).replace('$', '')}" for part in family.domain)


def body_text(family: Family) -> str:
    """What a task of a family does, in a few words."""
    match family.body:
        case GemmBody(tile=tile, gather=gather):
            return f"tile {tile.rows}×{tile.cols}×{tile.depth}{', gathers rows' if gather else ''}"
        case CopyBody(cols=cols, chunk=chunk) | MapBody(cols=cols, chunk=chunk):
            return f"rows of {cols}, {chunk} at a time"
        case OuterBody(tile=tile):
            return f"tile {tile.rows}×{tile.cols}, {tile.depth} rows at a time"
        case SumBody(width=width, depth=depth):
            return f"{width} columns, {depth} rows at a time"
        case ReduceBody(topk=topk, block=block) | RoutesBody(topk=topk, block=block):
            return f"{topk} routes of each of {block} tokens"
        case ZeroBody(cols=cols, chunk=chunk):
            return f"zeros, rows of {cols}, {chunk} at a time"
        case _:
            assert_never(family.body)


def shape_text(buffer: Buffer) -> str:
    """Dtype and shape of a buffer."""
    leading = [str(buffer.experts)] if buffer.experts else []
    return f"{buffer.dtype}[{', '.join([*leading, plain(buffer.rows), plain(buffer.cols)])}]"


def _buffer_item(buffer: Buffer, row: int) -> Item:
    note = "" if buffer.kind is BufferKind.WORKSPACE else str(buffer.kind)
    return Item(name=buffer.name, shape=Shape.BUFFER, kind=buffer.kind, note=note, lines=(shape_text(buffer),), row=row)


def _signal_item(signal: Signal, graph: TaskGraph, row: int) -> Item:
    waits = [(family.name, wait) for family in graph.families for wait in family.waits if wait.signal == signal.name]
    note = f"{signal.scope}, phase {signal.phase}" if signal.phase else str(signal.scope)
    lines = [wait_text(wait) if len(waits) == 1 else f"{name}: {wait_text(wait)}" for name, wait in waits]
    return Item(
        name=signal.name, shape=Shape.SIGNAL, kind=signal.scope, note=note, lines=tuple(dict.fromkeys(lines)), row=row
    )


def wait_text(wait: Wait) -> str:
    """Which counter a wait looks at, and what it has to be at least."""
    return f"[{plain(wait.index)}] ≥ {plain(wait.target)}{', fence' if wait.fence else ''}"
