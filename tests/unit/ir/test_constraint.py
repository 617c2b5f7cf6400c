from __future__ import annotations

import pytest

from uniep_compiler.ir import constraint

DIMS = {"H": 48, "K": 2, "E": 8}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("H % 16 == 0", True),
        ("H % 32 == 0", False),
        ("K <= E", True),
        ("K >= E", False),
        ("E > 8", False),
        ("E < 9", True),
        ("H // 5 != 9", False),
        ("(H + 1) * 2 - K == 96", True),
        ("-H // 5 == -10", True),
    ],
)
def test_conditions_mean_what_they_mean_in_python(text, holds):
    assert constraint.holds(text, DIMS) is holds


def test_both_sides_can_be_shown():
    assert constraint.sides("H % 32 == E - 8", DIMS) == (16, 0)
    assert constraint.comparison("H % 32 == E - 8") == "=="
    assert constraint.names("H % 32 == E - 8") == ("E", "H")


def test_what_cannot_be_evaluated_is_an_error():
    with pytest.raises(KeyError):
        constraint.holds("Q == 1", DIMS)
    with pytest.raises(ZeroDivisionError):
        constraint.holds("H % (K - 2) == 0", DIMS)


@pytest.mark.parametrize(
    "text", ["H", "1 < H < 3", "H == 1.5", "f(H) == 1", "H == ", "H / 2 == 1", "H is 3", "True == 1"]
)
def test_other_text_is_no_condition(text):
    with pytest.raises(ValueError, match="not a "):
        constraint.holds(text, DIMS)
