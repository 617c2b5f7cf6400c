"""Situations that broke other kernels of this kind, each with the values that showed it. T tokens, R ranks."""

from __future__ import annotations

import warnings

import pytest
import torch
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction

import uniep_compiler as uniep
from tests.numerics.layers import (
    Allocations,
    Inputs,
    Shape,
    assert_close,
    assert_same_bits,
    call,
    compile_layer,
    make_inputs,
    poison,
    random_ids,
    run,
)
from tests.plans import PlanCase
from tests.plans import run as run_plan
from uniep_compiler.runtime import modules
from uniep_compiler.runtime.workspace import workspace_of

INF, NAN = float("inf"), float("nan")

LINEAR = """
uniep 1

moe layer(x : bf16[T, H], experts : i32[T, K], weights : f32[T, K], w : bf16[E, H, H]) -> bf16[T, H] {
    r = route(experts)
    y = group_gemm(dispatch(x, r), w)
    return combine(y, weights)
}
"""

WITH_BIAS = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w13     : bf16[E, 2*I, H],
    b13     : bf16[E, 2*I],
    w2      : bf16[E, H, I],
    b2      : bf16[E, H],
) -> bf16[T, H] {
    h = group_gemm(dispatch(x, experts), w13, bias=b13)
    a = swiglu(h)
    y = group_gemm(a, w2, bias=b2)
    return combine(y, weights)
}
"""

CLAMPED = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    w13     : bf16[E, 2*I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
    h = group_gemm(dispatch(x, experts), w13)
    gate, up = split(h, halves)
    a = clamp(gate, max=7) * sigmoid(1.702 * clamp(gate, max=7)) * (clamp(up, min=-7, max=7) + 1)
    return combine(group_gemm(a, w2))
}
"""

RELU2 = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w1      : bf16[E, I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
    h = group_gemm(dispatch(x, experts), w1)
    a = relu2(h)
    return combine(group_gemm(a, w2), weights)
}
"""


def ffn(inputs, expert, device, dtype="f32"):
    """What one expert makes of every token, unweighted: [T, H] in the layer's dtype."""
    tokens = len(inputs.x)
    shape = Shape(tokens=tokens, experts=len(inputs.w2), topk=1, hidden=inputs.x.shape[1], inner=inputs.w2.shape[2])
    alone = inputs.but(
        ids=torch.full((tokens, 1), expert, dtype=torch.int32, device=device),
        weights=torch.ones(tokens, 1, device=device),
    )
    return run(compile_layer(shape, device, dtype=dtype), alone)


# -- empty things ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [None, 3])
def test_a1_experts_without_tokens(device, ranks):
    """The layer's part in it: such experts have no tile, and whatever memory held before stays out of the results."""
    counts = [5, 0, 9, 3, 0, 1]
    shape = Shape(tokens=sum(counts), experts=6, topk=1, hidden=32, inner=16)
    ids = torch.arange(6, dtype=torch.int32).repeat_interleave(torch.tensor(counts))
    inputs = make_inputs(shape, device, ids=ids)
    for unused in (1, 4):
        inputs.w13[unused], inputs.w2[unused] = NAN, NAN
    layer = compile_layer(shape, device, ranks=ranks)
    first = run(layer, inputs)
    assert_close(compile_layer(shape, device), inputs, first, "f32")
    assert_same_bits(run(layer, inputs), first)


@pytest.mark.parametrize("ranks", [None, 2])
def test_a2_rows_of_routes_without_expert(device, ranks):
    shape = Shape(tokens=8)
    ids = torch.tensor([[0, -1], [-1, 3], [1, -1], [-1, -1], [2, 2], [-1, 0], [3, 1], [-1, 2]], dtype=torch.int32)
    inputs = make_inputs(shape, device, ids=ids)
    layer = compile_layer(shape, device, ranks=ranks)
    first = run(layer, inputs)
    second = run(layer, inputs)
    assert_same_bits(second, first)
    assert_close(compile_layer(shape, device), inputs, second, "f32")
    assert torch.equal(second[3], torch.zeros_like(second[3]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a4_a_rank_without_rows(device, ranks):
    shape = Shape(tokens=9)
    inputs = make_inputs(shape, device, ids=[[0, 1]] * 9)
    assert_close(compile_layer(shape, device), inputs, run(compile_layer(shape, device, ranks=ranks), inputs), "f32")


@pytest.mark.parametrize("ranks", [None, 3])
def test_a6_no_tokens(device, ranks):
    shape = Shape(tokens=0)
    inputs = make_inputs(shape, device)
    layer = compile_layer(shape, device, ranks=ranks)
    out = run(layer, inputs)
    assert out.shape == (0, 16)
    layer.check()
    some = make_inputs(Shape(), device)
    assert_same_bits(run(layer, some), run(compile_layer(Shape(), device), some))


# -- routing values ----------------------------------------------------------------------------------------------------


def test_b2_the_same_expert_twice_in_a_token(device):
    shape = Shape(tokens=2)
    inputs = make_inputs(shape, device, ids=[[3, 3], [1, 0]])
    inputs.weights.copy_(torch.tensor([[0.25, 0.5], [0.5, 0.5]]))
    out = run(compile_layer(shape, device), inputs)
    assert_same_bits(out[0], 0.75 * ffn(inputs, 3, device)[0])
    assert_close(compile_layer(shape, device), inputs, out, "f32")
    assert_same_bits(run(compile_layer(shape, device, ranks=2), inputs), out)
    with pytest.raises(uniep.UniepError, match="3 routes per token to 2 experts"):
        compile_layer(Shape(experts=2, topk=3), device)


def test_b3_ids_of_no_expert(device):
    shape = Shape(tokens=3, experts=3)
    inputs = make_inputs(shape, device, ids=[[0, -1], [2, 1], [-1, -1]])
    for ranks in (None, 1, 2):
        layer = compile_layer(shape, device, ranks=ranks)
        out = run(layer, inputs)
        assert_close(compile_layer(shape, device), inputs, out, "f32")
        assert torch.equal(out[2], torch.zeros_like(out[2]))
        for bad in (3, -2):
            ids = inputs.ids.clone()
            ids[1, 0] = bad
            with pytest.raises(uniep.UniepError, match=f"expert id {bad} of token"):
                run(layer, inputs.but(ids=ids))


def test_b9_the_router_weight_is_applied_once(device):
    shape = Shape(topk=1)
    inputs = make_inputs(shape, device)
    layer = compile_layer(shape, device)
    ones, halves = torch.ones_like(inputs.weights), torch.full_like(inputs.weights, 0.5)
    whole = run(layer, inputs.but(weights=ones))
    assert_same_bits(run(layer, inputs.but(weights=halves)), 0.5 * whole)


@pytest.mark.parametrize("ranks", [None, 2])
def test_b10_padding_tokens(device, ranks):
    shape = Shape(tokens=6)
    inputs = make_inputs(shape, device)
    inputs.ids[4:], inputs.x[4:], inputs.weights[4:] = -1, INF, NAN
    layer = compile_layer(shape, device, ranks=ranks)
    out = run(layer, inputs)
    assert_same_bits(out[:4], run(compile_layer(shape, device), inputs.tokens(slice(4))))
    assert torch.equal(out[4:], torch.zeros_like(out[4:]))


def test_b11_router_weights_multiply_in_fp32_and_round_once(device):
    shape = Shape(tokens=64, topk=1)
    inputs = make_inputs(shape, device, dtype="bf16", ids=[[1]] * 64)
    y = ffn(inputs, 1, device, "bf16")
    weight = 1.0 + 2.0**-8  # half way between two neighbours in bf16, which has 7 bits after the point
    out = run(compile_layer(shape, device, dtype="bf16"), inputs.but(weights=torch.full_like(inputs.weights, weight)))
    assert_same_bits(out, (y.float() * weight).bfloat16())
    assert not torch.equal(out, y), "the data cannot tell a rounded weight from an exact one"


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("hidden", [1, 16, 48, 100, 2880])
def test_c1_every_element_is_written(device, hidden, dtype):
    shape = Shape(tokens=3, experts=2, topk=1, hidden=hidden)
    inputs = make_inputs(shape, device, dtype=dtype)
    layer = compile_layer(shape, device, dtype=dtype)
    out = run(layer, inputs)
    assert not out.isnan().any()
    assert_close(layer, inputs, out, dtype)


def sparse_rows(x, tmp_path):
    """`x` with a row stride of 2 ** 30 elements; on the CPU in a file that is nearly all hole."""
    stride, (rows, cols) = 2**30, x.shape
    size = (rows - 1) * stride + cols
    if x.is_cuda:
        big = torch.empty(size, dtype=x.dtype, device=x.device)
    else:
        path = tmp_path / "sparse"
        with path.open("wb") as file:
            file.truncate(size * x.element_size())
        big = torch.from_file(str(path), shared=True, size=size, dtype=x.dtype)
    view = big.as_strided((rows, cols), (stride, 1))
    view.copy_(x)
    return view


@pytest.mark.parametrize("options", [{}, {"relay": "copy"}, {"relay": "off"}, {"ranks": 1}], ids=str)
def test_c2_offsets_of_64_bits(device, options, tmp_path):
    shape = Shape(tokens=4)
    inputs = make_inputs(shape, device, dtype="bf16")
    expected = run(compile_layer(shape, device, dtype="bf16"), inputs)
    x = sparse_rows(inputs.x, tmp_path)
    assert x.stride() == (2**30, 1)
    assert_same_bits(run(compile_layer(shape, device, dtype="bf16", **options), inputs.but(x=x)), expected)


def test_c3_odd_strides(device):
    """More of them in test_arguments.py."""
    shape = Shape(tokens=6, hidden=16)
    layer, inputs = compile_layer(shape, device), make_inputs(shape, device)
    expected = run(layer, inputs)
    assert_same_bits(run(layer, inputs.but(x=inputs.x.T.contiguous().T)), expected)
    repeated = inputs.but(x=inputs.x[:1].expand(6, 16))
    assert_same_bits(run(layer, repeated), run(layer, repeated.but(x=repeated.x.contiguous())))
    packed = torch.cat([inputs.w13, inputs.w13], dim=1)
    with pytest.raises(uniep.UniepError, match="`w13` is not contiguous"):
        run(layer, inputs.but(w13=packed[:, :32]))


def test_c6_the_plan_of_more_than_65536_rows(device):
    tokens, tiles = 66_000, 516
    plan, error, _ = run_plan(PlanCase(ids=[[[2]] * tokens], experts=3, topk=1, tile_rows=128), device=device)
    assert not error.any()
    assert torch.equal(plan.row_of.cpu(), torch.arange(tokens, dtype=torch.int32))
    assert plan.totals.tolist() == [[tiles, tokens]]
    assert plan.tile_row[0, :tiles].tolist() == list(range(0, tokens, 128))
    assert plan.tile_rows[0, :tiles].tolist() == [128] * 515 + [80]
    assert plan.tile_expert[0, :tiles].tolist() == [2] * tiles


@pytest.mark.long
@pytest.mark.parametrize("ranks", [None, 2])
def test_c6_more_than_65536_rows(device, ranks):
    shape = Shape(tokens=66_000, experts=3, topk=1, hidden=1, inner=1)
    inputs = make_inputs(shape, device, ids=[[2]] * shape.tokens)
    layer = compile_layer(shape, device, ranks=ranks, block=64, chunk=128)
    assert_close(compile_layer(shape, device), inputs, run(layer, inputs), "f32")


def test_c7_the_bound_on_rows(device):
    """All routes of all ranks may go to one expert of one rank, twice per token."""
    shape = Shape(tokens=20, experts=2, topk=2)
    layer = compile_layer(shape, device, ranks=2)
    assert layer.rows_bound(20) == 40
    inputs = make_inputs(shape, device, ids=[[1, 1]] * 20)
    assert_same_bits(run(layer, inputs, [3, 17]), run(compile_layer(shape, device), inputs))


def test_c7_a_call_that_is_too_large_is_refused_before_anything_is_copied(device):
    shape = Shape(tokens=1, experts=8, topk=8, hidden=1, inner=1)
    layer, one = compile_layer(shape, device), make_inputs(shape, device)
    tokens = 2**28
    with Allocations(most_elements=1000), pytest.raises(uniep.UniepError) as caught:
        layer(one.x.expand(tokens, 1), one.ids.expand(tokens, 8), one.weights.expand(tokens, 8), one.w13, one.w2)
    assert caught.value.codes == ("UEP0402",)
    assert "268435456 tokens with 8 routes each" in str(caught.value)
    assert_same_bits(run(layer, one), run(layer, one))


# -- activation, bias --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [None, 2])
def test_d1_the_second_bias_is_weighted(device, ranks):
    shape = Shape(tokens=1)
    layer = compile_layer(shape, device, text=WITH_BIAS, ranks=ranks)
    x, w13, w2 = torch.ones(1, 16), torch.zeros(4, 32, 16), torch.zeros(4, 16, 16)
    b13, b2 = torch.zeros(4, 32), torch.arange(1.0, 5.0)[:, None].repeat(1, 16)
    ids, weights = torch.tensor([[0, 3]], dtype=torch.int32), torch.tensor([[0.7, 0.3]])
    args = [value.to(device) for value in (x, ids, weights, w13, b13, w2, b2)]
    if ranks:
        by_rank = [(1, 0)] * 3 + [layer.placement] * 4
        args = [list(value.split(list(sizes))) for value, sizes in zip(args, by_rank, strict=True)]
    out = call(layer, *args)
    out = torch.cat(out) if ranks else out
    assert torch.allclose(out, torch.full_like(out, 1.9), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_d1_biases_against_float64(device, dtype):
    shape = Shape(tokens=40, hidden=40, inner=20)
    layer = compile_layer(shape, device, dtype=dtype, text=WITH_BIAS)
    inputs = make_inputs(shape, device, dtype=dtype)
    b13, b2 = inputs.w13[:, :, 0].contiguous(), inputs.w2[:, :, 0].contiguous()
    args = (inputs.x, inputs.ids, inputs.weights, inputs.w13, b13, inputs.w2, b2)
    reference = layer.reference(*args, dtype=torch.float64)
    error = (call(layer, *args).double() - reference).norm() / reference.norm()
    assert error <= {"f32": 1e-5, "bf16": 1e-2}[dtype]


def test_d2_clamped_swiglu(device):
    """The gate is clamped from above only, and up on both sides; alpha is 1.702."""
    cases = {(9, 2): 20.9999, (-9, 2): -6.01e-6, (2, -9): -11.614, (2, 9): 15.4853}
    shape = Shape(tokens=4, experts=1, topk=1, hidden=2, inner=1)
    layer = compile_layer(shape, device, text=CLAMPED)
    x = torch.tensor([list(pair) for pair in cases], dtype=torch.float32, device=device)
    ids = torch.zeros(4, 1, dtype=torch.int32, device=device)
    w13, w2 = torch.eye(2, device=device)[None], torch.ones(1, 2, 1, device=device)
    out = call(layer, x, ids, w13, w2)
    expected = torch.tensor(list(cases.values()), device=device)
    assert torch.allclose(out[:, 0], expected, rtol=1e-4, atol=0)
    assert_same_bits(out[:, 1], out[:, 0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_d3_an_activation_without_a_gate(device, dtype):
    shape = Shape(tokens=20, experts=4, hidden=32, inner=24)
    layer = compile_layer(shape, device, dtype=dtype, text=RELU2)
    inputs = make_inputs(shape, device, dtype=dtype)
    inputs = inputs.but(w13=inputs.w13[:, :24].contiguous())
    assert_close(layer, inputs, run(layer, inputs), dtype)


# -- aliases, determinism ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [None, pytest.param(2, marks=pytest.mark.long)])
def test_e6_one_graph_for_every_number_of_tokens(device, ranks):
    """No graph breaks, and no kernel is built for another number of tokens. More is in test_torch_op.py."""
    layer, inputs = compile_layer(Shape(tokens=17), device, ranks=ranks), make_inputs(Shape(tokens=17), device)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    run(layer, inputs)
    before = len(modules._loaded)
    with torch.no_grad():
        for tokens in (0, 1, 5, 17):
            some = inputs.tokens(slice(tokens))
            args = some.args if ranks is None else some.split([tokens // 2, tokens - tokens // 2], layer.placement)
            out = compiled(*args)
            assert_same_bits(out if ranks is None else torch.cat(out), run(compile_layer(Shape(), device), some))
    assert len(modules._loaded) == before
    torch._dynamo.reset()


def test_e7_outputs_alias_nothing_and_arguments_stay(device):
    shape = Shape()
    layer, inputs = compile_layer(shape, device), make_inputs(shape, device)
    before = [value.clone() for value in inputs.args]
    first = run(layer, inputs)
    second = run(layer, inputs)
    storages = {value.untyped_storage().data_ptr() for value in (*inputs.args, first, second)}
    storages.add(workspace_of(layer.device).arena.untyped_storage().data_ptr())
    assert len(storages) == 8
    assert all(torch.equal(value, old) for value, old in zip(inputs.args, before, strict=True))


@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_f1_sums_in_a_fixed_order_and_in_fp32(device, runs, ranks):
    """256 and seven ones: a running sum in bf16 would stay at 256."""
    shape = Shape(tokens=1, experts=8, topk=8)
    weights = [[256.0] + [1.0] * 7, [1.0] * 7 + [256.0], [1.0, 1, 1, 256, 1, 1, 1, 1]]
    layer = compile_layer(shape, device, dtype="bf16", text=LINEAR, ranks=ranks)
    x = torch.zeros(3, 16)
    x[:, 0] = 1
    w = torch.eye(16).repeat(8, 1, 1)
    ids = torch.arange(8, dtype=torch.int32).repeat(3, 1)
    args = (x.bfloat16(), ids, torch.tensor(weights), w.bfloat16(), w.bfloat16())
    inputs = Inputs(**dict(zip(("x", "ids", "weights", "w13", "w2"), (v.to(device) for v in args), strict=True)))
    for _ in range(runs):
        if ranks is None:
            out = call(layer, *inputs.args[:4])
        else:
            out = torch.cat(call(layer, *inputs.split([3, 0][:ranks], layer.placement)[:4]))
        assert out[:, 0].tolist() == [264.0] * 3
        assert not out[:, 1:].any()


@pytest.mark.parametrize("topk", [1, 2])
def test_f4_very_many_experts_most_of_them_empty(device, runs, topk):
    shape = Shape(tokens=9, experts=384, topk=topk, hidden=16, inner=16)
    layer, inputs = compile_layer(shape, device), make_inputs(shape, device, seed=4)
    expected = run(layer, inputs)
    assert_close(layer, inputs, expected, "f32")
    for _ in range(2 * runs - 4):
        assert_same_bits(run(layer, inputs), expected)


@pytest.mark.long
def test_f4_two_hundred_repeats(device):
    shape = Shape(tokens=16, experts=384, topk=6, hidden=16, inner=16)
    layer, inputs = compile_layer(shape, device), make_inputs(shape, device, seed=4)
    expected = run(layer, inputs)
    for _ in range(200 if device != "cpu" else 20):
        assert_same_bits(run(layer, inputs), expected)


# -- hangs and run time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3, 1000])
def test_g2_any_number_of_workers(device, workers):
    shape = Shape(tokens=20)
    inputs = make_inputs(shape, device)
    expected = run(compile_layer(shape, device), inputs)
    assert_same_bits(run(compile_layer(shape, device, workers=workers), inputs), expected)


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
def test_g3_one_route_and_several_experts_per_rank(device, relay):
    shape = Shape(tokens=40, experts=6, topk=1)
    inputs = make_inputs(shape, device, ids=random_ids(shape, 8))
    layer = compile_layer(shape, device, ranks=2, relay=relay)
    assert_close(compile_layer(shape, device), inputs, run(layer, inputs), "f32")


def test_g4_tests_do_poison_memory(device):
    """What the tests rely on: whatever a call finds in fresh memory or in the workspace is NaN."""
    workspace = workspace_of(torch.device(device))
    with poison(device):
        assert torch.empty(100, device=device).isnan().all()
        assert torch.empty(100, device=device, dtype=torch.bfloat16).isnan().all()
        assert (torch.empty(100, device=device, dtype=torch.int32) > 2**30).all()
        workspace.reserve(4096, 0)
        assert workspace.arena[:4096].view(torch.bfloat16).isnan().all()
        assert workspace.arena[:4096].view(torch.float32).isnan().all()
    assert not workspace.poisoned


# -- the interpreter ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_h3_products_of_half_precision_are_exact(device, dtype):
    """Small integers: every product and sum is exact, so the result is, too."""
    shape = Shape(tokens=33, experts=3, topk=2, hidden=48)
    generator = torch.Generator().manual_seed(0)

    def integers(*size):
        return torch.randint(-2, 3, size, generator=generator).float()

    layer = compile_layer(shape, device, dtype=dtype, text=LINEAR)
    inputs = make_inputs(shape, device, dtype=dtype)
    real = inputs.x.dtype
    args = (integers(33, 48).to(real), inputs.ids.cpu(), integers(33, 2), integers(3, 48, 48).to(real))
    args = tuple(value.to(device) for value in args)
    exact = layer.reference(*args, dtype=torch.float64)
    assert exact.abs().max() <= 256
    assert torch.equal(call(layer, *args).double(), exact)


def test_h3_rounding_is_to_nearest_even(device):
    """Products that lie half way between two neighbours, infinities and the largest numbers."""
    shape = Shape(tokens=8, experts=1, topk=1, hidden=16)
    layer = compile_layer(shape, device, dtype="bf16", text=LINEAR)
    smallest = 1e-39 if device == "cpu" else 2e-38  # denormal, or the smallest that no GPU flushes to zero
    x = torch.zeros(8, 16)
    x[:, 0] = torch.tensor([1.0, 1.0078125, -1.0, 3.0e38, smallest, 0.0, 255.0, 257.0]).bfloat16()
    weights = torch.tensor([1 + 2.0**-8, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 2.0, 1.0, -1.0, 1 + 2.0**-8, 1.0])[:, None]
    w = torch.zeros(1, 16, 16)
    w[0] = torch.eye(16)
    ids = torch.zeros(8, 1, dtype=torch.int32)
    args = tuple(value.to(device) for value in (x.bfloat16(), ids, weights, w.bfloat16()))
    expected = (args[0].float() * args[2]).bfloat16()
    assert torch.equal(call(layer, *args), expected)
    assert expected[3, 0] == INF


def count_to_the_number_of_programs(out):
    """A kernel whose loop ends at a number that is known only when it runs."""
    for count in range(tl.num_programs(0)):
        tl.store(out, count + 1)


def test_h4_loops_over_cdiv(interpreter):
    """From numpy 2.4 on a block of one number is no integer, and older ones warn. Our loops over `cdiv` use none."""
    shape = Shape(tokens=40, experts=6, topk=2)
    single, inputs = compile_layer(shape, interpreter), make_inputs(shape, interpreter)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        with pytest.raises(InterpreterError, match=r"Conversion of an array|only 0-dimensional arrays"):
            InterpretedFunction(count_to_the_number_of_programs)[(1,)](torch.zeros(1, dtype=torch.int32))
        out = run(single, inputs)
        for tokens in ([40, 0], [9, 31]):
            assert_same_bits(run(compile_layer(shape, interpreter, ranks=2), inputs, tokens), out)
    assert_close(single, inputs, out, "f32")


def test_h5_no_program_waits_for_a_later_one(interpreter):
    """With as many programs as tasks, in order, and with programs to spare: all tasks are done."""
    shape = Shape(tokens=40, experts=6, topk=2)
    inputs = make_inputs(shape, interpreter)
    expected = run(compile_layer(shape, interpreter), inputs)
    for workers in (1, 2, 40):
        layer = compile_layer(shape, interpreter, ranks=4, workers=workers)
        assert_same_bits(run(layer, inputs, [0, 3, 30, 7]), expected)
