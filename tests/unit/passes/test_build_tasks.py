from __future__ import annotations

import pytest

from tests.modules import LAYER, after
from tests.programs import NASTY, ONE_RANK_ONLY, SUPPORTED
from uniep_compiler.ir.index import Int, Sym
from uniep_compiler.ir.tasks import BufferKind, GemmBody, MapBody, ReduceBody, Role, ZeroBody
from uniep_compiler.passes.names import ROW_ROUTE

DIMS = (("H", 20), ("I", 12), ("E", 4), ("K", 2))


def build(text=LAYER, **options):
    return after("build_tasks", text, dims=DIMS, **options)


def families(graph):
    return [family.name for family in graph.families]


def buffers(graph):
    return {buffer.name: buffer.kind.value for buffer in graph.buffers}


def test_a_layer_becomes_families_in_data_flow_order():
    graph = build(ranks=2)
    assert families(graph) == ["send_xs", "gemm_a", "gemm_y", "push_y", "reduce_out"]
    assert [family.role.value for family in graph.families] == ["comm", "compute", "compute", "push", "reduce"]
    assert buffers(graph) == {
        "x": "input",
        "weights": "input",
        "w13": "input",
        "w2": "input",
        "xs": "workspace",
        "row_route": "symmetric",
        "a": "workspace",
        "y": "workspace",
        "y_returned": "symmetric",
        "out": "output",
    }
    assert graph.signals == ()
    assert all(family.waits == family.posts == () for family in graph.families)


def test_rows_in_place_are_symmetric_memory():
    assert buffers(build(ranks=2, relay="off"))["xs"] == "symmetric"
    assert buffers(build(relay="off"))["xs"] == "workspace"


def test_every_family_has_its_place_in_the_program():
    for family in build(ranks=2).families:
        assert LAYER.split("\n")[family.span.line - 1].strip().startswith((family.value, "return", "h"))


def test_no_combine():
    text = LAYER.replace("-> bf16[T, H]", "-> routes[T, K, E], bf16[rows(r), H]").replace(
        "return combine(y, weights)", "return r, y"
    )
    graph = build(text.replace("    weights : f32[T, K],\n", ""))
    assert families(graph) == ["send_xs", "gemm_a", "gemm_y", "pad_y"]
    assert graph.buffer("y").kind is BufferKind.OUTPUT
    pad = graph.family("pad_y")
    assert isinstance(pad.body, ZeroBody)
    assert pad.span.line == graph.family("gemm_y").span.line


PART = """
uniep 1

moe part(r : routes[T, K, E], a : bf16[rows(r), I], weights : f32[T, K], w : bf16[E, H, I]) -> bf16[T, H] {
    return combine(group_gemm(a, w), weights)
}
"""


def test_no_dispatch():
    graph = build(PART)
    assert families(graph) == ["gemm_rows_1", "push_rows_1", "reduce_out"]
    assert (graph.buffer("a").kind, graph.buffer("a").rows) == (BufferKind.INPUT, Sym("rows_bound"))
    assert "row_route" not in buffers(graph)
    assert build(PART, ranks=2).buffer("row_route").kind is BufferKind.INPUT


def test_rows_that_are_combined_twice_are_pushed_once():
    graph = build(SUPPORTED["rows combined twice"], ranks=2)
    assert families(graph)[-3:] == ["push_y", "reduce_out", "reduce_out_2"]
    reduces = [family.body for family in graph.families if isinstance(family.body, ReduceBody)]
    assert [(body.rows, body.weights) for body in reduces] == [("y_returned", "weights"), ("y_returned", "gates")]


def test_work_on_dispatched_rows_is_a_family_of_its_own():
    graph = build(SUPPORTED["work on dispatched rows"], ranks=2)
    assert families(graph)[:3] == ["send_xs", "map_q", "gemm_a"]
    body = graph.family("map_q").body
    assert isinstance(body, MapBody)
    assert [(store.value, store.buffer) for store in body.stores] == [("f", "f"), ("q", "q")]
    assert [op.kind for op in body.epilogue if op.kind != "const"] == ["relu", "mul", "sub", "round", "square"]


def test_router_weights_travel_beside_the_rows_of_a_group():
    text = SUPPORTED["router weights on the activation"]
    graph = build(text, ranks=2)
    (companion,) = graph.family("send_rows_2" if "send_rows_2" in families(graph) else "send_xs").body.companions
    assert companion.source == "weights"
    assert graph.buffer(companion.target).kind is BufferKind.SYMMETRIC
    (found,) = graph.family("gemm_a").body.row_values
    assert (found.buffer, found.by_route) == (companion.target, False)
    (found,) = build(text).family("gemm_a").body.row_values
    assert (found.buffer, found.by_route) == ("weights", True)


def test_parameters_that_nothing_reads_have_no_buffer():
    assert set(buffers(build(SUPPORTED["an unused parameter"]))) >= {"x", "w1"}
    assert not {"_odd", "_none"} & set(buffers(build(SUPPORTED["an unused parameter"])))


def test_names_of_made_buffers_give_way_to_those_of_values():
    graph = build(LAYER.replace(" a ", " y_returned ").replace("(a,", "(y_returned,"), ranks=2)
    assert {"y_returned", "y_returned_2"} <= set(buffers(graph))
    assert graph.family("push_y").body.target == "y_returned_2"
    assert (
        len(
            build(
                NASTY.replace("tile", "E").replace("rank]", "I]").replace("rank,", "I,").replace(", k]", ", K]"),
                ranks=2,
            ).buffers
        )
        == 12
    )


def test_weights_lie_expert_after_expert():
    graph = build(SUPPORTED["layout kn"])
    weight, bias = graph.buffer("w13kn"), graph.buffer("b13")
    assert (weight.rows, weight.cols, weight.experts) == (Int(20), Int(24), 4)
    assert (bias.rows, bias.cols, bias.experts) == (Int(4), Int(24), 0)


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_is_read_is_a_buffer_and_is_written_before(name):
    for ranks in (None,) if name in ONE_RANK_ONLY else (None, 1):
        graph = build(SUPPORTED[name], ranks=ranks)
        made = {buffer.name for buffer in graph.buffers if buffer.kind is BufferKind.INPUT}
        made |= {ROW_ROUTE} if ranks is None else set()  # the plan's, on one rank
        for family in graph.families:
            assert {access.buffer for access in family.reads} <= made
            made |= {access.buffer for access in family.writes}
        outputs = {buffer.name for buffer in graph.buffers if buffer.kind is BufferKind.OUTPUT}
        assert outputs <= made
        gemms = [family for family in graph.families if isinstance(family.body, GemmBody)]
        assert all(family.body.stores for family in gemms)
        assert all(family.role is not Role.RELAY or family.name.startswith("map_") for family in graph.families)
