from __future__ import annotations

import pytest

from uniep_compiler.codegen.prelude import needed, statements, words

PRELUDE = '''import numpy as np
import triton.language as tl
from a.b import Handle, Other

# What it is for,
# in two lines.
constant = tl.constexpr


@tl.jit
def first(x):
    """Calls second in its docstring only."""
    return x  # third


def second(x):
    return third(x) + np.float32(1) + tl.fourth(x)


def third(x):
    return second(x)


def fourth(x):
    return Handle
'''


def kept(*used):
    return [sorted(statement.defines)[0] for statement in needed(statements(PRELUDE), used)]


def test_each_statement_keeps_its_comment_and_decorators():
    parts = statements(PRELUDE)
    assert [sorted(part.defines) for part in parts] == [
        ["np"],
        ["tl"],
        ["Handle", "Other"],
        ["constant"],
        ["first"],
        ["second"],
        ["third"],
        ["fourth"],
    ]
    assert parts[3].text == "# What it is for,\n# in two lines.\nconstant = tl.constexpr"
    assert parts[4].text.startswith("@tl.jit\ndef first(x):")
    assert [part.is_import for part in parts] == [True] * 3 + [False] * 5


def test_what_is_used_is_kept_with_what_it_uses_in_its_order():
    assert kept("third") == ["np", "tl", "second", "third"]
    assert kept("fourth", "first") == ["tl", "Handle", "first", "fourth"]
    assert kept("constant") == ["tl", "constant"]
    assert kept("nothing") == []


def test_words_are_names_only():
    assert words('f(x.y, "s") # z\n"""doc a"""\nb = 1') >= {"f", "x", "b"}
    assert not {"y", "z", "doc", "a"} & words('f(x.y, "s") # z\n"""doc a"""\nb = 1')


def test_a_prelude_has_no_other_statements():
    with pytest.raises(TypeError, match="no such statement"):
        statements("for x in y:\n    pass\n")
