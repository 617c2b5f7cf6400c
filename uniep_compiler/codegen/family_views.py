"""Turns task families into what their templates see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from uniep_compiler.codegen.triton_text import TL_DTYPES, epilogue_lines, expr_text
from uniep_compiler.codegen.view import AccumulatorView, FamilyView, PostView, StoreView, TmaView, WaitView
from uniep_compiler.ir.index import Coord, Expr, Int, Lookup
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import (
    Access,
    Accumulator,
    Buffer,
    BufferKind,
    CopyBody,
    Family,
    GemmBody,
    Post,
    Proxy,
    ReduceBody,
    Role,
    Wait,
    ZeroBody,
)
from uniep_compiler.passes.build_tasks import EXPERT, FIRST_ROW, NUM_ROWS, ROUTE_AT, SOURCE
from uniep_compiler.passes.names import ROW_ROUTE
from uniep_compiler.passes.settings import Settings

REDUCE_COLS = 256
"""Columns that a reduce handles at a time: its loads of all routes are in flight together."""
COPY_COLS = 1024
"""Columns that a copy handles at a time: each thread has several loads in flight."""

LOCAL_NAMES = frozenset(
    """acc alive alive_too block cols column count depth expert first first_expert first_row first_token index inside item
    items k lane list_at live num_rows out_at out_rows peer piece place rank route route_at row row_at row_index row_tile
    rows size source source_at state error board task tile tiles tl token tokens total total_rows triton turn valid value
    wanted weight weight_cols most np time_limit totals half cursor following family origin""".split()
)
"""Names that templates use; a program's value of such a name gets an underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things of a schedule stand in a kernel: texts for buffers, plan tables and counters."""

    schedule: Schedule
    settings: Settings

    @property
    def local(self) -> bool:
        """Whether there is one rank, so that nothing depends on a rank."""
        return self.settings.local

    @property
    def rank(self) -> str:
        """The text of the own rank."""
        return "0" if self.local else "rank"

    def pointer(self, name: str, rank: str | None = None) -> str:
        """Start of a buffer on the own rank, or on the rank whose text is given."""
        buffer = self.schedule.graph.buffer(name)
        base = f"{name}_ptr" if name != ROW_ROUTE else name
        if self.local or buffer.experts:
            return base
        if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT) and expr_text(buffer.rows, {}) == "tokens":
            return f"advance({base}, first_token, 1, {self.stride(buffer)})"
        if buffer.kind is BufferKind.INPUT and isinstance(buffer.rows, Int):
            return base  # a bias: all experts' rows lie together
        return f"advance({base}, {rank or 'rank'}, {expr_text(buffer.rows, {})}, {expr_text(buffer.cols, {})})"

    def stride(self, buffer: Buffer) -> str:
        """Elements from one row of a buffer to the next. Inputs per token may have any; the rest is dense."""
        is_token_input = buffer.kind is BufferKind.INPUT and expr_text(buffer.rows, {}) == "tokens"
        # Router weights are made dense by the host; they are as small as the ids.
        reads_as_matrix = any(
            isinstance(f.body, CopyBody | GemmBody) and buffer.name in {access.buffer for access in f.reads}
            for f in self.schedule.graph.families
        )
        if is_token_input and reads_as_matrix:
            return f"{buffer.name}_stride"
        return expr_text(buffer.cols, {})

    def counter(self, signal: str, index: str, rank: str | None = None) -> str:
        """Address of a counter of a signal."""
        place = next(place for place in self.schedule.scoreboard if place.signal == signal)
        parts = ["board"]
        if not self.local:
            parts.append(f"{rank or 'rank'} * board_size")
        if place.offset != Int(0):
            parts.append(expr_text(place.offset, {}, outer=2))
        if index != "0":
            parts.append(index)
        return " + ".join(parts)


def family_view(family: Family, places: Places) -> FamilyView:
    """The view of one family."""
    body, lookups = _body(family, places)
    return FamilyView(
        name=family.name,
        const=family.name.upper(),
        doc=_doc(family),
        comments=_comments(family, places),
        template=f"triton/{_TEMPLATES[type(family.body), family.role is Role.COMM, family.role is Role.PUSH]}.py.jinja",
        rank=places.rank,
        decode=_decode(family, places),
        waits=tuple(_wait(wait, places) for wait in family.waits),
        posts=tuple(_post(post, places, lookups) for post in family.posts),
        body=body,
    )


_TEMPLATES = {
    (CopyBody, True, False): "send",
    (CopyBody, False, True): "push",
    (CopyBody, False, False): "relay",
    (GemmBody, False, False): "gemm",
    (ReduceBody, False, False): "reduce",
    (ZeroBody, False, False): "zero",
}

_TILE_LOOKUPS: Mapping[Expr, str] = {
    FIRST_ROW: "first_row",
    NUM_ROWS: "num_rows",
    EXPERT: "expert",
    ROUTE_AT: "route",
    SOURCE: "source",
}


def _doc(family: Family) -> str:
    what = {
        Role.COMM: "Send rows to the ranks that compute them",
        Role.RELAY: "Collect the rows of an M tile",
        Role.COMPUTE: "Compute one tile of",
        Role.PUSH: "Return the rows of an M tile to the ranks they came from",
        Role.REDUCE: "Sum each token's routes, in k order, in fp32",
    }[family.role]
    if isinstance(family.body, ZeroBody):
        return f"Zero the rows of `{family.value}` after the last valid one."
    return f"{what} `{family.value}`." if family.role is Role.COMPUTE else f"{what}: `{family.value}`."


def _comments(family: Family, places: Places) -> tuple[str, ...]:
    """The source line that the family came from."""
    source = places.settings.source
    if source is None or family.span.line == 0:
        return ()
    return (f"line {family.span.line}: {source.line(family.span.line).strip()}",)


def _decode(family: Family, places: Places) -> tuple[str, ...]:
    """Lines from the task's index to its coordinates, and what every body of that kind reads first."""
    lines: list[str] = []
    if not places.local:
        if family.role in (Role.COMM, Role.REDUCE):
            lines.append("first_token = as_int(tl.load(token_start + rank))")
        if family.role is Role.REDUCE:
            lines.append("tokens = as_int(tl.load(token_start + rank + 1)) - first_token")
        if isinstance(family.body, GemmBody):
            lines.append("num_tiles = as_int(tl.load(totals + rank * 2))")
        if isinstance(family.body, ZeroBody):
            lines.append("total_rows = as_int(tl.load(totals + rank * 2 + 1))")
    first = family.domain[0].coord
    if len(family.domain) == 2:
        columns = expr_text(family.domain[1].extent, {})
        lines.append(f"tile, column = split_grouped(index, num_tiles, {columns}, {family.group})")
    else:
        lines.append(f"{first} = index")
    if first == "tile":
        at = "tile" if places.local else "rank * tiles_bound + tile"
        if isinstance(family.body, GemmBody):
            lines.append(f"expert = as_int(tl.load(tile_expert + {at}))")
        lines.append(f"first_row = as_int(tl.load(tile_row + {at}))")
        lines.append(f"num_rows = as_int(tl.load(tile_rows + {at}))")
    return tuple(lines)


def _wait(wait: Wait, places: Places) -> WaitView:
    lookups: dict[Expr, str] = {NUM_ROWS: "num_rows"}
    if isinstance(wait.target, Lookup) and wait.target.table == "block_routes":
        at = "block" if places.local else "rank * blocks_bound + block"
        lookups[wait.target] = f"as_int(tl.load(block_routes + {at}))"
    index = expr_text(wait.index, lookups)
    return WaitView(
        counter=places.counter(wait.signal, index),
        target=expr_text(wait.target, lookups),
        scope=wait.scope.value,
        signal=f"SIGNAL_{wait.signal.upper()}",
        place=index,
    )


def _post(post: Post, places: Places, lookups: Mapping[Expr, str]) -> PostView:
    rank = None if post.rank is None else expr_text(post.rank, lookups)
    index = expr_text(post.index, {**_TILE_LOOKUPS, **lookups}, outer=2)
    return PostView(counter=places.counter(post.signal, index, rank), scope=post.scope.value)


def _body(family: Family, places: Places) -> tuple[dict[str, object], Mapping[Expr, str]]:
    match family.body:
        case GemmBody():
            return _gemm_body(family, family.body, places), _TILE_LOOKUPS
        case CopyBody() if family.role is Role.COMM:
            return _send_body(family, family.body, places)
        case CopyBody() if family.role is Role.PUSH:
            return _push_body(family.body, places), _TILE_LOOKUPS
        case CopyBody():
            return _relay_body(family, family.body, places), _TILE_LOOKUPS
        case ReduceBody():
            return _reduce_body(family.body, places), {}
        case ZeroBody():
            return _zero_body(family.body, places), {}


def _piece(cols: int, most: int = COPY_COLS) -> int:
    """Columns at a time: a power of two, at most `most`."""
    return min(most, 1 << max(cols - 1, 0).bit_length())


def _origin_lines(
    places: Places, rows: str, mask: str = ", mask=live, other=0", reads_source: bool = True
) -> tuple[str, ...]:
    """Lines that load where rows came from. Under a group the entry holds the source rank too."""
    if places.local:
        return (f"route = tl.load(row_route + {rows}{mask})",)
    lines = [
        f"origin = tl.load(advance(row_route, rank, rows_bound, 1) + {rows}{mask})",
        "route = origin % routes_bound",
    ]
    if reads_source:
        lines.insert(1, "source = origin // routes_bound")
    return tuple(lines)


def _copy_mask(cols: int, live: str = "live") -> str:
    piece = _piece(cols)
    return f"{live}[:, None]" if cols % piece == 0 else f"{live}[:, None] & (cols < {cols})"


def _relay_body(family: Family, body: CopyBody, places: Places) -> dict[str, object]:
    read = next(access for access in family.reads if access.buffer == body.source)
    return {
        "chunk": body.chunk,
        "cols": body.cols,
        "piece": _piece(body.cols),
        "gather_lines": _origin_lines(places, "rows"),
        "gather_row": expr_text(read.row, _TILE_LOOKUPS),
        "source_pointer": places.pointer(body.source),
        "source_stride": places.stride(places.schedule.graph.buffer(body.source)),
        "target_pointer": places.pointer(body.target),
        "copy_mask": _copy_mask(body.cols),
    }


def _push_body(body: CopyBody, places: Places) -> dict[str, object]:
    returned = places.schedule.graph.buffer(body.target)
    return {
        "chunk": body.chunk,
        "cols": body.cols,
        "piece": _piece(body.cols),
        "gather_lines": _origin_lines(places, "rows"),
        "source_pointer": places.pointer(body.source),
        "target_pointer": f"advance({body.target}_ptr, source[:, None], {expr_text(returned.rows, {})}, {body.cols})",
        "copy_mask": _copy_mask(body.cols),
    }


def _send_body(family: Family, body: CopyBody, places: Places) -> tuple[dict[str, object], Mapping[Expr, str]]:
    graph = places.schedule.graph
    write = next(access for access in family.writes if access.buffer == body.target)
    item = Lookup("send_item", (Coord("peer"), Coord("item")))
    by_token = body.target != family.value
    route: Expr = item * graph.topk + Coord("k") if by_token else item
    lookups: dict[Expr, str] = {
        item: "item",
        Lookup("row_of", (route,)): "row",
        Lookup("tile_of", (route,)): "tile",
        Coord("peer"): "peer",
    }
    fields: dict[str, object] = {
        "chunk": body.chunk,
        "lanes": places.settings.lanes,
        "num_ranks": graph.ranks,
        "topk": graph.topk,
        "topk_block": 1 << (graph.topk - 1).bit_length(),
        "tile_rows": graph.tile_rows,
        "own_row": "" if places.local else f"rank * {graph.ranks} + ",
        "own_tokens": "0" if places.local else "first_token",
        "peer": "turn" if places.local else f"(rank + turn) % {graph.ranks}",
        "by_token": by_token,
        "sends_routes": not places.local,
        "cols": body.cols,
        "piece": _piece(body.cols),
        "source_pointer": places.pointer(body.source),
        "source_stride": places.stride(graph.buffer(body.source)),
        "target_pointer": places.pointer(body.target, "peer"),
        "target_row": expr_text(write.row, lookups),
        "copy_mask": _copy_mask(body.cols),
    }
    return fields, lookups


def _reduce_body(body: ReduceBody, places: Places) -> dict[str, object]:
    graph = places.schedule.graph
    piece = _piece(body.cols, REDUCE_COLS)
    inside = "" if body.cols % piece == 0 else f" & (cols < {body.cols})[None, :]"
    return {
        "block": body.block,
        "topk": body.topk,
        "cols": body.cols,
        "piece": piece,
        "row_of": "row_of" if places.local else f"row_of + first_token * {body.topk}",
        "by_route": body.by_route,
        "rows_pointer": places.pointer(body.rows),
        "weights": places.pointer(body.weights) if body.weights else "",
        "target_pointer": places.pointer(body.target),
        "dtype": TL_DTYPES[graph.buffer(body.target).dtype],
        "load_mask": f"valid[:, None]{inside}",
        "store_mask": f"live[:, None]{inside}",
    }


def _zero_body(body: ZeroBody, places: Places) -> dict[str, object]:
    piece = _piece(body.cols)
    return {
        "chunk": body.chunk,
        "cols": body.cols,
        "piece": piece,
        "target_pointer": places.pointer(body.target),
        "dtype": TL_DTYPES[places.schedule.graph.buffer(body.target).dtype],
        "and_cols": "" if body.cols % piece == 0 else f" & (cols < {body.cols})",
    }


# -- grouped GEMM -------------------------------------------------------------------------------------------------------


def _rows_read(family: Family, body: GemmBody) -> Access:
    return next(access for access in family.reads if access.buffer == body.rows)


def weights_by_tma(body: GemmBody, places: Places) -> bool:
    """Whether the GEMM's weights are read through tensor descriptors: rows have to start at multiples of 16 bytes.

    With layout kn, what lies past an expert's depth is the next expert, whose values may be infinite: there a tile has to
    end where the expert does.
    """
    weight = places.schedule.graph.buffer(body.accumulators[0].weight)
    if not isinstance(weight.cols, Int):
        raise TypeError(f"{weight.name} has unbound columns")
    stays_inside = body.layout == "nk" or body.depth % body.tile.depth == 0
    return places.settings.target.has_tma and stays_inside and (weight.cols.value * weight.dtype.num_bytes) % 16 == 0


def descriptors(family: Family, places: Places) -> tuple[TmaView, ...]:
    """The tensor descriptors that a family reads through."""
    body = family.body
    if not isinstance(body, GemmBody):
        return ()
    bn, bk = body.tile.cols // len(body.accumulators), body.tile.depth
    views = []
    if _rows_read(family, body).proxy is Proxy.ASYNC:
        views.append(TmaView(name=f"{body.rows}_tma", buffer=body.rows, block=(body.tile.rows, bk)))
    if weights_by_tma(body, places):
        block = (bn, bk) if body.layout == "nk" else (bk, bn)
        for weight in dict.fromkeys(acc.weight for acc in body.accumulators):
            views.append(TmaView(name=f"{weight}_tma", buffer=weight, block=block))
    return tuple(views)


_REPEATED_ROWS = "first_row + minimum(rows, num_rows - 1)"
"""The rows of a tile; those past the last repeat it."""


def _gemm_body(family: Family, body: GemmBody, places: Places) -> dict[str, object]:
    graph = places.schedule.graph
    read = _rows_read(family, body)
    bn = body.tile.cols // len(body.accumulators)
    cols_tail, depth_tail = bool(body.num_cols % bn), bool(body.depth % body.tile.depth)
    by_tma = weights_by_tma(body, places)
    names = value_names(body)
    mask = "live[:, None] & (cols < {})[None, :]".format(body.num_cols) if cols_tail else "live[:, None]"
    return {
        "fence": any(wait.fence for wait in family.waits),
        "bm": body.tile.rows,
        "bn": bn,
        "bk": body.tile.depth,
        "depth": body.depth,
        "num_cols": body.num_cols,
        "cols_tail": cols_tail and not (by_tma and not any(acc.bias for acc in body.accumulators)),
        "depth_tail": depth_tail,
        "gather": body.gather,
        "gather_lines": _origin_lines(places, _REPEATED_ROWS, mask="") if body.gather else (),
        "gather_row": expr_text(read.row, _TILE_LOOKUPS) if body.gather else "",
        "rows_pointer": places.pointer(body.rows),
        "rows_stride": places.stride(graph.buffer(body.rows)),
        "rows_tma": f"{body.rows}_tma" if read.proxy is Proxy.ASYNC else "",
        "rows_tma_first": "" if places.local else "rank * rows_bound + ",
        "weights_tma": by_tma,
        "accumulators": tuple(_accumulator(acc, body, places, names, bn, cols_tail) for acc in body.accumulators),
        "epilogue": tuple(epilogue_lines(body.epilogue, names)),
        "stores": tuple(
            StoreView(
                value=names.get(store.value, store.value),
                pointer=places.pointer(store.buffer),
                stride=_cols(graph.buffer(store.buffer)),
                first_text=f"{store.first} + " if store.first else "",
                dtype=TL_DTYPES[graph.buffer(store.buffer).dtype],
                mask=mask,
            )
            for store in body.stores
        ),
    }


def _accumulator(
    acc: Accumulator, body: GemmBody, places: Places, names: Mapping[str, str], bn: int, cols_tail: bool
) -> AccumulatorView:
    graph = places.schedule.graph
    weight = graph.buffer(acc.weight)
    rows, cols = _rows(weight), _cols(weight)
    nk = body.layout == "nk"
    first = f"{acc.first} + " if acc.first else ""
    start = f"{first}column * {bn}"
    cols_name = "weight_cols" if cols_tail else "cols"
    return AccumulatorView(
        name=names[acc.value],
        pointer=f"{acc.weight}_ptr",
        cols_name=f"({first}{cols_name})" if first else cols_name,
        expert_stride=rows * cols,
        col_stride=cols if nk else 1,
        depth_stride=1 if nk else cols,
        tma=f"{acc.weight}_tma",
        tma_index=f"[expert * {rows} + {start}, k]" if nk else f"[expert * {rows} + k, {start}]",
        tma_transpose=".T" if nk else "",
        bias=f"{acc.bias}_ptr" if acc.bias else "",
        bias_stride=_cols(graph.buffer(acc.bias)) if acc.bias else 0,
        first_text=first,
    )


def value_names(body: GemmBody) -> dict[str, str]:
    """Kernel names of a GEMM's values: the program's, but for accumulators without a name and names that templates use."""
    names: dict[str, str] = {}
    made = [*(acc.value for acc in body.accumulators), *(op.results[0] for op in body.epilogue)]
    for value in made:
        name = f"acc{value}" if value.startswith("_") else value
        names[value] = f"{name}_" if name in LOCAL_NAMES else name
    return names


def _rows(buffer: Buffer) -> int:
    if not isinstance(buffer.rows, Int):
        raise TypeError(f"{buffer.name} has unbound rows")
    return buffer.rows.value


def _cols(buffer: Buffer) -> int:
    if not isinstance(buffer.cols, Int):
        raise TypeError(f"{buffer.name} has unbound columns")
    return buffer.cols.value
