"""Derived backward passes, run by the reference in float64, against PyTorch's autograd of the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.programs import SUPPORTED
from uniep_compiler.frontend.lower import lower
from uniep_compiler.ir.op_table import OPS
from uniep_compiler.ir.ops_text import print_ops, read_ops
from uniep_compiler.ir.types import DType, RoutesType, RowsType
from uniep_compiler.passes.differentiate import differentiable_params, differentiate
from uniep_compiler.passes.gradient_rules import GRADIENT_RULES
from uniep_compiler.runtime.reference import PlainRoutes, run_reference

DIMS = {"T": 13, "K": 3, "E": 5, "H": 6, "I": 4, "R": 5, "N": 8}
EXAMPLES = sorted(Path("examples").glob("*.uniep"))
TWO_ROUTINGS = """uniep 1

moe m(x : bf16[T, H], ids : i32[T, K], others : i32[T, K], w1 : bf16[E, I, H], w3 : bf16[E, I, H],
      weights : f32[T, K]) -> f32[T, I], f32[T, I] {
    a = group_gemm(dispatch(x, ids), w1)
    b = group_gemm(dispatch(x, others), w3)
    return combine(a, weights), combine(b, weights)
}
"""
"""Tokens and router weights have gradients by both."""

TEXTS = {path.stem: path.read_text() for path in EXAMPLES} | SUPPORTED | {"two routings": TWO_ROUTINGS}
IDS = torch.randint(-1, DIMS["E"] - 1, (DIMS["T"], DIMS["K"]), generator=torch.Generator().manual_seed(1))


def graphs():
    for name, text in TEXTS.items():
        yield pytest.param(lower(uniep.parse(text)), id=name)


def inputs_of(graph):
    """Random values of the graph's parameters in float64."""
    generator = torch.Generator().manual_seed(0)
    route = IDS.reshape(-1).argsort(stable=True)
    route = route[IDS.reshape(-1)[route] >= 0]
    routes = PlainRoutes(route=route, expert=IDS.reshape(-1)[route], num_routes=IDS.numel(), topk=DIMS["K"])
    inputs = {}
    for param in graph.params:
        if isinstance(param.type, RoutesType):
            inputs[param.name] = routes
        elif param.type.dtype in (DType.I32, DType.I64):
            inputs[param.name] = IDS
        else:
            first = (len(route),) if isinstance(param.type, RowsType) else ()
            shape = (*first, *(dim.value(DIMS) for dim in param.type.shape))
            inputs[param.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs


@pytest.mark.parametrize("graph", list(graphs()))
def test_gradients_are_those_of_autograd(graph):
    wrt = differentiable_params(graph)
    derivative = differentiate(graph, wrt)
    assert {*derivative.wrt, *derivative.without} == set(wrt)
    inputs = {name: v.requires_grad_(name in wrt) if torch.is_tensor(v) else v for name, v in inputs_of(graph).items()}
    kept = dict(
        zip(derivative.forward.results, run_reference(derivative.forward, DIMS, inputs, torch.float64), strict=True)
    )
    results = [(name, grad) for name, grad in zip(graph.results, derivative.grads, strict=True) if grad is not None]
    upstream = {grad: torch.randn_like(kept[name]) for name, grad in results}
    expected = torch.autograd.grad(
        [kept[name] for name, _ in results], [inputs[name] for name in wrt], list(upstream.values()), allow_unused=True
    )
    given = {param.name: {**inputs, **kept, **upstream}[param.name] for param in derivative.backward.params}
    given = {name: value.detach() if torch.is_tensor(value) else value for name, value in given.items()}
    gradients = run_reference(derivative.backward, DIMS, given, torch.float64) if derivative.wrt else ()
    found = dict(zip(derivative.wrt, gradients, strict=True))
    for name, gradient in zip(wrt, expected, strict=True):
        if name in derivative.without:
            assert gradient is None or not gradient.any()
        else:
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("graph", list(graphs()))
def test_backward_passes_are_printed_and_read_back(graph):
    derivative = differentiate(graph, differentiable_params(graph))
    for part in (derivative.forward, derivative.backward):
        assert read_ops(print_ops(part)) == part


@pytest.mark.parametrize("name", ["x", "weights", "w13", "w2"])
def test_only_what_is_asked_for_is_computed(name):
    graph = lower(uniep.parse_file("examples/qwen3_moe.uniep"))
    backward = differentiate(graph, {name}).backward
    assert backward.results == (f"grad_{name}",)
    kinds = [op.kind for op in backward.ops]
    assert kinds.count("group_gemm") == {"x": 2, "weights": 1, "w13": 1, "w2": 0}[name]
    assert kinds.count("group_outer") == {"x": 0, "weights": 0, "w13": 1, "w2": 1}[name]


def test_every_op_of_programs_has_a_rule():
    backward_only = {"join", "row_sum", "to_routes", "bias_rows", "group_outer", "group_sum"}
    slopes = {"gelu_slope", "gelu_tanh_slope", "step", "within"}
    assert set(GRADIENT_RULES) == set(OPS) - backward_only - slopes
