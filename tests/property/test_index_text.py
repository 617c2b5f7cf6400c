"""Index expressions print and parse back to themselves, and mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Int, Lookup, Sym
from uniep_compiler.ir.index_text import parse_expr, print_expr

NAMES = st.sampled_from(["tile", "i", "num_tiles", "min", "x_1"])
ATOMS = st.one_of(st.builds(Int, st.integers(-9, 99)), st.builds(Sym, NAMES), st.builds(Coord, NAMES))


def grow(inner):
    indices = st.lists(inner, max_size=2).map(tuple)
    return st.one_of(
        st.builds(Binary, st.sampled_from(BinaryOp), inner, inner),
        st.builds(Lookup, NAMES, indices, st.none() | inner),
    )


EXPRS = st.recursive(ATOMS, grow, max_leaves=12)


@given(EXPRS)
def test_every_expression_parses_back(expr):
    assert parse_expr(print_expr(expr)) == expr


@pytest.mark.parametrize(
    "text",
    [
        "$num_tiles * 4",
        "a - (b - c)",
        "a - b - c",
        "(a < b) * (c == -1)",
        "source[tile_row[tile] + i]@(peer + 1) // 2 % 3",
        "min(4, $tokens - block * 4)",
        "cdiv(max(a, b), 8)",
    ],
)
def test_text_is_kept_as_it_is(text):
    assert print_expr(parse_expr(text)) == text


@pytest.mark.parametrize("text", ["", "a +", "a b", "min(a)", "t[1", "a < b < c", "$", "- a", "a ? b"])
def test_other_text_is_an_error_with_a_place(text):
    with pytest.raises(UniepError) as caught:
        parse_expr(text)
    assert caught.value.codes == ("UEP0112",)
    assert "^" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["(" * 3000, "a[0]@" * 3000, "min(" * 3000, "t[" * 3000, "1" + "+1" * 3000, "9" * 5000]
)
def test_texts_are_as_deep_and_numbers_as_long_as_can_be_read(text):
    with pytest.raises(UniepError, match=r"expected an expression of at most|expected an integer of at most") as caught:
        parse_expr(text)
    assert caught.value.codes == ("UEP0112",)
    assert "^" in str(caught.value)


def test_ordinary_depth_is_read():
    text = "(" * 20 + "a" + " + 1) * 2" * 20
    assert print_expr(parse_expr(text)) == text


@pytest.mark.parametrize("text", [None, 3, b"a"])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(UniepError, match="is read from a text") as caught:
        parse_expr(text)
    assert caught.value.codes == ("UEP0112",)


@pytest.mark.parametrize("text", ["\u0663", "a + \u0662"])
def test_only_digits_of_ascii_make_numbers(text):
    with pytest.raises(UniepError, match="UEP0112"):
        parse_expr(text)
