"""The forward pass against the same program in float64, over shapes and routings of all kinds."""

from __future__ import annotations

import random

import pytest
import torch

from tests.numerics.layers import TOLERANCE, Shape, assert_close, compile_layer, make_inputs, random_ids, run

SIDES = (1, 16, 48, 100)


def random_shape(seed, most_tokens=40):
    rng = random.Random(seed)
    experts = rng.choice((1, 2, 3, 5, 8))
    return Shape(
        tokens=rng.choice((0, 1, 5, rng.randint(2, most_tokens))),
        experts=experts,
        topk=rng.randint(1, min(experts, 4)),
        hidden=rng.choice(SIDES),
        inner=rng.choice(SIDES),
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_shapes_in_f32(device, seed):
    shape = random_shape(seed)
    layer = compile_layer(shape, device)
    inputs = make_inputs(shape, device, seed=seed, ids=random_ids(shape, seed))
    assert_close(layer, inputs, run(layer, inputs), "f32")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_more_random_shapes(interpreter, seed):
    dtype = random.Random(seed).choice(("f32", "f16", "bf16"))
    shape = random_shape(seed, most_tokens=150)
    layer = compile_layer(shape, interpreter, dtype=dtype)
    inputs = make_inputs(shape, interpreter, dtype=dtype, seed=seed, ids=random_ids(shape, seed))
    if dtype == "f32" or shape.tokens * shape.hidden >= 64:  # a few values have the error of their unluckiest one
        assert_close(layer, inputs, run(layer, inputs), dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", [Shape(tokens=37, topk=3, hidden=100, inner=48), Shape(tokens=70, inner=1)])
def test_half_precision(device, dtype, shape):
    layer = compile_layer(shape, device, dtype=dtype)
    inputs = make_inputs(shape, device, dtype=dtype, seed=1)
    assert_close(layer, inputs, run(layer, inputs), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_virtual_groups(device, dtype, ranks):
    shape = Shape(tokens=20, experts=5, topk=2, hidden=48, inner=20)
    layer = compile_layer(shape, device, dtype=dtype, ranks=ranks)
    inputs = make_inputs(shape, device, dtype=dtype, ids=random_ids(shape, 4))
    assert_close(layer, inputs, run(layer, inputs), dtype)


@pytest.mark.parametrize("ids", [[2] * 70, [0] * 35 + [-1] * 35, [-1] * 70])
def test_all_tokens_to_one_expert_or_to_none(device, ids):
    shape = Shape(tokens=70, topk=1)
    layer = compile_layer(shape, device)
    inputs = make_inputs(shape, device, ids=ids)
    assert_close(layer, inputs, run(layer, inputs), "f32")


def test_as_many_routes_as_experts(device):
    shape = Shape(tokens=9, experts=6, topk=6)
    layer = compile_layer(shape, device)
    inputs = make_inputs(shape, device)
    assert_close(layer, inputs, run(layer, inputs), "f32")


@pytest.mark.parametrize(("experts", "topk"), [(64, 8), (1, 1)])
def test_few_rows_per_expert_and_one_expert(device, experts, topk):
    shape = Shape(tokens=4, experts=experts, topk=topk)
    layer = compile_layer(shape, device)
    inputs = make_inputs(shape, device)
    assert_close(layer, inputs, run(layer, inputs), "f32")


def test_the_reference_that_rounds_is_as_near_as_the_kernels(interpreter):
    """Rounding where the program rounds explains the kernels' error: the two agree better than each with float64."""
    shape = Shape(tokens=64, hidden=48, inner=32)
    layer = compile_layer(shape, interpreter, dtype="bf16")
    inputs = make_inputs(shape, interpreter, dtype="bf16")
    rounded, exact = layer.reference(*inputs.args), layer.reference(*inputs.args, dtype=torch.float64)
    out = run(layer, inputs)
    assert rounded.dtype == out.dtype
    distance = (out.double() - rounded.double()).norm() / exact.norm()
    assert distance < TOLERANCE["bf16"] / 10
