"""Schedule options: every key of a `schedule` block with its default. Imports nothing from the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Fuse(StrEnum):
    """How many launches a direction has."""

    LAYER = "layer"
    PAIRS = "pairs"
    NONE = "none"


class Relay(StrEnum):
    """How rows that arrived reach their experts' segments."""

    COPY = "copy"
    GATHER = "gather"
    OFF = "off"


class Send(StrEnum):
    """How often a row crosses to a rank."""

    RANK = "rank"
    ROUTE = "route"
    ALL = "all"


class Order(StrEnum):
    """The order of sends."""

    PRIORITY = "priority"
    FIFO = "fifo"


class Save(StrEnum):
    """What forward keeps for backward."""

    LEAN = "lean"
    FAST = "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """How a layer is scheduled. None means that the compiler chooses, from dims, dtype and target alone.

    `lanes`: comm lanes per rank; `chunk`: rows that a lane sends between posts; `group`: M tiles whose tasks share
    weights in L2; `lag`: groups of tiles between a family and the one that reads it; `block`: tokens of a reduce task;
    `workers`: grid size. `tiles` maps a value's name to its (rows, columns, depth).
    """

    fuse: Fuse = Fuse.LAYER
    relay: Relay | None = None
    send: Send | None = None
    order: Order = Order.PRIORITY
    save: Save = Save.LEAN
    lanes: int | None = None
    chunk: int = 16
    group: int = 8
    lag: int | None = None
    block: int = 8
    workers: int | None = None
    tiles: tuple[tuple[str, tuple[int, int, int]], ...] = field(default=())


LARGEST: Mapping[str, int] = MappingProxyType(
    {"lanes": 1024, "chunk": 256, "group": 1024, "lag": 1024, "block": 256, "workers": 4096}
)
"""The largest value of each key that takes a number.

A copy holds `chunk` rows at a time, and a reduce `block` tokens: more would not fit the registers of a worker. With the
others, more would change nothing but the time that it takes: no GPU has that many workers at once, and no tile waits
for longer.
"""
