from __future__ import annotations

from textwrap import dedent

import pytest

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.ir.ops import Op, OpGraph, Value
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.types import Dim, DType, TensorType

TEXT = dedent(
    """\
    graph m {
        param x : bf16[T, H]
        param ids : i32[T, K]
        param q : routes[T, K, E]
        param w : bf16[E, 2*I, H]
        param b : bf16[E, 2*I]
        where H % 16 == 0
        r : routes[T, K, E] = route(ids) {experts = "E"}
        xs : bf16[rows(r), H] = dispatch(x, r)
        _1 : f32[rows(r), 2*I] = group_gemm(xs, w, b) {bias = true, layout = "nk"}
        h : bf16[rows(r), 2*I] = round(_1) {dtype = bf16}
        g : bf16[rows(r), I], u : bf16[rows(r), I] = split(h) {how = "halves"}
        _2 : f32[] = const() {value = -0.5}
        _3 : f32[rows(r), I] = clamp(g) {min = -2.0, max = 1e+30}
        _4 : f32[rows(r), I] = mul(_3, _2)
        o : f32[T, I] = combine(_4)
        return o, u, r
    }
    """
)


def test_a_text_is_read_and_printed_the_same():
    assert print_ops(read_ops(TEXT)) == TEXT


def test_what_is_read_has_its_place_in_the_text():
    graph = read_ops(TEXT)
    assert [str(op.span) for op in graph.ops][:2] == ["8:5", "9:5"]
    assert [str(value.span) for value in (*graph.params[:1], *graph.values[4:6])] == ["2:11", "12:5", "12:27"]
    assert graph.ops[2].attrs == (("bias", True), ("layout", "nk"))
    assert graph.ops[3] == Op(kind="round", operands=("_1",), results=("h",), attrs=(("dtype", DType.BF16),))
    assert graph.ops[6].attr("max") == 1e30


def test_rows_may_name_routes_that_are_declared_later():
    text = "graph m {\n    param v : f32[rows(q), H]\n    param q : routes[T, K, E]\n    return v\n}\n"
    assert print_ops(read_ops(text)) == text


def test_a_graph_without_results_prints_and_reads_back():
    x = Value(name="x", type=TensorType(dtype=DType.F32, shape=(Dim.of("T"),)))
    graph = OpGraph(name="nothing", params=(x,), values=(), ops=(), results=())
    assert read_ops(print_ops(graph)) == graph


def refused(*changes):
    """The diagnostics that TEXT gets after each (old, new)."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    with pytest.raises(UniepError) as caught:
        read_ops(text)
    shown = str(caught.value)
    assert "--> <ops>:" in shown
    assert shown.count("= help: ") == len(caught.value.diagnostics)
    return caught.value.diagnostics


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("graph m {", "graph m"),
        ("param x : bf16[T, H]", "param x : bf17[T, H]"),
        ("param x : bf16[T, H]", "param x : bf16[T, H*K]"),
        ("param q : routes[T, K, E]", "param q : routes[T, K]"),
        ("where H % 16 == 0", "where H % 16 == 0\n    param y : bf16[T, H]"),
        ("o : f32[T, I] = combine(_4)", "o : f32[T, I] = combine(_4)\n    where H % 16 == 0"),
        ("xs : bf16[rows(r), H] = dispatch(x, r)", "xs = dispatch(x, r)"),
        ("xs : bf16[rows(r), H] = dispatch(x, r)", "xs : bf16[rows(r), H] = dispatch x, r"),
        ("dispatch(x, r)", "dispatch(x,r)"),
        ("dispatch(x, r)", "dispatch(x, , r)"),
        ("dispatch(x, r)", "dispatch(x, 2)"),
        ("g : bf16[rows(r), I], u", "g : bf16[rows(r), I] u"),
        ('{how = "halves"}', "{how = halves}"),
        ('{how = "halves"}', '{how = "\\x"}'),
        ('{how = "halves"}', "{how}"),
        ('{how = "halves"}', "{}"),
        ("{value = -0.5}", "{value = }"),
        ("{value = -0.5}", "{value = nan}"),
        ("{value = -0.5}", "{value =  0.5}"),
        ("{value = -0.5}", "{value = \u0661.5}"),
        ("{value = -0.5}", f"{{value = {'9' * 5000}}}"),
        ("mul(_3, _2)", "mul(_\u0663, _2)"),
        ("return o, u, r", "return o u"),
        ("return o, u, r", "return o, u, r\n    _5 : f32[] = const() {value = 1.0}"),
        ("    return o, u, r\n", ""),
        ("r\n}\n", "r\n"),
        ("\n}\n", "\n}\n}\n"),
    ],
)
def test_a_line_of_another_form_is_refused(line, instead):
    assert [found.code for found in refused((line, instead))] == ["UEP0111"]


def assert_refused(code, place, message, *changes, help_=""):
    (found,) = refused(*changes)
    assert (found.code, str(found.span)) == (code, place)
    assert message in found.message
    assert help_ in found.help


def test_an_op_that_there_is_not_is_refused():
    changes = ("mul(_3, _2)", "mull(_3, _2)")
    assert_refused("UEP0203", "15:28", "unknown op `mull`", changes, help_="did you mean `mul`?")
    assert_refused("UEP0203", "15:28", "unknown op `zzz`", ("mul(_3, _2)", "zzz(_3)"), help_="`uniepc ops`")


def test_an_op_without_results_is_refused():
    assert_refused("UEP0203", "17:5", "unknown op `rout`", ("return o", "rout(x)\n    return o"))
    assert_refused("UEP0213", "17:5", "`neg` has 1 result, not 0", ("return o", "neg(x)\n    return o"))


def test_an_operand_that_is_not_defined_is_refused():
    assert_refused("UEP0201", "15:32", "unknown value `_33`", ("mul(_3", "mul(_33"), help_="did you mean `_3`?")


def test_an_operand_that_is_defined_later_is_refused():
    assert_refused("UEP0201", "9:41", "unknown value `_4`", ("dispatch(x, r)", "dispatch(x, _4)"))


def test_an_operand_that_is_its_own_result_is_refused():
    assert_refused("UEP0201", "15:32", "unknown value `_4`", ("mul(_3", "mul(_4"))


def test_a_result_that_is_not_defined_is_refused():
    assert_refused("UEP0201", "17:12", "unknown value `zz`", ("return o", "return zz"), help_="define it")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("6:11", ("param b :", "param x :")),
        ("8:5", ("r : routes[T, K, E] = route", "q : routes[T, K, E] = route")),
        ("12:27", ("u : bf16", "g : bf16")),
        ("14:5", ("_3 : f32", "_1 : f32")),
    ],
)
def test_a_name_that_is_defined_twice_is_refused(place, change):
    found = [one for one in refused(change) if one.code == "UEP0202"]
    assert [str(one.span) for one in found] == [place]
    assert "defined twice" in found[0].message


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("`dispatch` has 2 operands here, not 1", ("dispatch(x, r)", "dispatch(x)")),
        ("`dispatch` has 2 operands here, not 3", ("dispatch(x, r)", "dispatch(x, r, r)")),
        ("`const` has 0 operands here, not 1", ("const()", "const(x)")),
        ("`combine` has 1 or 2 operands here, not 0", ("combine(_4)", "combine()")),
        ("`combine` has 1 or 2 operands here, not 3", ("combine(_4)", "combine(_4, x, x)")),
        ("`group_gemm` has 2 operands here, not 3", ("bias = true", "bias = false")),
        ("`group_gemm` has 3 operands here, not 2", ("xs, w, b", "xs, w")),
    ],
)
def test_another_number_of_operands_is_refused(message, change):
    (found,) = refused(change)
    assert (found.code, found.message) == ("UEP0204", message)


def test_another_number_of_results_is_refused():
    message, change = "`split` has 2 results, not 1", ("g : bf16[rows(r), I], u : bf16[rows(r), I]", "g : bf16[T]")
    assert message in [one.message for one in refused(change) if one.code == "UEP0213"]


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("`split` has no attribute `hoW`", ('how = "halves"', 'hoW = "halves"')),
        ("`dispatch` has no attribute `n`", ("dispatch(x, r)", "dispatch(x, r) {n = 1}")),
        ("`how` is given twice", ('how = "halves"', 'how = "halves", how = "halves"')),
        ("`group_gemm` needs `layout`", (', layout = "nk"', "")),
        ("`group_gemm` needs `bias`", ("bias = true, ", "")),
        ("`route` needs `experts`", (' {experts = "E"}', "")),
        ("`split` needs `how`", (' {how = "halves"}', "")),
        ("`round` needs `dtype`", (" {dtype = bf16}", "")),
        ("`const` needs `value`", (" {value = -0.5}", "")),
        ('`how` of `split` has to be `"halves"` or `"interleaved"`', ('"halves"', '"thirds"')),
        ("`bias` of `group_gemm` has to be `true` or `false`", ("bias = true", "bias = 1")),
        ("`dtype` of `round` has to be", ("dtype = bf16", "dtype = i32")),
        ("`dtype` of `round` has to be", ("dtype = bf16", 'dtype = "f33"')),
        ("`value` of `const` has to be", ("value = -0.5", "value = 1")),
        ("`value` of `const` has to be", ("value = -0.5", "value = -1.5e40")),
        ("`max` of `clamp` has to be", ("max = 1e+30", "max = 1e+39")),
        ("`max` of `clamp` has to be", ("max = 1e+30", "max = true")),
        ('`experts` of `route` has to be a dim, like `"E"`', ('experts = "E"', 'experts = "E*"')),
        ('`experts` of `route` has to be a dim, like `"E"`', ('experts = "E"', 'experts = "0"')),
        ('`experts` of `route` has to be a dim, like `"E"`', ('experts = "E"', "experts = 8")),
    ],
)
def test_an_attribute_that_its_op_does_not_have_is_refused(message, change):
    (found,) = refused(change)
    assert found.code == "UEP0204"
    assert message in found.message


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("`xs` is bf16[rows(r), H], and the text says f32[rows(r), H]", ("xs : bf16", "xs : f32")),
        ("`xs` is bf16[rows(r), H], and the text says bf16[rows(q), H]", ("xs : bf16[rows(r)", "xs : bf16[rows(q)")),
        ("`o` is f32[T, I], and the text says f32[T, H]", ("o : f32[T, I]", "o : f32[T, H]")),
        ("`_2` is f32[], and the text says f32[T]", ("_2 : f32[]", "_2 : f32[T]")),
        ("`r` is routes[T, K, E], and the text says routes[T, K, R]", ("E] = route", "R] = route")),
    ],
)
def test_a_result_of_another_type_is_refused(message, change):
    first = refused(change)[0]
    assert (first.code, first.message) == ("UEP0111", message)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("UEP0207", ("w : bf16[E, 2*I, H]", "w : bf16[E, 2*I, I]")),
        ("UEP0208", ("w : bf16[E, 2*I, H]", "w : f16[E, 2*I, H]")),
        ("UEP0209", ("dispatch(x, r)", "dispatch(x, w)")),
        ("UEP0210", ("mul(_3, _2)", "mul(_3, v)")),
        ("UEP0221", ("split(h)", "split(x)")),
        ("UEP0204", ("{min = -2.0, max = 1e+30}", "{min = 2.0, max = 1.0}")),
        ("UEP0204", (" {min = -2.0, max = 1e+30}", "")),
        ("UEP0214", ("group_gemm(xs, w, b)", "group_gemm(xs, xs, b)")),
    ],
)
def test_operands_that_do_not_fit_are_refused(code, change):
    others = ("param q : routes[T, K, E]", "param q : routes[T, K, E]\n    param v : f32[rows(q), I]")
    assert [one.code for one in refused(others, change)] == [code]


@pytest.mark.parametrize(
    ("code", "type_"),
    [
        ("UEP0201", "f32[rows(qq), H]"),
        ("UEP0201", "f32[rows(x), H]"),
        ("UEP0206", "f32[T, 0]"),
        ("UEP0206", "f32[T, -8]"),
        ("UEP0206", "routes[T, K, 0]"),
        ("UEP0206", "f32[]"),
    ],
)
def test_a_parameter_of_a_type_that_there_cannot_be_is_refused(code, type_):
    (found,) = refused(("param q :", f"param v : {type_}\n    param q :"))
    assert (found.code, str(found.span)) == (code, "4:11")


@pytest.mark.parametrize(
    "text", ["H", "H % 16", "H == 0 == 0", "H is 2", "f(H) == 0", "H == 0.5", "-" * 10**5 + "1 < H"]
)
def test_a_condition_that_is_none_is_refused(text):
    (found,) = refused(("H % 16 == 0", text))
    assert (found.code, str(found.span)) == ("UEP0219", "7:11")


def test_a_condition_may_divide_by_a_difference_of_dims():
    text = TEXT.replace("H % 16 == 0", "H % (I - K) == 0")
    assert print_ops(read_ops(text)) == text


def test_all_that_is_wrong_is_shown_in_the_order_of_the_text():
    found = refused(("dispatch(x, r)", "dispatch(y, r)"), ("mul(_3", "mal(_3"), ("return o", "return zz"))
    assert [(one.code, str(one.span)) for one in found] == [
        ("UEP0201", "9:38"),
        ("UEP0203", "15:28"),
        ("UEP0201", "17:12"),
    ]


@pytest.mark.parametrize("text", ["", "graph m {", "graph m {\n}\n", None, b"graph m {"])
def test_no_text_is_refused(text):
    with pytest.raises(UniepError) as caught:
        read_ops(text)
    assert caught.value.codes == ("UEP0111",)
