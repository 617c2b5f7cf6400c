from __future__ import annotations

import pytest

from uniep_compiler.codegen.triton_text import ATOM, epilogue_lines, expr_text
from uniep_compiler.ir.index import Coord, Int, Lookup, Sym, cdiv, equal, less, maximum, minimum
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.types import DType

A, B, C = Sym("a"), Sym("b"), Coord("c")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (A + B * C, "a + b * c"),
        ((A + B) * C, "(a + b) * c"),
        (A - (B - C), "a - (b - c)"),
        (A - B - C, "a - b - c"),
        (A * (B * C), "a * (b * c)"),
        (A // B % C, "a // b % c"),
        (A // (B % C), "a // (b % c)"),
        (less(A, B) * equal(B, C), "(a < b) * (b == c)"),
        (minimum(A + 1, maximum(B, 2)), "minimum(a + 1, maximum(b, 2))"),
        (cdiv(A, 8) + Sym("num_rows"), "cdiv(a, 8) + total_rows"),
        (Lookup("t", (A,)) * 2, "found * 2"),
    ],
)
def test_index_expressions_keep_their_meaning(expr, text):
    assert expr_text(expr, {Lookup("t", (A,)): "found"}) == text


def test_parentheses_where_the_surroundings_need_them():
    assert expr_text(A + B, {}, outer=2) == "a + b"
    assert expr_text(A + B, {}, outer=3) == "(a + b)"
    assert expr_text(A * B, {}, outer=ATOM) == "(a * b)"
    assert expr_text(Int(3), {}, outer=ATOM) == "3"


def test_a_look_up_that_nobody_has_made_is_a_bug():
    with pytest.raises(KeyError, match="no name for the look-up"):
        expr_text(Lookup("t", (A,)), {})


def op(kind, result, *operands, **attrs):
    return Op(kind=kind, operands=operands, results=(result,), attrs=tuple(attrs.items()))


def lines(*ops, stored=()):
    names = {
        name: name if not name.startswith("_") else f"value{name}" for o in ops for name in (*o.operands, *o.results)
    }
    return epilogue_lines(ops, names, stored)


def test_unnamed_values_stand_inside_their_only_reader():
    assert lines(op("silu", "_1", "g"), op("mul", "_2", "_1", "u"), op("round", "a", "_2", dtype=DType.BF16)) == [
        "a = rounded(silu(g) * u, tl.bfloat16)"
    ]


def test_values_that_are_read_twice_or_stored_get_a_line():
    assert lines(op("silu", "_1", "g"), op("mul", "a", "_1", "_1")) == ["value_1 = silu(g)", "a = value_1 * value_1"]
    assert lines(op("silu", "_1", "g"), op("neg", "a", "_1"), stored={"_1"}) == ["value_1 = silu(g)", "a = -value_1"]


def test_the_order_of_evaluation_is_the_programs():
    assert lines(op("add", "_1", "g", "u"), op("mul", "a", "_1", "u")) == ["a = (g + u) * u"]
    assert lines(op("mul", "_1", "g", "u"), op("add", "a", "u", "_1")) == ["a = u + (g * u)"]
    assert lines(op("sub", "_1", "g", "u"), op("neg", "a", "_1")) == ["a = -(g - u)"]


def test_constants_and_bounds():
    half, low = op("const", "_1", value=-0.5), op("clamp", "_2", "g", min=-1.0, max=7)
    assert lines(half, op("mul", "_3", "g", "_1"), op("relu", "a", "_3")) == ["a = relu(g * (-0.5))"]
    assert lines(low, op("square", "a", "_2")) == ["a = square(at_most(at_least(g, -1.0), 7.0))"]
    assert lines(op("clamp", "a", "g", max=0.5)) == ["a = at_most(g, 0.5)"]
    assert lines(op("round", "a", "g", dtype=DType.F32)) == ["a = g"]


def test_even_and_odd_columns_are_taken_apart():
    split = Op(kind="split", operands=("_1",), results=("g", "_2"), attrs=(("how", "interleaved"),))
    found = lines(op("round", "_1", "h", dtype=DType.BF16), split, op("mul", "a", "g", "_2"))
    assert found == ["g, value_2 = even_and_odd(rounded(h, tl.bfloat16))", "a = g * value_2"]


def test_long_expressions_are_cut():
    ops, last = [], "g"
    for number in range(40):
        ops.append(op("add", f"_{number}", last, "some_operand"))
        last = f"_{number}"
    ops.append(op("round", "a", last, dtype=DType.F16))
    found = lines(*ops)
    assert 5 < len(found) < 40
    assert max(map(len, found)) < 100
    assert sum(line.count("some_operand") for line in found) == 40


def test_an_op_without_a_text_is_a_bug():
    with pytest.raises(KeyError, match="no Triton text"):
        lines(op("combine", "a", "g"))
