"""Derives signals, waits and posts from what families read and write (the scoreboard).

Each buffer that one family writes and others read gets a signal, or two where its readers are of two kinds:

    written by   signal   counts                       the reader waits for
    comm         ready    rows arrived, per M tile     all rows of its tile
    tile tasks   ready    finished tasks, per M tile   all tasks of its tile
    tile tasks   done     finished tasks, in all       all tasks there are: it looks rows up, as a reduce does
    push         ready    routes returned, per block   all valid routes of its block of tokens

(With readers of the last kind only, `done` is called `ready`, too.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from uniep_compiler.ir.index import Coord, Expr, Int, Lookup, Sym, cdiv
from uniep_compiler.ir.tasks import (
    CopyBody,
    Family,
    GemmBody,
    OuterBody,
    Post,
    Proxy,
    Range,
    Role,
    Scope,
    Signal,
    TaskGraph,
    Wait,
    ZeroBody,
)
from uniep_compiler.passes.accesses import ROUTE_AT, ROWS_OF_TILE, SOURCE, TILE
from uniep_compiler.passes.settings import Settings


def assign_signals(graph: TaskGraph, settings: Settings) -> TaskGraph:
    """The graph with a signal for every dependency between families, and the TMA loads that the target allows."""
    families = {family.name: _choose_proxies(family, graph, settings) for family in graph.families}
    signals: list[Signal] = []
    for writer in graph.families:
        for buffer in _carried(writer):
            for name, readers in _readers_by_signal(writer, buffer, families.values()).items():
                signal, post = _signal_and_post(graph, writer, name, readers, buffer, settings)
                signals.append(signal)
                families[writer.name] = replace(families[writer.name], posts=(*families[writer.name].posts, post))
                for reader in readers:
                    wait = _wait(graph, writer, signal, reader, buffer)
                    families[reader.name] = replace(reader, waits=(*reader.waits, wait))
    return replace(graph, signals=tuple(signals), families=tuple(families.values()))


def _carried(writer: Family) -> Iterable[str]:
    """The buffers that get a signal of their own. What travels beside rows does so under their signal.

    Zeros stand after the last valid row, where no task reads.
    """
    match writer.body:
        case ZeroBody():
            return ()
        case CopyBody(target=target):
            return (target,)
        case _:
            return dict.fromkeys(access.buffer for access in writer.writes)


def _readers_by_signal(writer: Family, buffer: str, families: Iterable[Family]) -> dict[str, list[Family]]:
    """The readers of a buffer by the name of the signal that they wait for.

    What tile tasks write is ready tile by tile for those who read their own tile, and done as a whole for the others: a
    tile's reader that waited for the whole could not run beside the writer.
    """
    readers = [f for f in families if f.name != writer.name and buffer in {access.buffer for access in f.reads}]
    by_tile = [reader for reader in readers if _reads_own_tile(reader, buffer)]
    if writer.role in (Role.COMM, Role.PUSH) or not by_tile or len(by_tile) == len(readers):
        return {f"{buffer}_ready": readers} if readers else {}
    return {f"{buffer}_ready": by_tile, f"{buffer}_done": [reader for reader in readers if reader not in by_tile]}


def _signal_and_post(
    graph: TaskGraph, writer: Family, name: str, readers: list[Family], buffer: str, settings: Settings
) -> tuple[Signal, Post]:
    remote = any(access.rank is not None for access in writer.writes) and not settings.local
    scope = Scope.SYS if remote else Scope.GPU
    match writer.role:
        case Role.COMM:
            signal = Signal(name=name, extent=Sym("tiles_bound"), scope=scope, phase=1 if remote else 0)
            return signal, _arrival_post(graph, writer, name, scope)
        case Role.PUSH:
            blocks = cdiv(Sym("tokens_bound"), Int(graph.block))
            signal = Signal(name=name, extent=blocks, scope=scope, phase=2 if remote else 0)
            block = (ROUTE_AT // graph.topk) // graph.block
            return signal, Post(signal=name, rank=SOURCE, index=block, over=(ROWS_OF_TILE,), scope=scope)
        case _:
            by_tile = all(_reads_own_tile(reader, buffer) for reader in readers)
            signal = Signal(name=name, extent=Sym("tiles_bound") if by_tile else Int(1), scope=scope)
            return signal, Post(signal=name, index=TILE if by_tile else Int(0), scope=scope)


def _arrival_post(graph: TaskGraph, writer: Family, signal: str, scope: Scope) -> Post:
    """One post for each route whose row the lane delivered, to the tile that the row belongs to."""
    per_route = max(writer.writes, key=lambda access: len(access.over))
    item = Lookup("send_item", (Coord("peer"), Coord("item")))
    route: Expr = item
    if len(per_route.over) > 2:
        route = item * graph.topk + Coord("k")
    return Post(
        signal=signal,
        rank=per_route.rank,
        index=Lookup("tile_of", (route,)),
        over=per_route.over,
        when=per_route.when,
        scope=scope,
    )


def _reads_own_tile(reader: Family, buffer: str) -> bool:
    """Whether all that the reader takes from the buffer lies in its own M tile."""
    rows = [access.row for access in reader.reads if access.buffer == buffer]
    return all(row == Lookup("tile_row", (TILE,)) for row in rows) and any(r.coord == "tile" for r in reader.domain)


def _wait(graph: TaskGraph, writer: Family, signal: Signal, reader: Family, buffer: str) -> Wait:
    fence = any(access.buffer == buffer and access.proxy is Proxy.ASYNC for access in reader.reads)
    index, target = _index_and_target(graph, writer, signal)
    return Wait(signal=signal.name, index=index, target=target, scope=signal.scope, fence=fence)


def _index_and_target(graph: TaskGraph, writer: Family, signal: Signal) -> tuple[Expr, Expr]:
    match writer.role:
        case Role.COMM:
            return TILE, Lookup("tile_rows", (TILE,))
        case Role.PUSH:
            return Coord("block"), Lookup("block_routes", (Coord("block"),))
        case _:
            per_tile = _num_tasks(r for r in writer.domain if r.coord != "tile")
            if signal.extent == Int(1):
                return Int(0), Sym("num_tiles") * per_tile
            return TILE, per_tile


def _num_tasks(ranges: Iterable[Range]) -> Expr:
    product: Expr = Int(1)
    for item in ranges:
        product = product * item.extent
    return product


def _choose_proxies(family: Family, graph: TaskGraph, settings: Settings) -> Family:
    """TMA loads for rows in place, where the target has TMA and every row starts at a multiple of 16 bytes."""
    if not settings.target.has_tma:
        return family
    match family.body:
        case GemmBody() as body:
            widths = {} if body.gather else {body.rows: body.depth}
            widths |= {term.rows: term.depth for term in body.terms}
        case OuterBody() as outer:
            pairs = ((outer.left, outer.right), *((term.left, term.right) for term in outer.terms))
            lefts, rights = ({pair[side] for pair in pairs} for side in (0, 1))  # blocks of the two differ
            widths = dict.fromkeys(lefts - rights, outer.num_rows) | dict.fromkeys(rights - lefts, outer.num_cols)
        case _:
            return family
    widths = {name: cols for name, cols in widths.items() if cols * graph.buffer(name).dtype.num_bytes % 16 == 0}
    first_reads = {access.buffer: access for access in reversed(family.reads) if access.buffer in widths}
    reads = tuple(
        replace(access, proxy=Proxy.ASYNC) if first_reads.get(access.buffer) == access else access
        for access in family.reads
    )
    return replace(family, reads=reads)
