"""What the templates of sums over an expert's rows see: gradients of weights and of biases."""

from __future__ import annotations

from collections.abc import Mapping

from uniep_compiler.codegen.copy_views import origin_lines
from uniep_compiler.codegen.places import Places
from uniep_compiler.codegen.triton_text import TL_DTYPES
from uniep_compiler.ir.tasks import Family, OuterBody, Proxy, SumBody


def outer_blocks(family: Family, body: OuterBody) -> Mapping[str, tuple[int, int]]:
    """Block shapes of the rows that the family reads through tensor descriptors."""
    blocks: dict[str, tuple[int, int]] = {}
    for left, right in _pairs(body):
        blocks |= {left: (body.tile.depth, body.tile.rows), right: (body.tile.depth, body.tile.cols)}
    by_tma = {access.buffer for access in family.reads if access.proxy is Proxy.ASYNC}
    return {name: block for name, block in blocks.items() if name in by_tma}


def _pairs(body: OuterBody) -> tuple[tuple[str, str], ...]:
    """The rows whose outer products are summed."""
    return ((body.left, body.right), *((term.left, term.right) for term in body.terms))


def outer_body(family: Family, body: OuterBody, places: Places) -> dict[str, object]:
    """The body of a sum of outer products."""
    tile, sizes = places.names.outers[family.name], places.sizes
    rows, cols = places.dim(sizes.weight_rows[body.target]), places.cols(body.target)
    rows_tail, cols_tail = body.num_rows % body.tile.rows, body.num_cols % body.tile.cols
    tails = [f"(left_cols < {rows})[:, None]"] if rows_tail else []
    tails += [f"(right_cols < {cols})[None, :]"] if cols_tail else []
    return {
        "fence": any(wait.fence for wait in family.waits),
        "bm": tile.rows,
        "bn": tile.cols,
        "bk": tile.depth,
        "across": tile.across,
        "uses_depth": any(not places.tma.get((family.name, name)) for pair in _pairs(body) for name in pair),
        "products": tuple(
            {
                "left_tma": places.tma.get((family.name, left), ""),
                "right_tma": places.tma.get((family.name, right), ""),
                "left_pointer": places.pointer(left),
                "left_stride": places.stride(left),
                "right_pointer": places.pointer(right),
                "right_stride": places.stride(right),
            }
            for left, right in _pairs(body)
        ),
        "left_mask": f"inside[:, None]{f' & (left_cols < {rows})[None, :]' if rows_tail else ''}",
        "right_mask": f"inside[:, None]{f' & (right_cols < {cols})[None, :]' if cols_tail else ''}",
        "target_pointer": f"advance({places.pointer(body.target)}, expert, {rows}, {cols})",
        "target_stride": places.stride(body.target),
        "dtype": TL_DTYPES[places.buffer(body.target).dtype],
        "store_mask": f", mask={' & '.join(tails)}" if tails else "",
    }


def sum_body(body: SumBody, places: Places) -> dict[str, object]:
    """The body of a sum of an expert's rows."""
    cols, found = places.cols(body.rows), body.factor
    cols_tail = body.num_cols % body.width
    return {
        "width": body.width,
        "depth": body.depth,
        "pieces": -(-body.num_cols // body.width),
        "rows_pointer": places.pointer(body.rows),
        "rows_stride": places.stride(body.rows),
        "factor": places.pointer(found.buffer) if found else "",
        "by_route": found is not None and found.by_route,
        "origin_lines": origin_lines(places, "row_at", ", mask=inside, other=0") if found and found.by_route else (),
        "mask": f"inside[:, None]{f' & (cols < {cols})[None, :]' if cols_tail else ''}",
        "target_pointer": places.pointer(body.target),
        "target_stride": places.stride(body.target),
        "dtype": TL_DTYPES[places.buffer(body.target).dtype],
        "store_mask": f", mask=cols < {cols}" if cols_tail else "",
    }
