"""Pictures of task graphs as SVG: they parse, name everything, are the same each time, and no text leaves its box."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.backward import backward
from tests.schedules import build, random_routing
from uniep_compiler.frontend.bind import bind_dims, dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.index import Int
from uniep_compiler.ir.instance import instantiate, linear_order
from uniep_compiler.ir.networkx_view import edges
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Stage
from uniep_compiler.options import Fuse, Relay, ScheduleOptions, Send
from uniep_compiler.passes.pipeline import run_passes
from uniep_compiler.passes.settings import Settings
from uniep_compiler.passes.target import find_target
from uniep_compiler.pictures import tasks as tasks_module
from uniep_compiler.pictures.diagram import Shape, diagram
from uniep_compiler.pictures.families import families_svg
from uniep_compiler.pictures.order import order_svg, pieces
from uniep_compiler.pictures.svg import SMALL, text_width
from uniep_compiler.pictures.tasks import count_tasks, tasks_svg

EXAMPLES = Path(__file__).parents[3] / "examples"
SVG = "{http://www.w3.org/2000/svg}"

MANY = """
uniep 1
moe many(x : bf16[T, H], experts : i32[T, K], weights : f32[T, K], w1 : bf16[E, I, H], w3 : bf16[E, I, H],
         b1 : bf16[E, I], v : bf16[E, I, I], u : bf16[E, H, I], p : bf16[E, H, H]) -> (bf16[T, H], bf16[T, H]) {
    r = route(experts)
    xs = dispatch(x, r)
    g = group_gemm(xs, w1, bias=b1)
    h = group_gemm(xs, w3)
    a = silu(g) * h
    b = gelu(group_gemm(a, v))
    c = group_gemm(b, v)
    y = group_gemm(c, u)
    z = group_gemm(y, p)
    first = combine(z, weights)
    second = combine(y)
    return first, second
}
"""


@cache
def compiled(text):
    program = parse(text)
    ops = lower(program)
    bound = {name: {"H": 64, "E": 4, "K": 2}.get(name, 32) for name in dims_to_bind(ops)}
    settings = Settings(
        dims=bind_dims(ops, bound, program),
        target=find_target("sm_90"),
        options=ScheduleOptions(),
        placement=balanced_placement(4, 2),
        local=False,
    )
    *_, last = run_passes(ops, settings)
    return last.ir


def many_families():
    return compiled(MANY)


SCHEDULES = {
    "one rank": lambda: build(1),
    "two ranks": lambda: build(2),
    "gather": lambda: build(2, relay=Relay.GATHER),
    "routes": lambda: build(2, relay=Relay.OFF, send=Send.ROUTE),
    "pairs": lambda: build(4, fuse=Fuse.PAIRS),
    "serial": lambda: build(2, fuse=Fuse.NONE),
    "rows are a result": lambda: compiled((EXAMPLES / "dispatch_gemm.uniep").read_text()),
    "rows are a parameter": lambda: compiled((EXAMPLES / "gemm_combine.uniep").read_text()),
    "many families": many_families,
    "backward": lambda: backward("qwen3_moe"),
    "serial backward": lambda: backward("megatron", fuse="none"),
}


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return SCHEDULES[request.param]()


def parsed(svg):
    return ElementTree.fromstring(svg)


def items(root):
    """The groups of boxes, by id."""
    return {g.get("id"): g for g in root.iter(f"{SVG}g") if g.get("id")}


def box_of(group):
    """Left, top, right and bottom of a box."""
    rect = group.find(f"{SVG}rect")
    if rect is not None:
        x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        return x, y, x + width, y + height
    points = [tuple(map(float, p.split(","))) for p in group.find(f"{SVG}polygon").get("points").split()]
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def text_boxes(group):
    """Left, top, right and bottom of each text of a box, at the most."""
    for text in group.findall(f"{SVG}text"):
        small = "u-small" in text.get("class") or text.get("font-size")
        size = SMALL if small else 12.0
        width, x, y = text_width(text.text, size), float(text.get("x")), float(text.get("y"))
        left = x - width if text.get("text-anchor") == "end" else x
        yield left, y - size, left + width, y + 3


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# -- families ----------------------------------------------------------------------------------------------------------


def test_everything_has_a_box_with_its_name(schedule):
    graph = schedule.graph
    found = items(parsed(families_svg(schedule, "a layer")))
    for family in graph.families:
        texts = [text.text for text in found[f"family:{family.name}"].iter(f"{SVG}text")]
        assert texts[:2] == [family.name, family.role]
    assert {name for name in found if name.startswith("signal:")} == {f"signal:{s.name}" for s in graph.signals}
    assert {name for name in found if name.startswith("buffer:")} == {f"buffer:{b.name}" for b in graph.buffers}


def test_launches_are_frames_around_their_families(schedule):
    root = parsed(families_svg(schedule, "a layer"))
    found = items(root)
    frames = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}rect[@class='u-launch']") is not None]
    assert [g.find(f"{SVG}text").text for g in frames] == [launch.name for launch in schedule.launches]
    boxes = [box_of(frame) for frame in frames]
    assert not any(overlap(one, other) for one, other in combinations(boxes, 2))
    for launch, frame in zip(schedule.launches, boxes, strict=True):
        for segment in launch.segments:
            names = [segment.family] if hasattr(segment, "family") else [m.family for m in segment.members]
            for name in names:
                left, top, right, bottom = box_of(found[f"family:{name}"])
                assert frame[0] < left
                assert frame[1] < top
                assert right < frame[2]
                assert bottom < frame[3]


def test_no_text_leaves_its_box_or_meets_another_text(schedule):
    found = items(parsed(families_svg(schedule, "a layer")))
    boxes = {name: box_of(group) for name, group in found.items()}
    assert not any(overlap(one, other) for one, other in combinations(boxes.values(), 2))
    for name, group in found.items():
        left, top, right, bottom = boxes[name]
        texts = list(text_boxes(group))
        assert texts
        for text in texts:
            assert left <= text[0]
            assert text[2] <= right
            assert top <= text[1]
            assert text[3] <= bottom
        assert not any(overlap(one, other) for one, other in combinations(texts, 2))


def test_the_picture_holds_all_of_it(schedule):
    root = parsed(families_svg(schedule, "a layer"))
    _, _, width, height = map(float, root.get("viewBox").split())
    dx, dy = map(float, re.search(r"translate\((\S+) (\S+)\)", families_svg(schedule, "a layer")).groups())
    for group in items(root).values():
        left, top, right, bottom = box_of(group)
        assert left + dx >= 0
        assert top + dy >= 0
        assert right + dx <= width
        assert bottom + dy <= height
    for text in root.findall(f"{SVG}text"):
        assert float(text.get("x")) + text_width(text.text, SMALL) <= width
        assert float(text.get("y")) <= height


def test_signals_say_which_targets_are_waited_for(schedule):
    found = items(parsed(families_svg(schedule, "a layer")))
    for signal in schedule.graph.signals:
        whole = found[f"signal:{signal.name}"].find(f"{SVG}title").text
        waits = [w for family in schedule.graph.families for w in family.waits if w.signal == signal.name]
        assert whole.count("≥") == len(waits) > 0


def test_every_access_wait_and_post_is_a_wire():
    graph = build(2).graph
    svg = families_svg(build(2), "a layer")
    wires = {title.text.removesuffix(" of any rank") for title in parsed(svg).iter(f"{SVG}title")}
    for family in graph.families:
        assert {f"read: {access.buffer} → {family.name}" for access in family.reads} <= wires
        assert {f"write: {family.name} → {access.buffer}" for access in family.writes} <= wires
        assert {f"wait: {wait.signal} → {family.name}" for wait in family.waits} <= wires
        assert {f"post: {family.name} → {post.signal}" for post in family.posts} <= wires


def test_a_long_wire_is_straight_but_for_its_ends():
    root = parsed(families_svg(build(2), "a layer"))
    (wire,) = (p for p in root.iter(f"{SVG}path") if "row_route → push" in (p.findtext(f"{SVG}title") or ""))
    assert wire.get("d").count("C") <= 2


def test_a_bias_is_drawn_too():
    links = {(link.source, link.target) for link in diagram(many_families()).links}
    assert ("buffer:b1", "family:gemm_a") in links


def test_families_stand_below_those_they_wait_for(schedule):
    shown = diagram(schedule)
    rows = {item.id: item.row for item in shown.items}
    assert all(rows[link.source] < rows[link.target] for link in shown.links)
    assert all(item.row % 2 == (item.shape is Shape.FAMILY) for item in shown.items)


def test_names_of_a_program_cannot_break_the_picture():
    graph = build(1).graph
    family = replace(graph.families[0], value='<&">')
    svg = families_svg(replace(build(1), graph=replace(graph, families=(family, *graph.families[1:]))), "<&>")
    assert any(text.text == "<&>" for text in parsed(svg).iter(f"{SVG}text"))


def test_many_families_are_many():
    assert len(many_families().graph.families) == 11


@pytest.mark.parametrize("draw", [lambda s: families_svg(s, "a layer"), order_svg])
def test_the_same_schedule_gives_the_same_picture(schedule, draw):
    assert draw(schedule) == draw(replace(schedule))


# -- the linear order --------------------------------------------------------------------------------------------------


def test_the_strip_has_a_numbered_box_for_each_segment(schedule):
    root = parsed(order_svg(schedule))
    num_segments = sum(len(launch.segments) for launch in schedule.launches)
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert [text for text in texts if text.isdigit()] == [str(number + 1) for number in range(num_segments)]
    assert [text for text in texts if not text.isdigit()] == [launch.name for launch in schedule.launches]


def test_a_segment_says_what_it_runs():
    first, *_, last = pieces(build(1))
    assert (first.number, first.opens, first.steps != "", first.members) == (1, True, True, (("gemm_a", "12"),))
    assert (last.steps, last.members) == ("", (("reduce_out", "cdiv(tokens, 4)"),))


def test_stripes_of_a_segment_fill_its_width(schedule):
    for group in parsed(order_svg(schedule)).findall(f"{SVG}g"):
        rects = [g.find(f"{SVG}rect") for g in group.findall(f"{SVG}g")]
        assert sum(float(rect.get("width")) for rect in rects) == pytest.approx(68, abs=1)


def test_few_tasks_of_a_segment_can_be_seen_too():
    schedule = build(1)
    many = Member(family="gemm_a", start=Int(0), per_step=500)
    few = Member(family="gemm_y", start=Int(0), per_step=1)
    stage = Stage(segments=(Interleave(steps=Int(1), members=(many, few)),))
    svg = order_svg(replace(schedule, launches=(Launch(name="one", stages=(stage,)),)))
    widths = [float(rect.get("width")) for rect in parsed(svg).iter(f"{SVG}rect")]
    assert len(widths) == 4
    assert min(widths) > 2


# -- single tasks ------------------------------------------------------------------------------------------------------

SEED = 3  # for which each rank has tokens


def cells(root):
    """Role, line and left end of each task, by the first line of what it says about itself."""
    return {
        rect.find(f"{SVG}title").text.partition(":")[0]: (float(rect.get("x")), float(rect.get("y")))
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_task_has_a_cell_in_its_place(ranks):
    schedule = build(ranks)
    routing = random_routing(schedule, seed=SEED)
    found = cells(parsed(tasks_svg(schedule, routing, "a layer")))
    assert {int(task[-1]) for task in found} == set(range(ranks))
    assert len(found) == count_tasks(schedule.graph, routing) == len(instantiate(schedule, routing).tasks)
    for rank in range(ranks):
        order = [str(task) for launch in linear_order(schedule, routing, rank) for task in launch]
        xs = [found[task][0] for task in order]
        assert xs == sorted(set(xs))
    assert len({y for _, y in found.values()}) <= ranks * len(schedule.graph.families)


def test_every_wait_is_a_wire():
    schedule = build(2)
    routing = random_routing(schedule, seed=SEED)
    root = parsed(tasks_svg(schedule, routing, "a layer"))
    paths = {bool("u-far" in p.get("class")): 0 for p in root.iter(f"{SVG}path") if "u-edge" in p.get("class")}
    for path in root.iter(f"{SVG}path"):
        if "u-edge" in path.get("class"):
            paths["u-far" in path.get("class")] += path.get("d").count("M")
    wanted = set(edges(instantiate(schedule, routing)))
    far = sum(poster.rank != waiter.rank for poster, waiter, _ in wanted)
    assert paths == {False: len(wanted) - far, True: far}
    assert far > 0


def test_too_many_waits_are_left_out_and_that_is_said(monkeypatch):
    monkeypatch.setattr(tasks_module, "MAX_EDGES", 3)
    svg = tasks_svg(build(1), random_routing(build(1), seed=SEED), "a layer")
    assert "too many to draw" in svg
    assert 'class="u-edge' not in svg


@pytest.mark.parametrize("name", ["m", "a layer with a name that is longer than all of its tasks are wide " * 3])
@pytest.mark.parametrize("tokens", [0, 3, 60])
def test_texts_about_tasks_end_inside_the_picture(tokens, name):
    schedule = build(2)
    root = parsed(tasks_svg(schedule, random_routing(schedule, seed=1, tokens=tokens), name))
    _, _, width, height = map(float, root.get("viewBox").split())
    for text in root.findall(f"{SVG}text"):
        size = 15.0 if "u-heading" in text.get("class", "") else SMALL
        assert float(text.get("x")) + text_width(text.text, size) <= width
        assert float(text.get("y")) <= height


def test_no_tasks_are_a_picture_too():
    schedule = build(1)
    parsed(tasks_svg(schedule, random_routing(schedule, seed=1, tokens=0), "a layer"))
