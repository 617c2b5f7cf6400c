"""Puts a relay between arriving rows and the GEMM that reads them.

relay = off     rows are sent once per route, straight to their place: nothing to do.
relay = copy    rows are sent once per rank to `xs_arrived`; a relay task per M tile copies them into `xs`.
relay = gather  rows are sent once per rank to `xs_arrived`; the GEMM reads them from there through the plan.

On one local rank rows arrive nowhere: the relay or the GEMM reads the tokens themselves.
"""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, equal
from uniep_compiler.ir.tasks import Access, Buffer, BufferKind, CopyBody, Family, GemmBody, MapBody, Role, TaskGraph
from uniep_compiler.options import Relay
from uniep_compiler.passes.accesses import (
    FIRST_ROW,
    NUM_ROWS,
    ROUTE_AT,
    ROWS_OF_TILE,
    SOURCE,
    TILES,
    send_access,
)
from uniep_compiler.passes.names import ROW_ROUTE, fresh
from uniep_compiler.passes.settings import Settings


def insert_relays(graph: TaskGraph, settings: Settings) -> TaskGraph:
    """The graph with relays between each comm family and its readers, as `settings.relay` says."""
    for send in graph.families:
        if send.role is not Role.COMM or not isinstance(send.body, CopyBody):
            continue
        readers = [f for f in graph.families if send.body.target in {access.buffer for access in f.reads}]
        by_tile = all(isinstance(reader.body, GemmBody | MapBody) for reader in readers)
        # What lanes deliver in place is ready by M tile: on one rank, a reduce that looks rows up needs a relay.
        if settings.relay is not Relay.OFF or (settings.local and not by_tile):
            # A map copies anyway, so it collects its rows itself; a GEMM does if the schedule says so.
            only_maps = all(isinstance(reader.body, MapBody) for reader in readers)
            finds_rows = all(_reads_as_its_rows(reader, send.body.target) for reader in readers)
            gathers = finds_rows and (only_maps or settings.relay is Relay.GATHER)
            graph = _insert_relay(graph, send, settings, gathers)
    return graph


def _reads_as_its_rows(family: Family, rows: str) -> bool:
    """Whether a family reads the rows only as those that its body computes from, which it can collect itself."""
    match family.body:
        case GemmBody(rows=read, loads=loads, terms=terms):
            return read == rows and rows not in {*(load.buffer for load in loads), *(term.rows for term in terms)}
        case MapBody(source=read):
            return read == rows
        case _:
            return False


def _insert_relay(graph: TaskGraph, send: Family, settings: Settings, gathers: bool) -> TaskGraph:
    if not isinstance(send.body, CopyBody):
        raise TypeError(f"{send.name} copies nothing")
    rows = graph.buffer(send.body.target)
    sends: tuple[Family, ...] = ()
    if settings.local:
        place, row = send.body.source, ROUTE_AT // graph.topk
        buffers = graph.buffers
    else:
        arrived = Buffer(
            name=fresh(f"{rows.name}_arrived", [buffer.name for buffer in graph.buffers]),
            dtype=rows.dtype,
            rows=Sym("tokens_bound") * graph.ranks,
            cols=rows.cols,
            kind=BufferKind.SYMMETRIC,
        )
        place, row = arrived.name, SOURCE * Sym("tokens_bound") + ROUTE_AT // graph.topk
        sends = (_send_tokens(send, arrived, graph.topk, settings),)
        buffers = (*graph.buffers, arrived)
    reads = _relay_reads(place, row, rows.cols, settings)
    # A program's own result has to exist as rows.
    if gathers and rows.kind is not BufferKind.OUTPUT:
        families = tuple(_gather(f, rows.name, place, reads) for f in graph.families if f is not send)
        buffers = tuple(buffer for buffer in buffers if buffer.name != rows.name)
        return replace(graph, buffers=buffers, families=(*sends, *families))
    relay = Family(
        name=f"relay_{rows.name}",
        role=Role.RELAY,
        value=rows.name,
        domain=(TILES,),
        body=CopyBody(source=place, target=rows.name, cols=send.body.cols, chunk=settings.options.chunk),
        reads=reads,
        writes=(Access(buffer=rows.name, row=FIRST_ROW, num_rows=NUM_ROWS, num_cols=rows.cols),),
        span=send.span,
    )
    families = tuple(f for f in graph.families if f is not send)
    return replace(graph, buffers=buffers, families=(*sends, relay, *families))


def _relay_reads(place: str, row: Expr, cols: Expr, settings: Settings) -> tuple[Access, ...]:
    """The reads that collect a tile's rows from where they arrived."""
    rows = Access(buffer=place, row=row, num_rows=Int(1), num_cols=cols, over=(ROWS_OF_TILE,))
    if settings.local:
        return (rows,)
    return (rows, Access(buffer=ROW_ROUTE, row=FIRST_ROW, num_rows=NUM_ROWS, num_cols=Int(1)))


def _send_tokens(send: Family, arrived: Buffer, topk: int, settings: Settings) -> Family:
    """The comm family with one row per token and peer, and one entry of `row_route` for each route that shares it."""
    token = Lookup("send_item", (Coord("peer"), Coord("item")))
    route = token * topk + Coord("k")
    wanted = equal(Lookup("dest", (route,)), Coord("peer"))
    if not isinstance(send.body, CopyBody):
        raise TypeError(f"{send.name} copies nothing")
    beside = (ROW_ROUTE, *(companion.target for companion in send.body.companions))
    row = Lookup("row_of", (route,))
    return replace(
        send,
        body=replace(send.body, target=arrived.name),
        reads=(
            send_access(settings, send.body.source, token, arrived.cols),
            *(send_access(settings, found.source, token, Int(topk)) for found in send.body.companions),
        ),
        writes=(
            send_access(settings, arrived.name, Sym("rank") * Sym("tokens_bound") + token, arrived.cols, to_peer=True),
            *(send_access(settings, name, row, Int(1), to_peer=True, when=wanted, topk=topk) for name in beside),
        ),
    )


def _gather(family: Family, rows: str, place: str, reads: tuple[Access, ...]) -> Family:
    """The family, reading through the plan what it read from `rows`."""
    kept = tuple(access for access in family.reads if access.buffer != rows)
    boxes = dict.fromkeys((access.col, access.num_cols) for access in family.reads if access.buffer == rows)
    reads = (*(replace(reads[0], col=col, num_cols=count) for col, count in boxes), *reads[1:])
    match family.body:
        case GemmBody(rows=read) as body if read == rows:
            return replace(family, body=replace(body, rows=place, gather=True), reads=(*reads, *kept))
        case MapBody(source=read) as map_body if read == rows:
            loads = tuple(replace(load, buffer=place) if load.buffer == rows else load for load in map_body.loads)
            gathered = replace(map_body, source=place, loads=loads, gather=True)
            return replace(family, body=gathered, reads=(*reads, *kept))
        case _:
            return family
