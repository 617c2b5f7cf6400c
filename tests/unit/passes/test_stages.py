from __future__ import annotations

from tests.modules import LAYER
from tests.programs import SUPPORTED
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.passes.clusters import stages_of_values
from uniep_compiler.passes.stages import build_maps, build_stages

DIMS = {"H": 20, "I": 12, "E": 4, "K": 2}


def stages(text):
    return build_stages(lower(parse(text)), DIMS)


def shown(stage):
    """The epilogue, an op a line; and what is stored, where."""
    lines = [f"{op.results[0]} = {op.kind}({', '.join(op.operands)})" for op in stage.epilogue]
    return lines, [(store.value, store.buffer, store.first) for store in stage.stores]


def accumulators(stage):
    return [(acc.value, acc.weight, acc.first, acc.bias) for acc in stage.accumulators]


def test_a_split_becomes_two_accumulators_and_disappears():
    first, second = stages(LAYER)
    assert (first.rows, first.depth, first.num_cols, first.layout) == ("xs", 20, 12, "nk")
    assert accumulators(first) == [("gate_acc", "w13", 0, None), ("up_acc", "w13", 12, None)]
    assert shown(first) == (
        ["gate = round(gate_acc)", "up = round(up_acc)", "_2 = silu(gate)", "_3 = mul(_2, up)", "a = round(_3)"],
        [("a", "a", 0)],
    )
    assert accumulators(second) == [("y_acc", "w2", 0, None)]
    assert shown(second) == (["y = round(y_acc)"], [("y", "y", 0)])


def test_the_op_before_a_split_stands_for_the_split():
    first, _ = stages(LAYER)
    lines = LAYER.split("\n")
    assert [lines[op.span.line - 1].split("=")[0].strip() for op in first.epilogue] == ["gate, up"] * 2 + ["a"] * 3


def test_what_is_split_can_leave_the_stage_in_two_halves():
    first, _ = stages(SUPPORTED["rows returned before they are split"])
    assert shown(first)[1] == [("h_0", "h", 0), ("h_1", "h", 12), ("a", "a", 0)]
    assert [acc.value for acc in first.accumulators] == ["h_0_acc", "h_1_acc"]


def test_two_splits_of_one_value_are_the_same_halves():
    first, *_ = stages(SUPPORTED["split twice"])
    lines, stores = shown(first)
    assert "_3 = mul(_2, u)" in lines
    assert ("u", "u2", 0) in stores
    assert not any("g2" in line for line in lines)


def test_values_of_full_width_are_carried_as_halves():
    first, *_ = stages(SUPPORTED["the whole beside its halves"])
    lines, stores = shown(first)
    assert ("f_0", "f", 0) in stores
    assert ("f_1", "f", 12) in stores
    assert sum(line.startswith("f_") for line in lines) == 2
    (constant,) = [op for op in first.epilogue if op.kind == "const"]
    assert sum(constant.results[0] in op.operands for op in first.epilogue) == 2


def test_gemms_that_meet_share_a_stage():
    first, second = stages(SUPPORTED["two named GEMMs"])
    assert accumulators(first) == [("h_acc", "w1", 0, None), ("g_acc", "w3", 0, None)]
    assert {"h", "g", "a"} <= first.values
    assert second.rows == "a"


def test_gemms_that_meet_before_a_split_have_four_accumulators():
    first, _ = stages(SUPPORTED["two GEMMs, then a split"])
    assert accumulators(first) == [
        ("h_0_acc", "w13", 0, None),
        ("h_1_acc", "w13", 12, None),
        ("g_0_acc", "w13", 0, "b13"),
        ("g_1_acc", "w13", 12, "b13"),
    ]


def test_gemms_that_do_not_meet_are_stages_of_their_own():
    assert [stage.rows for stage in stages(SUPPORTED["two GEMMs that do not meet"])] == ["xs", "xs", "a", "b"]


def test_a_stage_stands_where_its_first_gemm_does():
    text = SUPPORTED["two named GEMMs"].replace("a = silu(h) * (g + 1.0)", "a = silu(g) * (h + 1.0)")
    first, _ = stages(text)
    assert [acc.weight for acc in first.accumulators] == ["w1", "w3"]


def test_layout_and_bias_are_said():
    first, second = stages(SUPPORTED["layout kn"])
    assert (first.layout, second.layout) == ("kn", "kn")
    assert {acc.bias for acc in first.accumulators} == {"b13"}
    assert second.accumulators[0].bias == "b2"


def test_an_interleaved_split_stays_in_the_epilogue():
    first, _ = stages(SUPPORTED["an interleaved split of what is returned"])
    assert accumulators(first) == [("h_acc", "w13kn", 0, None)]
    assert first.num_cols == 24
    assert "g = split(f)" in shown(first)[0]
    assert [(store.buffer, store.halved) for store in first.stores] == [("h", False), ("u", True), ("a", True)]
    assert all(not store.halved for stage in stages(LAYER) for store in stage.stores)


def test_work_on_rows_in_memory_is_a_map():
    ops = lower(parse(SUPPORTED["router weights in several places"]))
    (found,) = build_maps(ops, DIMS)
    assert (found.rows, found.row_numbers) == ("d", ("s", "t"))
    assert found.first == found.epilogue[0].results[0]
    assert [op.kind for op in found.epilogue] == ["mul", "mul", "add", "round"]
    first, second = build_stages(ops, DIMS)
    assert (first.rows, first.row_numbers, second.row_numbers) == ("xs", ("s",), ("t",))
    assert build_maps(lower(parse(LAYER)), DIMS) == ()


def test_what_was_reported_is_not_reported_again():
    text = SUPPORTED["router weights on the activation"].replace(
        "    a = ", "    s = sigmoid(to_rows(weights, r))\n    t = s * s\n    f = silu(g) * t\n    a = f * "
    )
    _, misplaced = stages_of_values(lower(parse(text)))
    assert [found.op.kind for found in misplaced] == ["sigmoid"]


def test_gemms_of_different_rows_share_a_sum():
    *_, last = stages(SUPPORTED["a sum of GEMMs of different rows"])
    assert accumulators(last) == [("y_acc", "w2", 0, None)]
    assert last.rows == "a"
    assert [(term.rows, term.depth, term.weight) for term in last.terms] == [("b", 12, "w2"), ("xs", 20, "wsquare")]


def test_halves_of_a_sum_are_accumulators_of_all_its_terms():
    first, _ = stages(SUPPORTED["a sum of GEMMs of different rows, split"])
    assert accumulators(first) == [("g_acc", "w13", 0, None), ("u_acc", "w13", 12, None)]
    assert [(term.rows, term.weight) for term in first.terms] == [("f", "w13")]


def test_gemms_that_can_share_no_stage_meet_through_memory():
    h, a, b = stages(SUPPORTED["GEMMs of different rows"])
    assert [[store.buffer for store in stage.stores] for stage in (h, a, b)] == [["h"], ["a"], ["b"]]
    assert [(load.value, load.buffer) for load in b.loads] == [("h", "h")]
    assert all(not stage.terms for stage in (h, a, b))


def test_a_map_takes_halves_of_rows_apart():
    (found,) = build_maps(lower(parse(SUPPORTED["dispatched rows split"])), DIMS)
    assert found.num_cols == 20
    assert [(load.value, load.first, load.doubled) for load in found.loads] == [("g", 0, False), ("u", 20, False)]
    assert [store.buffer for store in found.stores] == ["g", "u"]


def test_a_map_takes_pairs_of_columns_apart():
    (found,) = build_maps(lower(parse(SUPPORTED["dispatched rows split in turn"])), DIMS)
    assert [(load.first, load.doubled) for load in found.loads] == [(0, True)]
    assert [op.kind for op in found.epilogue][-1] == "round"
