"""What the template of grouped GEMMs sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from uniep_compiler.codegen.copy_views import origin_lines, row_value_view
from uniep_compiler.codegen.names import value_names
from uniep_compiler.codegen.outer_views import outer_blocks
from uniep_compiler.codegen.places import TILE_LOOKUPS, Places
from uniep_compiler.codegen.triton_text import NOTHING, TL_DTYPES, epilogue_lines, shares_of
from uniep_compiler.codegen.view import AccumulatorView, LoadView, ProductView, StoreView
from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.index import Int
from uniep_compiler.ir.tasks import (
    Access,
    Accumulator,
    Family,
    GemmBody,
    OuterBody,
    Proxy,
    RowLoad,
    Store,
    TaskGraph,
)
from uniep_compiler.passes.settings import Settings

TMA_BYTES = 16
"""Rows that the tensor memory accelerator reads start at multiples of this."""

PIECE_COLS = 64
"""Columns of the pieces in which an epilogue that loads rows works on a tile."""

_REPEATED_ROWS = "first_row + minimum(rows, num_rows - 1)"
"""The rows of a tile; those past the last repeat it."""


def tma_blocks(family: Family, graph: TaskGraph, settings: Settings) -> Mapping[str, tuple[int, int]]:
    """Block shapes of the buffers that a family reads through tensor descriptors: of rows, then of weights."""
    body = family.body
    if isinstance(body, OuterBody):
        return outer_blocks(family, body)
    if not isinstance(body, GemmBody):
        return {}
    blocks: dict[str, tuple[int, int]] = {}
    cols, depth = acc_cols(body), body.tile.depth
    block = (cols, depth) if body.layout == "nk" else (depth, cols)
    for product in products_of(body):
        if rows_by_tma(family, product):
            blocks[product.rows] = (body.tile.rows, depth)
        if weights_by_tma(body, product, graph, settings):
            blocks.update(dict.fromkeys(product.weights, block))
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows times weights, one for each accumulator, which sums them over `depth`."""

    rows: str
    depth: int
    weights: tuple[str, ...]


def products_of(body: GemmBody) -> tuple[Product, ...]:
    """What a GEMM's accumulators sum, in order."""
    first = Product(rows=body.rows, depth=body.depth, weights=tuple(acc.weight for acc in body.accumulators))
    return (
        first,
        *(
            Product(rows=term.rows, depth=term.depth, weights=(term.weight,) * len(body.accumulators))
            for term in body.terms
        ),
    )


def rows_by_tma(family: Family, product: Product) -> bool:
    """Whether the rows of a product are read through a tensor descriptor."""
    return rows_read(family, product).proxy is Proxy.ASYNC


def weights_by_tma(body: GemmBody, product: Product, graph: TaskGraph, settings: Settings) -> bool:
    """Whether the weights of a product are read through tensor descriptors.

    With layout kn, what lies past an expert's depth is the next expert, whose values may be infinite: there a tile has
    to end where the expert does.
    """
    weight = graph.buffer(product.weights[0])
    if not isinstance(weight.cols, Int):
        raise TypeError(f"{weight.name} has unbound columns")
    stays_inside = body.layout == "nk" or product.depth % body.tile.depth == 0
    is_aligned = (weight.cols.value * weight.dtype.num_bytes) % TMA_BYTES == 0
    return settings.target.has_tma and stays_inside and is_aligned


def rows_read(family: Family, product: Product) -> Access:
    """The access by which a GEMM reads the rows of a product."""
    return next(access for access in family.reads if access.buffer == product.rows)


def num_pieces(body: GemmBody) -> int:
    """In how many pieces, side by side, the epilogue works on a tile.

    What it loads, and what it makes of that, would not fit into registers beside the sums of a wide tile.
    """
    return max(1, min(4, acc_cols(body) // PIECE_COLS)) if body.loads else 1


def acc_cols(body: GemmBody) -> int:
    """Columns of an accumulator's tile."""
    return body.tile.cols // len(body.accumulators)


def gemm_body(family: Family, body: GemmBody, places: Places) -> dict[str, object]:
    """The body of a grouped GEMM."""
    tile, names = places.names.tiles[family.name], value_names(body, places.names.taken)
    products = tuple(_product(product, family, body, places, names) for product in products_of(body))
    cols_tail = bool(body.num_cols % acc_cols(body))
    pieces = num_pieces(body)
    pieces_of_sums = {acc.value: f"{names[acc.value]}_piece" for acc in body.accumulators}
    num_cols = _num_cols(body, places)
    return {
        "fence": any(wait.fence for wait in family.waits),
        "bm": places.tile_rows(body.tile.rows),
        "bn": tile.cols,
        "bk": tile.depth,
        "uses_depth": not all(product.rows_tma and product.weights_tma for product in products),
        "num_cols": num_cols,
        "cols_tail": cols_tail
        and (not all(product.weights_tma for product in products) or any(acc.bias for acc in body.accumulators)),
        "products": products,
        "accumulators": products[0].accumulators,
        "row_value_lines": _origin_of_row_values(body, places),
        "row_values": tuple(row_value_view(found, places, names, _REPEATED_ROWS) for found in body.row_values),
        "pieces": pieces,
        "piece_cols": f"({tile.cols} // {pieces})" if pieces > 1 else tile.cols,
        "piece_first": f"(column * {pieces} + piece) * ({tile.cols} // {pieces})"
        if pieces > 1
        else f"column * {tile.cols}",
        "half_first": f"(column * {pieces} + piece) * ({tile.cols} // {2 * pieces})"
        if pieces > 1
        else f"column * ({tile.cols} // 2)",
        "loads": tuple(_load(load, body, places, names[load.value]) for load in body.loads),
        "epilogue": tuple(
            epilogue_lines(
                body.epilogue,
                {**names, **pieces_of_sums} if pieces > 1 else names,
                {store.value for store in body.stores},
                _columns_inside(body, places) if cols_tail else NOTHING,
            )
        ),
        "has_halves": any(store.halved for store in body.stores),
        "has_doubles": any(store.doubled for store in body.stores) or any(load.doubled for load in body.loads),
        "stores": tuple(_store(store, family, body, places, names[store.value]) for store in body.stores),
    }


def _product(product: Product, family: Family, body: GemmBody, places: Places, names: Mapping[str, str]) -> ProductView:
    """The loop over the products of some rows. Only the first rows of a GEMM are gathered."""
    read = rows_read(family, product)
    gather = body.gather and product.rows == body.rows
    by_tma = weights_by_tma(body, product, places.schedule.graph, places.settings)
    accumulators = zip(body.accumulators, product.weights, strict=True)
    return ProductView(
        depth=places.cols(product.rows),
        depth_tail=bool(product.depth % body.tile.depth),
        gather_lines=origin_lines(places, _REPEATED_ROWS, mask="") if gather else (),
        gather_row=places.text(read.row, TILE_LOOKUPS) if gather else "",
        rows_pointer=places.pointer(product.rows),
        rows_stride=places.stride(product.rows),
        rows_tma=places.tma.get((family.name, product.rows), ""),
        rows_tma_first="" if places.local else "rank * rows_bound + ",
        weights_tma=by_tma,
        accumulators=tuple(
            _accumulator(replace(acc, weight=weight), family, body, places, names) for acc, weight in accumulators
        ),
    )


def _origin_of_row_values(body: GemmBody, places: Places) -> tuple[str, ...]:
    """Lines that read the rows' routes, where the epilogue needs them and the rows did not."""
    if body.gather or not any(found.by_route for found in body.row_values):
        return ()
    return origin_lines(places, _REPEATED_ROWS, mask="")


def _store(store: Store, family: Family, body: GemmBody, places: Places, value: str) -> StoreView:
    if store.summed:
        columns, pointer = places.names.tiles[family.name].columns, places.pointer(store.buffer)
        return StoreView(
            value=value, pointer=pointer, stride=columns, cols_text="column", dtype="", mask="live", summed=True
        )
    cols, mask = _columns(store, body, places)
    return StoreView(
        value=value,
        pointer=places.pointer(store.buffer),
        stride=places.stride(store.buffer),
        cols_text=cols,
        dtype=TL_DTYPES[places.buffer(store.buffer).dtype],
        mask=mask,
    )


def _load(load: RowLoad, body: GemmBody, places: Places, name: str) -> LoadView:
    cols, mask = _columns(load, body, places)
    return LoadView(
        name=name,
        pointer=places.pointer(load.buffer),
        stride=places.stride(load.buffer),
        cols_text=cols,
        mask=mask,
    )


def _columns(place: Store | RowLoad, body: GemmBody, places: Places) -> tuple[str, str]:
    """The columns of a buffer that a tile stores or loads, and which of its elements exist."""
    cols, num_cols = "cols", _num_cols(body, places)
    if isinstance(place, Store) and place.halved:
        cols, num_cols = "half_cols", places.cols(place.buffer)
    if place.doubled:
        cols, num_cols = "double_cols", places.cols(place.buffer)
    cols_tail = body.num_cols % acc_cols(body)
    mask = f"live[:, None] & ({cols} < {num_cols})[None, :]" if cols_tail else "live[:, None]"
    return f"{_first_text(place.first, body, places)}{cols}[None, :]", mask


def _columns_inside(body: GemmBody, places: Places) -> Mapping[str, str]:
    """Which columns of a row that is summed exist."""
    num_cols, shares = _num_cols(body, places), shares_of(body.epilogue, body.loads)
    texts = {2: f"(cols < {num_cols})[None, :]", 4: f"(double_cols < 2 * ({num_cols}))[None, :]"}
    summed = [op.operands[0] for op in body.epilogue if op.kind == "row_sum"]
    return {value: texts[shares.get(value, 2)] for value in summed}


def _num_cols(body: GemmBody, places: Places) -> str:
    return places.dim(places.sizes.acc_cols(body))


def _first_text(first: int, body: GemmBody, places: Places) -> str:
    """The first column of a half, to be added to; empty for the first half."""
    if first not in (0, body.num_cols):
        raise InternalError(f"column {first} is not the start of a half")
    return f"{_num_cols(body, places)} + " if first else ""


def _accumulator(
    acc: Accumulator, family: Family, body: GemmBody, places: Places, names: Mapping[str, str]
) -> AccumulatorView:
    name, sizes, nk = names[acc.value], places.sizes, body.layout == "nk"
    rows, stride = places.factor(sizes.weight_rows[acc.weight]), places.stride(acc.weight)
    first = _first_text(acc.first, body, places)
    start = f"{first}column * {places.names.tiles[family.name].cols}"
    cols = f"{first}{'weight_cols' if body.num_cols % acc_cols(body) else 'cols'}"
    col = f"({cols})[None, :]" if first else f"{cols}[None, :]"
    return AccumulatorView(
        name=name,
        pointer=f"{acc.weight}_ptr",
        cols_text=cols,
        expert_shape=f"{places.dim(sizes.weight_rows[acc.weight])}, {places.cols(acc.weight)}",
        col_offset=f"{col} * {stride}" if nk else col,
        depth_offset="depth[:, None]" if nk else f"depth[:, None] * {stride}",
        step="k" if nk else f"k * {stride}",
        tma=places.tma.get((family.name, acc.weight), ""),
        tma_first=f"expert * {rows} + {start}" if nk else start,
        tma_index=f"{name}_first, k" if nk else f"expert * {rows} + k, {name}_first",
        tma_transpose=".T" if nk else "",
        bias=f"{acc.bias}_ptr" if acc.bias else "",
        bias_stride=places.stride(acc.bias) if acc.bias else "",
    )
