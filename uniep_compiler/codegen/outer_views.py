"""What the template of sums of outer products sees: weight gradients."""

from __future__ import annotations

from collections.abc import Mapping

from uniep_compiler.codegen.places import Places
from uniep_compiler.codegen.triton_text import TL_DTYPES
from uniep_compiler.ir.tasks import Family, OuterBody, Proxy


def outer_blocks(family: Family, body: OuterBody) -> Mapping[str, tuple[int, int]]:
    """Block shapes of the rows that the family reads through tensor descriptors."""
    blocks = {body.left: (body.tile.depth, body.tile.rows), body.right: (body.tile.depth, body.tile.cols)}
    by_tma = {access.buffer for access in family.reads if access.proxy is Proxy.ASYNC}
    return {name: block for name, block in blocks.items() if name in by_tma}


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
        "left_tma": places.tma.get((family.name, body.left), ""),
        "right_tma": places.tma.get((family.name, body.right), ""),
        "left_pointer": places.pointer(body.left),
        "left_stride": places.stride(body.left),
        "left_mask": f"inside[:, None]{f' & (left_cols < {rows})[None, :]' if rows_tail else ''}",
        "right_pointer": places.pointer(body.right),
        "right_stride": places.stride(body.right),
        "right_mask": f"inside[:, None]{f' & (right_cols < {cols})[None, :]' if cols_tail else ''}",
        "target_pointer": f"advance({places.pointer(body.target)}, expert, {rows}, {cols})",
        "target_stride": places.stride(body.target),
        "dtype": TL_DTYPES[places.buffer(body.target).dtype],
        "store_mask": f", mask={' & '.join(tails)}" if tails else "",
    }
