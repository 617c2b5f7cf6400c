"""The plan's tensors: their shapes from a call's shape alone, their memory, and the two launches that fill them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import isqrt, prod
from types import ModuleType

import torch
from torch import Tensor

from uniep_compiler.codegen.plan_view import COUNT_CHUNK, NUM_WARPS
from uniep_compiler.runtime.modules import interpreter_lock

LAST_INT32 = 2**31 - 1
MAX_PROGRAMS = 256
"""Two for each multiprocessor of the largest devices."""
ROUTES_PER_PROGRAM = 256
"""Fewer are not worth a program."""
COUNTS_PER_ROUTE = 64
"""Counts of other programs that a program reads in the time that it takes to place a route; an estimate."""
ALIGNMENT_WORDS = 4
"""Tables start at multiples of 16 bytes."""
PLAN_KERNELS = ("plan_count", "plan_place")
"""The kernels of a plan's module, in the order in which they are launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """What the sizes of a plan follow from: `tokens` of each rank, and numbers that are bound at compile time.

    `tile_rows` is the number of rows of an M tile, `block` the number of tokens that a reduce task handles.
    """

    tokens: tuple[int, ...]
    experts: int
    topk: int
    tile_rows: int
    block: int

    def __post_init__(self) -> None:
        if not all(isinstance(tokens, int) for tokens in self.tokens):
            return  # symbolic: a tracer would make a bound of a comparison, and the call itself is checked when it runs
        # Routes and rows are numbered in int32, with room to round up to a block of tokens and to a chunk of routes.
        most = LAST_INT32 - self.block * self.topk - COUNT_CHUNK
        if max(self.num_routes, self.send_room) > most:
            raise ValueError(
                f"{self.total_tokens} tokens with {self.topk} routes each are {self.num_routes}; "
                f"a plan holds {most} at most"
            )
        if self.origins_bound > most:
            raise ValueError(
                f"one of {self.ranks} ranks has {self.tokens_bound} tokens with {self.topk} routes each; numbered as "
                f"if each rank had as many there are {self.origins_bound}; a plan holds {most} at most"
            )

    @property
    def ranks(self) -> int:
        """Ranks that share the launch."""
        return len(self.tokens)

    @property
    def bound(self) -> tuple[int, ...]:
        """What does not differ from call to call."""
        return (self.ranks, self.experts, self.topk, self.tile_rows, self.block)

    @property
    def total_tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(self.tokens)

    @property
    def num_routes(self) -> int:
        """Routes of all ranks, valid or not."""
        return self.total_tokens * self.topk

    @property
    def origins_bound(self) -> int:
        """Numbers that tell a route and its rank: each rank's start a multiple of the routes of the largest one."""
        return ((self.ranks - 1) * self.tokens_bound + self.tokens[-1]) * self.topk

    @property
    def tokens_bound(self) -> int:
        """The largest number of tokens of any rank."""
        return max(self.tokens)

    @property
    def blocks_bound(self) -> int:
        """Blocks of tokens that a rank has at most."""
        return -(-self.tokens_bound // self.block)

    @property
    def rows_bound(self) -> int:
        """Rows that may come to one rank: all routes, since a token may name an expert more than once."""
        return self.num_routes

    @property
    def tiles_bound(self) -> int:
        """M tiles of one rank at most: one per expert that has rows, and one per further `tile_rows` rows."""
        rows = self.rows_bound
        # A tracer makes a guard of `min`, and traces again where it does not hold.
        least = min if isinstance(rows, int) else torch.sym_min
        busy: int = least(self.experts, rows)
        return busy + (rows - busy) // self.tile_rows

    @property
    def send_room(self) -> int:
        """Entries of the lists of sends, whichever kind of sends there is."""
        return self.total_tokens * max(self.topk, self.ranks)

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of a plan's tables, in the order in which they lie in memory."""
        by_rank, by_pair = (self.ranks,), (self.ranks, self.ranks)
        return {
            "row_of": (self.num_routes,),
            "row_route": (*by_rank, self.rows_bound),
            "tile_expert": (*by_rank, self.tiles_bound),
            "tile_row": (*by_rank, self.tiles_bound),
            "tile_rows": (*by_rank, self.tiles_bound),
            "tile_first": (self.experts,),
            "expert_row": (self.experts,),
            "expert_rows": (self.experts,),
            "totals": (*by_rank, 2),
            "block_routes": (*by_rank, self.blocks_bound),
            "send_count": by_pair,
            "send_first": by_pair,
            "send_item": (self.send_room,),
        }

    @property
    def table_starts(self) -> dict[str, int]:
        """Where each of the tables starts, in words of int32."""
        sizes = [_aligned(prod(shape)) for shape in self.tables.values()]
        return dict(zip(self.tables, accumulate(sizes, initial=0), strict=False))

    @property
    def num_words(self) -> int:
        """Words of int32 that the tables take, each aligned."""
        return sum(_aligned(prod(shape)) for shape in self.tables.values())

    def num_parts(self) -> int:
        """Programs per rank that keep a GPU busy.

        With n programs, each reads n * E counts, and places routes / n routes: so there is a best n.
        """
        best = isqrt(COUNTS_PER_ROUTE * self.num_routes // self.experts) // self.ranks
        useful = -(-self.tokens_bound * self.topk // ROUTES_PER_PROGRAM)
        return max(1, min(best, useful, MAX_PROGRAMS // self.ranks, self.blocks_bound))

    def scratch_words(self, num_programs: int, num_send_keys: int) -> dict[str, int]:
        """Words of int32 of each table that dies with the plan's launches. Each has one row per program."""
        by_expert, by_key = _aligned(num_programs * self.experts), _aligned(num_programs * num_send_keys)
        tables = dict.fromkeys(("counts", "rows_of_all", "rows_before", "next_row"), by_expert)
        return {**tables, "send_counts": by_key, "next_send": by_key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tables of a plan, all int32, in `storage`. R ranks, E experts, Q routes of all ranks.

    `row_of` [Q]: row of a route on the rank of its expert, -1 where it has none.
    `row_route` [R, rows_bound]: route of a row; filled here for one rank only.
    `tile_expert`, `tile_row`, `tile_rows` [R, tiles_bound]: the M tiles of a rank, with global expert ids.
    `tile_first`, `expert_row`, `expert_rows` [E]: an expert's first tile, first row, and number of rows, on its rank.
    `totals` [R, 2]: tiles and rows of a rank.
    `block_routes` [R, blocks_bound]: valid routes of each block of tokens.
    `send_count`, `send_first` [R, R]: by source and peer, the number of sends, and where they start in the source's
    list, whose entry 0 is at the source's first route in `send_item`. Filled where the graph sends anything.

    Entries beyond a rank's totals are never written.
    """

    shape: PlanShape
    storage: Tensor

    def table(self, name: str) -> Tensor:
        """A table by its name, as a view."""
        dims, first = self.shape.tables[name], self.shape.table_starts[name]
        return self.storage[first : first + prod(dims)].view(dims)

    @property
    def row_of(self) -> Tensor:
        return self.table("row_of")

    @property
    def row_route(self) -> Tensor:
        return self.table("row_route")

    @property
    def tile_expert(self) -> Tensor:
        return self.table("tile_expert")

    @property
    def tile_row(self) -> Tensor:
        return self.table("tile_row")

    @property
    def tile_rows(self) -> Tensor:
        return self.table("tile_rows")

    @property
    def tile_first(self) -> Tensor:
        return self.table("tile_first")

    @property
    def expert_row(self) -> Tensor:
        return self.table("expert_row")

    @property
    def expert_rows(self) -> Tensor:
        return self.table("expert_rows")

    @property
    def totals(self) -> Tensor:
        return self.table("totals")

    @property
    def block_routes(self) -> Tensor:
        return self.table("block_routes")

    @property
    def send_count(self) -> Tensor:
        return self.table("send_count")

    @property
    def send_first(self) -> Tensor:
        return self.table("send_first")

    @property
    def send_item(self) -> Tensor:
        return self.table("send_item")


def allocate_plan(shape: PlanShape, device: torch.device) -> Plan:
    """A plan with room for `shape`, in one allocation, unfilled."""
    return Plan(shape=shape, storage=torch.empty(shape.num_words, dtype=torch.int32, device=device))


def num_send_keys(module: ModuleType) -> int:
    """Keys by which a plan's kernels count sends; 0 if the plan has no sends."""
    return int(getattr(module, "NUM_SEND_KEYS", 0))


def run_plan(
    module: ModuleType,
    plan: Plan,
    ids: Tensor,
    *,
    state: Tensor,
    error: Tensor,
    token_start: Tensor | None = None,
    expert_first: Tensor | None = None,
    num_parts: int | None = None,
) -> None:
    """Fills the plan from expert ids, by two launches on the current stream and without waiting for them.

    `ids`: i32 or i64 [tokens of all ranks, K], contiguous. -1 is no expert; an id that is neither -1 nor an expert goes
    into the error record, and counts as -1.
    `state`, `error`: i64, laid out as `codegen/state_layout.py` says.
    `token_start`, `expert_first`: i32 [R + 1], sums of tokens and of experts over earlier ranks; not read for one rank.
    `num_parts`: programs per rank; no table depends on it.
    """
    shape, device = plan.shape, ids.device
    grid = (shape.ranks * (num_parts or (1 if device.type == "cpu" else shape.num_parts())),)
    scratch = shape.scratch_words(grid[0], num_send_keys(module))
    values: dict[str, Tensor | int | None] = {
        **{name: plan.table(name) for name in shape.tables},
        **{name: torch.empty(words, dtype=torch.int32, device=device) for name, words in scratch.items()},
        "ids": ids,
        "token_start": token_start,
        "expert_first": expert_first,
        "tokens": shape.tokens[0],
        "blocks_bound": shape.blocks_bound,
        "tiles_bound": shape.tiles_bound,
        "state": state,
        "error": error,
    }
    with interpreter_lock if device.type == "cpu" else torch.cuda.device(device):
        for name in PLAN_KERNELS:
            kernel = getattr(module, name)
            kernel[grid](*(values[argument] for argument in kernel.arg_names), num_warps=NUM_WARPS)


def _aligned(num_words: int) -> int:
    return -(-num_words // ALIGNMENT_WORDS) * ALIGNMENT_WORDS
