from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.test_golden import CASES
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse_file
from uniep_compiler.ir.op_rules import Problem
from uniep_compiler.ir.op_table import OPS, infer
from uniep_compiler.ir.ops import Value
from uniep_compiler.passes.differentiate import differentiable_params, differentiate

GOOD = [*sorted(CASES.glob("ops_*.uniep")), *sorted((Path(__file__).parents[3] / "examples").glob("*.uniep"))]


PROGRAMS = [parse_file(path) for path in GOOD]
FORWARD = [lower(program[name]) for program in PROGRAMS for name in program.moes]
GRAPHS = FORWARD + [differentiate(graph, differentiable_params(graph)).backward for graph in FORWARD]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_types_in_a_graph_follow_from_the_rules(graph):
    for op in graph.ops:
        operands = tuple(Value(name=name, type=graph.types[name]) for name in op.operands)
        assert infer(op.kind, operands, dict(op.attrs), graph.types) == tuple(graph.types[name] for name in op.results)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_names_are_unique_and_defined_before_use(graph):
    seen = {param.name for param in graph.params}
    for op in graph.ops:
        assert seen.issuperset(op.operands)
        assert seen.isdisjoint(op.results)
        seen.update(op.results)
    assert seen.issuperset(graph.results)
    assert [value.name for value in graph.values] == [name for op in graph.ops for name in op.results]


def test_the_good_programs_use_every_op():
    assert {op.kind for graph in GRAPHS for op in graph.ops} == set(OPS)


def test_a_rule_says_what_does_not_fit():
    (graph,) = (graph for graph in GRAPHS if graph.name == "qwen3_moe")
    x, weights = (value for value in graph.params if value.name in ("x", "weights"))
    found = infer("dispatch", (x, weights), {}, graph.types)
    assert isinstance(found, Problem)
    assert (found.code, found.labels) == ("UEP0208", ((1, "this is f32[T, K]"),))


@pytest.mark.parametrize("info", OPS.values(), ids=lambda info: info.name)
def test_entries_are_whole(info):
    assert info.doc
    assert info.rule.__doc__
    if info.surface:
        names = re.findall(r"(\w+)(?:: |=|,|\)|\|)", info.signature.partition(" -> ")[0].partition("(")[2])
        assert {slot.name for slot in info.slots if not slot.words}.issubset(names)
