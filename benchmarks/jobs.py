"""What is to be measured: jobs, and schedules as a command line says them: `relay=copy,group=4,tile(h)=128x128x64`."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.shapes import Shape

_TILE = re.compile(r"tile\((.+)\)")
_SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A system under a name of its own, with the keys of a schedule block."""

    name: str
    system: str
    schedule: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process measures. `check_rows`: rows that are compared with float64, 0 for all.

    `training`: forward and backward pass, with the gradients of tokens, weights and router weights.
    """

    variant: Variant
    shape: Shape
    seed: int
    device: str
    check_rows: int
    flush_l2: bool = False
    training: bool = False


def parse_variant(text: str) -> Variant:
    """The variant of uniep that a command line says. Which keys and values there are is the compiler's business."""
    schedule: dict[str, object] = {}
    tiles: dict[str, tuple[int, ...]] = {}
    for setting in text.split(","):
        key, found, value = (part.strip() for part in setting.partition("="))
        if not (key and found and value):
            raise ArgumentTypeError(f"{setting!r} is not KEY=VALUE")
        if tile := _TILE.fullmatch(key):
            tiles[tile[1]] = _tile_sizes(value)
        else:
            schedule[key] = int(value) if value.isdecimal() else value
    return Variant(name=f"uniep[{text}]", system="uniep", schedule=schedule | ({"tiles": tiles} if tiles else {}))


def _tile_sizes(value: str) -> tuple[int, ...]:
    sizes = _SIZES.fullmatch(value)
    if sizes is None:
        raise ArgumentTypeError(f"{value!r} is not ROWSxCOLUMNSxDEPTH")
    return tuple(map(int, sizes.groups()))
