from __future__ import annotations

import pytest

from uniep_compiler.codegen.as_int import without_as_int
from uniep_compiler.diagnostics import InternalError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("as_int(x)", "x"),
        ("a = as_int(tl.load(p + 1)) * 2 - as_int(y)", "a = tl.load(p + 1) * 2 - y"),
        ("f(\n    as_int(g(as_int(x), (1))),\n)", "f(\n    g(x, (1)),\n)"),
        ("has_int(x) + as_int", "has_int(x) + as_int"),
    ],
)
def test_a_call_becomes_what_it_is_called_with(text, expected):
    assert without_as_int(text) == expected


@pytest.mark.parametrize("inside", ["a + b", "f(a) + g(b)", "-a", "a[0]", ""])
def test_what_would_need_parentheses_is_a_bug(inside):
    with pytest.raises(InternalError, match="parentheses"):
        without_as_int(f"as_int({inside}) * 2")


def test_a_call_that_does_not_end_is_a_bug():
    with pytest.raises(InternalError, match="not closed"):
        without_as_int("as_int(f(x)")
