"""The forward pass at sizes of real layers, and what only a GPU has: streams, late errors, workers that truly wait.

The tests in tests/numerics run on the GPU as well (`-m gpu`).
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import (
    SWIGLU,
    TOLERANCE,
    Allocations,
    Inputs,
    Shape,
    assert_same_bits,
    call,
    compile_layer,
    relative_error,
    run,
)
from tests.numerics.layers import make_inputs as make_small_inputs
from tests.numerics.test_hang import broken, loses_its_posts, waits_for_one_more
from uniep_compiler.runtime.workspace import workspace_of

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

QWEN3 = Shape(tokens=4096, experts=128, topk=8, hidden=2048, inner=768)
MIDDLE = Shape(tokens=1000, experts=32, topk=4, hidden=512, inner=264)
SMALL = Shape(tokens=40, experts=3, topk=2)


@pytest.fixture(params=["cuda"])
def device(request):
    """A parameter, so that a body can be tried on the interpreter."""
    return request.param


@pytest.fixture
def runs():
    return 100


def make_inputs(shape, device, *, dtype="bf16", seed=0):
    """Like the one of the small tests, made on the device; one token in eight has no expert in some place."""
    real = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator, device=device, dtype=torch.float32)

    scores = torch.rand(shape.tokens, shape.experts, generator=generator, device=device)
    weights, ids = scores.topk(shape.topk, dim=1)
    ids[::8, shape.topk // 2] = -1
    return Inputs(
        x=normal(shape.tokens, shape.hidden).to(real),
        ids=ids.to(torch.int32),
        weights=weights.softmax(dim=1),
        w13=(normal(shape.experts, 2 * shape.inner, shape.hidden) * shape.hidden**-0.5).to(real),
        w2=(normal(shape.experts, shape.hidden, shape.inner) * shape.inner**-0.5).to(real),
    )


@cache
def middle(device, dtype="bf16"):
    """Inputs of the middle size, and what the plain layer makes of them."""
    inputs = make_inputs(MIDDLE, device, dtype=dtype)
    return inputs, run(compile_layer(MIDDLE, device, dtype=dtype), inputs)


# -- real sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_a_real_layer_against_float64(device, dtype):
    inputs = make_inputs(QWEN3, device, dtype=dtype)
    layer = compile_layer(QWEN3, device, dtype=dtype)
    out = run(layer, inputs)
    assert relative_error(out, layer.reference(*inputs.args, dtype=torch.float64)) <= TOLERANCE[dtype]


def test_a_real_layer_gives_the_same_bits_on_every_run(device, runs):
    inputs = make_inputs(QWEN3, device)
    layer = compile_layer(QWEN3, device, dtype="bf16")
    expected = run(layer, inputs)
    for _ in range(runs):
        assert_same_bits(call(layer, *inputs.args), expected)


@pytest.mark.parametrize("tokens", [1, 7, 64, 4096, 8192])
def test_a_token_of_a_real_layer_does_not_depend_on_the_others(device, tokens):
    layer = compile_layer(QWEN3, device, dtype="bf16")
    inputs = make_inputs(Shape(tokens=8192, experts=128, topk=8, hidden=2048, inner=768), device)
    expected = run(layer, inputs)
    start = (8192 - tokens) // 2
    chosen = slice(start, start + tokens)
    assert_same_bits(run(layer, inputs.tokens(chosen)), expected[chosen])


@pytest.mark.parametrize("options", [{"relay": "copy"}, {"fuse": "none"}, {"fuse": "pairs"}, {"workers": 66}], ids=str)
def test_schedules_of_a_real_layer(device, options):
    inputs = make_inputs(QWEN3, device)
    expected = run(compile_layer(QWEN3, device, dtype="bf16"), inputs)
    assert_same_bits(run(compile_layer(QWEN3, device, dtype="bf16", **options), inputs), expected)


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_virtual_groups_of_a_real_layer(device, ranks, relay):
    inputs = make_inputs(QWEN3, device)
    expected = run(compile_layer(QWEN3, device, dtype="bf16"), inputs)
    tokens = [4096 - 5 * (ranks - 1), *[5] * (ranks - 1)]
    group = compile_layer(QWEN3, device, dtype="bf16", ranks=ranks, relay=relay)
    for split in (None, tokens):
        assert_same_bits(run(group, inputs, split), expected)


# -- many tiles, many workers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_runs(device, runs, dtype):
    inputs, expected = middle(device, dtype)
    layer = compile_layer(MIDDLE, device, dtype=dtype)
    assert relative_error(expected, layer.reference(*inputs.args, dtype=torch.float64)) <= TOLERANCE[dtype]
    for _ in range(runs):
        assert_same_bits(call(layer, *inputs.args), expected)


@pytest.mark.parametrize("ranks", [None, 4])
@pytest.mark.parametrize("workers", [1, 7, 66, 132, 1000])
def test_workers(device, workers, ranks):
    inputs, expected = middle(device)
    layer = compile_layer(MIDDLE, device, dtype="bf16", ranks=ranks, workers=workers)
    assert_same_bits(run(layer, inputs), expected)


@pytest.mark.parametrize(
    "options", [{"send": "all"}, {"order": "fifo"}, {"lanes": 1}, {"chunk": 64}, {"group": 2}], ids=str
)
def test_options_that_only_move_work(device, options):
    inputs, expected = middle(device)
    layer = compile_layer(MIDDLE, device, dtype="bf16", ranks=3, placement=(20, 0, 12), **options)
    for tokens in ([1000, 0, 0], [1, 499, 500]):
        assert_same_bits(run(layer, inputs, tokens), expected)


@pytest.mark.parametrize("ranks", [None, 2])
def test_repeats_under_a_group_and_skew(device, runs, ranks):
    """All routes of half of the tokens to one expert: one long segment among short ones."""
    inputs, _ = middle(device)
    ids = inputs.ids.clone()
    ids[::2] = 31
    inputs = inputs.but(ids=ids)
    expected = run(compile_layer(MIDDLE, device, dtype="bf16", fuse="none"), inputs)
    layer = compile_layer(MIDDLE, device, dtype="bf16", ranks=ranks)
    for _ in range(runs):
        assert_same_bits(run(layer, inputs), expected)


# -- streams and late errors -------------------------------------------------------------------------------------------


def late(shape, device, dtype="f32"):
    """A layer whose errors show up in a later call, as they do unless `debug` is set."""
    return uniep.compile(uniep.parse(SWIGLU), dims=shape.dims, target=device, dtype=dtype, timeout=0.5)


def test_streams_have_workspaces_of_their_own(device):
    inputs, expected = middle(device)
    layer = late(MIDDLE, device, "bf16")
    streams = [torch.cuda.Stream() for _ in range(3)]
    outs = []
    torch.cuda.synchronize()
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(layer(*inputs.args))
    torch.cuda.synchronize()
    for out in outs:
        assert_same_bits(out, expected)
    for stream in streams:
        with torch.cuda.stream(stream):
            layer.check()


def test_calls_do_not_wait_for_the_device(device):
    layer, inputs = late(SMALL, device), make_small_inputs(SMALL, device)
    expected = layer(*inputs.args)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = layer(*inputs.args)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    layer.check()
    assert_same_bits(out, expected)


def test_a_bad_id_is_told_by_check_or_by_the_next_call(device):
    layer, inputs = late(SMALL, device), make_small_inputs(SMALL, device)
    expected = layer(*inputs.args)
    ids = inputs.ids.clone()
    ids[5, 1] = 3
    for tell in (layer.check, lambda: layer(*inputs.args)):
        out = layer(inputs.x, ids, *inputs.args[2:])
        torch.cuda.synchronize()
        assert out.isnan().all()
        with pytest.raises(uniep.UniepError, match="expert id 3 of token 5, route 1"):
            tell()
        assert_same_bits(layer(*inputs.args), expected)
        layer.check()


def test_a_hang_is_told_by_check_and_the_next_call_works(device):
    layer, inputs = late(SMALL, device), make_small_inputs(SMALL, device)
    expected = layer(*inputs.args)
    out = broken(layer, "gemm_y", loses_its_posts)(*inputs.args)
    with pytest.raises(uniep.HangError, match="`reduce_out` on rank 0 waited for signal `y_ready"):
        layer.check()
    assert out.isnan().all()
    for _ in range(3):
        assert_same_bits(layer(*inputs.args), expected)
    layer.check()


@pytest.mark.parametrize("ranks", [None, 4])
@pytest.mark.parametrize("family", ["gemm_y", "reduce_out"])
def test_a_hang_of_many_workers(device, ranks, family):
    """All workers leave, whichever of them gives up first; the outputs are NaN; the next call is right."""
    change = loses_its_posts if family == "gemm_y" else waits_for_one_more
    if ranks and family == "reduce_out":
        family, change = "push_y", waits_for_one_more
    inputs, expected = middle(device)
    layer = compile_layer(MIDDLE, device, dtype="bf16", ranks=ranks, timeout=0.5)
    assert_same_bits(run(layer, inputs), expected)
    for _ in range(2):
        pattern = r"waited for signal `\w+\[\d+\]` to reach \d+, and saw \d+ at last"
        with Allocations() as made, pytest.raises(uniep.HangError, match=pattern):
            run(broken(layer, family, change), inputs)
        assert [bool(out.isnan().all()) for out in made.outputs] == [True]
        assert_same_bits(run(layer, inputs), expected)


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_tensors_of_another_device(device):
    layer, inputs = compile_layer(SMALL, device), make_small_inputs(SMALL, device)
    for place, name in enumerate(("x", "experts", "weights", "w13", "w2")):
        args = list(inputs.args)
        args[place] = args[place].cpu()
        with pytest.raises(uniep.UniepError, match=f"`{name}` is on cpu, but the layer runs on cuda:0"):
            layer(*args)
    with pytest.raises(uniep.UniepError, match="is on cuda:0, but the layer runs on cpu"):
        compile_layer(SMALL, "cpu")(*inputs.args)


def test_weights_at_an_odd_address(device):
    """A tensor descriptor cannot start there: refused, not wrong. Rows of tokens may."""
    layer = compile_layer(MIDDLE, device, dtype="bf16")
    inputs, expected = middle(device)
    x, w2 = (torch.cat([value.new_zeros(1), value.flatten()])[1:].view(value.shape) for value in (inputs.x, inputs.w2))
    assert_same_bits(run(layer, inputs.but(x=x)), expected)
    if layer.target.has_tma:
        with pytest.raises(uniep.UniepError, match="`w2` starts at an address that is not a multiple of 16"):
            run(layer, inputs.but(w2=w2))
    else:
        assert_same_bits(run(layer, inputs.but(w2=w2)), expected)
    assert_same_bits(run(layer, inputs), expected)


def test_the_interpreter_agrees(device):
    """Not bit for bit: its sums have another order."""
    here, there = make_small_inputs(SMALL, "cpu"), make_small_inputs(SMALL, device)
    out = run(compile_layer(SMALL, device), there)
    assert relative_error(out.cpu(), run(compile_layer(SMALL, "cpu"), here).double()) <= TOLERANCE["f32"]
    assert workspace_of(out.device) is not workspace_of(torch.device("cpu"))
