"""Printing is parsing: every OpGraph prints to a text that reads back as the same graph, and no other text is taken."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

import uniep_compiler as uniep
from tests.programs import NASTY, SUPPORTED, UNSUPPORTED
from tests.random_programs import random_program
from uniep_compiler.diagnostics import UniepError, render_all
from uniep_compiler.frontend.lower import lower
from uniep_compiler.ir.op_table import OPS
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.passes.differentiate import differentiable_params, differentiate

EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted(Path("examples").glob("*.uniep"))]
PROGRAMS = [NASTY, *SUPPORTED.values(), *(text for text, _ in UNSUPPORTED.values()), *EXAMPLES]


@cache
def passes_of(text):
    """The graph of a program, that of its forward pass in training, and that of its backward pass."""
    graph = lower(uniep.parse(text))
    derivative = differentiate(graph, differentiable_params(graph))
    return graph, derivative.forward, derivative.backward


def graphs():
    texts = st.sampled_from(PROGRAMS) | st.integers(0, 10**6).map(random_program)
    return texts.flatmap(lambda text: st.sampled_from(passes_of(text)))


@st.composite
def broken_texts(draw):
    """The text of a graph with a few words exchanged, left out or put in."""
    words = re.findall(r"\w+|\s+|.", print_ops(draw(graphs())))
    others = st.sampled_from(sorted(set(words))) | st.sampled_from(
        [*OPS, "true", "f16", "i32", "0", "-", "1e999", "\0"]
    )
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words) - 1))
        words[place : place + draw(st.integers(0, 1))] = draw(st.lists(others, max_size=1))
        words = words or [" "]
    return "".join(words)


@given(graphs())
def test_every_graph_reads_back_as_it_was(graph):
    text = print_ops(graph)
    again = read_ops(text)
    assert again == graph
    assert [type(value) for op in again.ops for _, value in op.attrs] == [
        type(value) for op in graph.ops for _, value in op.attrs
    ]
    assert print_ops(again) == text


def test_the_programs_have_every_op():
    graphs_ = [graph for text in PROGRAMS for graph in passes_of(text)]
    assert {op.kind for graph in graphs_ for op in graph.ops} == set(OPS)


@given(broken_texts())
def test_a_broken_text_is_refused_with_places_or_is_a_graph(text):
    try:
        graph, found, source = read_ops(text), (), None
    except UniepError as error:
        graph, found, source = None, error.diagnostics, error.source
    if graph is not None:
        assert read_ops(print_ops(graph)) == graph
    else:
        assert found
        assert render_all(found, source)
        assert all(diagnostic.labels and diagnostic.help for diagnostic in found)
        assert all(1 <= label.span.line <= len(source.lines) for one in found for label in one.labels)
