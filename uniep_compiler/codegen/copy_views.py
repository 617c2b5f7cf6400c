"""What the templates of families without a GEMM see: sends, relays, maps, pushes, reduces, zeros."""

from __future__ import annotations

from collections.abc import Mapping

from uniep_compiler.codegen.names import value_names
from uniep_compiler.codegen.places import COPY, MAP, REDUCE, TILE_LOOKUPS, Places
from uniep_compiler.codegen.triton_text import TL_DTYPES, epilogue_lines, shares_of
from uniep_compiler.codegen.view import LoadView, RowValueView, StoreView
from uniep_compiler.ir.index import Coord, Expr, Int, Lookup
from uniep_compiler.ir.tasks import (
    BiasLoad,
    CopyBody,
    Family,
    MapBody,
    ReduceBody,
    RoutesBody,
    RowLoad,
    RowValue,
    Store,
    ZeroBody,
)
from uniep_compiler.ir.types import Dim


def send_body(family: Family, body: CopyBody, places: Places) -> tuple[dict[str, object], Mapping[Expr, str]]:
    """The body of comm lanes, and what they call the entries of the plan that they have read."""
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
        **_copy_fields(body, places),
        "lanes": "LANES",
        "num_ranks": "1" if places.local else "NUM_RANKS",
        "topk": places.topk,
        "topk_block": "TOPK_BLOCK",
        "tile_rows": "TILE_ROWS",
        "own_row": "" if places.local else "rank * NUM_RANKS + ",
        "own_tokens": "0" if places.local else "first_token",
        "peer": "turn" if places.local else "(rank + turn) % NUM_RANKS",
        "by_token": by_token,
        "sends_routes": not places.local,
        "companions": tuple(
            {
                "source": places.pointer(companion.source),
                "target": places.pointer(companion.target, "peer"),
            }
            for companion in body.companions
        ),
        "target_pointer": places.pointer(body.target, "peer"),
        "target_row": places.text(write.row, lookups),
    }
    return fields, lookups


def relay_body(family: Family, body: CopyBody, places: Places) -> dict[str, object]:
    """The body of a relay, which collects a tile's rows."""
    read = next(access for access in family.reads if access.buffer == body.source)
    return {
        **_copy_fields(body, places),
        "gather_lines": origin_lines(places, "rows"),
        "gather_row": places.text(read.row, TILE_LOOKUPS),
        "target_pointer": places.pointer(body.target),
    }


def push_body(body: CopyBody, places: Places) -> dict[str, object]:
    """The body of a push, which returns a tile's rows to where they came from."""
    rows, cols = places.text(places.buffer(body.target).rows), places.cols(body.target)
    return {
        **_copy_fields(body, places),
        "gather_lines": origin_lines(places, "rows"),
        "target_pointer": f"advance({body.target}_ptr, source[:, None], {rows}, {cols})",
    }


def reduce_body(body: ReduceBody, places: Places) -> dict[str, object]:
    """The body of a reduce."""
    inside = f" & (cols < {places.cols(body.rows)})[None, :]" if places.has_tail(REDUCE, body.cols) else ""
    return {
        "block": "BLOCK",
        "topk": places.topk,
        "cols": places.cols(body.rows),
        "piece": places.piece(REDUCE, body.cols),
        "row_of": "row_of" if places.local else f"row_of + first_token * {places.topk}",
        "by_route": body.by_route,
        "rows_pointer": places.pointer(body.rows),
        "rows_stride": places.stride(body.rows),
        "weights": places.pointer(body.weights) if body.weights else "",
        "target_pointer": places.pointer(body.target),
        "target_stride": places.stride(body.target),
        "dtype": TL_DTYPES[places.buffer(body.target).dtype],
        "load_mask": f"valid[:, None]{inside}",
        "store_mask": f"live[:, None]{inside}",
    }


def routes_body(body: RoutesBody, places: Places) -> dict[str, object]:
    """The body of a family that returns numbers per row to their routes."""
    return {
        "block": "BLOCK",
        "topk": places.topk,
        "row_of": "row_of" if places.local else f"row_of + first_token * {places.topk}",
        "by_route": body.by_route,
        "parts": tuple({"pointer": places.pointer(part.rows), "cols": places.cols(part.rows)} for part in body.parts),
        "target_pointer": places.pointer(body.target),
    }


def zero_body(body: ZeroBody, places: Places) -> dict[str, object]:
    """The body of a family that zeroes the rows after the last valid one."""
    cols = places.cols(body.target)
    return {
        "chunk": "CHUNK",
        "cols": cols,
        "piece": places.piece(COPY, body.cols),
        "target_pointer": places.pointer(body.target),
        "target_stride": places.stride(body.target),
        "dtype": TL_DTYPES[places.buffer(body.target).dtype],
        "and_cols": f" & (cols < {cols})" if places.has_tail(COPY, body.cols) else "",
    }


def map_body(family: Family, body: MapBody, places: Places) -> dict[str, object]:
    """The body of a map: rows through an epilogue."""
    names, unit = map_names(body, places), map_cols(body, places)
    cols, doubled = places.dim(unit), places.dim(unit.times(2))
    by_route = any(row_value.by_route for row_value in body.row_values)
    has_tail = places.has_tail(MAP, body.cols)
    parts: tuple[RowLoad | BiasLoad | Store, ...] = (*body.loads, *body.biases, *body.stores)
    counted = {2: "inside", 4: "inside_twice"} if has_tail else {}
    shares = shares_of(body.epilogue, (*body.loads, *body.biases))
    inside = {op.operands[0]: counted.get(shares[op.operands[0]], "") for op in body.epilogue if op.kind == "row_sum"}

    def columns(part: RowLoad | BiasLoad | Store) -> str:
        return f"{f'{cols} + ' if part.first else ''}{'double_cols' if part.doubled else 'cols'}"

    def mask(part: RowLoad | BiasLoad | Store) -> str:
        return "inside_twice" if part.doubled else "inside"

    return {
        "chunk": "CHUNK",
        "cols": cols,
        "piece": places.piece(MAP, body.cols),
        "gather_lines": origin_lines(places, "rows") if body.gather or by_route else (),
        "loads": tuple(
            LoadView(
                name=names[load.value],
                pointer=places.pointer(load.buffer),
                stride=places.stride(load.buffer),
                cols_text=columns(load),
                mask=mask(load),
                row=_map_row(family, body, load, places),
            )
            for load in body.loads
        ),
        "biases": tuple(
            LoadView(
                name=names[bias.value],
                pointer=places.pointer(bias.buffer),
                stride=places.stride(bias.buffer),
                cols_text=columns(bias),
                mask=mask(bias),
            )
            for bias in body.biases
        ),
        "row_values": tuple(row_value_view(found, places, names, "rows") for found in body.row_values),
        "mask": f"live[:, None]{f' & (cols < {cols})' if has_tail else ''}",
        "double_mask": f"live[:, None]{f' & (double_cols < {doubled})' if has_tail else ''}",
        "has_doubles": any(part.doubled for part in parts),
        "epilogue": tuple(epilogue_lines(body.epilogue, names, {store.value for store in body.stores}, inside)),
        "stores": tuple(
            StoreView(
                value=names[store.value],
                pointer=places.pointer(store.buffer),
                stride=places.stride(store.buffer),
                cols_text=columns(store),
                dtype=TL_DTYPES[places.buffer(store.buffer).dtype],
                mask=mask(store),
            )
            for store in body.stores
            if not store.summed
        ),
        "sums": tuple(
            {"value": names[store.value], "pointer": places.pointer(store.buffer)}
            for store in body.stores
            if store.summed
        ),
    }


def map_cols(body: MapBody, places: Places) -> Dim:
    """The columns of most of a map's values."""
    load = body.loads[0]
    width = places.sizes.cols[load.buffer]
    half = width.half()
    return half if half is not None and places.buffer(load.buffer).cols == Int(2 * body.cols) else width


def _map_row(family: Family, body: MapBody, load: RowLoad, places: Places) -> str:
    """Which rows of a buffer a map loads, as text."""
    if not body.gather or load.buffer != body.source:
        return "rows"
    read = next(access for access in family.reads if access.buffer == body.source)
    return f"({places.text(read.row, TILE_LOOKUPS)})"


def map_names(body: MapBody, places: Places) -> dict[str, str]:
    """What a map's function calls the program's values."""
    return value_names(body, places.names.taken)


def row_value_view(found: RowValue, places: Places, names: Mapping[str, str], rows: str) -> RowValueView:
    """Where a function reads a number for each of `rows`; by route, that has been read before."""
    at = "route" if found.by_route else rows
    return RowValueView(name=names[found.value], at=f"{places.pointer(found.buffer)} + {at}")


def origin_lines(places: Places, rows: str, mask: str = ", mask=live, other=0") -> tuple[str, ...]:
    """Lines that load where rows came from. Under a group the entry holds the source rank too."""
    if places.local:
        return (f"route = tl.load(row_route + {rows}{mask})",)
    return (
        f"origin = tl.load(advance(row_route, rank, rows_bound, 1) + {rows}{mask})",
        "source = origin // routes_bound",
        "route = origin % routes_bound",
    )


def _copy_fields(body: CopyBody, places: Places) -> dict[str, object]:
    """What all copies of rows have in common."""
    cols = places.cols(body.source)
    inside = f" & (cols < {cols})" if places.has_tail(COPY, body.cols) else ""
    return {
        "chunk": "CHUNK",
        "cols": cols,
        "piece": places.piece(COPY, body.cols),
        "source_pointer": places.pointer(body.source),
        "source_stride": places.stride(body.source),
        "target_stride": places.stride(body.target),
        "copy_mask": f"live[:, None]{inside}",
    }
