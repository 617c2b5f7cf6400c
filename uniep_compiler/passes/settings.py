"""What a pipeline is asked to build: bound dims, target, group and options, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from uniep_compiler.frontend.schedule_block import TileSetting
from uniep_compiler.ir.tasks import Tile
from uniep_compiler.ir.types import DType
from uniep_compiler.options import Order, Relay, ScheduleOptions, Send
from uniep_compiler.passes.target import Target
from uniep_compiler.source import Source, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that passes need besides the IR. The token dim is never bound.

    `local` says that the group is one rank that needs no copies to itself; `placement` is the number of experts per
    rank; `rows` is the element type of rows if it is not the one in the text of `source`; `spans` says where schedule
    blocks set the options that they set. `base_tiles` are those that hold for every number of tokens, and `token_tiles`
    those of blocks with a condition on it.
    """

    dims: Mapping[str, int]
    target: Target
    options: ScheduleOptions
    placement: tuple[int, ...] = (0,)
    local: bool = True
    source: Source | None = None
    rows: DType | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)
    base_tiles: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    token_tiles: tuple[TileSetting, ...] = ()

    @property
    def ranks(self) -> int:
        """Size of the group."""
        return len(self.placement)

    @property
    def relay(self) -> Relay:
        """How rows reach their segments. One rank gathers from its own tokens; a group copies what it was sent."""
        if self.options.relay is not None:
            return self.options.relay
        if self.local:
            return Relay.GATHER
        return Relay.OFF if self.options.send is Send.ROUTE else Relay.COPY

    @property
    def send(self) -> Send:
        """How often a row crosses: without a relay there is nobody who could hand it on, so once per route."""
        if self.options.send is not None:
            return self.options.send
        return Send.ROUTE if self.relay is Relay.OFF else Send.RANK

    @property
    def order(self) -> Order:
        """The order of sends."""
        return self.options.order

    @property
    def lanes(self) -> int:
        """Comm lanes per rank."""
        if self.options.lanes is not None:
            return self.options.lanes
        return 2 if self.target.interpreted else 16


def backward_settings(settings: Settings) -> Settings:
    """The settings of the backward pass of a layer whose forward pass has these.

    Its GEMMs have tiles of their own: the default ones. Rows are copied to their segments unless the schedule has them
    gathered, since weight gradients read them again and again; they come by routes that are known, so nothing is sent.
    """
    relay = Relay.GATHER if settings.options.relay is Relay.GATHER else Relay.COPY
    options = replace(settings.options, relay=relay, send=None, tiles=())
    return replace(settings, options=options, spans={}, base_tiles=(), token_tiles=())


def tile_rows(target: Target, dtype: DType) -> int:
    """Rows of every M tile. Part of the numeric signature: fixed per target and dtype, for any number of tokens."""
    if target.interpreted:
        return 32
    return 64 if dtype is DType.F32 else 128


def choose_tile(target: Target, dtype: DType, *, num_cols: int, depth: int, num_accumulators: int) -> Tile:
    """The default tile of a grouped GEMM with `num_cols` columns per accumulator and `depth` products per element.

    256 columns over all accumulators keep a 128-row fp32 tile at 128 registers per thread of 8 warps, which stock
    Triton runs fastest on Hopper; fp32 inputs run on the CUDA cores, where small tiles are enough.
    """
    if target.interpreted:
        widest, deepest = 64 * num_accumulators, 64
    elif dtype is DType.F32:
        widest, deepest = 64, 16
    else:
        widest, deepest = 256 if target.has_tma else 128, 64 if target.has_tma else 32
    cols = max(16, min(_power_of_two(widest // num_accumulators + 1) // 2, _power_of_two(num_cols)))
    return Tile(
        rows=tile_rows(target, dtype),
        cols=cols * num_accumulators,
        depth=min(deepest, max(16, _power_of_two(depth))),
    )


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()
