"""Rules for schedule options that take more than one key, the target or the program to check. Run before all passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uniep_compiler.diagnostics import Diagnostic, Label, UniepError
from uniep_compiler.frontend.check import tiled_values
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.tasks import Tile
from uniep_compiler.options import LARGEST, Relay, Send
from uniep_compiler.passes.settings import Settings, tile_rows
from uniep_compiler.passes.stages import build_stages, row_dtype
from uniep_compiler.passes.tiles import stage_tile, too_large

SMALLEST_SIDE = 16
"""Matrix instructions take no fewer columns, and no fewer products per element."""
MOST_ELEMENTS = 2**20
"""Triton takes no larger blocks."""


def check_options(ops: OpGraph, settings: Settings) -> None:
    """Raise UniepError with every rule that the settings' options break."""
    found = [diagnostic for rule in RULES for diagnostic in rule(ops, settings)]
    if found:
        raise UniepError(found, settings.source)


def sends_fit_the_relay(_: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Rows that are sent once per route go straight to their place; rows that are shared by routes need a relay."""
    relay, send = settings.options.relay, settings.options.send
    if send is Send.ROUTE and relay not in (None, Relay.OFF):
        why = "a row that is sent once per route goes straight to its place, so there is nothing to relay"
        yield _problem("UEP0307", settings, "relay", f"`relay = {relay}` cannot go with `send = route`", why)
    if relay is Relay.OFF and send in (Send.RANK, Send.ALL):
        why = "a row that is sent once for several routes needs a relay that hands it on"
        yield _problem("UEP0307", settings, "send", f"`send = {send}` cannot go with `relay = off`", why)


def numbers_are_in_range(_: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Each key that takes a number has a largest one."""
    for key, most in LARGEST.items():
        number = getattr(settings.options, key)
        if number is not None and number > most:
            yield _problem("UEP0302", settings, key, f"`{key}` cannot be {number}", f"it is {most} at most")


def blocks_are_powers_of_two(_: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Blocks of a kernel's values have sizes that are powers of two."""
    for key, size in (("block", settings.options.block), ("chunk", settings.options.chunk)):
        if not _is_power_of_two(size):
            yield _problem("UEP0302", settings, key, f"`{key}` cannot be {size}", "it is a power of two")


def tiles_are_of_gemms(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Tiles are set for the program's grouped GEMMs, and for their gradients."""
    tiled = tiled_values(ops)
    for name, _ in settings.options.tiles:
        if name not in tiled:
            known = ", ".join(f"`{value}`" for value in tiled) or "none here"
            message = f"`{name}` is not a GEMM of `{ops.name}`"
            yield _problem("UEP0304", settings, f"tile({name})", message, f"tiles are those of {known}")


def tile_sides_are_powers_of_two(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Depth, and the columns of each accumulator, are powers of two that a matrix instruction can take."""
    for name, (_, cols, depth) in settings.options.tiles:
        shares = _num_accumulators(ops, settings, name)
        if not _is_side(depth):
            message = f"depth of `tile({name})` cannot be {depth}"
            yield _problem("UEP0302", settings, f"tile({name})", message, "16 or a larger power of two")
        if cols % shares or not _is_side(cols // shares):
            message = f"columns of `tile({name})` cannot be {cols}"
            each = "16 or a larger power of two"
            help_ = each if shares == 1 else f"{shares} accumulators share them, and each takes {each}"
            yield _problem("UEP0302", settings, f"tile({name})", message, help_)


def tiles_fit_a_block(_: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """Triton's blocks have a largest size, on any target, and a tile's operands and sums are such blocks."""
    for name, (rows, cols, depth) in settings.options.tiles:
        sides = {"rows and columns": rows * cols, "rows and depth": rows * depth, "columns and depth": cols * depth}
        pair = max(sides, key=lambda pair: sides[pair])
        if sides[pair] > MOST_ELEMENTS:
            message = f"`tile({name})` = ({rows}, {cols}, {depth}) is too large"
            help_ = f"its {pair} make a block of {sides[pair]} elements, and a block has {MOST_ELEMENTS} at most"
            yield _problem("UEP0302", settings, f"tile({name})", message, help_)


def tiles_fit_the_target(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """A tile leaves room in shared memory and registers."""
    for stage in build_stages(ops, settings.dims):
        for name, (rows, cols, depth) in settings.options.tiles:
            if name in stage.values:
                tile = Tile(rows=rows, cols=cols, depth=depth)
                why = too_large(tile, len(stage.accumulators), settings.target, row_dtype(ops))
                if why:
                    message = f"`tile({name})` = ({rows}, {cols}, {depth}) does not fit {settings.target.name}"
                    yield _problem("UEP0308", settings, f"tile({name})", message, why)


def columns_alone_depend_on_tokens(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """A block with a condition on the number of tokens leaves rows and depth alone: they decide how sums are formed."""
    base = dict(settings.base_tiles)
    for stage in build_stages(ops, settings.dims):
        tile = stage_tile(stage, base, settings.target, row_dtype(ops))
        for found in settings.token_tiles:
            rows, cols, depth = found.shape
            if found.value in stage.values and (rows, depth) != (tile.rows, tile.depth):
                yield Diagnostic(
                    code="UEP0309",
                    message=f"`tile({found.value})` would change results with the number of tokens",
                    labels=(Label(span=found.span, text="under a condition on the number of tokens"),),
                    notes=(f"without the condition it is ({tile.rows}, {tile.cols}, {tile.depth})",),
                    help=f"only its columns may differ: ({tile.rows}, {cols}, {tile.depth})",
                )


def tiles_have_the_rows_of_the_target(ops: OpGraph, settings: Settings) -> Iterable[Diagnostic]:
    """The rows of M tiles belong to the numeric signature, and one plan serves all GEMMs."""
    rows = tile_rows(settings.target, row_dtype(ops))
    for name, tile in settings.options.tiles:
        if not name.startswith("grad(") and tile[0] != rows:
            message = f"rows of `tile({name})` cannot be {tile[0]}"
            why = f"on {settings.target.name} every M tile of {row_dtype(ops)} has {rows} rows, so that bits never vary"
            yield _problem("UEP0302", settings, f"tile({name})", message, why)


RULES: tuple[Callable[[OpGraph, Settings], Iterable[Diagnostic]], ...] = (
    sends_fit_the_relay,
    numbers_are_in_range,
    blocks_are_powers_of_two,
    tiles_are_of_gemms,
    tile_sides_are_powers_of_two,
    tiles_have_the_rows_of_the_target,
    tiles_fit_a_block,
    tiles_fit_the_target,
    columns_alone_depend_on_tokens,
)


def _num_accumulators(ops: OpGraph, settings: Settings, value: str) -> int:
    """Accumulators of the tile that makes a value; 1 for gradients."""
    stages = build_stages(ops, settings.dims)
    return next((len(stage.accumulators) for stage in stages if value in stage.values), 1)


def _is_side(size: int) -> bool:
    return _is_power_of_two(size) and size >= SMALLEST_SIDE


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _problem(code: str, settings: Settings, key: str, message: str, help_text: str) -> Diagnostic:
    """The diagnostic, with the place of the key where a schedule block sets it."""
    span = settings.spans.get(key)
    labels = () if span is None else (Label(span=span, text="set here"),)
    return Diagnostic(code=code, message=message, labels=labels, help=help_text)
