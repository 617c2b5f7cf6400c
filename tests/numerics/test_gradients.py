"""Gradients of programs of every form, for all parameters at once and for each alone, against float64."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import TOLERANCE, assert_same_bits, relative_error
from tests.programs import SUPPORTED
from tests.random_programs import random_program
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.ir.types import RoutesType, RowsType
from uniep_compiler.passes.differentiate import differentiable_params, differentiate
from uniep_compiler.runtime.arguments import TORCH_DTYPES

EXAMPLES = {path.stem: path.read_text() for path in sorted(Path(__file__).parents[2].glob("examples/*.uniep"))}
PROGRAMS = EXAMPLES | SUPPORTED
DIMS = {"H": 32, "I": 16, "E": 4, "K": 2, "N": 24, "R": 20}
TOKENS = 20


def trains(text):
    """Whether a result of a program, whose parameters are all kept by token or by expert, depends on one of floats."""
    ops = lower(uniep.parse(text))
    plain = not any(isinstance(param.type, RowsType | RoutesType) for param in ops.params)
    return plain and bool(differentiate(ops, differentiable_params(ops)).wrt)


NAMES = tuple(name for name, text in PROGRAMS.items() if trains(text))


@cache
def layer_of(text, device, dtype):
    """The layer of a program, with rows of another type than it says."""
    program = uniep.parse(text)
    dims = {name: size for name, size in DIMS.items() if name in dims_to_bind(lower(program))}
    return uniep.compile(program, dims=dims, target=device, dtype=dtype, schedule={"relay": "copy"}, debug=True)


def arguments(layer, device, tokens=TOKENS, seed=0):
    """Random arguments. Some routes have no expert; weights are scaled to keep rows near 1."""
    generator = torch.Generator().manual_seed(seed)
    token = next(kind for kind in layer.ops.types.values() if isinstance(kind, RoutesType)).tokens.name
    args = []
    for param in layer.ops.params:
        shape = [tokens if dim.name == token else dim.value(layer.dims) for dim in param.type.shape]
        if not param.type.dtype.is_float:
            value = torch.rand(tokens, DIMS["E"], generator=generator).topk(DIMS["K"], dim=1).indices.int()
            value[torch.rand(value.shape, generator=generator) < 0.2] = -1
        else:
            scale = shape[-1] ** -0.5 if len(shape) == 3 else 1.0
            value = (torch.randn(shape, generator=generator) * scale).to(TORCH_DTYPES[param.type.dtype])
        args.append(value.to(device))
    return args


def gradients(run, args, wanted, upstream):
    """The gradients of the arguments `wanted`: of the sum of all results of floats, each times its `upstream`."""
    args = [arg.detach().requires_grad_(place in wanted) for place, arg in enumerate(args)]
    results = run(*args)
    results = results if isinstance(results, tuple) else (results,)
    reached = [place for place, out in enumerate(results) if isinstance(out, torch.Tensor) and out.requires_grad]
    tops = [upstream(place, results[place]) for place in reached]
    return torch.autograd.grad([results[place] for place in reached], [args[place] for place in wanted], tops)


def upstream_of(place, result):
    """A random gradient of a result. What stands behind the last row means nothing."""
    values = torch.randn(4 * TOKENS, result.shape[1], generator=torch.Generator().manual_seed(place))
    return values[: len(result)].to(result)


def assert_gradients(layer, device, wanted, tolerance, tokens=TOKENS):
    """The gradients of some arguments are those of float64, but for rounding."""
    args = arguments(layer, device, tokens)
    places = [place for place, param in enumerate(layer.ops.params) if param.name in wanted]
    exact = [arg.double() if arg.is_floating_point() else arg for arg in args]
    found = gradients(layer, args, places, upstream_of)
    expected = gradients(
        lambda *args: layer.reference(*args, dtype=torch.float64),
        exact,
        places,
        lambda place, out: upstream_of(place, out).to(args[places[0]].dtype).double(),
    )
    for place, grad, right in zip(places, found, expected, strict=True):
        assert grad.dtype is args[place].dtype
        assert relative_error(grad, right) <= tolerance, layer.ops.params[place].name


def params(layer):
    """The parameters that have gradients."""
    return differentiate(layer.ops, differentiable_params(layer.ops)).wrt


def cases(names, short):
    """A case for each name; those that are not `short` are only for `make test-long`."""
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.long]) for name in names]


SHORT = (
    "torchtitan",
    "gpt_oss",
    "layout kn",
    "one weight in two GEMMs",
    "a result used twice",
    "two GEMMs, then a split",
    "two GEMMs and an interleaved split",
    "half a split",
    "split twice",
    "rows combined twice",
    "one result returned twice",
    "router weights in several places",
    "two dispatches on one rank",
    "dispatched rows combined",
    "work on dispatched rows around a GEMM",
    "a long expression",
)
"""Programs whose backward passes have something that those of the others have not."""


@pytest.mark.parametrize("name", cases(NAMES, (*EXAMPLES, *SHORT)))
def test_gradients_of_all_parameters(device, name):
    layer = layer_of(PROGRAMS[name], device, "f32")
    assert_gradients(layer, device, params(layer), TOLERANCE["f32"])


@pytest.mark.parametrize("name", cases(NAMES, ("torchtitan", "gpt_oss")))
def test_gradients_in_half_precision(device, name):
    layer = layer_of(PROGRAMS[name], device, "bf16")
    assert_gradients(layer, device, params(layer), TOLERANCE["bf16"])


@pytest.mark.parametrize("name", cases(NAMES, ("mixtral",)))
def test_the_gradient_of_each_parameter_alone(device, name):
    layer = layer_of(PROGRAMS[name], device, "f32")
    for param in params(layer):
        assert_gradients(layer, device, (param,), TOLERANCE["f32"])


@pytest.mark.parametrize("name", ["gpt_oss", "torchtitan"])
def test_no_token(device, name):
    layer = layer_of(PROGRAMS[name], device, "bf16")
    args = arguments(layer, device, tokens=0)
    places = [place for place, arg in enumerate(args) if arg.is_floating_point()]
    for place, grad in zip(places, gradients(layer, args, places, upstream_of), strict=True):
        assert_same_bits(grad, torch.zeros_like(args[place]))


DISPATCH = """uniep 1

moe front(x : bf16[T, 2*H], experts : i32[T, K], _w : bf16[E, H, I]) -> bf16[rows(r), 2*H], routes[T, K, E] {
    r = route(experts)
    return dispatch(x, r), r
}
"""
MIDDLE = """uniep 1

moe middle(xs : bf16[rows(r), 2*H], r : routes[T, K, E], gates : f32[T, K]) -> bf16[rows(r), H] {
    s = to_rows(gates, r)
    g, u = split(xs, %s)
    ys = silu(g) * s + u
    return ys
}
"""
COMBINE = """uniep 1

moe back(ys : bf16[rows(r), H], r : routes[T, K, E], weights : f32[T, K]) -> bf16[T, H] {
    return combine(ys, weights)
}
"""
WHOLE = """uniep 1

moe whole(
    x : bf16[T, 2*H], experts : i32[T, K], gates : f32[T, K], weights : f32[T, K], _w : bf16[E, H, I]
) -> bf16[T, H] {
    r = route(experts)
    s = to_rows(gates, r)
    g, u = split(dispatch(x, r), %s)
    ys = silu(g) * s + u
    return combine(ys, weights)
}
"""


@pytest.mark.parametrize("how", ["halves", "interleaved"])
def test_layers_without_gemms(device, how):
    front, back = (layer_of(text, device, "f32") for text in (DISPATCH, COMBINE))
    middle, whole = (layer_of(text % how, device, "f32") for text in (MIDDLE, WHOLE))
    args = arguments(whole, device)

    def in_parts(x, experts, gates, weights, unread):
        rows, routes = front(x, experts, unread)
        return back(middle(rows, routes, gates), routes, weights)

    def exactly(*args):
        return whole.reference(*args, dtype=torch.float64)

    exact = [arg.double() if arg.is_floating_point() else arg for arg in args]
    right = gradients(exactly, exact, (0, 2, 3), upstream_of)
    for run in (in_parts, whole):
        for grad, other in zip(gradients(run, args, (0, 2, 3), upstream_of), right, strict=True):
            assert relative_error(grad, other) <= TOLERANCE["f32"]


@pytest.mark.parametrize("seed", [52, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(40))])
def test_random_programs(device, seed):
    """In seed 52 one half of a split has a gradient in bf16, and the other one in f32."""
    layer = layer_of(random_program(seed), device, "f32")
    assert_gradients(layer, device, params(layer), 1e-4)  # long chains of GEMMs
