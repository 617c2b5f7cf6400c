"""What proofs assume of plans holds for plans: every fact, key and count, for random routings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.schedules import build, random_routing
from uniep_compiler.ir.index import evaluate
from uniep_compiler.ir.verify.facts import Kind, plan_facts
from uniep_compiler.options import Order, Relay, Send

SEEDS = range(12)
SENDS = (Send.RANK, Send.ROUTE)


def setting(send, seed, kind=Kind.ROUTE):
    ranks = 1 if kind is Kind.EXPERT else 3  # of several ranks, no expert is known to proofs
    graph = build(ranks, relay=Relay.OFF if send is Send.ROUTE else Relay.COPY).graph
    routing = random_routing(build(ranks), seed)
    order = Order.FIFO if seed % 2 else Order.PRIORITY
    return plan_facts(replace(graph, send=send)), replace(routing, send=send, order=order)


def records(kind, facts, routing):
    """Every record of a kind that there is, with all its attributes, by the first key of the kind."""
    ranks = range(routing.num_ranks)
    candidates = {
        Kind.RANK: lambda: [{"rank": rank} for rank in ranks],
        Kind.TILE: lambda: [{"rank": rank, "tile": tile} for rank in ranks for tile in range(len(routing.tiles[rank]))],
        Kind.EXPERT: lambda: [{"rank": 0, "expert": expert} for expert in range(routing.experts)],
        Kind.ROUTE: lambda: [
            {"src": rank, "route": route, "position": position(routing, rank, route)}
            for rank in ranks
            for route, dest in enumerate(routing.dest[rank])
            if dest >= 0
        ],
        Kind.SENDS: lambda: [{"rank": rank, "peer": peer} for rank in ranks for peer in ranks],
        Kind.SEND: lambda: [
            {"rank": rank, "peer": peer, "position": position}
            for rank in ranks
            for peer in ranks
            for position in range(len(routing.sends[rank][peer]))
        ],
        Kind.BLOCK: lambda: [
            {"rank": rank, "block": block} for rank in ranks for block in range(len(routing.block_routes[rank]))
        ],
    }
    key = facts.kinds[kind].keys[0]
    for given in candidates[kind]():
        entries = {name: evaluate(e, routing, given[key.at], given) for name, e in key.entries.items()}
        yield {**given, **entries}


def position(routing, rank, route):
    """Where a route, or its token, stands in its rank's sends to its destination."""
    sent = route if routing.send is Send.ROUTE else route // routing.topk
    return routing.sends[rank][routing.dest[rank][route]].index(sent)


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("kind", Kind)
def test_every_fact_holds(kind, send):
    seen = 0
    for seed in SEEDS:
        facts, routing = setting(send, seed, kind)
        for record in records(kind, facts, routing):
            seen += 1
            for fact in facts.kinds[kind].facts:
                assert evaluate(fact.holds, routing, record[fact.at], record), (fact.meaning, record)
    assert seen > 20


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("kind", Kind)
def test_every_key_names_one_record_and_its_tables_agree(kind, send):
    for seed in SEEDS:
        facts, routing = setting(send, seed, kind)
        found = list(records(kind, facts, routing))
        for key in facts.kinds[kind].keys:
            names = Counter(tuple(record[name] for name in key.attributes) for record in found)
            assert max(names.values(), default=1) == 1, key.attributes
            for record in found:
                assert all(evaluate(exists, routing, record[key.at], record) for exists in key.exists)
                for name, entry in key.entries.items():
                    assert evaluate(entry, routing, record[key.at], record) == record[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_key_says_exists_does(seed):
    """Every route with a destination is a record, and every row below the number of rows is one."""
    facts, routing = setting(Send.RANK, seed)
    by_route, by_row = facts.kinds[Kind.ROUTE].keys
    found = list(records(Kind.ROUTE, facts, routing))
    routes = {(record["src"], record["route"]) for record in found}
    rows = {(record["dst"], record["row"]) for record in found}
    for rank in range(routing.num_ranks):
        for route in range(-1, len(routing.dest[rank])):
            given = {"src": rank, "route": route, "dst": routing.dest[rank][route] if route >= 0 else -1}
            exists = all(evaluate(e, routing, rank, given) for e in by_route.exists)
            assert exists == ((rank, route) in routes)
        for row in range(-1, routing.rows_bound):
            exists = all(evaluate(e, routing, rank, {"dst": rank, "row": row}) for e in by_row.exists)
            assert exists == ((rank, row) in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_are_disjoint(seed):
    facts, routing = setting(Send.RANK, seed)
    tiles = list(records(Kind.TILE, facts, routing))
    for route in records(Kind.ROUTE, facts, routing):
        holding = [
            tile["tile"]
            for tile in tiles
            if tile["rank"] == route["dst"] and tile["first"] <= route["row"] < tile["first"] + tile["rows"]
        ]
        assert holding == [route["tile"]]


def test_an_expert_of_several_ranks_is_not_known_to_exist():
    facts, routing = setting(Send.RANK, 0)
    (key,) = facts.kinds[Kind.EXPERT].keys
    for given in ({"rank": rank, "expert": expert} for rank in range(3) for expert in range(routing.experts)):
        assert not all(evaluate(exists, routing, given["rank"], given) for exists in key.exists)


@pytest.mark.parametrize("number", range(3))
def test_counts_are_the_numbers_of_routes(number):
    for seed in SEEDS:
        facts, routing = setting(Send.RANK, seed)
        count = facts.counts[number]
        found = Counter(
            (record[count.owner], evaluate(count.index, routing, record["src"], record))
            for record in records(Kind.ROUTE, facts, routing)
        )
        for (owner, index), routes in found.items():
            assert evaluate(count.count, routing, owner, {"index": index}) == routes, count.meaning
        if number == 1:  # blocks may have no routes at all
            for rank, blocks in enumerate(routing.block_routes):
                assert all(found[rank, block] == routes for block, routes in enumerate(blocks))
