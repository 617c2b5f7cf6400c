"""Places of boxes and wires: nothing overlaps, wires go round boxes, and what can be straight is."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uniep_compiler.pictures.layout import BOX_GAP, WIRE_GAP, Box, place, spread

GAPS = dict.fromkeys(range(20), 30.0)


def box(name, row, width=100.0, height=40.0):
    return Box(name=name, row=row, width=width, height=height)


def random_layers(seed):
    """Boxes of many sizes in rows, each but those of the first row below another, and wires that pass rows."""
    source = random.Random(seed)
    boxes = [
        box(f"{row}.{place}", row, width=source.randint(40, 200), height=source.randint(20, 80))
        for row in range(6)
        for place in range(source.randint(1, 5))
    ]
    wires = []
    for target in boxes:
        above = [one for one in boxes if one.row < target.row]
        wires += [(one.name, target.name) for one in source.sample(above, k=min(len(above), source.randint(1, 2)))]
    return boxes, wires


def apart(one, other):
    return one.right <= other.x or other.right <= one.x or one.bottom <= other.y or other.bottom <= one.y


@pytest.mark.parametrize("seed", range(20))
def test_boxes_keep_their_distance(seed):
    layout = place(*random_layers(seed), GAPS)
    assert all(apart(one, other) for one, other in combinations(layout.boxes.values(), 2))
    for row in range(6):
        rects = sorted((r for n, r in layout.boxes.items() if n.startswith(f"{row}.")), key=lambda rect: rect.x)
        assert all(right.x - left.right >= min(BOX_GAP, WIRE_GAP) - 0.2 for left, right in pairwise(rects))


@pytest.mark.parametrize("seed", range(20))
def test_wires_lead_from_box_to_box_and_go_round_the_others(seed):
    layout = place(*random_layers(seed), GAPS)
    for (source, target), points in layout.wires.items():
        (x0, y0), (x1, y1) = points[0], points[-1]
        start, end = layout.boxes[source], layout.boxes[target]
        assert start.x <= x0 <= start.right
        assert end.x <= x1 <= end.right
        assert (y0, y1) == (start.bottom, end.y)
        for (ax, ay), (bx, by) in pairwise(points):
            if ax != bx:  # a bend stands between two rows
                assert any(upper.bottom <= ay and by <= lower.y for upper, lower in pairwise(layout.rows.values()))
                continue
            others = [rect for name, rect in layout.boxes.items() if name not in (source, target)]
            assert not any(rect.x < ax < rect.right and rect.y < by and ay < rect.bottom for rect in others)


@pytest.mark.parametrize("seed", range(5))
def test_everything_is_inside(seed):
    layout = place(*random_layers(seed), GAPS)
    xs = [x for points in layout.wires.values() for x, _ in points]
    xs += [x for rect in layout.boxes.values() for x in (rect.x, rect.right)]
    assert 0 <= min(xs) < 0.2
    assert max(xs) == layout.width
    assert max(rect.bottom for rect in layout.boxes.values()) <= layout.height


def test_a_chain_is_one_straight_line():
    boxes = [box(str(row), row, width=50 + 30 * row) for row in range(5)]
    layout = place(boxes, list(pairwise(str(row) for row in range(5))), GAPS)
    assert len({round(rect.centre) for rect in layout.boxes.values()}) == 1
    assert all(points[0][0] == points[-1][0] for points in layout.wires.values())


def test_an_input_does_not_pull_a_chain_out_of_line():
    boxes = [*(box(str(row), row) for row in range(5)), box("input", 2)]
    layout = place(boxes, [*pairwise(str(row) for row in range(5)), ("input", "3")], GAPS)
    centres = [layout.boxes[str(row)].centre for row in range(5)]
    assert max(centres) - min(centres) < 20


def test_a_long_wire_passes_beside_what_is_between():
    boxes = [*(box(str(row), row) for row in range(5))]
    layout = place(boxes, [*pairwise(str(row) for row in range(5)), ("0", "4")], GAPS)
    points = layout.wires["0", "4"]
    xs = {x for x, _ in points[2:-2]}
    assert len(xs) == 1
    (x,) = xs
    assert all(not rect.x < x < rect.right for name, rect in layout.boxes.items() if name in "123")


def test_crossed_wires_are_uncrossed():
    boxes = [box(name, row) for row, names in enumerate(("abc", "xyz")) for name in names]
    layout = place(boxes, [("a", "z"), ("b", "y"), ("c", "x")], GAPS)
    order = sorted("abc", key=lambda name: layout.boxes[name].x)
    below = sorted("xyz", key=lambda name: layout.boxes[name].x)
    assert [{"a": "z", "b": "y", "c": "x"}[name] for name in order] == below


def test_a_wire_upwards_starts_at_the_top():
    layout = place([box("low", 2), box("middle", 1), box("high", 0)], [("low", "high"), ("high", "middle")], GAPS)
    points = layout.wires["low", "high"]
    assert points[0][1] == layout.boxes["low"].y
    assert points[-1][1] == layout.boxes["high"].bottom


def test_the_same_boxes_get_the_same_places():
    assert place(*random_layers(3), GAPS) == place(*random_layers(3), GAPS)


def test_nothing_has_no_size():
    layout = place([], [], {})
    assert (layout.width, layout.height) == (0, 0)


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=8))
def test_spread_keeps_gaps_and_cannot_be_improved(items):
    """The derivative of the squares is not negative for any move of a first or a last part that is allowed."""
    wanted = [float(want) for want, _, _ in items]
    gaps = [float(gap) for _, gap, _ in items[1:]]
    weights = [float(weight) for _, _, weight in items]
    found = spread(wanted, gaps, weights)
    assert all(b - a >= gap - 1e-9 for (a, b), gap in zip(pairwise(found), gaps, strict=True))
    pulls = [weight * (want - x) for x, want, weight in zip(found, wanted, weights, strict=True)]
    assert abs(sum(pulls)) < 1e-6
    for cut in range(1, len(items)):
        assert sum(pulls[:cut]) > -1e-6  # the part before is never held away from going left
