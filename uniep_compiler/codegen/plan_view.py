"""What the plan's template sees: final strings and numbers, computed here once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from uniep_compiler.codegen import state_layout
from uniep_compiler.codegen.as_int import without_as_int
from uniep_compiler.codegen.loader import environment
from uniep_compiler.options import Order, Send

TEMPLATE = "plan.py.jinja"
MAX_EXPERT_BLOCK = 1024
CHUNK = 128
"""Routes or tokens that are placed at a time: all pairs of them are compared."""
COUNT_CHUNK = 1024
"""Routes or tokens that are counted at a time."""
NUM_WARPS = 4
"""One thread per route of a chunk: with more threads, Triton would load the ids anew for each pair."""
TABLE_ELEMS = 8192
"""Counts that a program holds in registers at a time, in each of two sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendView:
    """The lists of sends, each sorted by a key, then by item. Keys of earlier peers come before those of later ones.

    `item` is what is sent, "token" or "route"; `sent` and `key` are expressions of one item that say whether it goes to
    `peer`, and under which key; `first_key` and `last_key` bound the keys of `peer`. `per_token` is the number of sends
    that there is room for, times the number of tokens.
    """

    item: str
    order: str
    sent: str
    key: str
    first_key: str
    last_key: str
    num_keys: int
    per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The plan of one layer: bound dims, block sizes, and the words of the error record."""

    interpreted: bool
    prelude: str
    num_experts: int
    topk: int
    num_ranks: int
    tile_rows: int
    block_tokens: int
    block_routes: int
    sends: SendView | None
    chunk: int
    count_chunk: int
    clear_chunk: int
    expert_block: int
    program_block: int
    state_abort: int
    error_kind: int
    error_rank: int
    error_task: int
    error_index: int
    error_expected: int
    error_seen: int
    bad_id: int


def plan_view(
    *,
    ranks: int,
    experts: int,
    topk: int,
    tile_rows: int,
    block: int,
    send: Send | None = None,
    order: Order = Order.PRIORITY,
    interpret: bool,
) -> PlanView:
    """The view of a plan. `send` is None where the task graph sends nothing; `block` is a power of two."""
    expert_block = min(MAX_EXPERT_BLOCK, _power_of_two(experts, least=16))
    return PlanView(
        interpreted=interpret,
        prelude="prelude/arith_interpreted.py.jinja" if interpret else "prelude/arith_compiled.py.jinja",
        num_experts=experts,
        topk=topk,
        num_ranks=ranks,
        tile_rows=tile_rows,
        block_tokens=block,
        block_routes=block * topk,
        sends=None if send is None else _send_view(send, order, ranks, experts, topk),
        chunk=CHUNK,
        count_chunk=COUNT_CHUNK,
        clear_chunk=256,
        expert_block=expert_block,
        program_block=min(128, TABLE_ELEMS // expert_block),
        state_abort=state_layout.STATE_ABORT,
        error_kind=state_layout.ERROR_KIND,
        error_rank=state_layout.ERROR_RANK,
        error_task=state_layout.ERROR_TASK,
        error_index=state_layout.ERROR_INDEX,
        error_expected=state_layout.ERROR_EXPECTED,
        error_seen=state_layout.ERROR_SEEN,
        bad_id=state_layout.ErrorKind.BAD_ID.value,
    )


def _send_view(send: Send, order: Order, ranks: int, experts: int, topk: int) -> SendView:
    by_expert = order is Order.PRIORITY
    first = "experts_before(expert_first, peer)" if by_expert else "peer"
    last = "experts_before(expert_first, peer + 1)" if by_expert else "peer + 1"
    num_keys = experts if by_expert else ranks
    match send:
        case Send.ROUTE:
            item, sent, key = "route", "valid", "expert" if by_expert else "rank_of(expert, expert_first)"
        case Send.RANK:
            item, sent, key = "token", "nearest < high", "nearest" if by_expert else "token * 0 + peer"
        case Send.ALL:
            item, sent, key = "token", "inside", "nearest + peer" if by_expert else "token * 0 + peer"
            if by_expert:  # and one more key per peer, for tokens that want no expert there
                first, last, num_keys = f"{first} + peer", f"{last} + peer + 1", experts + ranks
        case _:
            assert_never(send)
    return SendView(
        item=item,
        order=f"expert, then by {item}" if by_expert else item,
        sent=sent,
        key=key,
        first_key=first,
        last_key=last,
        num_keys=num_keys,
        per_token=ranks if send is Send.ALL else topk,
    )


def plan_source(view: PlanView) -> str:
    """The text of the plan's module, with the kernels `plan_count` and `plan_place`."""
    text = environment().get_template(TEMPLATE).render(view=view)
    return text if view.interpreted else without_as_int(text)


def _power_of_two(value: int, *, least: int) -> int:
    """The smallest power of two that is neither below `value` nor below `least`."""
    return max(least, 1 << (value - 1).bit_length())
