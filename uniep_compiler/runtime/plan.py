"""The plan's tensors: their shapes from a call's shape alone, their memory, and the two launches that fill them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
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
        # Routes and rows are numbered in int32, with room to round up to a block of tokens and to a chunk of routes.
        most = LAST_INT32 - self.block * self.topk - COUNT_CHUNK
        if max(self.num_routes, self.send_room) > most:
            raise ValueError(
                f"{self.total_tokens} tokens with {self.topk} routes each are {self.num_routes}; "
                f"a plan holds {most} at most"
            )

    @property
    def ranks(self) -> int:
        """Ranks that share the launch."""
        return len(self.tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(self.tokens)

    @property
    def num_routes(self) -> int:
        """Routes of all ranks, valid or not."""
        return self.total_tokens * self.topk

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
        busy = min(self.experts, self.rows_bound)
        return busy + (self.rows_bound - busy) // self.tile_rows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tables of a plan, all int32, as views of `storage`. R ranks, E experts, Q routes of all ranks.

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
    row_of: Tensor
    row_route: Tensor
    tile_expert: Tensor
    tile_row: Tensor
    tile_rows: Tensor
    tile_first: Tensor
    expert_row: Tensor
    expert_rows: Tensor
    totals: Tensor
    block_routes: Tensor
    send_count: Tensor
    send_first: Tensor
    send_item: Tensor


def allocate_plan(shape: PlanShape, device: torch.device) -> Plan:
    """A plan with room for `shape`, in one allocation, unfilled."""
    return carve_plan(shape, torch.empty(shape.num_words, dtype=torch.int32, device=device))


def carve_plan(shape: PlanShape, storage: Tensor) -> Plan:
    """The plan whose tables lie in `storage`, which has `shape.num_words` elements of int32."""
    tables = {}
    first = 0
    for name, dims in shape.tables.items():
        tables[name] = storage[first : first + prod(dims)].view(dims)
        first += _aligned(prod(dims))
    return Plan(shape=shape, storage=storage, **tables)


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
    shape = plan.shape
    parts = num_parts or (1 if ids.device.type == "cpu" else shape.num_parts())
    grid = (shape.ranks * parts,)
    # Each has one row per program: counts, rows of all programs, rows of those before, and the next row.
    counts, rows_of_all, rows_before, next_row = _scratch(4, grid[0] * shape.experts, ids.device)
    num_send_keys = int(getattr(module, "NUM_SEND_KEYS", 0))
    send_counts, next_send = _scratch(2, grid[0] * num_send_keys, ids.device)
    call = (ids, token_start, expert_first, shape.tokens[0], shape.blocks_bound)
    with interpreter_lock if ids.device.type == "cpu" else _device_of(ids):
        module.plan_count[grid](*call, counts, send_counts, plan.block_routes, state, error, num_warps=NUM_WARPS)
        module.plan_place[grid](
            *call,
            shape.tiles_bound,
            counts,
            send_counts,
            rows_of_all,
            rows_before,
            next_row,
            next_send,
            plan.row_of,
            plan.row_route,
            plan.tile_expert,
            plan.tile_row,
            plan.tile_rows,
            plan.tile_first,
            plan.expert_row,
            plan.expert_rows,
            plan.totals,
            plan.send_count,
            plan.send_first,
            plan.send_item,
            num_warps=NUM_WARPS,
        )


def _scratch(num_tables: int, num_words: int, device: torch.device) -> tuple[Tensor, ...]:
    """Tables that die with the call, aligned as a plan's are: another alignment would be another kernel to compile."""
    return torch.empty(num_tables, _aligned(num_words), dtype=torch.int32, device=device).unbind()


def _device_of(tensor: Tensor) -> torch.cuda.device | nullcontext[None]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _aligned(num_words: int) -> int:
    return -(-num_words // ALIGNMENT_WORDS) * ALIGNMENT_WORDS
