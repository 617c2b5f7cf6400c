"""The plan in plain Python, against rows worked out by hand and against what every plan has to satisfy."""

from __future__ import annotations

import pytest

from tests.schedules import build, random_routing
from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.plan_tables import PLAN_SYMBOLS, PLAN_TABLES
from uniep_compiler.ir.routing import Routing, balanced_placement
from uniep_compiler.options import Order, Send


def small(**changes):
    """Two ranks with two experts each; rank 0 has three tokens, rank 1 two."""
    ids = (((3, 0), (0, 1), (-1, 2)), ((1, 1), (2, 0)))
    settings = {"ids": ids, "experts": 4, "topk": 2, "placement": (2, 2), "tile_rows": 2, "block": 2, **changes}
    return Routing(**settings)


def test_rows_are_in_expert_source_route_order():
    rows = [[(row.expert, row.source, row.route) for row in rank] for rank in small().rows]
    assert rows == [
        [(0, 0, 1), (0, 0, 2), (0, 1, 3), (1, 0, 3), (1, 1, 0), (1, 1, 1)],
        [(2, 0, 5), (2, 1, 2), (3, 0, 0)],
    ]


def test_tiles_never_span_two_experts():
    tiles = [[(tile.expert, tile.row, tile.rows) for tile in rank] for rank in small().tiles]
    assert tiles == [[(0, 0, 2), (0, 2, 1), (1, 3, 2), (1, 5, 1)], [(2, 0, 2), (3, 2, 1)]]


def test_rows_of_experts():
    routing = small()
    stretches = [
        [tuple(routing.lookup(table, (expert,), rank) for table in ("expert_row", "expert_rows")) for expert in experts]
        for rank, experts in enumerate(((0, 1), (2, 3)))
    ]
    assert stretches == [[(0, 3), (3, 3)], [(0, 2), (2, 1)]]


def test_an_expert_without_rows_starts_where_the_next_one_does():
    routing = small(ids=(((0, 3),),), placement=(4,))
    assert [routing.lookup("expert_row", (expert,), 0) for expert in range(4)] == [0, 1, 1, 1]
    assert [routing.lookup("expert_rows", (expert,), 0) for expert in range(4)] == [1, 0, 0, 1]


@pytest.mark.parametrize(("rank", "expert"), [(0, 2), (1, 1), (1, 4)])
def test_only_the_rank_that_has_an_expert_knows_its_rows(rank, expert):
    with pytest.raises(IndexError, match=f"expert {expert} of rank {rank}"):
        small().lookup("expert_rows", (expert,), rank)


def test_tables_of_routes():
    routing = small()
    assert routing.dest[0] == (1, 0, 0, 0, -1, 1)
    assert routing.row_of[0] == (2, 0, 1, 3, -1, 0)
    assert routing.tile_of[0] == (1, 0, 0, 2, -1, 0)
    assert routing.block_routes == ((4, 1), (4,))


@pytest.mark.parametrize(
    ("send", "order", "expected"),
    [
        (Send.RANK, Order.FIFO, (0, 2)),
        (Send.RANK, Order.PRIORITY, (2, 0)),
        (Send.ROUTE, Order.FIFO, (0, 5)),
        (Send.ROUTE, Order.PRIORITY, (5, 0)),
        (Send.ALL, Order.FIFO, (0, 1, 2)),
        (Send.ALL, Order.PRIORITY, (2, 0, 1)),
    ],
)
def test_order_of_sends(send, order, expected):
    assert small(send=send, order=order).sends[0][1] == expected


def test_a_token_crosses_once_per_rank_however_often_it_names_it():
    assert small().sends[1][0] == (1, 0)


def test_placement_gives_the_first_ranks_one_more():
    assert balanced_placement(7, 3) == (3, 2, 2)
    assert balanced_placement(2, 3) == (1, 1, 0)


def test_a_rank_without_experts_gets_nothing():
    routing = small(placement=(4, 0))
    assert routing.rows[1] == ()
    assert routing.tiles[1] == ()


@pytest.mark.parametrize("changes", [{"placement": (2, 1)}, {"placement": (4,)}, {"topk": 1}, {"experts": 3}])
def test_sizes_that_do_not_fit_are_refused(changes):
    with pytest.raises(InternalError):
        small(**changes)


def test_bounds_hold_and_every_table_and_symbol_is_there():
    schedule = build(2)
    for seed in range(20):
        routing = random_routing(schedule, seed)
        for rank in range(2):
            assert routing.symbol("num_rows", rank) <= routing.symbol("rows_bound", rank)
            assert routing.symbol("num_tiles", rank) <= routing.symbol("tiles_bound", rank)
            assert routing.symbol("tokens", rank) <= routing.symbol("tokens_bound", rank)
    assert set(PLAN_SYMBOLS) == set(routing._symbols)
    assert {table.name for table in PLAN_TABLES} == set(routing._tables)


def test_entries_outside_a_table_are_errors():
    with pytest.raises(IndexError):
        small().lookup("dest", (-1,), 0)
    with pytest.raises(IndexError):
        small().lookup("tile_row", (4,), 0)
