"""Boxes of memory that tasks touch, in the terms of the plan: rows of an M tile, routes of a lane."""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, equal, minimum
from uniep_compiler.ir.tasks import Access, BiasLoad, Range, RowLoad, RowValue, Store
from uniep_compiler.passes.settings import Settings

TILE = Coord("tile")
FIRST_ROW = Lookup("tile_row", (TILE,))
NUM_ROWS = Lookup("tile_rows", (TILE,))
EXPERT = Lookup("tile_expert", (TILE,))
ROW = FIRST_ROW + Coord("i")
ROUTE_AT = Lookup("route_at", (ROW,))
SOURCE = Lookup("source", (ROW,))
ROWS_OF_TILE = Range(coord="i", extent=NUM_ROWS)
TILES = Range(coord="tile", extent=Sym("num_tiles"))


def tile_access(buffer: str, cols: Expr) -> Access:
    """The rows of the task's own M tile."""
    return Access(buffer=buffer, row=FIRST_ROW, num_rows=NUM_ROWS, num_cols=cols)


def part_access(part: RowLoad | BiasLoad | Store, num_cols: int) -> Access:
    """What a map touches of rows in memory: all columns of a part, or its one number per row."""
    if isinstance(part, Store) and part.summed:
        return tile_access(part.buffer, Int(1))
    box = replace(tile_access(part.buffer, Int(num_cols << part.doubled)), col=Int(part.first))
    return replace(box, row=EXPERT, num_rows=Int(1)) if isinstance(part, BiasLoad) else box


def row_value_access(found: RowValue, topk: int) -> Access:
    """The numbers of the rows of the task's own M tile."""
    if not found.by_route:
        return tile_access(found.buffer, Int(1))
    token, k = ROUTE_AT // topk, ROUTE_AT % topk
    return Access(buffer=found.buffer, row=token, num_rows=Int(1), col=k, num_cols=Int(1), over=(ROWS_OF_TILE,))


def factor_access(found: RowValue, topk: int) -> Access:
    """The numbers of an expert's rows."""
    first, count = Lookup("expert_row", (Coord("expert"),)), Lookup("expert_rows", (Coord("expert"),))
    if not found.by_route:
        return Access(buffer=found.buffer, row=first, num_rows=count, num_cols=Int(1))
    route = Lookup("route_at", (first + Coord("i"),))
    over = (Range(coord="i", extent=count),)
    return Access(buffer=found.buffer, row=route // topk, num_rows=Int(1), col=route % topk, num_cols=Int(1), over=over)


def stored_access(store: Store, per_accumulator: int, num_cols: int) -> Access:
    """What a tile writes of a value: its columns, half or twice as many, or its part of a sum."""
    if store.summed:
        return Access(buffer=store.buffer, row=FIRST_ROW, num_rows=NUM_ROWS, col=Coord("column"), num_cols=Int(1))
    if store.halved:
        return _columns_access(store.buffer, store.first, per_accumulator // 2, num_cols // 2)
    return _columns_access(store.buffer, store.first, per_accumulator << store.doubled, num_cols << store.doubled)


def loaded_access(load: RowLoad, per_accumulator: int, num_cols: int) -> Access:
    """What an epilogue reads of rows in memory: the tile's columns, or twice as many."""
    return _columns_access(load.buffer, load.first, per_accumulator << load.doubled, num_cols << load.doubled)


def _columns_access(buffer: str, start: int, per_tile: int, num_cols: int) -> Access:
    first = Coord("column") * per_tile
    count = minimum(Int(per_tile), Int(num_cols) - first)
    return Access(buffer=buffer, row=FIRST_ROW, num_rows=NUM_ROWS, col=start + first, num_cols=count)


def send_access(
    settings: Settings,
    buffer: str,
    row: Expr,
    cols: Expr,
    *,
    to_peer: bool = False,
    when: Expr | None = None,
    topk: int = 0,
) -> Access:
    """What a lane touches for each of its sends: one row, of its own memory or of the peer's.

    Chunks of sends are dealt to lanes in turn. With `topk`, the row is touched once for each `k` for which `when`
    holds.
    """
    mine = equal((Coord("item") // settings.options.chunk) % settings.lanes, Coord("lane"))
    over = send_ranges(settings.ranks)
    return Access(
        buffer=buffer,
        rank=Coord("peer") if to_peer else None,
        row=row,
        num_rows=Int(1),
        num_cols=cols,
        over=(*over, Range(coord="k", extent=Int(topk))) if topk else over,
        when=mine if when is None else mine * when,
    )


def send_ranges(num_ranks: int) -> tuple[Range, ...]:
    """What lanes walk: every send to every peer."""
    return (
        Range(coord="peer", extent=Int(num_ranks)),
        Range(coord="item", extent=Lookup("send_count", (Coord("peer"),))),
    )
