"""Another element type: the graph is that of the program whose text names that one."""

from __future__ import annotations

import re
import warnings

import pytest

import uniep_compiler as uniep
from tests.golden.test_kernels import EXAMPLES
from tests.modules import LAYER
from tests.programs import NASTY, SUPPORTED, UNSUPPORTED, program
from tests.random_programs import random_program
from uniep_compiler import compiler
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.tasks import GemmBody
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.target import find_target

DTYPES = (DType.BF16, DType.F16, DType.F32)
DIMS = {"H": 32, "I": 16, "E": 4, "K": 2}
ROUTES = "r : routes[T, K, E]"
PARTS = {
    "dispatch": f"x : bf16[T, H], {ROUTES}) -> bf16[rows(r), H] {{\n    return dispatch(x, r)",
    "dispatch named": f"x : bf16[T, H], {ROUTES}) -> bf16[rows(r), H] {{\n    xs = dispatch(x, r)\n    return xs",
    "combine": f"w : f32[T, K], y : bf16[rows(r), H], {ROUTES}) -> bf16[T, H] {{\n    return combine(y, w)",
    "activation": f"h : bf16[rows(r), H], {ROUTES}) -> bf16[rows(r), H] {{\n    a = silu(h) * 2.0\n    return a + h",
    "GEMM": f"h : bf16[rows(r), H], {ROUTES}, w : bf16[E, I, H]) -> bf16[rows(r), I] {{\n    return group_gemm(h, w)",
}
TEXTS = {
    **{path.name: path.read_text() for path in sorted(EXAMPLES.glob("*.uniep"))},
    **{name: text for name, text in SUPPORTED.items() if name != "routing alone"},
    **{name: text for name, (text, _) in UNSUPPORTED.items()},
    **{f"{name} only": f"uniep 1\n\nmoe m({text}\n}}\n" for name, text in PARTS.items()},
    **{f"seed {seed}": random_program(seed) for seed in range(20)},
    "nasty": NASTY,
    "clamped": uniep.programs.experts(limit=7.0, alpha=1.702, up_offset=1.0, bias=True).source.text,
}


def lowered(text):
    """Each layer of a text, with its graph."""
    parsed = parse(text)
    return [(parsed[name], lower(parsed[name])) for name in parsed.moes]


def retyped(text, dtype):
    """The graph of each layer of a text, in another dtype."""
    return [compiler.in_dtype(layer, ops, dtype)[1] for layer, ops in lowered(text)]


def graph_of(text, dtype):
    (ops,) = retyped(text, dtype)
    return ops


def in_text(text, dtype):
    """The graph of each layer of a text that names another dtype."""
    return [ops for _, ops in lowered(text.replace("bf16", dtype))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TEXTS)
def test_it_is_the_program_whose_text_names_that_dtype(name, dtype):
    assert retyped(TEXTS[name], dtype) == in_text(TEXTS[name], dtype)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("name", [name for name in TEXTS if not re.search(r"f32\[(E|3|T, [HI])|cast", TEXTS[name])])
def test_a_program_in_fp32_rounds_as_if_it_had_been_written_in_another_dtype(name, dtype):
    """Where only router weights and names are said to be f32 besides."""
    assert retyped(TEXTS[name].replace("bf16", "f32"), dtype) == in_text(TEXTS[name], dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_options_of_programs_in_fp32_round_as_those_in_another_dtype(dtype):
    wide, narrow = (uniep.programs.experts(limit=7.0, bias=True, dtype=name) for name in ("f32", dtype))
    assert compiler.in_dtype(wide, lower(wide), DType(dtype))[1] == lower(narrow)


BODY = "r = route(experts); xs = dispatch(x, r); h : f32 = group_gemm(xs, w1); a = silu(h); y = group_gemm(a, w2); "


def test_a_name_that_is_declared_f32_is_never_rounded():
    ops = graph_of(program(BODY + "return combine(y, weights)").replace("bf16", "f32"), DType.BF16)
    kinds = {name: getattr(kind, "dtype", None) for name, kind in ops.types.items()}
    assert [kinds[name] for name in ("xs", "h", "a", "y", "weights")] == ["bf16", "f32", "bf16", "bf16", "f32"]


def test_results_that_stay_f32_are_returned_as_they_are():
    types = "bf16[T, H], f32[rows(r), I], f32[rows(r)]"
    text = program(BODY + "return combine(y, weights), h, to_rows(weights, r)", types)
    ops = graph_of(text.replace("bf16", "f32"), DType.F16)
    assert [ops.types[name].dtype for name in ops.results] == ["f16", "f32", "f32"]
    assert ops == in_text(text, "f16")[0]


def test_numbers_per_route_stay_fp32_also_where_nothing_needs_them():
    text = program(
        "r = route(experts); g = to_rows(gates, r); h = group_gemm(dispatch(x, r), w1); return combine(h)", "bf16[T, I]"
    )
    (param,) = (param for param in graph_of(text.replace("bf16", "f32"), DType.BF16).params if param.name == "gates")
    assert param.type.dtype is DType.F32


def test_what_stays_f32_and_feeds_a_gemm_is_refused_with_a_reason():
    text = program(BODY.replace("a =", "a : f32 =") + "return combine(y, weights)").replace("bf16", "f32")
    with pytest.raises(UniepError) as caught:
        graph_of(text, DType.BF16)
    assert caught.value.codes == ("UEP0208",)
    assert "this is about the program with bf16 for f32: in its body, f32 stays f32" in str(caught.value)


def test_the_same_dtype_changes_nothing():
    ((layer, ops),) = lowered(LAYER)
    assert compiler.in_dtype(layer, ops, DType.BF16) == (layer, ops)


def test_a_program_without_rows_has_no_element_type():
    with pytest.raises(UniepError, match="has no rows, whose element type could be f32") as caught:
        compile_for("cpu", SUPPORTED["routing alone"], "f32")
    assert caught.value.codes == ("UEP0601",)


def compile_for(target, text, dtype, **options):
    parsed = parse(text)
    dims = {name: DIMS[name] for name in dims_to_bind(lower(parsed))}
    return uniep.compile(parsed, dims=dims, target=target, dtype=dtype, **options)


SCHEDULED = f"{LAYER}\nschedule layer for sm_90 {{\n    group = 3\n    tile(h) = (128, 128, 32)\n}}\n"


def first_gemm(layer):
    """The tile of the first GEMM's family, and what the key `group` has set."""
    family = next(family for family in layer.graph.families if isinstance(family.body, GemmBody))
    return (family.body.tile.rows, family.body.tile.cols, family.body.tile.depth), family.group


def test_tiles_hold_for_elements_of_the_same_size():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = compile_for("sm_90", SCHEDULED, "f16")
    assert first_gemm(layer) == ((128, 128, 32), 3)


def test_tiles_for_elements_of_another_size_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match=r"warning\[UEP0326\]: tiles of the schedule are left out(.|\n)*tile\(h\)"):
        layer = compile_for("sm_90", SCHEDULED, "f32")
    default = first_gemm(compile_for("sm_90", LAYER.replace("bf16", "f32"), None, schedule={"group": 3}))
    assert first_gemm(layer) == default


def test_tiles_for_another_target_are_no_loss():
    ((layer, ops),) = lowered(SCHEDULED)
    changed, _ = compiler.in_dtype(layer, ops, DType.F32)
    assert compiler.tiles_left_out(layer, changed, find_target("sm_80"), DIMS) == ()
