"""Which options a layer is scheduled with: the program's schedule blocks, then what Python asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from uniep_compiler.diagnostics import Diagnostic, DiagnosticBag, UniepError
from uniep_compiler.frontend.parse import Program
from uniep_compiler.frontend.schedule_block import ScheduleBlock, TileSetting, setting_values
from uniep_compiler.options import Fuse, Order, Relay, Save, ScheduleOptions, Send
from uniep_compiler.passes.target import Target
from uniep_compiler.source import Span

_WORDS: Mapping[str, type[StrEnum]] = {
    "fuse": Fuse,
    "relay": Relay,
    "send": Send,
    "order": Order,
    "save": Save,
}


def choose_options(
    program: Program, target: Target, dims: Mapping[str, int], overrides: Mapping[str, object]
) -> ScheduleOptions:
    """The options for a target and dims: later blocks over earlier ones, `overrides` over all.

    `dims` holds the token dim where it is known; a block with a condition on a dim that is missing does not apply.
    `overrides` has the keys of a schedule block, and `tiles`, a mapping from names of values to (rows, columns, depth).
    Raises UEP0301 and UEP0302 for keys and values that a block could not have either.
    """
    options = ScheduleOptions()
    for block in program.schedules:
        if _applies(block, target, dims):
            values = {key: setting.value for key, setting in block.entries.items()}
            tiles = {tile.value: tile.shape for tile in block.tiles}
            options = _with(options, values, tiles)
    return _with(options, *_checked(overrides))


def option_spans(
    program: Program, target: Target, dims: Mapping[str, int], overrides: Mapping[str, object]
) -> dict[str, Span]:
    """Where schedule blocks set the options that hold; a tile's key is `tile(value)`."""
    spans: dict[str, Span] = {}
    for block in program.schedules:
        if _applies(block, target, dims):
            spans |= {key: setting.span for key, setting in block.entries.items()}
            spans |= {f"tile({tile.value})": tile.span for tile in block.tiles}
    tiles = overrides.get("tiles", {})
    overridden = {*overrides, *(f"tile({name})" for name in (tiles if isinstance(tiles, Mapping) else ()))}
    return {key: span for key, span in spans.items() if key not in overridden}


def token_tiles(program: Program, target: Target, dims: Mapping[str, int]) -> tuple[TileSetting, ...]:
    """The tiles of blocks whose conditions need more than `dims`: the number of tokens."""
    return tuple(tile for block in program.schedules if _depends(block, target, dims) for tile in block.tiles)


def active_blocks(program: Program, target: Target, dims: Mapping[str, int]) -> tuple[ScheduleBlock, ...]:
    """The blocks for a target that apply for these dims, or for these and some number of tokens."""
    blocks = program.schedules
    return tuple(block for block in blocks if _applies(block, target, dims) or _depends(block, target, dims))


def _applies(block: ScheduleBlock, target: Target, dims: Mapping[str, int]) -> bool:
    try:
        return any(block.applies(name, dims) for name in _names(target))
    except KeyError:
        return False


def _depends(block: ScheduleBlock, target: Target, dims: Mapping[str, int]) -> bool:
    """Whether a block is for a target, and it takes more dims to say whether it applies."""
    try:
        for condition in block.conditions:
            condition.holds(dims)
    except KeyError:
        return block.target in (None, *_names(target))
    return False


def _names(target: Target) -> tuple[str, ...]:
    """What a block may call a target."""
    return (target.name,) if target.interpreted else ("cuda", target.name)


def _with(
    options: ScheduleOptions, values: Mapping[str, str | int], tiles: Mapping[str, tuple[int, int, int]]
) -> ScheduleOptions:
    """The options with some of them replaced. Keys and words are checked before; here they get their types."""
    typed: dict[str, Any] = {key: _WORDS[key](str(value)) if key in _WORDS else value for key, value in values.items()}
    return replace(options, **typed, tiles=tuple({**dict(options.tiles), **tiles}.items()))


def _checked(overrides: Mapping[str, object]) -> tuple[dict[str, str | int], dict[str, tuple[int, int, int]]]:
    """The overrides, typed; every problem is reported at once."""
    bag = DiagnosticBag()
    values: dict[str, str | int] = {}
    for key, value in overrides.items():
        if key == "tiles":
            continue
        words = setting_values().get(key, ())
        if key not in setting_values():
            near = get_close_matches(key, setting_values(), n=1)
            help_ = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(setting_values())}"
            bag.add(Diagnostic(code="UEP0301", message=f"unknown schedule key `{key}`", help=help_))
        elif words is not None and str(value) in words:
            values[key] = str(value)
        elif words is None and isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            values[key] = value
        else:
            expected = "an integer of at least 1" if words is None else f"one of {', '.join(words)}"
            message = f"schedule key `{key}` takes {expected}, not {value!r}"
            bag.add(Diagnostic(code="UEP0302", message=message))
    bag.raise_if_errors()
    return values, _tiles(overrides.get("tiles", {}))


def _tiles(value: object) -> dict[str, tuple[int, int, int]]:
    if not isinstance(value, Mapping):
        message = f"`tiles` takes a mapping from values to (rows, columns, depth), not {value!r}"
        raise UniepError([Diagnostic(code="UEP0302", message=message, help='like {"h": (128, 256, 64)}')])
    tiles: dict[str, tuple[int, int, int]] = {}
    for name, shape in value.items():
        if not (isinstance(shape, tuple) and len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in shape)):
            message = f"tile of `{name}` has to be (rows, columns, depth), not {shape!r}"
            raise UniepError([Diagnostic(code="UEP0302", message=message)])
        tiles[str(name)] = shape
    return tiles
