"""The plan on the device, interpreted, against the plan in plain Python: every entry of every table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.plans import UNTOUCHED, PlanCase, assert_as_expected, random_case, run
from uniep_compiler.codegen import state_layout as layout
from uniep_compiler.options import Order, Send
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import Plan, PlanShape, allocate_plan, run_plan

ROOT = Path(__file__).parents[3]
SENDS = [(send, order) for send in Send for order in Order]


@pytest.mark.parametrize("num_parts", [1, 2, 7])
@pytest.mark.parametrize(("experts", "topk"), [(1, 1), (3, 2), (3, 3), (8, 3), (60, 4), (300, 1)])
def test_one_rank(experts, topk, num_parts):
    case = random_case(experts + topk, ranks=1, experts=experts, topk=topk, most_tokens=70)
    plan, error, _ = run(case, num_parts=num_parts)
    assert_as_expected(case, plan)
    assert error.eq(0).all()


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 70])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_any_number_of_tokens(tokens, dtype):
    ids = [[[(token * 5 + k) % 8 for k in range(3)] for token in range(tokens)]]
    case = PlanCase(ids=ids, experts=8, topk=3, dtype=dtype)
    assert_as_expected(case, run(case)[0])


@pytest.mark.parametrize(("send", "order"), SENDS)
@pytest.mark.parametrize(("ranks", "experts", "topk", "num_parts"), [(2, 4, 2, 7), (3, 9, 5, 2), (4, 3, 1, 1)])
def test_several_ranks(ranks, num_parts, experts, topk, send, order):
    case = random_case(ranks, ranks=ranks, experts=experts, topk=topk, send=send, order=order)
    assert_as_expected(case, run(case, num_parts=num_parts)[0])


@pytest.mark.parametrize("send", [None, *Send])
@pytest.mark.parametrize("placement", [(0, 3, 0), (3, 0, 0), (0, 0, 3), (1, 0, 2)])
def test_ranks_without_experts(placement, send):
    case = random_case(5, ranks=3, experts=3, topk=2, placement=placement, send=send)
    assert_as_expected(case, run(case)[0])


@pytest.mark.parametrize("tokens", [(0, 0), (5, 0), (0, 9), (1, 17)])
def test_ranks_without_tokens(tokens):
    ids = [[[(token + rank) % 4, token % 3] for token in range(count)] for rank, count in enumerate(tokens)]
    case = PlanCase(ids=ids, experts=4, topk=2, send=Send.RANK)
    assert_as_expected(case, run(case, num_parts=2)[0])


@pytest.mark.parametrize("num_parts", [1, 7])
@pytest.mark.parametrize("ranks", [1, 3])
def test_more_experts_than_a_block_holds(ranks, num_parts):
    """Two blocks of experts, the second of one expert; all of them named by one token."""
    rows = [[(token * 401 + k * 7) % 1025 for k in range(1025)] for token in range(2)]
    case = PlanCase(ids=[rows, *[[] for _ in range(ranks - 1)]], experts=1025, topk=1025, send=Send.ROUTE)
    assert_as_expected(case, run(case, num_parts=num_parts)[0])


@pytest.mark.parametrize("expert", [0, 3, 7, -1])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_all_routes_to_one_expert(expert, num_parts):
    """More equal routes than a chunk of either kernel holds."""
    case = PlanCase(ids=[[[expert] * 4] * 300], experts=8, topk=4, tile_rows=16)
    assert_as_expected(case, run(case, num_parts=num_parts)[0])


def test_the_same_expert_twice_in_a_token_is_two_routes():
    case = PlanCase(ids=[[[3, 3], [1, 0]]], experts=4, topk=2)
    plan, _, _ = run(case)
    assert plan.row_of.tolist() == [2, 3, 1, 0]
    assert plan.expert_rows.tolist() == [1, 1, 0, 2]
    assert_as_expected(case, plan)


def test_a_token_is_sent_once_for_its_smallest_expert_on_a_rank():
    case = PlanCase(ids=[[[1, 0, 0], [1, 3, 1], [2, 0, 3]], []], experts=4, topk=3, send=Send.RANK)
    plan, _, _ = run(case)
    assert plan.send_count[0].tolist() == [3, 2]
    assert plan.send_item[:5].tolist() == [0, 2, 1, 2, 1]
    assert_as_expected(case, plan)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("bad", "ranks"), [(4, 1), (-2, 1), (2**31 - 1, 2), (-(2**31), 2)])
def test_a_bad_id_is_reported_and_skipped(bad, ranks, dtype):
    ids = [[[0, 1], [2, 3], [3, bad]] if rank == ranks - 1 else [[1, 1]] for rank in range(ranks)]
    case = PlanCase(ids=ids, experts=4, topk=2, send=Send.RANK, dtype=dtype)
    plan, error, state = run(case)
    assert_as_expected(case, plan)
    assert state[layout.STATE_ABORT] == 1
    assert error[layout.ERROR_KIND] == layout.ErrorKind.BAD_ID
    assert error[layout.ERROR_RANK] == ranks - 1
    assert error[[layout.ERROR_TASK, layout.ERROR_INDEX]].tolist() == [2, 1]
    assert error[[layout.ERROR_EXPECTED, layout.ERROR_SEEN]].tolist() == [4, bad]


def test_a_bad_id_beyond_32_bits_is_no_expert():
    case = PlanCase(ids=[[[2**32 + 1, 1], [-(2**40), 0]]], experts=4, topk=2)
    plan, error, _ = run(case)
    assert plan.row_of.tolist() == [-1, 1, -1, 0]
    assert error[layout.ERROR_SEEN] == 2**32 + 1


def test_the_first_of_several_bad_ids_is_reported():
    case = PlanCase(ids=[[[0], [9], [1], [8]] * 600], experts=4, topk=1)
    _, error, _ = run(case)
    assert error[[layout.ERROR_TASK, layout.ERROR_SEEN]].tolist() == [1, 9]


def test_an_error_that_came_before_is_kept():
    case = PlanCase(ids=[[[9]]], experts=4, topk=1)
    state = torch.zeros(layout.STATE_WORDS, dtype=torch.int64)
    error = torch.full((layout.ERROR_WORDS,), 5)
    state[layout.STATE_ABORT] = 1
    plan = allocate_plan(case.shape, torch.device("cpu"))
    run_plan(load_module(case.source, "plan", True), plan, torch.tensor([[9]]), state=state, error=error)
    assert error.eq(5).all()
    assert plan.row_of.tolist() == [-1]


@pytest.mark.parametrize(("send", "order"), [(None, Order.PRIORITY), *SENDS])
def test_the_number_of_parts_changes_nothing(send, order):
    case = random_case(11, ranks=2, experts=7, topk=3, most_tokens=40, send=send, order=order)
    plans = [run(case, num_parts=parts)[0].storage for parts in (1, 2, 7)]
    assert all(torch.equal(plans[0], other) for other in plans[1:])


def test_tables_start_at_multiples_of_16_bytes_and_do_not_overlap():
    shape = PlanShape(tokens=(3, 6), experts=5, topk=3, tile_rows=4, block=2)
    plan = allocate_plan(shape, torch.device("cpu"))
    plan.storage.zero_()
    for name in shape.tables:
        table = getattr(plan, name)
        assert table.storage_offset() % 4 == 0
        assert table.eq(0).all(), name
        table.fill_(1)
    assert Plan(shape=shape, storage=plan.storage).send_item.eq(1).all()


@pytest.mark.parametrize("tile_rows", [1, 4, 16])
@pytest.mark.parametrize("seed", range(20))
def test_the_bound_on_tiles_holds(seed, tile_rows):
    case = random_case(seed, ranks=1, experts=6, topk=2, tile_rows=tile_rows)
    assert len(case.routing.tiles[0]) <= case.shape.tiles_bound


def test_the_bound_on_tiles_is_reached():
    case = PlanCase(ids=[[[0], [1], [2], [2], [2], [2], [2]]], experts=3, topk=1)
    assert len(case.routing.tiles[0]) == case.shape.tiles_bound == 4


def test_too_many_routes_are_refused_before_anything_is_allocated():
    PlanShape(tokens=(2**27, 2**27 - 200), experts=8, topk=8, tile_rows=128, block=8)
    with pytest.raises(ValueError, match="268435456 tokens with 8 routes each are 2147483648; a plan holds 2147482559"):
        PlanShape(tokens=(2**27, 2**27), experts=8, topk=8, tile_rows=128, block=8)
    PlanShape(tokens=(2**25, *[0] * 7), experts=8, topk=8, tile_rows=128, block=8)
    message = (
        "one of 9 ranks has 33554432 tokens with 8 routes each; numbered as if each rank had as many there are 2147"
    )
    with pytest.raises(ValueError, match=message):
        PlanShape(tokens=(2**25, *[0] * 8), experts=8, topk=8, tile_rows=128, block=8)


@pytest.mark.parametrize(
    ("tokens", "ranks", "experts", "parts"),
    [
        (0, 1, 64, 1),
        (1, 1, 64, 1),
        (256, 1, 64, 8),
        (32768, 1, 64, 256),
        (32768, 1, 1025, 127),
        (32768, 4, 64, 64),
        (256, 1, 1 << 20, 1),
    ],
)
def test_programs_are_as_many_as_there_is_work_for(tokens, ranks, experts, parts):
    shape = PlanShape(tokens=(tokens,) * ranks, experts=experts, topk=8, tile_rows=128, block=8)
    assert shape.num_parts() == parts


@pytest.mark.parametrize("before", ["import torch._dynamo", "pass"])
def test_the_interpreter_works_whenever_triton_was_imported(before):
    code = f"""
{before}
from tests.plans import assert_as_expected, random_case, run, Send
case = random_case(1, ranks=2, experts=5, topk=2, send=Send.RANK)
assert_as_expected(case, run(case)[0])
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def test_untouched_entries_stay(monkeypatch):
    """The comparison above sees stray writes: here is one."""
    case = random_case(3, ranks=1, experts=4, topk=2, most_tokens=9)
    plan, _, _ = run(case)
    assert (plan.tile_row == UNTOUCHED).any()
    plan.tile_row[0, -1] = 0
    with pytest.raises(AssertionError, match="tile_row"):
        assert_as_expected(case, plan)
