"""Counts of routes as a result: those of the whole group, exact, for every routing, traced and eager."""

from __future__ import annotations

import pytest
import torch

from tests.numerics.layers import Shape, assert_close, assert_same_bits, call, compile_layer, even, make_inputs
from uniep_compiler.runtime.memory import Use

SHAPE = Shape(tokens=17, experts=5, topk=3)

COUNTED = """
uniep 1

moe counted(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w13     : bf16[E, 2*I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H], i32[E], routes[T, K, E] {
    r = route(experts)
    a = swiglu(group_gemm(dispatch(x, r), w13))
    return combine(group_gemm(a, w2), weights), counts(r), r
}
"""

COUNTS_ALONE = """
uniep 1

moe alone(r : routes[T, K, E]) -> i32[E] {
    return counts(r)
}
"""

IDS = {
    "random": None,
    "one expert, three times": [[4, 4, 4]] * 17,
    "none": [[-1, -1, -1]] * 17,
    "some": [[0, -1, 2]] * 9 + [[-1, 3, 3]] * 8,
}


def expected_counts(ids):
    return torch.bincount(ids[ids >= 0].long(), minlength=SHAPE.experts).int()


def run(layer, inputs):
    """Tokens of all ranks, the counts of each rank, and routes of each."""
    if layer.group is None:
        out, counts, routes = call(layer, *inputs.args)
        return out, [counts], [routes]
    out, counts, routes = call(layer, *inputs.split(even(len(inputs.x), layer.group.num_ranks), layer.placement))
    return torch.cat(out), counts, routes


@pytest.mark.parametrize("ids", IDS.values(), ids=list(IDS))
@pytest.mark.parametrize("ranks", [None, 1, 3])
def test_every_rank_has_the_counts_of_all(device, ranks, ids):
    inputs = make_inputs(SHAPE, device, ids=ids)
    out, counts, routes = run(compile_layer(SHAPE, device, text=COUNTED, ranks=ranks), inputs)
    assert_close(compile_layer(SHAPE, device), inputs, out, "f32")
    for mine, whole in zip(counts, routes, strict=True):
        assert mine.dtype == torch.int32
        assert torch.equal(mine, expected_counts(inputs.ids))
        assert torch.equal(mine, whole.expert_rows)


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_few_tokens_and_none(device, ranks, tokens):
    inputs = make_inputs(SHAPE, device).tokens(slice(tokens))
    for mine in run(compile_layer(SHAPE, device, text=COUNTED, ranks=ranks), inputs)[1]:
        assert torch.equal(mine, expected_counts(inputs.ids))


@pytest.mark.parametrize("ranks", [None, 2])
def test_routes_that_come_in_are_counted(device, ranks):
    inputs = make_inputs(SHAPE, device, ids=IDS["some"])
    _, _, routes = run(compile_layer(SHAPE, device, text=COUNTED, ranks=ranks), inputs)
    alone = compile_layer(SHAPE, device, text=COUNTS_ALONE, dtype=None, ranks=ranks)
    found = call(alone, routes if ranks else routes[0])
    for mine in found if ranks else [found]:
        assert torch.equal(mine, expected_counts(inputs.ids))


@pytest.mark.parametrize("ranks", [None, 2])
def test_counts_are_memory_of_their_own(device, ranks):
    """Changed in place, they change neither the routes nor another rank's counts, and nothing in the next call."""
    layer, inputs = compile_layer(SHAPE, device, text=COUNTED, ranks=ranks), make_inputs(SHAPE, device)
    _, counts, routes = run(layer, inputs)
    counts[0].zero_()
    for whole in routes:
        assert torch.equal(whole.expert_rows, expected_counts(inputs.ids))
    for mine in [*counts[1:], *run(layer, inputs)[1]]:
        assert torch.equal(mine, expected_counts(inputs.ids))


def test_the_reference_counts_as_well(device):
    layer, inputs = compile_layer(SHAPE, device, text=COUNTED), make_inputs(SHAPE, device, ids=IDS["some"])
    for dtype in (None, torch.float64):
        assert torch.equal(layer.reference(*inputs.args, dtype=dtype)[1], expected_counts(inputs.ids))


@pytest.mark.parametrize("ranks", [None, 2])
def test_their_memory_is_reported(device, ranks):
    report = compile_layer(SHAPE, device, text=COUNTED, ranks=ranks).memory(17 if ranks is None else [9, 8])
    sizes = [buffer.num_bytes for buffer in report.buffers if buffer.use is Use.OUTPUT]
    assert sorted(sizes) == [4 * 5 * (ranks or 1), 17 * 16 * 4]


@pytest.mark.parametrize("ranks", [None, pytest.param(2, marks=pytest.mark.long)])
def test_one_graph_counts_for_every_number_of_tokens(device, ranks):
    torch._dynamo.reset()
    layer, inputs = compile_layer(SHAPE, device, text=COUNTED, ranks=ranks), make_inputs(SHAPE, device)

    def function(*args):
        out, counts, _ = layer(*args)
        return (out, counts * 2) if ranks is None else (*out, *(mine * 2 for mine in counts))

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (5, 17, 1, 0):
        some = inputs.tokens(slice(tokens))
        args = some.args if ranks is None else some.split(even(tokens, ranks), layer.placement)
        for mine, eager in zip(compiled(*args), function(*args), strict=True):
            assert_same_bits(mine, eager)
        assert torch.equal(compiled(*args)[-1], 2 * expected_counts(some.ids))
    torch._dynamo.reset()


@pytest.mark.long
def test_the_operator_is_sound(device):
    layer, inputs = compile_layer(SHAPE, device, text=COUNTED), make_inputs(SHAPE, device)
    torch.library.opcheck(layer.register("checked_counts").default, inputs.args)
    group = compile_layer(SHAPE, device, text=COUNTED, ranks=2)
    torch.library.opcheck(group.register("checked_counts_of_group").default, inputs.split([9, 8], group.placement))
