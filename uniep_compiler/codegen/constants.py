"""The constants at the top of a generated module: what numbers in its kernels stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uniep_compiler.codegen import state_layout as layout
from uniep_compiler.codegen.places import Places, num_columns
from uniep_compiler.codegen.view import ConstantGroup, ConstantView
from uniep_compiler.ir.tasks import Family, GemmBody, OuterBody

GIVEN_UP = 1 << 30
CLEAR_BLOCK = 1024
RAGGED_ROWS = 1 << 30

_ERROR_WORDS = ("KIND", "RANK", "FAMILY", "TASK", "SIGNAL", "INDEX", "EXPECTED", "SEEN")

STATE_CONSTANTS: tuple[tuple[str, int, str], ...] = (
    ("STATE_CALL", layout.STATE_CALL, "number of calls that have ended"),
    ("STATE_EXITED", layout.STATE_EXITED, "workers that have left"),
    ("STATE_ABORT", layout.STATE_ABORT, "not 0 once the call is given up"),
    ("STATE_CLOCK", layout.STATE_CLOCK, "the latest time that a waiting worker read"),
    ("STATE_CURSOR", layout.STATE_CURSOR, "cursors of both halves"),
    ("CURSORS", layout.CURSORS, "cursors of a half, one per launch"),
    ("GIVEN_UP", GIVEN_UP, "moves a cursor past the last task"),
    *((f"ERROR_{name}", getattr(layout, f"ERROR_{name}"), "") for name in _ERROR_WORDS),
    ("KIND_HANG", int(layout.ErrorKind.HANG), "the kind of error that a wait reports"),
    ("CLEAR_BLOCK", CLEAR_BLOCK, "counters that a worker clears at a time"),
    ("RAGGED_ROWS", RAGGED_ROWS, "rows that a ragged tensor descriptor seems to have"),
)
"""Words of the state and of the error record: name, value, meaning."""

OPTION_CONSTANTS: Mapping[str, str] = {
    "TILE_ROWS": "rows of an M tile",
    "GROUP": "M tiles whose tasks share weights in L2",
    "LAG": "groups of tiles between a family and the one that it reads from",
    "CHUNK": "rows that copies handle at a time",
    "COPY_COLS": "columns that copies handle at a time",
    "MAP_COLS": "columns that maps handle at a time",
    "LANES": "comm lanes per rank",
    "BLOCK": "tokens of a reduce task",
    "REDUCE_COLS": "columns that a reduce handles at a time",
    "TOPK_BLOCK": "routes per token, rounded up to a power of two",
    "NUM_RANKS": "ranks of the group",
}
"""Constants for what a schedule's options and the target decide."""

FIXED_NAMES = (*OPTION_CONSTANTS, *(name for name, _, _ in STATE_CONSTANTS))


def constant_groups(places: Places) -> tuple[ConstantGroup, ...]:
    """The constants that the kernels of a schedule may use, in groups."""
    graph, names = places.schedule.graph, places.names
    dims = [(names.dims[name], value, "") for name, value in places.settings.dims.items()]
    tiles = [constant for family in graph.families for constant in _tile_constants(family, places)]
    groups = [
        ("Dims of the program.", dims),
        ("Sizes of tiles, blocks and pieces.", [*_option_constants(places), *tiles]),
        ("Task families.", [(names.families[f.name], i, f"role {f.role}") for i, f in enumerate(graph.families)]),
        ("Signals of the scoreboard.", [(names.signals[s.name], i, "") for i, s in enumerate(graph.signals)]),
        ("Words of the state and of the error record.", STATE_CONSTANTS),
    ]
    return tuple(_group(comment, constants, places.settings.target.interpreted) for comment, constants in groups)


def _group(comment: str, constants: Iterable[tuple[str, int, str]], interpreted: bool) -> ConstantGroup:
    """Interpreted, a constant is a number; kernels that are compiled see only `tl.constexpr`."""
    text = "{}" if interpreted else "tl.constexpr({})"
    views = tuple(ConstantView(name=name, text=text.format(value), comment=note) for name, value, note in constants)
    return ConstantGroup(comment=comment, constants=views)


def _option_constants(places: Places) -> Iterable[tuple[str, int, str]]:
    graph, settings = places.schedule.graph, places.settings
    values = {
        "TILE_ROWS": graph.tile_rows,
        "GROUP": settings.options.group,
        "CHUNK": settings.options.chunk,
        "LANES": settings.lanes,
        "BLOCK": graph.block,
        "TOPK_BLOCK": 1 << (graph.topk - 1).bit_length(),
        "NUM_RANKS": graph.ranks,
    }
    numbered = {name: cols for (_, cols), name in places.pieces.items()}
    numbered |= {name: lag for lag, name in places.lags.items()}
    for kind, note in OPTION_CONSTANTS.items():
        if kind in values:
            yield kind, values[kind], note
        yield from ((name, cols, note) for name, cols in numbered.items() if name.startswith(kind))


def _tile_constants(family: Family, places: Places) -> Iterable[tuple[str, int, str]]:
    body = family.body
    if isinstance(body, OuterBody):
        yield from _outer_constants(family, body, places)
    if not isinstance(body, GemmBody):
        return
    names, cols = places.names.tiles[family.name], body.tile.cols // len(body.accumulators)
    columns = num_columns(body)
    yield names.cols, cols, "columns of an accumulator"
    yield names.columns, columns, "tiles side by side"
    yield names.depth, body.tile.depth, "products that are summed at a time"
    yield names.step, columns * places.settings.options.group, "tasks of a group of M tiles"


def _outer_constants(family: Family, body: OuterBody, places: Places) -> Iterable[tuple[str, int, str]]:
    names, tile = places.names.outers[family.name], body.tile
    across = -(-body.num_cols // tile.cols)
    yield names.rows, tile.rows, "rows of a tile of an expert's result"
    yield names.cols, tile.cols, "columns of it"
    yield names.depth, tile.depth, "rows whose products are summed at a time"
    yield names.across, across, "tiles side by side"
    yield names.places, -(-body.num_rows // tile.rows) * across, "tiles of an expert"
