"""The plan's tables as the index language sees them: names, arguments and meanings.

A *route* `q` of a rank is `token * topk + k`. A *row* is one valid route at the rank that computes it. Rows of a rank
lie in (local expert, source rank, route) order, without gaps: the order that one big rank would have used (UniEP,
algorithm 1). What proofs may assume of these tables stands in `verify/facts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """A table of integers that the plan fills, or that ranks exchange."""

    name: str
    arguments: tuple[str, ...]
    meaning: str


PLAN_TABLES: tuple[PlanTable, ...] = (
    PlanTable(name="dest", arguments=("route",), meaning="rank that computes the route; -1 where its id is -1"),
    PlanTable(name="row_of", arguments=("route",), meaning="row of the route there; -1 where its id is -1"),
    PlanTable(name="tile_of", arguments=("route",), meaning="M tile of the route's row on its destination"),
    PlanTable(name="send_count", arguments=("peer",), meaning="number of sends to a peer"),
    PlanTable(name="send_item", arguments=("peer", "position"), meaning="token or route that is sent"),
    PlanTable(name="block_routes", arguments=("block",), meaning="number of valid routes of a block of tokens"),
    PlanTable(name="tile_expert", arguments=("tile",), meaning="expert of the tile"),
    PlanTable(name="tile_row", arguments=("tile",), meaning="first row of the tile"),
    PlanTable(name="tile_rows", arguments=("tile",), meaning="number of rows of the tile, at least 1"),
    PlanTable(name="expert_row", arguments=("expert",), meaning="first row of the expert, on the rank that has it"),
    PlanTable(name="expert_rows", arguments=("expert",), meaning="number of rows of the expert"),
    PlanTable(name="source", arguments=("row",), meaning="rank that the row's token came from"),
    PlanTable(name="route_at", arguments=("row",), meaning="route of the row, on the rank it came from"),
)

PLAN_SYMBOLS: dict[str, str] = {
    "rank": "the own rank",
    "tokens": "number of tokens of the rank",
    "num_tiles": "number of M tiles of the rank",
    "num_rows": "number of rows of the rank",
    "rows_bound": "rows that row buffers have room for, on every rank",
    "tiles_bound": "M tiles that tile tables have room for, on every rank",
    "tokens_bound": "largest number of tokens of any rank",
}
