"""What the plan's template sees: final strings and numbers, computed here once."""

from __future__ import annotations

from dataclasses import dataclass

from uniep_compiler.codegen import state_layout
from uniep_compiler.codegen.loader import environment
from uniep_compiler.diagnostics import InternalError
from uniep_compiler.options import Order, Send

TEMPLATE = "plan.py.jinja"
MAX_EXPERT_BLOCK = 1024
TABLE_ELEMS = 8192
"""Counts that a program holds in registers at a time, in each of two sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The plan of one layer: bound dims, block sizes, and the words of the error record.

    `sends` is "" where no rows are sent, else "route" or "rank"; `send_keys` is "experts" where sends go in the order
    of experts, "ranks" where they go in the order of routes. `num_send_keys` is the number of those.
    """

    prelude: str
    num_experts: int
    topk: int
    num_ranks: int
    tile_rows: int
    block_tokens: int
    block_routes: int
    sends: str
    send_keys: str
    num_send_keys: int
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
    if send is Send.ALL:
        raise InternalError("send = all needs no lists of sends: every token goes to every rank")
    expert_block = min(MAX_EXPERT_BLOCK, _power_of_two(experts, least=16))
    by_expert = order is Order.PRIORITY
    return PlanView(
        prelude="prelude/arith_interpreted.py.jinja" if interpret else "prelude/arith_compiled.py.jinja",
        num_experts=experts,
        topk=topk,
        num_ranks=ranks,
        tile_rows=tile_rows,
        block_tokens=block,
        block_routes=block * topk,
        sends="" if send is None else send.value,
        send_keys="experts" if by_expert else "ranks",
        num_send_keys=experts if by_expert else ranks,
        chunk=128,
        count_chunk=1024,
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


def plan_source(view: PlanView) -> str:
    """The text of the plan's module, with the kernels `plan_count` and `plan_place`."""
    return environment().get_template(TEMPLATE).render(view=view)


def _power_of_two(value: int, *, least: int) -> int:
    """The smallest power of two that is neither below `value` nor below `least`."""
    return max(least, 1 << (value - 1).bit_length())
