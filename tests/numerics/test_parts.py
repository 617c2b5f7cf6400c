"""Layers written in parts: routes and rows go from one to the next as Python values."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree

import uniep_compiler as uniep
from tests.numerics.layers import (
    DTYPES,
    SWIGLU,
    TOLERANCE,
    Shape,
    assert_same_bits,
    call,
    compile_layer,
    make_inputs,
    random_ids,
    relative_error,
    run,
    timeout_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = Shape(tokens=40, experts=5, topk=3, hidden=48, inner=32)

ACTIVATED = """
uniep 1

moe first_half(
    x       : bf16[T, H],
    experts : i32[T, K],
    w13     : bf16[E, 2*I, H],
) -> routes[T, K, E], bf16[rows(r), I] {
    r = route(experts)
    h = group_gemm(dispatch(x, r), w13)
    a = swiglu(h)
    return r, a
}
"""

KEEPS_ROWS = """
uniep 1

moe keeps_rows(
    x       : bf16[T, H],
    experts : i32[T, K],
    w13     : bf16[E, 2*I, H],
) -> routes[T, K, E], bf16[rows(r), H], bf16[rows(r), 2*I] {
    r  = route(experts)
    xs = dispatch(x, r)
    return r, xs, group_gemm(xs, w13)
}
"""


@cache
def example(name, device, dtype="f32", ranks=None, hidden=SHAPE.hidden, inner=SHAPE.inner, **options):
    """A layer of the examples, with dims that fit SHAPE."""
    program = uniep.parse_file(EXAMPLES / f"{name}.uniep")
    dims = {"H": hidden, "E": SHAPE.experts, "K": SHAPE.topk}
    dims |= {"N": 2 * inner} if name == "dispatch_gemm" else {"I": inner}
    group = None if ranks is None else uniep.virtual_group(ranks)
    return uniep.compile(
        program,
        dims=dims,
        target=device,
        dtype=dtype,
        group=group,
        schedule=options,
        timeout=timeout_of(device),
        debug=True,
    )


def inputs_and_expected(device, dtype, seed=3):
    """Inputs with routes that name no expert, and what the layer in one piece makes of them."""
    inputs = make_inputs(SHAPE, device, dtype=dtype, seed=seed, ids=random_ids(SHAPE, seed))
    inputs.ids[0], inputs.ids[1, 1] = -1, -1
    return inputs, run(compile_layer(SHAPE, device, dtype=dtype), inputs)


@pytest.mark.parametrize("options", [{}, {"relay": "copy"}, {"relay": "off"}, {"fuse": "none"}], ids=str)
def test_two_parts_are_the_whole(device, options):
    """The activation lies in the first part's epilogue, so that it rounds as in one piece: the bits are the same."""
    for dtype in ("f32", "bf16"):
        inputs, expected = inputs_and_expected(device, dtype)
        first = compile_layer(SHAPE, device, dtype=dtype, text=ACTIVATED, **options)
        second = example("gemm_combine", device, dtype, **options)
        routes, a = call(first, inputs.x, inputs.ids, inputs.w13)
        assert_same_bits(call(second, routes, a, inputs.weights, inputs.w2), expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_activation_in_torch_between_the_examples(device, dtype):
    inputs, expected = inputs_and_expected(device, dtype)
    routes, h = call(example("dispatch_gemm", device, dtype), inputs.x, inputs.ids, inputs.w13)
    gate, up = h.float().chunk(2, dim=1)
    a = (torch.nn.functional.silu(gate) * up).to(DTYPES[dtype])
    out = call(example("gemm_combine", device, dtype), routes, a, inputs.weights, inputs.w2)
    assert relative_error(out, expected.double()) <= TOLERANCE[dtype]
    assert torch.equal(out[0], torch.zeros_like(out[0]))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("ranks", [None, 1, 3])
def test_rows_are_in_plan_order_and_zero_after_the_last(device, dtype, ranks):
    inputs, _ = inputs_and_expected(device, dtype)
    layer = compile_layer(SHAPE, device, dtype=dtype, ranks=ranks, text=KEEPS_ROWS)
    if ranks is None:
        routes, rows, h = ([part] for part in call(layer, inputs.x, inputs.ids, inputs.w13))
    else:
        tokens = [40, 0, 0][:ranks]
        x, ids, _, w13, _ = inputs.split(tokens, layer.placement)
        routes, rows, h = call(layer, x, ids, w13)
    flat = inputs.ids.flatten().cpu()
    order = torch.argsort(flat, stable=True)
    order = order[flat[order] >= 0]
    for rank, part in enumerate(rows):
        count = int(routes[rank].num_rows)
        assert part.shape == (layer.rows_bound(40), SHAPE.hidden)
        mine, order = order[:count], order[count:]
        assert torch.equal(part[:count].cpu(), inputs.x.cpu()[mine // SHAPE.topk])
        assert_same_bits(part[count:], torch.zeros_like(part[count:]))
        assert_same_bits(h[rank][count:], torch.zeros_like(h[rank][count:]))
        assert h[rank][:count].any(dim=1).all()
    assert len(order) == 0


def test_routes_say_where_rows_are(device):
    inputs, _ = inputs_and_expected(device, "f32")
    routes, h = call(example("dispatch_gemm", device), inputs.x, inputs.ids, inputs.w13)
    ids = inputs.ids.long()
    assert torch.equal(routes.row_of >= 0, ids >= 0)
    counts = torch.bincount(ids[ids >= 0], minlength=SHAPE.experts)
    assert torch.equal(routes.expert_rows.long(), counts)
    assert int(routes.num_rows) == int((ids >= 0).sum())
    for token, k in ((5, 0), (5, 1), (39, 2)):
        if ids[token, k] >= 0:
            exact = inputs.w13[ids[token, k]].double() @ inputs.x[token].double()
            assert relative_error(h[routes.row_of[token, k]], exact) < TOLERANCE["f32"]


@pytest.mark.parametrize("tokens", [[40], [13, 27], [20, 0, 20]])
def test_parts_under_a_group(device, tokens):
    inputs, expected = inputs_and_expected(device, "bf16")
    ranks = len(tokens)
    first = compile_layer(SHAPE, device, dtype="bf16", ranks=ranks, text=ACTIVATED)
    second = example("gemm_combine", device, "bf16", ranks=ranks)
    x, ids, weights, w13, w2 = inputs.split(tokens, first.placement)
    routes, a = call(first, x, ids, w13)
    assert [len(part) for part in a] == [first.rows_bound(40)] * ranks
    assert_same_bits(torch.cat(call(second, routes, a, weights, w2)), expected)
    assert torch.equal(torch.cat([one.row_of >= 0 for one in routes]), inputs.ids >= 0)


def test_no_tokens(device):
    inputs = inputs_and_expected(device, "f32")[0].tokens(slice(0))
    routes, h = call(example("dispatch_gemm", device), inputs.x, inputs.ids, inputs.w13)
    assert h.shape == (0, 2 * SHAPE.inner)
    out = call(example("gemm_combine", device), routes, h[:, : SHAPE.inner], inputs.weights, inputs.w2)
    assert out.shape == (0, SHAPE.hidden)
    assert int(routes.num_rows) == 0


def test_routes_are_a_pytree(device):
    inputs, expected = inputs_and_expected(device, "f32")
    routes, a = call(compile_layer(SHAPE, device, text=ACTIVATED), inputs.x, inputs.ids, inputs.w13)
    leaves, spec = pytree.tree_flatten(routes)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)
    out = call(example("gemm_combine", device), again, a, inputs.weights, inputs.w2)
    assert_same_bits(out, expected)


def test_routes_that_do_not_fit(device):
    inputs, _ = inputs_and_expected(device, "f32")
    second = example("gemm_combine", device)
    routes, a = call(compile_layer(SHAPE, device, text=ACTIVATED), inputs.x, inputs.ids, inputs.w13)

    def refused(layer, args, *parts):
        with pytest.raises(uniep.UniepError) as caught:
            layer(*args)
        assert caught.value.codes == ("UEP0601",)
        assert all(part in str(caught.value) for part in parts), str(caught.value)

    rest = (a, inputs.weights, inputs.w2)
    refused(second, (inputs.ids, *rest), "`r` has to be uniep.Routes, not Tensor")
    refused(second, (routes, a[:-1], *rest[1:]), "`a` has shape [119, 32], but has to be [120, 32]")
    refused(second, (routes, a, inputs.weights[:39], inputs.w2), "`weights` has shape [39, 3], but has to be [40, 3]")
    refused(example("gemm_combine", device, block=32), (routes, *rest), "block=8", "block=32")
    other = Shape(tokens=40, experts=4, topk=3, hidden=48, inner=32)
    four = make_inputs(other, device)
    made, _ = call(compile_layer(other, device, text=ACTIVATED), four.x, four.ids, four.w13)
    refused(second, (made, *rest), "{'topk': 3, 'experts': 4}", "compiled for {'topk': 3, 'experts': 5}")


def test_routes_of_a_group_that_do_not_fit(device):
    inputs, _ = inputs_and_expected(device, "f32")
    first = compile_layer(SHAPE, device, ranks=2, text=ACTIVATED)
    moved = compile_layer(SHAPE, device, ranks=2, text=ACTIVATED, placement=(1, 4))
    second = example("gemm_combine", device, ranks=2)
    x, ids, weights, w13, w2 = inputs.split([20, 20], first.placement)
    routes, a = call(first, x, ids, w13)
    again, _ = call(first, x, ids, w13)
    with pytest.raises(uniep.UniepError, match="not those of one call, in order"):
        second(routes[::-1], a, weights, w2)
    with pytest.raises(uniep.UniepError, match="not those of one call, in order"):
        second([routes[0], again[1]], a, weights, w2)
    strange, b = call(moved, x, ids, list(inputs.w13.split([1, 4])))
    with pytest.raises(uniep.UniepError, match=r"placement \(1, 4\), but the layer has \(3, 2\)"):
        second(strange, b, weights, w2)
    with pytest.raises(uniep.UniepError, match="UEP0601"):
        example("gemm_combine", device)(routes[0], torch.cat(a), inputs.weights[:20], inputs.w2)


def test_several_results(device):
    """Every value of a layer can be a result; a value that is used and returned is the same both times."""
    text = SWIGLU.replace("-> bf16[T, H] {", "-> bf16[T, H], bf16[rows(r), H], bf16[rows(r), I] {")
    text = text.replace("return combine(y, weights)", "return combine(y, weights), y, a")
    inputs, expected = inputs_and_expected(device, "bf16")
    for options in ({}, {"fuse": "none"}):
        out, y, a = call(compile_layer(SHAPE, device, dtype="bf16", text=text, **options), *inputs.args)
        assert_same_bits(out, expected)
        routes, _ = call(compile_layer(SHAPE, device, dtype="bf16", text=ACTIVATED), inputs.x, inputs.ids, inputs.w13)
        count = int(routes.num_rows)
        assert not y[count:].any()
        assert not a[count:].any()
        assert_same_bits(call(example("gemm_combine", device, "bf16"), routes, a, inputs.weights, inputs.w2), expected)
        weighted = torch.zeros_like(out, dtype=torch.float32)
        for k in range(SHAPE.topk):
            row = routes.row_of[:, k].long()
            weighted += torch.where(row[:, None] >= 0, y.float()[row] * inputs.weights[:, k : k + 1], 0.0)
        assert relative_error(out, weighted.double()) <= TOLERANCE["bf16"]
