"""NaN and infinities stay where they are: with their token, with their route, with their expert."""

from __future__ import annotations

import pytest
import torch

from tests.numerics.layers import SWIGLU, Shape, assert_same_bits, compile_layer, make_inputs, run

NAN, INF = float("nan"), float("inf")

ODD = Shape(tokens=40, experts=4, topk=2, hidden=40, inner=24)
"""Neither side is a multiple of a tile's: tails of columns and of depth everywhere."""

KN = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w1      : bf16[E, H, 2*I],
    w2      : bf16[E, I, H],
) -> bf16[T, H] {
    xs = dispatch(x, route(experts))
    h  = group_gemm(xs, w1, layout=kn)
    a  = swiglu(h)
    y  = group_gemm(a, w2, layout=kn)
    return combine(y, weights)
}
"""
"""Weights that are stored depth first, so that what lies past an expert's depth is the next expert."""

SCHEDULES = [{}, {"relay": "copy"}, {"relay": "off"}, {"ranks": 2}, {"ranks": 2, "relay": "gather"}]


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_token_keeps_its_nan_to_itself(device, bad, options):
    layer = compile_layer(ODD, device, dtype="bf16", **options)
    inputs = make_inputs(ODD, device, dtype="bf16")
    expected = run(layer, inputs)
    x = inputs.x.clone()
    x[7], x[30, 3] = bad, bad
    out = run(layer, inputs.but(x=x))
    kept = torch.tensor([t not in (7, 30) for t in range(40)], device=out.device)
    assert_same_bits(out[kept], expected[kept])
    assert not out[7].isfinite().any()
    assert not out[30].isfinite().any()


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_the_router_weight_of_a_route_without_expert_is_not_read(device, options):
    layer = compile_layer(ODD, device, **options)
    inputs = make_inputs(ODD, device)
    ids = inputs.ids.clone()
    ids[3, 0], ids[5], ids[39, 1] = -1, -1, -1
    zero, nan = inputs.weights.clone(), inputs.weights.clone()
    zero[ids < 0], nan[ids < 0] = 0.0, NAN
    expected = run(layer, inputs.but(ids=ids, weights=zero))
    assert_same_bits(run(layer, inputs.but(ids=ids, weights=nan)), expected)
    assert torch.equal(expected[5], torch.zeros_like(expected[5]))


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_an_unused_expert_keeps_its_nan_to_itself(device, bad, options):
    layer = compile_layer(ODD, device, dtype="bf16", **options)
    ids = torch.tensor([[0, 2]] * 40)
    inputs = make_inputs(ODD, device, dtype="bf16", ids=ids)
    expected = run(layer, inputs)
    w13, w2 = inputs.w13.clone(), inputs.w2.clone()
    for unused in (1, 3):
        w13[unused], w2[unused] = bad, bad
    assert_same_bits(run(layer, inputs.but(w13=w13, w2=w2)), expected)


def test_an_expert_with_nan_spoils_only_its_own_tokens(device):
    layer = compile_layer(ODD, device)
    inputs = make_inputs(ODD, device, ids=[[t % 3, 3 if t == 11 else -1] for t in range(40)])
    expected = run(layer, inputs)
    w2 = inputs.w2.clone()
    w2[3] = NAN
    out = run(layer, inputs.but(w2=w2))
    kept = torch.tensor([t != 11 for t in range(40)], device=out.device)
    assert_same_bits(out[kept], expected[kept])
    assert out[11].isnan().all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_next_expert_is_not_read_where_weights_lie_depth_first(device, dtype):
    layer, plain = (compile_layer(ODD, device, dtype=dtype, text=text) for text in (KN, SWIGLU))
    inputs = make_inputs(ODD, device, dtype=dtype, ids=[[0, 2]] * 40)
    w1, w2 = (w.transpose(1, 2).contiguous() for w in (inputs.w13, inputs.w2))
    expected = run(plain, inputs)
    for unused in (1, 3):
        w1[unused], w2[unused] = NAN, NAN
    assert_same_bits(run(layer, inputs.but(w13=w1, w2=w2)), expected)


def test_a_nan_comes_out_of_the_route_it_went_into(device):
    """A NaN router weight belongs to its token, and to no other."""
    layer = compile_layer(ODD, device)
    inputs = make_inputs(ODD, device)
    expected = run(layer, inputs)
    weights = inputs.weights.clone()
    weights[17, 1] = NAN
    out = run(layer, inputs.but(weights=weights))
    assert out[17].isnan().all()
    kept = torch.tensor([t != 17 for t in range(40)], device=out.device)
    assert_same_bits(out[kept], expected[kept])
