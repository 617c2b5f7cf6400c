"""Whatever the text, the front end gives a program or errors with places; and expressions print as they parse."""

from __future__ import annotations

import contextlib
import re

import hypothesis.strategies as st
from hypothesis import given

from tests.golden.test_golden import CASES
from tests.snippets import HEADER
from uniep_compiler.diagnostics import UniepError, render_all
from uniep_compiler.frontend.lower import diagnose, lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.frontend.syntax import Return, text_of
from uniep_compiler.ir.ops_text import print_ops, read_ops

TEXTS = [path.read_bytes().decode("utf-8") for path in sorted(CASES.glob("*.uniep"))]
WORDS = sorted(
    {word for text in TEXTS for word in re.findall(r"\w+|\s+|.", text)} | {"\0", "\u202e", "é", '"', "1e999"}
)


@st.composite
def broken_programs(draw):
    """A program of the golden tests with a few words exchanged, left out or put in."""
    words = re.findall(r"\w+|\s+|.", draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(words) - 1))
        words[place : place + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(WORDS), max_size=1))
        words = words or [" "]
    return "".join(words)


@given(broken_programs())
def test_a_broken_program_gives_errors_in_the_text(text):
    try:
        program = parse(text)
        found, source = diagnose(program), program.source
    except UniepError as error:
        found, source = error.diagnostics, error.source
        assert found
    assert bool(render_all(found, source)) == bool(found)
    num_lines = len(source.lines)
    assert all(1 <= label.span.line <= num_lines for d in found for label in d.labels)
    if not found:
        for name in program.moes:
            graph = lower(program[name])
            assert read_ops(print_ops(graph)) == graph


@given(st.text())
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(UniepError):
        parse(text)


def expressions():
    names = st.sampled_from(["a", "b", "H"])
    atoms = names | st.integers(0, 99).map(str) | st.sampled_from(["1.5", "2e3", ".5"])

    def larger(inner):
        return st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
                lambda t: f"({t[0]}) {t[1]} ({t[2]})"
            ),
            inner.map(lambda text: f"-({text})"),
            st.lists(inner, max_size=3).map(lambda items: f"f({', '.join(items)})"),
            inner.map(lambda text: f"f(k=({text}))"),
            st.tuples(inner, inner).map(lambda t: f"({t[0]}, {t[1]})"),
        )

    return st.recursive(atoms, larger, max_leaves=8)


def parsed(text):
    (statement,) = parse(f"{HEADER}    return {text}\n}}\n").moe.body
    assert isinstance(statement, Return)
    return statement.values[0]


@given(expressions())
def test_an_expression_prints_with_the_fewest_brackets_that_keep_its_meaning(text):
    printed = text_of(parsed(text))
    assert text_of(parsed(printed)) == printed
    assert shape(parsed(printed)) == shape(parsed(text))
    assert len(printed) <= len(text)


def shape(expr):
    """The tree without places."""
    return re.sub(r"span=Span\([^)]*\)", "", repr(expr))
