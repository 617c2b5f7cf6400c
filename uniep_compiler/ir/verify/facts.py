"""What proofs may assume of every plan: facts about the tables of `ir/plan_tables.py`, each stated once, as data.

A *record* is something that the plan numbers: a rank, an M tile, a valid route (which is a row at its destination),
a send. Its attributes are what the tables say about it. It can be found by any of its *keys*: two records that agree
in a key are the same record. Facts are expressions over a record's attributes (as coordinates); symbols and tables
in them are those of the rank that the attribute `at` names.

A table means something only for records that *exist*: each key says when it names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, cdiv, equal, less
from uniep_compiler.ir.tasks import TaskGraph
from uniep_compiler.options import Send


class Kind(StrEnum):
    """Kinds of records."""

    RANK = "rank"
    TILE = "tile"
    EXPERT = "expert"
    ROUTE = "route"
    SENDS = "sends"
    SEND = "send"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that holds for every record of a kind: `holds` is not 0 on the rank that `at` names."""

    meaning: str
    at: str
    holds: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Attributes that name a record, where `exists` holds; `entries` are the tables that give the other attributes.

    The tables are those of the rank that `at` names. A key without entries only identifies.
    """

    attributes: tuple[str, ...]
    at: str
    exists: tuple[Expr, ...] = ()
    entries: Mapping[str, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """A kind of records: its attributes, how they can be found, and what holds of each."""

    kind: Kind
    meaning: str
    attributes: tuple[str, ...]
    keys: tuple[Key, ...]
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many valid routes, of all ranks, have `owner` and `index` in common: entry `count` of the owner's tables.

    `owner` is an attribute of routes, `index` an expression over them. In `count`, the coordinate `index` stands for
    the common index.
    """

    meaning: str
    owner: str
    index: Expr
    count: Expr


TILES_ARE_DISJOINT = (
    """A row in a tile's range (`first <= row < first + rows`, same rank) is in that tile and no other."""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """All facts about the plan of a task graph, beside `TILES_ARE_DISJOINT`.

    `tables` says whose attribute a table gives: kind, key, attribute, and the attributes that are its indices.
    """

    num_ranks: int
    kinds: Mapping[Kind, RecordKind]
    counts: tuple[Count, ...]
    tables: Mapping[str, tuple[Kind, Key, str, tuple[str, ...]]]


def between(low: Expr | int, value: Expr, high: Expr | int) -> tuple[Expr, ...]:
    """`low <= value < high`."""
    return less(-1, value if low == 0 else value - low), less(value, high)


def _entry(table: str, *arguments: str) -> Expr:
    return Lookup(table, tuple(map(Coord, arguments)))


def _facts(at: str, statements: Mapping[str, tuple[Expr, ...]]) -> tuple[Fact, ...]:
    return tuple(Fact(meaning=meaning, at=at, holds=e) for meaning, holds in statements.items() for e in holds)


def plan_facts(graph: TaskGraph) -> PlanFacts:
    """The facts, with the graph's constants filled in."""
    kinds = (_ranks(graph), _tiles(graph), _experts(graph), _routes(graph), _sends(), _send(graph), _blocks(graph))
    tables = {
        entry.table: (kind.kind, key, attribute, tuple(i.name for i in entry.indices if isinstance(i, Coord)))
        for kind in kinds
        for key in kind.keys
        for attribute, entry in key.entries.items()
        if isinstance(entry, Lookup)
    }
    return PlanFacts(
        num_ranks=graph.ranks, kinds={kind.kind: kind for kind in kinds}, counts=_counts(graph), tables=tables
    )


def _ranks(graph: TaskGraph) -> RecordKind:
    return RecordKind(
        kind=Kind.RANK,
        meaning="a rank of the group",
        attributes=("rank", "tokens", "num_tiles", "num_rows"),
        keys=(
            Key(
                attributes=("rank",),
                at="rank",
                exists=between(0, Coord("rank"), graph.ranks),
                entries={name: Sym(name) for name in ("tokens", "num_tiles", "num_rows")},
            ),
        ),
        facts=_facts(
            "rank",
            {
                "tokens have a bound": between(0, Coord("tokens"), Sym("tokens_bound") + 1),
                "tiles have a bound": between(0, Coord("num_tiles"), Sym("tiles_bound") + 1),
                "rows have a bound": between(0, Coord("num_rows"), Sym("rows_bound") + 1),
                "a tile has at least one row": (less(Coord("num_tiles"), Coord("num_rows") + 1),),
            },
        ),
    )


def _tiles(graph: TaskGraph) -> RecordKind:
    return RecordKind(
        kind=Kind.TILE,
        meaning="an M tile of a rank",
        attributes=("rank", "tile", "first", "rows", "expert"),
        keys=(
            Key(
                attributes=("rank", "tile"),
                at="rank",
                exists=(*between(0, Coord("rank"), graph.ranks), *between(0, Coord("tile"), Sym("num_tiles"))),
                entries={
                    "first": _entry("tile_row", "tile"),
                    "rows": _entry("tile_rows", "tile"),
                    "expert": _entry("tile_expert", "tile"),
                },
            ),
        ),
        facts=_facts(
            "rank",
            {
                "a tile has at least one row": (less(0, Coord("rows")),),
                "tiles are made of rows": (
                    less(-1, Coord("first")),
                    less(Coord("first") + Coord("rows"), Sym("num_rows") + 1),
                ),
                "a tile has an expert": between(0, Coord("expert"), graph.experts),
            },
        ),
    )


def _experts(graph: TaskGraph) -> RecordKind:
    """Experts of one rank. Which of several ranks has an expert is not known here, so none of theirs exists."""
    num_known = graph.experts if graph.ranks == 1 else 0
    return RecordKind(
        kind=Kind.EXPERT,
        meaning="an expert, which may have no rows",
        attributes=("rank", "expert", "first", "rows"),
        keys=(
            Key(
                attributes=("rank", "expert"),
                at="rank",
                exists=(*between(0, Coord("rank"), graph.ranks), *between(0, Coord("expert"), num_known)),
                entries={"first": _entry("expert_row", "expert"), "rows": _entry("expert_rows", "expert")},
            ),
        ),
        facts=_facts(
            "rank",
            {
                "an expert has rows, or none": (less(-1, Coord("rows")),),
                "the rows of an expert are its rank's": (
                    less(-1, Coord("first")),
                    less(Coord("first") + Coord("rows"), Sym("num_rows") + 1),
                ),
            },
        ),
    )


def _routes(graph: TaskGraph) -> RecordKind:
    route, row, dst = Coord("route"), Coord("row"), Coord("dst")
    num_routes = Sym("tokens") * graph.topk
    sent = Coord("route") if graph.send is Send.ROUTE else Coord("route") // graph.topk
    at_source = {
        "a valid route comes from a rank": between(0, Coord("src"), graph.ranks),
        "a valid route is one of its rank's": between(0, route, num_routes),
        "a valid route goes to a rank": between(0, dst, graph.ranks),
        "a valid route has a position in its rank's sends to its destination, and stands there": (
            *between(0, Coord("position"), Lookup("send_count", (dst,))),
            equal(Lookup("send_item", (dst, Coord("position"))), sent),
        ),
    }
    at_destination = {
        "a row is one of its rank's": between(0, row, Sym("num_rows")),
        "every row is in a tile": between(0, Coord("tile"), Sym("num_tiles")),
        "the row of a route is in its tile": (
            less(Lookup("tile_row", (Coord("tile"),)), row + 1),
            less(row, Lookup("tile_row", (Coord("tile"),)) + Lookup("tile_rows", (Coord("tile"),))),
        ),
    }
    return RecordKind(
        kind=Kind.ROUTE,
        meaning="a valid route, which is a row at its destination",
        attributes=("src", "route", "dst", "row", "tile", "position"),
        keys=(
            Key(
                attributes=("src", "route"),
                at="src",
                exists=(
                    *between(0, Coord("src"), graph.ranks),
                    *between(0, route, num_routes),
                    less(-1, dst),
                ),
                entries={
                    "dst": _entry("dest", "route"),
                    "row": _entry("row_of", "route"),
                    "tile": _entry("tile_of", "route"),
                },
            ),
            Key(
                attributes=("dst", "row"),
                at="dst",
                exists=(*between(0, dst, graph.ranks), *between(0, row, Sym("num_rows"))),
                entries={"src": _entry("source", "row"), "route": _entry("route_at", "row")},
            ),
        ),
        facts=(*_facts("src", at_source), *_facts("dst", at_destination)),
    )


def _sends() -> RecordKind:
    return RecordKind(
        kind=Kind.SENDS,
        meaning="what a rank sends to a peer",
        attributes=("rank", "peer", "count"),
        keys=(Key(attributes=("rank", "peer"), at="rank", entries={"count": _entry("send_count", "peer")}),),
    )


def _send(graph: TaskGraph) -> RecordKind:
    item, peer = Coord("item"), Coord("peer")
    if graph.send is Send.ROUTE:
        statements = {
            "what is sent is a route": between(0, item, Sym("tokens") * graph.topk),
            "a route is sent to where it is computed": (equal(Lookup("dest", (item,)), peer),),
        }
    else:
        statements = {"what is sent is a token": between(0, item, Sym("tokens"))}
    return RecordKind(
        kind=Kind.SEND,
        meaning="a send of a rank to a peer; no token (or route) is sent twice to the same peer",
        attributes=("rank", "peer", "position", "item"),
        keys=(
            Key(
                attributes=("rank", "peer", "position"),
                at="rank",
                exists=(
                    *between(0, Coord("rank"), graph.ranks),
                    *between(0, peer, graph.ranks),
                    *between(0, Coord("position"), Lookup("send_count", (peer,))),
                ),
                entries={"item": _entry("send_item", "peer", "position")},
            ),
            Key(attributes=("rank", "peer", "item"), at="rank", entries={}),
        ),
        facts=_facts("rank", statements),
    )


def _blocks(graph: TaskGraph) -> RecordKind:
    block, num_blocks = Coord("block"), cdiv(Sym("tokens"), graph.block)
    return RecordKind(
        kind=Kind.BLOCK,
        meaning="a block of tokens of a rank",
        attributes=("rank", "block", "routes"),
        keys=(
            Key(
                attributes=("rank", "block"),
                at="rank",
                exists=(*between(0, Coord("rank"), graph.ranks), *between(0, block, num_blocks)),
                entries={"routes": _entry("block_routes", "block")},
            ),
        ),
    )


def _counts(graph: TaskGraph) -> tuple[Count, ...]:
    block = Coord("route") // graph.topk // graph.block
    return (
        Count(
            meaning="as many routes come to a tile as it has rows",
            owner="dst",
            index=Coord("tile"),
            count=Lookup("tile_rows", (Coord("index"),)),
        ),
        Count(
            meaning="as many routes come back to a block of tokens as it has valid ones",
            owner="src",
            index=block,
            count=Lookup("block_routes", (Coord("index"),)),
        ),
        Count(meaning="as many routes come to a rank as it has rows", owner="dst", index=Int(0), count=Sym("num_rows")),
    )
