from __future__ import annotations

import pytest

from tests.modules import LAYER, after
from tests.programs import SUPPORTED
from uniep_compiler.ir.index import Int, Lookup, Sym
from uniep_compiler.ir.tasks import Proxy, Scope
from uniep_compiler.passes.accesses import TILE

WIDE = (("H", 64), ("I", 512), ("E", 8), ("K", 2))


def signalled(text=LAYER, **options):
    return after("assign_signals", text, **options)


def waits(graph):
    return {
        family.name: [(wait.signal, wait.index, wait.target, wait.scope.value) for wait in family.waits]
        for family in graph.families
        if family.waits
    }


def signals(graph):
    return {signal.name: (signal.extent, signal.scope.value, signal.phase) for signal in graph.signals}


def test_one_rank_speaks_to_itself_only():
    graph = signalled(target="sm_90", dims=WIDE)
    assert signals(graph) == {
        "a_ready": (Sym("tiles_bound"), "gpu", 0),
        "y_ready": (Int(1), "gpu", 0),
    }
    assert waits(graph) == {
        "gemm_y": [("a_ready", TILE, Int(4), "gpu")],
        "reduce_out": [("y_ready", Int(0), Sym("num_tiles"), "gpu")],
    }


def test_a_group_has_two_phases_across_ranks():
    graph = signalled(ranks=2, relay="copy", target="sm_90", dims=WIDE)
    by_name = signals(graph)
    assert {name: (scope, phase) for name, (_, scope, phase) in by_name.items()} == {
        "xs_arrived_ready": ("sys", 1),
        "xs_ready": ("gpu", 0),
        "a_ready": ("gpu", 0),
        "y_ready": ("gpu", 0),
        "y_returned_ready": ("sys", 2),
    }
    assert waits(graph)["relay_xs"] == [("xs_arrived_ready", TILE, Lookup("tile_rows", (TILE,)), "sys")]
    assert waits(graph)["push_y"] == [("y_ready", TILE, Int(1), "gpu")]
    (post,) = graph.family("send_xs").posts
    assert (post.scope, post.index.table) == (Scope.SYS, "tile_of")


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_every_signal_is_posted_by_one_family_and_awaited_at_its_scope(relay, ranks):
    graph = signalled(relay=relay, ranks=ranks)
    for signal in graph.signals:
        posts = [post for family in graph.families for post in family.posts if post.signal == signal.name]
        found = [wait for family in graph.families for wait in family.waits if wait.signal == signal.name]
        assert len(posts) == 1
        assert found
        assert {each.scope for each in (*posts, *found)} == {signal.scope}
        assert (signal.scope is Scope.SYS) == (signal.phase > 0)


def test_rows_that_tiles_and_a_reduce_read_have_two_signals():
    text = SUPPORTED["dispatched rows combined"]
    graph = signalled(text, relay="copy")
    assert {"xs_ready": Sym("tiles_bound"), "xs_done": Int(1)}.items() <= {
        name: extent for name, (extent, _, _) in signals(graph).items()
    }.items()
    assert [post.signal for post in graph.family("relay_xs").posts] == ["xs_ready", "xs_done"]
    assert [wait.signal for wait in graph.family("gemm_h").waits] == ["xs_ready"]
    assert [wait.signal for wait in graph.family("reduce_out").waits] == ["xs_done"]
    assert "xs_done" not in signals(signalled(text, relay="copy", ranks=1))


def proxies(graph):
    return {
        family.name: [access.buffer for access in family.reads if access.proxy is Proxy.ASYNC]
        for family in graph.families
        if family.name.startswith("gemm")
    }


def test_tma_reads_rows_in_place_where_the_target_has_it_and_they_are_aligned():
    assert proxies(signalled(target="sm_90")) == {"gemm_a": [], "gemm_y": ["a"]}
    assert proxies(signalled(target="sm_90", relay="copy")) == {"gemm_a": ["xs"], "gemm_y": ["a"]}
    assert proxies(signalled(target="sm_90", relay="off", ranks=2)) == {"gemm_a": ["xs"], "gemm_y": ["a"]}
    assert proxies(signalled(target="sm_80", relay="copy")) == {"gemm_a": [], "gemm_y": []}
    odd = (("H", 20), ("I", 100), ("E", 8), ("K", 2))
    assert proxies(signalled(target="sm_90", relay="copy", dims=odd)) == {"gemm_a": [], "gemm_y": []}
    assert proxies(signalled(target="sm_90", relay="copy", dims=odd, dtype="f32")) == {
        "gemm_a": ["xs"],
        "gemm_y": ["a"],
    }


def test_a_fence_follows_each_wait_for_what_tma_reads():
    graph = signalled(target="sm_90", relay="copy")
    for family in graph.families:
        by_tma = {access.buffer for access in family.reads if access.proxy is Proxy.ASYNC}
        for wait in family.waits:
            assert wait.fence == (wait.signal.removesuffix("_ready") in by_tma)
