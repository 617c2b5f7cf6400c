"""Single tasks: numbering, steps, boxes, posts, and the linear order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.schedules import build, random_routing
from uniep_compiler.ir.index import Coord, Int, equal
from uniep_compiler.ir.instance import Increment, TaskId, linear_order, merged_order, step_ranges
from uniep_compiler.ir.numbering import coordinates_at
from uniep_compiler.ir.routing import Routing
from uniep_compiler.ir.tasks import Access, CopyBody, Family, Post, Range, Role
from uniep_compiler.options import Fuse, Relay, Send

ROUTING = Routing(
    ids=(((3, 0), (0, 1), (-1, 2)), ((1, 1), (2, 0))),
    experts=4,
    topk=2,
    placement=(2, 2),
    tile_rows=2,
    block=4,
)


def family(domain, **changes):
    body = CopyBody(source="x", target="y", cols=1, chunk=1)
    settings = {"name": "f", "role": Role.RELAY, "value": "y", "body": body, "reads": (), "writes": ()}
    return Family(domain=tuple(Range(coord=c, extent=Int(n)) for c, n in domain), **{**settings, **changes})


def test_last_coordinate_runs_fastest():
    tasks = family([("a", 2), ("b", 3)])
    places = [tuple(coordinates_at(tasks, i, ROUTING, 0).values()) for i in range(6)]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_in_a_group_the_first_coordinate_runs_fastest():
    tasks = family([("tile", 3), ("n", 2)], group=2)
    places = [tuple(coordinates_at(tasks, i, ROUTING, 0).values()) for i in range(6)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("group", [1, 2, 3, 5])
def test_every_task_has_its_own_coordinates(group):
    tasks = family([("tile", 7), ("n", 4)], group=group)
    places = {tuple(coordinates_at(tasks, i, ROUTING, 0).values()) for i in range(28)}
    assert len(places) == 28


def test_a_lane_takes_a_step_for_each_of_its_sends():
    schedule = build(2, lanes=2, chunk=1)
    task = schedule.graph.instantiate(ROUTING).tasks[TaskId(rank=0, family="send_xs", index=1)]
    # Rank 0 sends itself tokens 0, 1 and its peer tokens 2, 0 (priority); lane 1 has the second of each.
    rows = [[(box.buffer, box.rank, box.row) for box in step.writes] for step in task.steps]
    assert rows == [
        [("xs_arrived", 0, 1), ("row_route", 0, 1), ("row_route", 0, 3)],
        [("xs_arrived", 1, 0), ("row_route", 1, 2)],
    ]
    assert [[(post.rank, post.index, post.count) for post in step.posts] for step in task.steps] == [
        [(0, 0, 1), (0, 2, 1)],
        [(1, 1, 1)],
    ]


def test_posts_to_one_counter_are_added_up():
    both = Post(signal="s", index=Coord("i") // 2, over=(Range(coord="i", extent=Int(3)),))
    task = build_one(family([("a", 1)], posts=(both,)))
    assert task.steps[0].posts == (
        Increment(signal="s", rank=0, index=0, count=2),
        Increment(signal="s", rank=0, index=1, count=1),
    )


def test_conditions_choose_items():
    rows = Access(
        buffer="x",
        row=Coord("i"),
        num_rows=Int(1),
        num_cols=Int(1),
        over=(Range(coord="i", extent=Int(4)),),
        when=equal(Coord("i") % 2, 1),
    )
    assert [box.row for box in build_one(family([("a", 1)], reads=(rows,))).steps[0].reads] == [1, 3]


def build_one(tasks):
    from uniep_compiler.ir.instance import build_task

    return build_task(tasks, 0, ROUTING, 0)


def test_steps_range_over_what_all_effects_share():
    send = build(2).graph.family("send_xs")
    assert [item.coord for item in step_ranges(send)] == ["peer", "item"]
    assert step_ranges(replace(send, reads=(), writes=(), posts=())) == ()


@pytest.mark.parametrize("fuse", Fuse)
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_task_stands_once_in_both_orders(ranks, fuse):
    schedule = build(ranks, fuse=fuse)
    for seed in range(5):
        routing = random_routing(schedule, seed)
        tasks = Counter(schedule.graph.instantiate(routing).tasks.keys())
        merged = merged_order(schedule, routing)
        assert Counter(task for launch in merged for task in launch) == tasks
        for rank in range(ranks):
            own = [tuple(task for task in launch if task.rank == rank) for launch in merged]
            assert linear_order(schedule, routing, rank) == tuple(own)


@pytest.mark.parametrize("relay", Relay)
def test_posts_reach_the_targets(relay):
    schedule = build(2, relay=relay, send=Send.ROUTE if relay is Relay.OFF else Send.RANK)
    tasks = schedule.graph.instantiate(random_routing(schedule, 3)).tasks.values()
    posted = Counter()
    for task in tasks:
        for step in task.steps:
            for post in step.posts:
                posted[post.signal, post.rank, post.index] += post.count
    waits = [(task.id.rank, wait) for task in tasks for step in task.steps for wait in step.waits]
    assert waits
    assert all(posted[wait.signal, rank, wait.index] == wait.target for rank, wait in waits)
