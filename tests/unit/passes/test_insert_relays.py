from __future__ import annotations

import pytest

from tests.modules import LAYER, after
from tests.programs import SUPPORTED
from uniep_compiler.ir.index import Coord, Int, Sym
from uniep_compiler.ir.tasks import BufferKind, Role
from uniep_compiler.passes.accesses import ROUTE_AT, SOURCE


def relayed(text=LAYER, **options):
    return after("insert_relays", text, **options)


def families(graph):
    return [family.name for family in graph.families]


def read_of(family, buffer):
    return next(access for access in family.reads if access.buffer == buffer)


def test_off_changes_nothing():
    for ranks in (None, 2):
        assert relayed(relay="off", ranks=ranks) == after("build_tasks", relay="off", ranks=ranks)


def test_copy_in_a_group_sends_tokens_and_relays_rows():
    graph = relayed(relay="copy", ranks=2)
    assert families(graph)[:3] == ["send_xs", "relay_xs", "gemm_a"]
    send, relay = graph.family("send_xs"), graph.family("relay_xs")
    assert (send.body.source, send.body.target) == ("x", "xs_arrived")
    assert [(write.buffer, len(write.over)) for write in send.writes] == [("xs_arrived", 2), ("row_route", 3)]
    assert (relay.role, relay.body.source, relay.body.target) == (Role.RELAY, "xs_arrived", "xs")
    assert read_of(relay, "xs_arrived").row == SOURCE * Sym("tokens_bound") + ROUTE_AT // 2
    assert graph.buffer("xs_arrived").kind is BufferKind.SYMMETRIC
    assert graph.buffer("xs_arrived").rows == Sym("tokens_bound") * 2


def test_copy_on_one_rank_reads_the_tokens():
    graph = relayed(relay="copy")
    assert families(graph)[:2] == ["relay_xs", "gemm_a"]
    assert read_of(graph.family("relay_xs"), "x").row == ROUTE_AT // 2
    assert "xs_arrived" not in {buffer.name for buffer in graph.buffers}


@pytest.mark.parametrize("ranks", [None, 2])
def test_gather_lets_the_gemm_read_what_arrived(ranks):
    graph = relayed(relay="gather", ranks=ranks)
    gemm = graph.family("gemm_a")
    place = "x" if ranks is None else "xs_arrived"
    assert "relay_xs" not in families(graph)
    assert "xs" not in {buffer.name for buffer in graph.buffers}
    assert (gemm.body.rows, gemm.body.gather) == (place, True)
    assert read_of(gemm, place).num_rows == Int(1)
    assert graph.family("gemm_y").body.gather is False


def test_rows_that_are_a_result_are_copied_though_the_gemm_could_gather():
    graph = relayed(SUPPORTED["dispatched rows returned"], relay="gather", ranks=2)
    assert "relay_xs" in families(graph)
    assert graph.buffer("xs").kind is BufferKind.OUTPUT


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
def test_rows_that_a_reduce_looks_up_are_copied_on_one_rank(relay):
    graph = relayed(SUPPORTED["dispatched rows combined"], relay=relay)
    assert "relay_xs" in families(graph)
    assert "send_xs" not in families(graph)


@pytest.mark.parametrize("relay", ["copy", "gather"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_map_collects_its_rows_itself(relay, ranks):
    graph = relayed(SUPPORTED["router weights on the input"], relay=relay, ranks=ranks)
    assert not any(name.startswith("relay_") for name in families(graph))
    (found,) = [family for family in graph.families if family.name.startswith("map_")]
    assert found.body.gather
    assert found.body.source == ("x" if ranks is None else "rows_3_arrived") or found.body.source.endswith("_arrived")


def test_rows_that_a_map_and_a_gemm_read_are_copied_once():
    text = SUPPORTED["work on dispatched rows"]
    assert "relay_xs" in families(relayed(text, relay="copy"))
    assert not relayed(text, relay="copy").family("map_q").body.gather


def test_router_weights_arrive_with_tokens():
    graph = relayed(SUPPORTED["router weights on the activation"], relay="copy", ranks=2)
    (send,) = [family for family in graph.families if family.name.startswith("send_")]
    assert [len(write.over) for write in send.writes] == [2, 3, 3]
    assert [read.buffer for read in send.reads] == ["x", "weights"]


def test_only_sends_are_by_lane():
    graph = relayed(relay="copy", ranks=2)
    assert [family.name for family in graph.families if family.domain[0].coord == "lane"] == ["send_xs"]
    assert all(access.rank != Coord("peer") for family in graph.families[1:] for access in family.writes)


def test_the_buffer_of_what_arrives_gives_way_to_a_value_of_that_name():
    graph = relayed(LAYER.replace(" a ", " xs_arrived ").replace("(a,", "(xs_arrived,"), relay="copy", ranks=2)
    assert graph.family("send_xs").body.target == "xs_arrived_2"
