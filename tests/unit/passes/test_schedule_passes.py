from __future__ import annotations

import pytest

from tests.modules import after, finished
from uniep_compiler.ir.index import Int, Sym


@pytest.mark.parametrize("ranks", [None, 2])
def test_one_launch_needs_all_its_waits(ranks):
    assert after("drop_redundant_waits", ranks=ranks) == after("linearise", ranks=ranks)


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_launch_per_family_waits_for_nothing(relay, ranks):
    schedule = finished(fuse="none", relay=relay, ranks=ranks)
    assert schedule.graph.signals == ()
    assert all(family.waits == family.posts == () for family in schedule.graph.families)
    assert schedule.scoreboard == ()
    assert schedule.scoreboard_size == Int(0)


def test_pairs_keeps_what_is_inside_a_launch():
    schedule = finished(fuse="pairs", ranks=2, relay="copy")
    names = {signal.name for signal in schedule.graph.signals}
    assert names == {"xs_ready", "y_ready", "xs_arrived_ready", "y_returned_ready"}
    assert schedule.graph.family("gemm_y").waits == ()
    assert schedule.graph.family("gemm_a").posts == ()


def test_signals_lie_one_after_the_other():
    schedule = finished(ranks=2, relay="copy")
    ends = []
    for place, signal in zip(schedule.scoreboard, schedule.graph.signals, strict=True):
        assert (place.signal, place.extent) == (signal.name, signal.extent)
        ends.append((place.offset, place.extent))
    assert ends[0][0] == Int(0)
    assert ends[1][0] == ends[0][1]
    assert Sym("tiles_bound") in [extent for _, extent in ends]
    assert len({str(offset) for offset, _ in ends}) == len(ends)
