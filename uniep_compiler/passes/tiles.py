"""Tiles of grouped GEMMs: the schedule's, or a default, and what a target has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from uniep_compiler.ir.tasks import Tile
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.settings import choose_tile
from uniep_compiler.passes.stages import Stage
from uniep_compiler.passes.target import NUM_STAGES, Target

Shape = tuple[int, int, int]
"""Rows, columns over all accumulators, and depth."""

MOST_FP32_SUMS = 128 * 256
"""Elements of the accumulators of a tile: with 8 warps, 128 registers of each thread."""
MOST_IEEE_SUMS = 64 * 128
MOST_IEEE_PRODUCTS = 64 * 64 * 32
MOST_IEEE_DEPTH = 32
"""fp32 inputs are multiplied by CUDA cores, whose operands are in registers, too; past these, they spill."""
LOADS_SHARE = 1
SUM_WIDTH, SUM_DEPTH = 64, 32
"""Columns of a task that sums the rows of an expert, and rows that it adds at a time."""
MOST_TMA_SIDE = 256
"""Elements of a side of a block that the tensor memory accelerator loads."""


def stage_tile(stage: Stage, shapes: Mapping[str, Shape], target: Target, dtype: DType) -> Tile:
    """The last of `shapes` that is for one of the stage's values, else the default for the target."""
    chosen = [shape for name, shape in shapes.items() if name in stage.values]
    if chosen:
        rows, cols, depth = chosen[-1]
        return Tile(rows=rows, cols=cols, depth=depth)
    # What an epilogue reads takes registers beside the sums: the tile is half as wide.
    accumulators = len(stage.accumulators)
    share = LOADS_SHARE if stage.loads and accumulators == 1 else 1
    tile = choose_tile(target, dtype, num_cols=stage.num_cols, depth=stage.depth, num_accumulators=accumulators * share)
    return replace(tile, cols=tile.cols // share)


def outer_tile(target: Target, dtype: DType, num_rows: int, num_cols: int) -> Tile:
    """The tile of a sum of outer products: rows and columns of the result, and the rows that are added at a time."""
    tile = choose_tile(target, dtype, num_cols=num_cols, depth=1 << 20, num_accumulators=1)
    return replace(tile, rows=min(tile.rows, max(16, 1 << (num_rows - 1).bit_length())))


def too_large(tile: Tile, num_accumulators: int, target: Target, dtype: DType) -> str:
    """Why a tile does not fit a target; empty if it does. The interpreter takes any."""
    if target.interpreted:
        return ""
    shared = NUM_STAGES * (tile.rows + tile.cols) * tile.depth * dtype.num_bytes
    if shared > target.shared_bytes:
        stages = f"{NUM_STAGES} stages of ({tile.rows} + {tile.cols}) * {tile.depth} * {dtype.num_bytes} bytes"
        return f"{stages} need {shared} bytes of shared memory, and {target.name} has {target.shared_bytes}"
    sums, products = tile.rows * tile.cols, tile.rows * tile.cols * tile.depth
    if sums > (MOST_IEEE_SUMS if dtype is DType.F32 else MOST_FP32_SUMS):
        most = (MOST_IEEE_SUMS if dtype is DType.F32 else MOST_FP32_SUMS) // tile.rows
        return f"its sums need more registers than a thread has: at most {most} columns fit"
    if dtype is DType.F32 and (products > MOST_IEEE_PRODUCTS or tile.depth > MOST_IEEE_DEPTH):
        most = min(MOST_IEEE_DEPTH, MOST_IEEE_PRODUCTS // sums)
        return f"its operands need more registers than a thread has: at most a depth of {most} fits"
    if target.has_tma and max(tile.cols // num_accumulators, tile.depth) > MOST_TMA_SIDE:
        return f"tensor descriptors load at most {MOST_TMA_SIDE} columns of an accumulator, and that depth"
    return ""
