"""Printing is parsing: any OpGraph prints to a text that reads back as the same graph."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from uniep_compiler.ir.ops import Op, OpGraph, Value
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
DIM_NAMES = st.from_regex(r"[A-Z][a-z0-9]?", fullmatch=True)
DIMS = st.builds(Dim.make, st.integers(-99, 99), st.dictionaries(DIM_NAMES, st.integers(-9, 9), max_size=3))
SHAPES = st.lists(DIMS, max_size=3).map(tuple)
TYPES = st.one_of(
    st.builds(TensorType, dtype=st.sampled_from(DType), shape=SHAPES),
    st.builds(RoutesType, tokens=DIMS, topk=DIMS, experts=DIMS),
    st.builds(RowsType, dtype=st.sampled_from(DType), routes=NAMES, shape=SHAPES),
)
ATTRS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.sampled_from(DType),
    st.text().filter(lambda s: s not in set(DType)),
)
CONDITIONS = st.sampled_from(["H % 16 == 0", "K <= E", "(H + 1) // 2 > -1"])


@st.composite
def graphs(draw):
    names = iter(draw(st.lists(NAMES, min_size=12, max_size=12, unique=True)))
    params = tuple(Value(name=next(names), type=type_) for type_ in draw(st.lists(TYPES, max_size=3)))
    known = [param.name for param in params]
    values, ops = [], []
    for num_results in draw(st.lists(st.integers(0, 2), max_size=4)):
        results = [Value(name=next(names), type=draw(TYPES)) for _ in range(num_results)]
        operands = draw(st.lists(st.sampled_from(known), max_size=3)) if known else []
        attrs = draw(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), ATTRS, max_size=3))
        ops.append(
            Op(
                kind=draw(NAMES),
                operands=tuple(operands),
                results=tuple(value.name for value in results),
                attrs=tuple(attrs.items()),
            )
        )
        values += results
        known += [value.name for value in results]
    return OpGraph(
        name=draw(NAMES),
        params=params,
        values=tuple(values),
        ops=tuple(ops),
        results=tuple(draw(st.lists(st.sampled_from(known), max_size=3)) if known else ()),
        constraints=tuple(draw(st.lists(CONDITIONS, max_size=2))),
    )


@given(graphs())
def test_every_graph_reads_back_as_it_was(graph):
    text = print_ops(graph)
    again = read_ops(text)
    assert again == graph
    assert [type(value) for op in again.ops for _, value in op.attrs] == [
        type(value) for op in graph.ops for _, value in op.attrs
    ]
    assert print_ops(again) == text
