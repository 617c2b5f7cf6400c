"""networkx copies of task graphs."""

from __future__ import annotations

import networkx as nx

from tests.schedules import build, random_routing
from uniep_compiler.ir.instance import TaskId, merged_order


def test_families_and_what_waits_for_what():
    copy = build(2).graph.to_networkx()
    assert list(copy.nodes) == ["send_xs", "relay_xs", "gemm_a", "gemm_y", "push_y", "reduce_out"]
    assert list(copy.edges) == list(zip(list(copy.nodes)[:-1], list(copy.nodes)[1:], strict=True))
    assert copy.edges["gemm_a", "gemm_y"]["signals"] == ("a_ready",)
    assert copy.nodes["reduce_out"]["domain"] == "block < cdiv($tokens, 4)"


def test_changing_a_copy_changes_nothing():
    graph = build(2).graph
    graph.to_networkx().clear()
    assert len(graph.to_networkx()) == 6


def test_the_order_is_topological_for_single_tasks():
    schedule = build(2)
    routing = random_routing(schedule, 3)
    copy = schedule.graph.instantiate(routing).to_networkx()
    assert nx.is_directed_acyclic_graph(copy)
    place = {task: number for number, task in enumerate(merged_order(schedule, routing)[0])}
    assert all(place[poster] < place[waiter] for poster, waiter in copy.edges)
    assert copy.edges[TaskId(rank=0, family="relay_xs", index=0), TaskId(rank=0, family="gemm_a", index=0)]
