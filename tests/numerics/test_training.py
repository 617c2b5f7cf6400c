"""Gradients: each alone against float64, over shapes and routings of all kinds, and the same bits however they run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import (
    SWIGLU,
    TOLERANCE,
    Shape,
    assert_same_bits,
    compile_layer,
    make_inputs,
    poison,
    random_ids,
    relative_error,
)
from tests.numerics.test_accuracy import random_shape

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("x", "ids", "weights", "w13", "w2")


def leaves(args, wanted=None):
    """Copies of a call's arguments, of which those of floating point (or only `wanted` ones) require gradients."""
    return [
        arg.clone().requires_grad_()
        if isinstance(arg, torch.Tensor) and arg.is_floating_point() and (wanted is None or place in wanted)
        else arg
        for place, arg in enumerate(args)
    ]


def upstream_of(out, seed=1):
    """A random gradient of a result."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)


def gradients(layer, args, upstream=None, wanted=None):
    """What a training step on poisoned memory gives each argument; None for those that want no gradient."""
    args = leaves(args, wanted)
    with poison(layer.device):
        out = layer(*args)
        out.backward(upstream_of(out) if upstream is None else upstream)
    return [arg.grad if isinstance(arg, torch.Tensor) else None for arg in args]


def exact(layer, args, upstream):
    """The gradients in float64; zeros where nothing was computed with an argument."""
    args = leaves([arg.double() if arg.is_floating_point() else arg for arg in args])
    layer.reference(*args, dtype=torch.float64).backward(upstream.double())
    return [torch.zeros_like(arg) if arg.requires_grad and arg.grad is None else arg.grad for arg in args]


def assert_gradients(layer, args, dtype):
    """Each gradient is near the one in float64, and has shape, dtype and zeros of its own."""
    upstream = torch.randn(args[0].shape, generator=torch.Generator().manual_seed(1)).to(args[0])
    for arg, found, right in zip(args, gradients(layer, args, upstream), exact(layer, args, upstream), strict=True):
        if right is None:
            assert found is None
            continue
        assert found.shape == arg.shape
        assert found.dtype == arg.dtype
        error = relative_error(found, right)
        assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


@pytest.mark.parametrize("seed", [3, 4, 5, 6, 8, 10, 11, 17])
def test_random_shapes(device, seed):
    shape = random_shape(seed)
    inputs = make_inputs(shape, device, seed=seed, ids=random_ids(shape, seed))
    assert_gradients(compile_layer(shape, device), inputs.args, "f32")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_more_random_shapes(interpreter, seed):
    dtype = random.Random(seed).choice(("f32", "f16", "bf16"))
    shape = replace(random_shape(seed, most_tokens=90), hidden=48)
    inputs = make_inputs(shape, interpreter, dtype=dtype, seed=seed, ids=random_ids(shape, seed))
    assert_gradients(compile_layer(shape, interpreter, dtype=dtype), inputs.args, dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision(device, dtype):
    shape = Shape(tokens=37, topk=3, hidden=80, inner=48)
    assert_gradients(compile_layer(shape, device, dtype=dtype), make_inputs(shape, device, dtype=dtype).args, dtype)


SMALL = Shape(tokens=21, experts=5, topk=2, hidden=32, inner=24)


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_token_and_one(device, tokens):
    inputs = make_inputs(replace(SMALL, tokens=tokens), device)
    found = gradients(compile_layer(SMALL, device), inputs.args)
    assert [None if g is None else g.shape for g in found] == [
        None if name == "ids" else getattr(inputs, name).shape for name in NAMES
    ]
    if not tokens:
        assert all(g is None or not g.any() for g in found)
    assert_gradients(compile_layer(SMALL, device), inputs.args, "f32")


def test_experts_without_rows_get_exact_zeros(device):
    ids = [[1, 3]] * 10 + [[-1, 3]] * 11
    x, _, weights, w13, w2 = gradients(compile_layer(SMALL, device), make_inputs(SMALL, device, ids=ids).args)
    for grad in (w13, w2):
        assert not grad[[0, 2, 4]].any()
        assert grad[[1, 3]].any(dim=2).any(dim=1).all()
    assert (weights[10:, 0] == 0).all()
    assert x.isfinite().all()


def test_no_route_at_all(device):
    found = gradients(compile_layer(SMALL, device), make_inputs(SMALL, device, ids=[[-1, -1]] * 21).args)
    for name, grad in zip(NAMES, found, strict=True):
        assert name == "ids" or not grad.any()


@pytest.mark.parametrize("wanted", [(0,), (2,), (3,), (4,), (0, 3), (3, 4)])
def test_only_the_gradients_that_are_asked_for(device, wanted):
    layer, args = compile_layer(SMALL, device), make_inputs(SMALL, device).args
    found = gradients(layer, args, wanted=wanted)
    for place, (one, of_all) in enumerate(zip(found, gradients(layer, args), strict=True)):
        if place in wanted:
            assert_same_bits(one, of_all)
        else:
            assert one is None


SCHEDULES = {
    "three workers": {"workers": 3},
    "serial": {"fuse": "none"},
    "pairs": {"fuse": "pairs"},
    "gathered rows": {"relay": "gather"},
    "sent rows": {"relay": "off", "send": "route"},
    "first come": {"order": "fifo"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bits_do_not_depend_on_the_schedule(device, schedule):
    args = make_inputs(SMALL, device, dtype="bf16", ids=random_ids(SMALL, 3)).args
    first = gradients(compile_layer(SMALL, device, dtype="bf16"), args)
    other = gradients(compile_layer(SMALL, device, dtype="bf16", **SCHEDULES[schedule]), args)
    for one, two in zip(first, other, strict=True):
        assert one is two is None or assert_same_bits(one, two) is None


def test_two_steps_in_a_row_have_the_same_bits(device, runs):
    layer, args = compile_layer(SMALL, device), make_inputs(SMALL, device).args
    first = gradients(layer, args)
    for _ in range(runs):
        gradients(layer, make_inputs(SMALL, device, seed=5).args)  # leaves other values in the workspace
        for one, two in zip(first, gradients(layer, args), strict=True):
            assert one is two is None or assert_same_bits(one, two) is None


def test_upstream_gradients_of_any_strides(device):
    layer, args = compile_layer(SMALL, device), make_inputs(SMALL, device).args
    wide = torch.randn(SMALL.hidden + 3, SMALL.tokens, device=device)
    for upstream in (
        torch.ones((), device=device).expand(SMALL.tokens, SMALL.hidden),
        torch.randn(SMALL.hidden, device=device).expand(SMALL.tokens, -1),
        wide[3:].T,
        torch.randn(SMALL.tokens, SMALL.hidden + 3, device=device)[:, 3:],
    ):
        for one, two in zip(
            gradients(layer, args, upstream), gradients(layer, args, upstream.contiguous()), strict=True
        ):
            assert one is two is None or assert_same_bits(one, two) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_router_weights_of_another_dtype_get_gradients_in_it(device, dtype):
    layer, args = compile_layer(SMALL, device), list(make_inputs(SMALL, device).args)
    args[2] = args[2].to(dtype)
    expected = gradients(layer, [*args[:2], args[2].float(), *args[3:]])[2]
    assert_same_bits(gradients(layer, args)[2], expected.to(dtype))


def test_a_token_that_is_nan_spoils_no_other(device):
    layer, args = compile_layer(SMALL, device), list(make_inputs(SMALL, device).args)
    args[0] = args[0].clone()
    args[0][4] = torch.nan
    x = gradients(layer, args)[0]
    assert x[4].isnan().all()
    assert x[torch.arange(SMALL.tokens) != 4].isfinite().all()


def test_parts_of_a_layer(device):
    """Gradients pass through rows and routes from one layer to another, and through what PyTorch does in between."""
    shape = replace(SMALL, inner=16)
    first, second = (
        uniep.compile(uniep.parse_file(EXAMPLES / f"{name}.uniep"), dims=dims, target=device, dtype="f32", debug=True)
        for name, dims in (("dispatch_gemm", {"H": 32, "N": 32, "E": 5, "K": 2}), ("gemm_combine", shape.dims))
    )
    ids = random_ids(shape, 4)
    inputs = make_inputs(shape, device, ids=ids)

    def in_parts(x, ids, weights, w13, w2):
        routes, h = first(x, ids, w13)
        gate, up = h.chunk(2, dim=-1)
        return second(routes, torch.nn.functional.silu(gate) * up, weights, w2)

    whole = compile_layer(shape, device)
    upstream = torch.randn(shape.tokens, shape.hidden).to(device)
    args = leaves(inputs.args)
    with poison(whole.device):
        in_parts(*args).backward(upstream)
    for arg, right in zip(args, exact(whole, inputs.args, upstream), strict=True):
        assert right is None or relative_error(arg.grad, right) <= TOLERANCE["f32"]


def test_a_result_that_gets_no_gradient_counts_as_zeros(device):
    text = SWIGLU.replace("-> bf16[T, H] {", "-> bf16[T, H], bf16[rows(r), I], i32[E] {").replace(
        "return combine(y, weights)", "return combine(y, weights), a, counts(r)"
    )
    layer, args = compile_layer(SMALL, device, text=text), make_inputs(SMALL, device).args
    given = leaves(args)
    with poison(layer.device):
        out, rows, counts = layer(*given)
        assert not counts.requires_grad
        assert rows.requires_grad
        out.backward(upstream_of(out))
    for arg, one in zip(given, gradients(compile_layer(SMALL, device), args), strict=True):
        assert one is None or relative_error(arg.grad, one) < 1e-6
    given = leaves(args)
    with poison(layer.device):
        rows = layer(*given)[1]
        rows[: int(counts.sum())].square().sum().backward()
    x, _, weights, w13, w2 = given
    assert x.grad.any()
    assert w13.grad.any()
    assert not weights.grad.any()
    assert not w2.grad.any()


def test_a_parameter_that_no_result_needs_gets_zeros(device):
    text = SWIGLU.replace("    w2      :", "    unused  : bf16[E, I],\n    w2      :")
    layer = compile_layer(SMALL, device, text=text)
    x, ids, weights, w13, w2 = make_inputs(SMALL, device).args
    unused = torch.randn(SMALL.experts, SMALL.inner, device=device)
    found = gradients(layer, (x, ids, weights, w13, unused, w2))
    assert found[4].shape == unused.shape
    assert not found[4].any()
    only = gradients(layer, (x, ids, weights, w13, unused, w2), wanted=(4,))
    assert not only[4].any()
