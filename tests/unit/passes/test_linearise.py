from __future__ import annotations

from dataclasses import replace

import pytest

from tests.modules import LAYER, after, finished
from tests.programs import SUPPORTED
from uniep_compiler.ir.instance import instantiate, linear_order
from uniep_compiler.ir.routing import Routing
from uniep_compiler.ir.schedule import families_of

DIMS = (("H", 20), ("I", 12), ("E", 4), ("K", 2))


def order(schedule):
    """The families of each segment, launch by launch."""
    return [[list(families_of(segment)) for segment in launch.segments] for launch in schedule.launches]


def test_layer_is_one_launch():
    schedule = after("linearise", ranks=2, relay="copy", dims=DIMS)
    (launch,) = schedule.launches
    assert len(launch.stages) == 3
    assert order(schedule)[0][0] == ["send_xs"]
    assert order(schedule)[0][-1] == ["reduce_out"]
    pipeline = launch.stages[1]
    assert [list(families_of(segment)) for segment in pipeline.segments] == [
        ["relay_xs"],
        ["relay_xs", "gemm_a"],
        ["relay_xs", "gemm_a", "gemm_y"],
        ["relay_xs", "gemm_a", "gemm_y", "push_y"],
        ["relay_xs"],
        ["gemm_a", "gemm_y", "push_y"],
        ["gemm_a"],
        ["gemm_y", "push_y"],
        ["gemm_y"],
        ["push_y"],
        ["push_y"],
    ]


def test_pairs_cuts_behind_the_first_gemm():
    assert [set().union(*launch) for launch in order(after("linearise", fuse="pairs", ranks=2, dims=DIMS))] == [
        {"send_xs", "relay_xs", "gemm_a"},
        {"gemm_y", "push_y", "reduce_out"},
    ]


def test_none_has_a_launch_per_family():
    schedule = after("linearise", fuse="none", ranks=2, relay="copy", dims=DIMS)
    assert order(schedule) == [
        [["send_xs"]],
        [["relay_xs"]],
        [["gemm_a"]],
        [["gemm_y"]],
        [["push_y"]],
        [["reduce_out"]],
    ]


def routing_of(schedule, tokens):
    """A routing for one rank, with tiles of 4 rows."""
    ids = tuple((token * 7 % 4, (token * 5 + 1) % 4) for token in range(tokens))
    return Routing(
        ids=(ids,), experts=4, topk=2, placement=(4,), tile_rows=4, block=schedule.graph.block, send=schedule.graph.send
    )


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("name", ["two GEMMs that do not meet", "rows returned and combined"])
def test_each_task_stands_once_in_the_order_whatever_group_and_lag(name, group, lag):
    schedule = finished(SUPPORTED[name], ranks=1, group=group, lag=lag, dims=DIMS)
    for tokens in (1, 9, 40):
        routing = routing_of(schedule, tokens)
        ordered = [task for launch in linear_order(schedule, routing, 0) for task in launch]
        assert len(ordered) == len(set(ordered))
        assert set(ordered) == set(instantiate(schedule, routing).tasks)


def test_a_reader_stands_behind_what_it_reads():
    schedule = finished(ranks=1, relay="copy", group=2, lag=2, dims=DIMS)
    routing = routing_of(schedule, 64)
    (ordered,) = linear_order(schedule, routing, 0)
    places = {task: place for place, task in enumerate(ordered)}
    for before, behind in (("relay_xs", "gemm_a"), ("gemm_a", "gemm_y"), ("gemm_y", "push_y")):
        for task in ordered:
            if task.family == behind:
                assert places[replace(task, family=before)] < places[task]


def test_a_program_with_one_tiled_family_has_no_pipeline():
    text = LAYER.replace("-> bf16[T, H]", "-> routes[T, K, E], bf16[rows(r), 2*I]").replace(
        "return combine(y, weights)", "return r, h"
    )
    text = text.replace("    weights : f32[T, K],\n", "").replace("    w2      : bf16[E, H, I],\n", "")
    text = text.replace("    gate, up = split(h, halves)\n    a  = silu(gate) * up\n    y  = group_gemm(a, w2)\n", "")
    assert order(after("linearise", text, dims=DIMS)) == [[["gemm_h"], ["pad_h"]]]
