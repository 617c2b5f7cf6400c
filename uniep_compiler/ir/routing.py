"""The plan in plain Python: every table of `ir/plan_tables.py` for one routing, on every rank.

Clear and slow: the reference that the plan on the device is tested against, and the environment in which index
expressions are evaluated for verification, simulation and pictures. Rows follow UniEP's algorithm 1: they lie in the
order (local expert, source rank, route).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.options import Order, Send

Ids = tuple[tuple[tuple[int, ...], ...], ...]
"""Expert of each route by rank, token and k; -1 where there is none. Ranks may differ in their number of tokens."""


def balanced_placement(experts: int, ranks: int) -> tuple[int, ...]:
    """The default number of experts per rank: as equal as can be, the first ranks with one more."""
    return tuple(experts // ranks + (rank < experts % ranks) for rank in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One valid route at the rank that computes it."""

    expert: int
    source: int
    route: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTile:
    """An M tile: rows `row .. row + rows - 1`, all of one expert (numbered over all ranks)."""

    expert: int
    row: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Who goes where: ids, and the parts of a layer's schedule that the plan depends on.

    `placement` is the number of experts per rank, contiguous. `tight` bounds hold for this routing only; else they hold
    for every routing of as many tokens. `spare` is added to each bound, so that buffers have room that nothing fills.
    """

    ids: Ids
    experts: int
    topk: int
    placement: tuple[int, ...]
    tile_rows: int
    block: int
    send: Send = Send.RANK
    order: Order = Order.PRIORITY
    tight: bool = False
    spare: int = 0

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.placement) or sum(self.placement) != self.experts:
            raise InternalError("a routing needs ids for each rank, and a place for each expert")
        if any(len(token) != self.topk for rank in self.ids for token in rank):
            raise InternalError("a routing needs topk ids for each token")
        if any(not -1 <= e < self.experts for rank in self.ids for token in rank for e in token):
            raise InternalError("an id is neither an expert nor -1")

    # -- the environment of index expressions -----------------------------------------------------------------------

    def symbol(self, name: str, rank: int) -> int:
        """Value of a plan symbol on a rank."""
        return self._symbols[name](rank)

    def lookup(self, table: str, indices: tuple[int, ...], rank: int) -> int:
        """Entry of a plan table on a rank. IndexError if there is no such entry, negative indices included."""
        if not 0 <= rank < self.num_ranks or min(indices, default=0) < 0:
            raise IndexError(f"{table}{list(indices)} of rank {rank}")
        return self._tables[table](rank, *indices)

    @cached_property
    def _symbols(self) -> dict[str, Callable[[int], int]]:
        return {
            "rank": lambda rank: rank,
            "tokens": lambda rank: len(self.ids[rank]),
            "num_tiles": lambda rank: len(self.tiles[rank]),
            "num_rows": lambda rank: len(self.rows[rank]),
            "rows_bound": lambda _: self.rows_bound,
            "tiles_bound": lambda _: self.tiles_bound,
            "tokens_bound": lambda _: self.tokens_bound,
        }

    @cached_property
    def _tables(self) -> dict[str, Callable[..., int]]:
        return {
            "dest": lambda rank, route: self.dest[rank][route],
            "row_of": lambda rank, route: self.row_of[rank][route],
            "tile_of": lambda rank, route: self.tile_of[rank][route],
            "send_count": lambda rank, peer: len(self.sends[rank][peer]),
            "send_item": lambda rank, peer, position: self.sends[rank][peer][position],
            "block_routes": lambda rank, block: self.block_routes[rank][block],
            "tile_expert": lambda rank, tile: self.tiles[rank][tile].expert,
            "tile_row": lambda rank, tile: self.tiles[rank][tile].row,
            "tile_rows": lambda rank, tile: self.tiles[rank][tile].rows,
            "expert_row": lambda rank, expert: self._stretch(rank, expert)[0],
            "expert_rows": lambda rank, expert: self._stretch(rank, expert)[1],
            "source": lambda rank, row: self.rows[rank][row].source,
            "route_at": lambda rank, row: self.rows[rank][row].route,
        }

    # -- bounds -----------------------------------------------------------------------------------------------------

    @property
    def num_ranks(self) -> int:
        """Size of the group."""
        return len(self.placement)

    @property
    def tokens_bound(self) -> int:
        """Largest number of tokens of any rank."""
        return max((len(tokens) for tokens in self.ids), default=0) + self.spare

    @property
    def rows_bound(self) -> int:
        """Rows that a rank gets if every route goes there; or the most that any rank gets."""
        if self.tight:
            return max(map(len, self.rows), default=0) + self.spare
        return self.topk * sum(len(tokens) for tokens in self.ids) + self.spare

    @property
    def tiles_bound(self) -> int:
        """M tiles of `rows_bound` rows, plus a ragged one per expert of a rank; or the most that any rank gets."""
        if self.tight:
            return max(map(len, self.tiles), default=0) + self.spare
        return self.rows_bound // self.tile_rows + max(self.placement, default=0) + self.spare

    # -- who goes where ---------------------------------------------------------------------------------------------

    @cached_property
    def experts_by_route(self) -> tuple[tuple[int, ...], ...]:
        """Expert of each route, by rank and route; -1 where there is none."""
        return tuple(tuple(e for token in tokens for e in token) for tokens in self.ids)

    @cached_property
    def first_expert(self) -> tuple[int, ...]:
        """The first expert of each rank."""
        return tuple(sum(self.placement[:rank]) for rank in range(self.num_ranks))

    @cached_property
    def dest(self) -> tuple[tuple[int, ...], ...]:
        """Rank that computes each route, by rank and route; -1 where there is none."""
        owner = [rank for rank, count in enumerate(self.placement) for _ in range(count)]
        return tuple(tuple(owner[e] if e >= 0 else -1 for e in routes) for routes in self.experts_by_route)

    @cached_property
    def rows(self) -> tuple[tuple[Row, ...], ...]:
        """The rows of each rank, in order."""
        return tuple(tuple(sorted(self._rows_at(rank), key=_row_order)) for rank in range(self.num_ranks))

    def _rows_at(self, rank: int) -> list[Row]:
        return [
            Row(expert=expert, source=source, route=route)
            for source, routes in enumerate(self.experts_by_route)
            for route, expert in enumerate(routes)
            if self.dest[source][route] == rank
        ]

    @cached_property
    def tiles(self) -> tuple[tuple[PlannedTile, ...], ...]:
        """The M tiles of each rank: `tile_rows` rows each, fewer in the last one of an expert."""
        return tuple(tuple(self._tiles_at(rank)) for rank in range(self.num_ranks))

    def _tiles_at(self, rank: int) -> list[PlannedTile]:
        tiles: list[PlannedTile] = []
        first = self.first_expert[rank]
        for expert in range(first, first + self.placement[rank]):
            members = [number for number, row in enumerate(self.rows[rank]) if row.expert == expert]
            for start in range(0, len(members), self.tile_rows):
                count = len(members[start : start + self.tile_rows])
                tiles.append(PlannedTile(expert=expert, row=members[start], rows=count))
        return tiles

    def _stretch(self, rank: int, expert: int) -> tuple[int, int]:
        """First row and number of rows of an expert. IndexError if another rank has it."""
        if not 0 <= expert - self.first_expert[rank] < self.placement[rank]:
            raise IndexError(f"expert {expert} of rank {rank}")
        return self._stretches[expert]

    @cached_property
    def _stretches(self) -> dict[int, tuple[int, int]]:
        """First row and number of rows of each expert, on the rank that has it."""
        stretches: dict[int, tuple[int, int]] = {}
        for rank, rows in enumerate(self.rows):
            sizes = Counter(row.expert for row in rows)
            first = 0
            for expert in range(self.first_expert[rank], self.first_expert[rank] + self.placement[rank]):
                stretches[expert] = first, sizes[expert]
                first += sizes[expert]
        return stretches

    @cached_property
    def row_of(self) -> tuple[tuple[int, ...], ...]:
        """Row of each route on its destination; -1 where there is none."""
        places = {(row.source, row.route): number for rows in self.rows for number, row in enumerate(rows)}
        return self._per_route(places)

    @cached_property
    def tile_of(self) -> tuple[tuple[int, ...], ...]:
        """M tile of each route's row on its destination; -1 where there is none."""
        places = {
            (row.source, row.route): number
            for rows, tiles in zip(self.rows, self.tiles, strict=True)
            for number, tile in enumerate(tiles)
            for row in rows[tile.row : tile.row + tile.rows]
        }
        return self._per_route(places)

    def _per_route(self, values: dict[tuple[int, int], int]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(values.get((rank, route), -1) for route in range(len(routes)))
            for rank, routes in enumerate(self.experts_by_route)
        )

    @cached_property
    def block_routes(self) -> tuple[tuple[int, ...], ...]:
        """Number of valid routes of each block of tokens."""
        return tuple(
            tuple(
                sum(expert >= 0 for token in tokens[first : first + self.block] for expert in token)
                for first in range(0, len(tokens), self.block)
            )
            for tokens in self.ids
        )

    # -- the order of sends -----------------------------------------------------------------------------------------

    @cached_property
    def sends(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """What each rank sends to each peer, in order: tokens, or routes with `send = route`."""
        return tuple(
            tuple(tuple(self._sends_to(rank, peer)) for peer in range(self.num_ranks)) for rank in range(self.num_ranks)
        )

    def _sends_to(self, rank: int, peer: int) -> list[int]:
        routes = [route for route, dest in enumerate(self.dest[rank]) if dest == peer]
        experts = self.experts_by_route[rank]
        match self.send:
            case Send.ROUTE:
                urgency = {route: experts[route] for route in routes}
            case Send.RANK | Send.ALL:
                urgency = {}
                for route in routes:
                    token = route // self.topk
                    urgency[token] = min(experts[route], urgency.get(token, self.experts))
        if self.send is Send.ALL:
            urgency = {token: urgency.get(token, self.experts) for token in range(len(self.ids[rank]))}
        if self.order is Order.FIFO:
            return sorted(urgency)
        return sorted(urgency, key=lambda item: (urgency[item], item))


def _row_order(row: Row) -> tuple[int, int, int]:
    return row.expert, row.source, row.route
