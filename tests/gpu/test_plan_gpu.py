"""The plan on a CUDA device: every entry as the interpreter gives it, at sizes of real layers, on every run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.plans import UNTOUCHED, PlanCase, random_case, run, starts
from uniep_compiler.codegen import state_layout as layout
from uniep_compiler.options import Order, Send
from uniep_compiler.runtime.modules import load_module
from uniep_compiler.runtime.plan import allocate_plan, run_plan

pytestmark = pytest.mark.gpu

LARGE = {"tile_rows": 128, "most_tokens": 4096}


def assert_as_interpreted(case, **options):
    expected, _, _ = run(case)
    plan, error, _ = run(case, device="cuda", **options)
    for name in case.shape.tables:
        assert torch.equal(getattr(plan, name).cpu(), getattr(expected, name)), name
    assert error.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("experts", "topk"), [(1, 1), (8, 2), (60, 4), (128, 8), (384, 8), (1025, 3)])
def test_one_rank(experts, topk, dtype):
    assert_as_interpreted(random_case(experts, ranks=1, experts=experts, topk=topk, dtype=dtype, **LARGE))


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 33, 300])
def test_any_number_of_tokens(tokens):
    ids = [[[(token * 5 + k) % 8 for k in range(3)] for token in range(tokens)]]
    assert_as_interpreted(PlanCase(ids=ids, experts=8, topk=3))


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("send", [None, *Send])
def test_several_ranks(send, order):
    case = random_case(2, ranks=4, experts=30, topk=5, most_tokens=900, tile_rows=64, send=send, order=order)
    assert_as_interpreted(case)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 64])
def test_any_number_of_parts(num_parts):
    case = random_case(4, ranks=2, experts=9, topk=3, most_tokens=700, send=Send.RANK)
    assert_as_interpreted(case, num_parts=num_parts)


def test_more_than_65536_rows_all_of_the_last_expert():
    assert_as_interpreted(PlanCase(ids=[[[127] * 8] * 32768], experts=128, topk=8, tile_rows=128))


def test_very_many_small_experts_give_the_same_tables_200_times():
    case = random_case(9, ranks=1, experts=384, topk=8, most_tokens=600, tile_rows=128)
    first, _, _ = run(case, device="cuda")
    for _ in range(200):
        assert torch.equal(run(case, device="cuda")[0].storage, first.storage)


def test_a_bad_id_is_reported_to_mapped_host_memory():
    case = random_case(1, ranks=1, experts=8, topk=2, most_tokens=500)
    case.ids[0][:] = [[0, 1] for _ in range(500)]
    case.ids[0][321][1] = 8
    error = torch.zeros(layout.ERROR_WORDS, dtype=torch.int64).pin_memory()
    state = torch.zeros(layout.STATE_WORDS, dtype=torch.int64, device="cuda")
    plan = allocate_plan(case.shape, torch.device("cuda"))
    module = load_module(case.source_for(interpret=False), "plan", interpret=False)
    run_plan(module, plan, torch.tensor(case.ids[0], device="cuda"), state=state, error=error)
    torch.cuda.synchronize()
    assert error[: layout.ERROR_SEEN + 1].tolist() == [layout.ErrorKind.BAD_ID, 0, 0, 321, 0, 1, 8, 8]
    assert state[layout.STATE_ABORT] == 1
    assert plan.row_of[321 * 2 : 322 * 2].tolist() == [321, -1]


def test_a_graph_replays_with_other_ids():
    case = random_case(1, ranks=1, experts=16, topk=4, most_tokens=256)
    case.ids[0][:] = [[token % 16, 3, -1, 5] for token in range(256)]
    other = replace(case, ids=[[[7, (token * 3) % 16, 7, -1] for token in range(256)]])
    module = load_module(case.source_for(interpret=False), "plan", interpret=False)
    ids = torch.tensor(case.ids[0], device="cuda")
    state = torch.zeros(layout.STATE_WORDS, dtype=torch.int64, device="cuda")
    error = torch.zeros(layout.ERROR_WORDS, dtype=torch.int64, device="cuda")
    plan = allocate_plan(case.shape, torch.device("cuda"))
    tables = {"token_start": starts([256]).cuda(), "expert_first": starts([16]).cuda()}
    run_plan(module, plan, ids, state=state, error=error, **tables)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_plan(module, plan, ids, state=state, error=error, **tables)
    ids.copy_(torch.tensor(other.ids[0]))
    plan.storage.fill_(UNTOUCHED)
    graph.replay()
    assert torch.equal(plan.storage.cpu(), run(other)[0].storage)
