from __future__ import annotations

import pytest

from tests.modules import LAYER, emitted, finished, lowered
from tests.programs import NASTY, SUPPORTED
from uniep_compiler.codegen.constants import FIXED_NAMES
from uniep_compiler.codegen.kernel_view import FIXED_ARGUMENTS
from uniep_compiler.codegen.names import module_names, prelude_names, value_names, words_of
from uniep_compiler.codegen.sizes import dim_expr, find_sizes
from uniep_compiler.codegen.triton_text import expr_text
from uniep_compiler.ir.types import Dim
from uniep_compiler.passes.names import RESERVED


def test_the_prelude_has_no_name_that_a_family_could_have():
    starts = ("send_", "relay_", "gemm_", "push_", "reduce_", "pad_")
    assert not [name for name in prelude_names() if name.startswith(starts)]
    assert {"wait", "post", "mma", "silu", "tl", "triton", "np", "TensorHandle", "device_function"} <= prelude_names()


def test_words_of_a_gemm_are_those_of_its_templates():
    assert {"rows", "cols", "live", "k", "tl", "minimum", "alive", "out_at", "first_row"} <= words_of("gemm")
    assert not {"gate", "bm", "accumulators", "endfor", "Columns"} & words_of("gemm")


def test_arguments_of_kernels_cannot_be_those_of_a_buffer():
    for name in FIXED_ARGUMENTS:
        for suffix in ("_ptr", "_stride", "_size", "_tma"):
            assert not name.endswith(suffix) or name.removesuffix(suffix) in RESERVED


def test_names_at_the_top_of_a_module_are_apart():
    graph = finished(ranks=2, relay="copy").graph
    names = module_names(graph, ["H", "h", "gemm_a", "NUM_RANKS"], [*FIXED_NAMES, "send_xs"])
    chosen = [*names.functions.values(), *names.families.values(), *names.signals.values(), *names.dims.values()]
    chosen += [name for tile in names.tiles.values() for name in (tile.cols, tile.columns, tile.depth)]
    assert len(set(chosen)) == len(chosen)
    assert names.dims == {"H": "H", "NUM_RANKS": "NUM_RANKS_2", "gemm_a": "GEMM_A", "h": "H_2"}
    assert names.families["gemm_a"] == "GEMM_A_2"
    assert names.functions["send_xs"] == "send_xs_2"


@pytest.mark.parametrize("text", [NASTY, *SUPPORTED.values()])
def test_names_of_values_hide_nothing(text):
    dims = (("H", 20), ("I", 12), ("E", 4), ("K", 2), ("tile", 4), ("rank", 20), ("k", 2))
    for family in finished(text, dims=dims).graph.families:
        if family.name.startswith("gemm_"):
            names = value_names(family.body, {"taken"})
            assert len(set(names.values())) == len(names)
            assert not {*words_of("gemm"), "taken"} & set(names.values())
            made = {acc.value for acc in family.body.accumulators}
            made |= {result for op in family.body.epilogue for result in op.results}
            made |= {found.value for found in (*family.body.row_values, *family.body.loads)}
            assert set(names) == made


def test_an_accumulator_leaves_room_for_what_comes_with_it():
    family = finished(LAYER.replace("gate,", "up_acc_tile,").replace("(gate)", "(up_acc_tile)")).graph.family("gemm_a")
    names = value_names(family.body, ())
    assert f"{names['up_acc']}_tile" not in names.values()


def test_sizes_are_in_the_programs_words():
    ops, _ = lowered(ranks=2, relay="copy")
    sizes = find_sizes(ops, finished(ranks=2, relay="copy").graph)
    hidden, inner = Dim.of("H"), Dim.of("I")
    assert sizes.cols["x"] == sizes.cols["xs_arrived"] == sizes.cols["y_returned"] == sizes.cols["out"] == hidden
    assert (sizes.weight_rows["w13"], sizes.cols["w13"]) == (inner.times(2), hidden)
    assert sizes.topk == Dim.of("K")


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ("H", "h"),
        ("2*I", "2 * i"),
        ("H + 2*I + 1", "h + 2 * i + 1"),
        ("H - I", "h - i"),
        ("3", "3"),
        ("2 - I + H", "h + 2 - i"),
    ],
)
def test_dims_as_expressions(dim, text):
    assert expr_text(dim_expr(Dim.parse(dim), {"H": "h", "I": "i"}), {}) == text


def test_dims_stand_in_kernels_by_name():
    text = emitted(target="sm_90", ranks=2, relay="copy").source
    assert "for k in range(0, H, GEMM_A_DEPTH):" in text
    assert "gate_acc_first = expert * (2 * I) + column * GEMM_A_COLS" in text
    assert "up_acc_first = expert * (2 * I) + I + column * GEMM_A_COLS" in text
    assert "route = token * K + k" in text
