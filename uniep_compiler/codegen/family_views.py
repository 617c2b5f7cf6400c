"""Turns task families into what their templates see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from uniep_compiler.codegen.copy_views import (
    map_body,
    push_body,
    reduce_body,
    relay_body,
    routes_body,
    send_body,
    zero_body,
)
from uniep_compiler.codegen.gemm_views import gemm_body
from uniep_compiler.codegen.layout import WIDTH
from uniep_compiler.codegen.outer_views import outer_body, sum_body
from uniep_compiler.codegen.places import TILE_LOOKUPS, Places
from uniep_compiler.codegen.view import FamilyView, PostView, WaitView
from uniep_compiler.ir.index import Expr, Int, Lookup
from uniep_compiler.ir.tasks import (
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    Post,
    ReduceBody,
    Role,
    RoutesBody,
    SumBody,
    Wait,
    ZeroBody,
)
from uniep_compiler.passes.accesses import NUM_ROWS


def family_view(family: Family, places: Places) -> FamilyView:
    """The view of one family."""
    template, body, lookups = _body(family, places)
    return FamilyView(
        name=places.names.functions[family.name],
        const=places.names.families[family.name],
        doc=_doc(family),
        comments=_comments(family, places),
        template=f"triton/{template}.py.jinja",
        rank=places.rank,
        decode=_decode(family, places),
        waits=tuple(_wait(wait, places) for wait in family.waits),
        posts=tuple(_post(post, places, lookups) for post in family.posts),
        body=body,
    )


def _body(family: Family, places: Places) -> tuple[str, dict[str, object], Mapping[Expr, str]]:
    """The template of a family's body, its fields, and what the body calls what it has read of the plan."""
    match family.body:
        case GemmBody() as body:
            return "gemm", gemm_body(family, body, places), {}
        case CopyBody() as body if family.role is Role.COMM:
            return "send", *send_body(family, body, places)
        case CopyBody() as body if family.role is Role.PUSH:
            return "push", push_body(body, places), {}
        case CopyBody() as body:
            return "relay", relay_body(family, body, places), {}
        case MapBody() as body:
            return "map", map_body(family, body, places), {}
        case ReduceBody() as body:
            return "reduce", reduce_body(body, places), {}
        case RoutesBody() as body:
            return "routes", routes_body(body, places), {}
        case OuterBody() as body:
            return "outer", outer_body(family, body, places), {}
        case SumBody() as body:
            return "sum", sum_body(body, places), {}
        case ZeroBody() as body:
            return "zero", zero_body(body, places), {}
        case _:
            assert_never(family.body)


def _doc(family: Family) -> str:
    """What one task of the family does."""
    value = f"`{family.value}`"
    match family.body:
        case ZeroBody():
            return f"Zero rows of {value} after the last valid one."
        case ReduceBody():
            return f"Sum the routes of a block of tokens, in k order, in fp32: {value}."
        case RoutesBody():
            return f"Add up the parts of a row's sum, for each route of a block of tokens: {value}."
        case OuterBody():
            return f"Sum the outer products of an expert's rows, in their order, for one tile of {value}."
        case SumBody():
            return f"Sum the rows of an expert, in their order, for some columns of {value}."
        case GemmBody():
            return f"Compute one tile of {value}."
        case MapBody():
            return f"Compute the rows of an M tile of {value}."
        case CopyBody():
            return {
                Role.COMM: f"Send a lane's share of rows to the ranks that compute them: {value}.",
                Role.RELAY: f"Collect the rows of an M tile: {value}.",
                Role.PUSH: f"Return the rows of an M tile to the ranks that they came from: {value}.",
            }[family.role]
        case _:
            assert_never(family.body)


def _comments(family: Family, places: Places) -> tuple[str, ...]:
    """The lines of the program that the family stands for, by their numbers in the listing at the top."""
    source = places.settings.source
    spans = [family.span]
    if isinstance(family.body, GemmBody | MapBody):
        spans += [op.span for op in family.body.epilogue]
    if source is None:
        return ()
    numbers = sorted({span.line for span in spans} - {0})
    return tuple(printable(f"line {number}: {source.line(number).strip()}") for number in numbers)


def printable(text: str, beside: int = 8) -> str:
    """The text as one line of a comment, without what Python could not read or an editor would not show.

    `beside` is the number of columns that something else takes in that line.
    """
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text.expandtabs(4))
    return shown if len(shown) < WIDTH - beside else f"{shown[: WIDTH - beside - 4]} ..."


def _decode(family: Family, places: Places) -> tuple[str, ...]:
    """Lines from the task's index to its coordinates, and what every body of that kind reads first."""
    lines = [] if places.local else _rank_lines(family)
    first = family.domain[0].coord
    if first == "expert":
        pieces = pieces_of_expert(family, places)
        return (
            *lines,
            f"expert, place = index // {pieces}, index % {pieces}",
            "first_row = as_int(tl.load(expert_row + expert))",
            "num_rows = as_int(tl.load(expert_rows + expert))",
        )
    if len(family.domain) == 2:
        columns = places.names.tiles[family.name].columns
        lines.append(f"tile, column = split_grouped(index, num_tiles, {columns}, GROUP)")
    else:
        lines.append(f"{first} = index")
    if first == "tile":
        at = "tile" if places.local else "rank * tiles_bound + tile"
        body = family.body
        if isinstance(body, GemmBody) or (isinstance(body, MapBody) and body.biases):
            lines.append(f"expert = as_int(tl.load(tile_expert + {at}))")
        lines.append(f"first_row = as_int(tl.load(tile_row + {at}))")
        lines.append(f"num_rows = as_int(tl.load(tile_rows + {at}))")
    return tuple(lines)


def pieces_of_expert(family: Family, places: Places) -> str:
    """How many tasks of a family an expert has."""
    outer = places.names.outers.get(family.name)
    return places.text(family.domain[1].extent) if outer is None else outer.places


def _rank_lines(family: Family) -> list[str]:
    """Counts of the own rank of a group that the family's body or coordinates need."""
    lines: list[str] = []
    if family.role in (Role.COMM, Role.REDUCE):
        lines.append("first_token = as_int(tl.load(token_start + rank))")
    if family.role is Role.REDUCE:
        lines.append("tokens = num_tokens_of(token_start, rank)")
    if isinstance(family.body, GemmBody):
        lines.append("num_tiles = num_tiles_of(totals, rank)")
    if isinstance(family.body, ZeroBody):
        lines.append("total_rows = num_rows_of(totals, rank)")
    return lines


def _wait(wait: Wait, places: Places) -> WaitView:
    posters = [f for f in places.schedule.graph.families if wait.signal in {post.signal for post in f.posts}]
    target = places.tasks_by_name(posters[0].name, wait.target) if posters else wait.target
    lookups: dict[Expr, str] = {NUM_ROWS: "num_rows"}
    if isinstance(wait.target, Lookup) and wait.target.table == "block_routes":
        at = "block" if places.local else "rank * blocks_bound + block"
        lookups[wait.target] = f"as_int(tl.load(block_routes + {at}))"
    index = places.text(wait.index, lookups)
    return WaitView(
        counter=places.counter(wait.signal, index),
        target=places.text(target, lookups),
        scope=wait.scope.value,
        signal=places.names.signals[wait.signal],
        place=index,
        until=printable(f"Until {_done(posters[0], wait) if posters else 'somebody posts, which no family does'}."),
    )


def _done(poster: Family, wait: Wait) -> str:
    """What `poster` has done once a wait for it is over."""
    match poster.role:
        case Role.COMM:
            return f"all rows of the tile are there: {poster.name} posts once for each"
        case Role.PUSH:
            return f"the block's rows are all back: {poster.name} posts once for each"
        case _ if wait.index == Int(0):
            return f"{poster.name} has done all tiles: it posts once for each task"
        case _ if len(poster.domain) > 1:
            return f"{poster.name} has done all columns of the tile: it posts once for each task"
        case _:
            return f"{poster.name} has done the tile: it posts once"


def _post(post: Post, places: Places, lookups: Mapping[Expr, str]) -> PostView:
    named = {**TILE_LOOKUPS, **lookups}
    rank = "rank" if post.rank is None else places.text(post.rank, named)
    index = places.text(post.index, named, outer=2)
    return PostView(counter=places.counter(post.signal, index, rank), scope=post.scope.value)
