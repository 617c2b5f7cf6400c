from __future__ import annotations

from uniep_compiler.codegen.layout import WIDTH, fit_lines


def test_items_that_fit_become_one_line():
    assert fit_lines("f(\n    a,\n    b=1,\n)") == "f(a, b=1)"
    assert fit_lines("def f(\n    a,\n):\n    return a") == "def f(a):\n    return a"
    assert fit_lines("    x = [\n        1,\n        2,\n    ]") == "    x = [1, 2]"
    assert fit_lines("def f(\n):") == "def f():"


def test_brackets_are_joined_from_the_inside():
    assert fit_lines("f(\n    g(\n        a,\n    ),\n    b,\n)") == "f(g(a), b)"


def test_what_does_not_fit_stays():
    for length in range(WIDTH - 20, WIDTH):
        text = f"f(\n    {'n' * length},\n    b,\n)"
        joined = f"f({'n' * length}, b)"
        assert fit_lines(text) == (joined if len(joined) <= WIDTH else text)


def test_an_inner_bracket_may_fit_where_the_outer_does_not():
    name = "n" * (WIDTH - 8)
    assert fit_lines(f"f(\n    g(\n        a,\n    ),\n    {name},\n)") == f"f(\n    g(a),\n    {name},\n)"


def test_parentheses_that_only_break_a_line_go():
    assert fit_lines("x = (\n    a\n    + b\n)") == "x = a + b"
    assert fit_lines("x = (\n    a\n)") == "x = a"
    long = "t" * (WIDTH - 20)
    text = f"x = (\n    {long}\n    + {long}\n)"
    assert fit_lines(text) == text


def test_parentheses_move_to_their_own_line_before_they_break():
    left, right = "l" * 60, "r" * 50
    whole = f"x = {left} + {right}"
    assert len(whole) <= WIDTH
    assert fit_lines(f"x = (\n    {left}\n    + {right}\n)") == whole
    name = "x" * 6
    assert fit_lines(f"{name} = (\n    {left}\n    + {right}\n)") == f"{name} = (\n    {left} + {right}\n)"


def test_comments_keep_their_lines():
    text = "f(\n    # why\n    a,\n)"
    assert fit_lines(text) == text


def test_other_lines_are_left_alone():
    text = "if x:\n    y = f(a)\nelse:\n    z = (1)\n\n)\n"
    assert fit_lines(text) == text
