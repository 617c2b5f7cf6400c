"""Where boxes and wires of a layered picture go: boxes stand in rows, and wires lead downwards from row to row.

The usual four steps (Sugiyama, Tagawa, Toda 1981), each in its simplest form: a wire that passes rows gets a narrow box
in each; the order in a row follows the mean of the neighbours; places are the least-squares fit to the neighbours that
keeps that order and a distance; wires end where they can be straight. The same boxes and wires always give the same
places.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

Point = tuple[float, float]

BOX_GAP = 28.0
WIRE_GAP = 14.0
PORT_GAP = 12.0
PORT_MARGIN = 14.0
_ORDER_SWEEPS, _PLACE_SWEEPS = 24, 300
_STRAIGHTNESS = {0: 1.0, 1: 2.0, 2: 8.0}
"""Weight of a piece of wire by how many of its ends are on the way (Gansner et al. 1993)."""
_LOOSE = 0.05
"""Weight of a wire to a box that has no other: it follows, and does not pull the others out of line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What is to be placed: a size, and the row to stand in."""

    name: str
    row: int
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A place: the upper left corner and the size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.y + self.height

    @property
    def centre(self) -> float:
        """The x of the middle."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places of boxes by name, and the points of each wire: it is upright inside rows, and bends between them."""

    boxes: Mapping[str, Rect]
    wires: Mapping[tuple[str, str], tuple[Point, ...]]
    rows: Mapping[int, Rect]
    width: float
    height: float


@dataclass(slots=True, eq=False)
class _Node:
    """A box, or a stretch of a wire through a row (`name` is None). `x` is its middle."""

    name: str | None
    width: float
    row: int
    x: float = 0.0

    @property
    def gap(self) -> float:
        return WIRE_GAP if self.name is None else BOX_GAP


_Rows = dict[int, list[_Node]]
_Chain = list[_Node]
_Neighbours = dict[_Node, list[tuple[_Node, float]]]


def place(boxes: Sequence[Box], wires: Iterable[tuple[str, str]], row_gaps: Mapping[int, float]) -> Layout:
    """Place boxes and wires. `row_gaps` says how far a row stands below the one before it."""
    nodes = {box.name: _Node(box.name, box.width, box.row) for box in boxes}
    rows: _Rows = defaultdict(list)
    for box in boxes:
        rows[box.row].append(nodes[box.name])
    chains = {wire: _chain(nodes[wire[0]], nodes[wire[1]], rows) for wire in dict.fromkeys(wires)}
    neighbours = _neighbours(chains.values())
    _order(rows, neighbours, list(chains.values()))
    _spread_rows(rows, neighbours)
    for chain in chains.values():
        _straighten(chain, rows)
    _move_to_origin(rows)
    bands = _bands(boxes, row_gaps)
    heights = {box.name: box.height for box in boxes}
    places = {name: _rect(node, heights[name], bands[node.row]) for name, node in nodes.items()}
    routes = _routes(chains, places, bands)
    rights = [*(rect.right for rect in places.values()), *(x for points in routes.values() for x, _ in points)]
    return Layout(
        boxes=places,
        wires=routes,
        rows=bands,
        width=max(rights, default=0.0),
        height=max((band.bottom for band in bands.values()), default=0.0),
    )


def _chain(source: _Node, target: _Node, rows: _Rows) -> _Chain:
    """The ends of a wire and its stretches between them, from source to target. They may lead upwards too."""
    step = 1 if target.row >= source.row else -1
    middle = [_Node(None, 1.0, row) for row in range(source.row + step, target.row, step)]
    for node in middle:
        rows[node.row].append(node)
    return [source, *middle, target]


def _neighbours(chains: Iterable[_Chain]) -> _Neighbours:
    """Who is connected to whom in the rows beside it, and how strongly."""
    chains = list(chains)
    degrees = Counter(node for chain in chains for node in (chain[0], chain[-1]))
    found: _Neighbours = defaultdict(list)
    for chain in chains:
        loose = degrees[chain[0]] == 1 or degrees[chain[-1]] == 1
        for one, other in pairwise(chain):
            weight = _LOOSE if loose else _STRAIGHTNESS[(one.name is None) + (other.name is None)]
            found[one].append((other, weight))
            found[other].append((one, weight))
    return found


# -- the order in each row --------------------------------------------------------------------------------------------


def _order(rows: _Rows, neighbours: _Neighbours, chains: Sequence[_Chain]) -> None:
    """Sort rows by the mean place of the neighbours above, then below, and keep the best of what comes up."""
    best = {row: list(nodes) for row, nodes in rows.items()}
    fewest = _crossings(rows, chains)
    for sweep in range(_ORDER_SWEEPS):
        down = sweep % 2 == 0
        for row in sorted(rows, reverse=not down):
            places = {node: i for nodes in rows.values() for i, node in enumerate(nodes)}

            def mean(node: _Node, row: int = row, down: bool = down, places: dict[_Node, int] = places) -> float:
                near = [other for other, _ in neighbours[node] if (other.row < row) == down and other.row != row]
                return sum(places[other] for other in near) / len(near) if near else places[node]

            rows[row].sort(key=mean)
        if (number := _crossings(rows, chains)) < fewest:
            best, fewest = {row: list(nodes) for row, nodes in rows.items()}, number
    rows.update(best)


def _crossings(rows: _Rows, chains: Sequence[_Chain]) -> int:
    places = {node: i for nodes in rows.values() for i, node in enumerate(nodes)}
    pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for chain in chains:
        for one, other in pairwise(chain):
            upper, lower = sorted((one, other), key=lambda node: node.row)
            pieces[upper.row].append((places[upper], places[lower]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0 for row in pieces.values() for i, a in enumerate(row) for b in row[i + 1 :]
    )


# -- places in each row -----------------------------------------------------------------------------------------------


def _spread_rows(rows: _Rows, neighbours: _Neighbours) -> None:
    """Move every node towards its neighbours, keeping order and distances."""
    for sweep in range(_PLACE_SWEEPS):
        for row in sorted(rows, reverse=sweep % 2 == 1):
            nodes = rows[row]
            near = [neighbours[node] for node in nodes]
            weights = [sum(weight for _, weight in found) or 0.01 for found in near]
            wanted = [
                sum(other.x * weight for other, weight in found) / total if found else node.x
                for node, found, total in zip(nodes, near, weights, strict=True)
            ]
            gaps = [(a.width + b.width) / 2 + min(a.gap, b.gap) for a, b in pairwise(nodes)]
            for node, x in zip(nodes, spread(wanted, gaps, weights), strict=True):
                node.x = x


def _straighten(chain: _Chain, rows: _Rows) -> None:
    """Give neighbouring stretches of a wire the same x, as far as there is room for that."""
    run: list[_Node] = []
    low, high = -inf, inf
    for node in chain[1:-1]:
        left, right = _room(node, rows[node.row])
        if max(low, left) > min(high, right):
            _align(run, low, high)
            run, low, high = [], -inf, inf
        run.append(node)
        low, high = max(low, left), min(high, right)
    _align(run, low, high)


def _room(node: _Node, row: list[_Node]) -> tuple[float, float]:
    """Between which x a stretch of wire may be, with what stands beside it."""
    place = row.index(node)
    left = row[place - 1] if place else None
    right = row[place + 1] if place + 1 < len(row) else None
    return (
        -inf if left is None else left.x + left.width / 2 + WIRE_GAP,
        inf if right is None else right.x - right.width / 2 - WIRE_GAP,
    )


def _align(run: Sequence[_Node], low: float, high: float) -> None:
    x = sum(node.x for node in run) / max(len(run), 1)
    for node in run:
        node.x = min(max(x, low), high)


def _move_to_origin(rows: _Rows) -> None:
    left = min((node.x - node.width / 2 for nodes in rows.values() for node in nodes), default=0.0)
    for nodes in rows.values():
        for node in nodes:
            node.x = round(node.x - left, 1)


def spread(wanted: Sequence[float], gaps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The places nearest to those wanted, in weighted squares, with each at least its gap after the one before.

    Isotonic regression, by pooling neighbours that are out of order.
    """
    starts = [0.0]
    for gap in gaps:
        starts.append(starts[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of members
    for want, start, weight in zip(wanted, starts, weights, strict=False):
        mean, total, members = want - start, weight, 1
        while pools and pools[-1][0] > mean:
            other, other_total, others = pools.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total, members = total + other_total, members + others
        pools.append((mean, total, members))
    shifted = [mean for mean, _, members in pools for _ in range(members)]
    return [x + start for x, start in zip(shifted, starts, strict=False)]


def _bands(boxes: Sequence[Box], row_gaps: Mapping[int, float]) -> dict[int, Rect]:
    """Top and height of each row, the empty ones too, which wires may pass."""
    bands: dict[int, Rect] = {}
    y = 0.0
    for row in range(min((box.row for box in boxes), default=0), max((box.row for box in boxes), default=-1) + 1):
        height = max((box.height for box in boxes if box.row == row), default=0.0)
        y += row_gaps.get(row, 0.0) if bands else 0.0
        bands[row] = Rect(x=0.0, y=y, width=0.0, height=height)
        y += height
    return bands


def _rect(node: _Node, height: float, band: Rect) -> Rect:
    """Boxes stand in the middle of their row."""
    return Rect(x=node.x - node.width / 2, y=band.y + (band.height - height) / 2, width=node.width, height=height)


# -- wires ------------------------------------------------------------------------------------------------------------


def _routes(
    chains: Mapping[tuple[str, str], _Chain], places: Mapping[str, Rect], bands: Mapping[int, Rect]
) -> dict[tuple[str, str], tuple[Point, ...]]:
    ports = _ports(chains, places)
    routes = {}
    for wire, chain in chains.items():
        source, target = places[wire[0]], places[wire[1]]
        down = chain[-1].row >= chain[0].row
        xs = [ports[wire, 0], *(node.x for node in chain[1:-1]), ports[wire, 1]]
        points = [(x, y) for x, node in zip(xs, chain, strict=True) for y in _passage(bands[node.row], down)]
        points[0] = (xs[0], source.bottom if down else source.y)
        points[-1] = (xs[-1], target.y if down else target.bottom)
        routes[wire] = tuple(dict.fromkeys(points))
    return routes


def _passage(band: Rect, down: bool) -> tuple[float, float]:
    """Where a wire enters and leaves a row."""
    return (band.y, band.bottom) if down else (band.bottom, band.y)


def _ports(
    chains: Mapping[tuple[str, str], _Chain], places: Mapping[str, Rect]
) -> dict[tuple[tuple[str, str], int], float]:
    """The x where each wire leaves (0) and arrives (1): right under what it leads to, if its box is as wide as that."""
    sides: dict[tuple[str, bool], list[tuple[float, float, tuple[str, str], int]]] = defaultdict(list)
    for wire, chain in chains.items():
        down = chain[-1].row >= chain[0].row
        for end, (own, near) in enumerate(((chain[0], chain[1]), (chain[-1], chain[-2]))):
            assert own.name is not None
            wanted = _overlap(places[own.name], near, places)
            sides[own.name, down == (end == 0)].append((wanted, near.x, wire, end))
    ports: dict[tuple[tuple[str, str], int], float] = {}
    for (name, _), found in sides.items():
        found.sort()
        rect = places[name]
        gap = min(PORT_GAP, (rect.width - PORT_MARGIN) / len(found))
        xs = spread([wanted for wanted, *_ in found], [gap] * (len(found) - 1), [1.0] * len(found))
        for x, (_, _, wire, end) in zip(xs, found, strict=True):
            ports[wire, end] = round(min(max(x, rect.x + 4), rect.right - 4), 1)
    return ports


def _overlap(own: Rect, near: _Node, places: Mapping[str, Rect]) -> float:
    """The x of a box at which a wire to `near` is straight, or as straight as can be."""
    left, right = own.x + PORT_MARGIN, own.right - PORT_MARGIN
    if near.name is not None:
        other = places[near.name]
        low, high = max(left, other.x + PORT_MARGIN), min(right, other.right - PORT_MARGIN)
        if low <= high:
            return (low + high) / 2
    return min(max(near.x, left), right)
