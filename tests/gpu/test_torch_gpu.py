"""Layers in PyTorch on a GPU: CUDA graphs, streams, threads, torch.compile, memory, and calls that never wait.

Where that makes sense a body also runs on the interpreter: a parameter says on which device.
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, assert_same_bits, compile_layer, make_inputs, random_ids
from tests.unit.runtime.test_torch_op import FIRST_PART, SECOND_PART
from uniep_compiler.runtime.workspace import ALIGNMENT_BYTES, workspace_of

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

SHAPE = Shape(tokens=300, experts=8, topk=2, hidden=128, inner=96)
T, E = SHAPE.tokens, SHAPE.experts
LARGE = replace(SHAPE, tokens=12 * T)

OPTIONS = [{}, {"relay": "copy"}, {"fuse": "none"}]


@pytest.fixture(params=["cuda"])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def layer_for(device, **options):
    return compile_layer(SHAPE, device, dtype="bf16", **options)


def inputs_for(device, seed=0, shape=SHAPE):
    return make_inputs(shape, device, dtype="bf16", seed=seed, ids=random_ids(shape, seed))


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def capture(function, device, pool=None):
    """A function that does again what `function` does, and where its results lie. Here and there it is a CUDA graph."""
    if device == "cpu":
        out = function()
        return lambda: out.copy_(function()), out
    function()  # builds the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = function()
    return graph.replay, out


def give(target, source):
    """Puts the values of some inputs in the place of others."""
    for mine, value in zip(target.args, source.args, strict=True):
        mine.copy_(value)


@contextmanager
def no_waiting(device):
    """Whatever waits for the device is an error."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- CUDA graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_graph_replays_with_other_routing(device, options):
    layer, inputs = layer_for(device, **options), inputs_for(device)
    replay, out = capture(lambda: layer(*inputs.args), device)
    for seed in (1, 2, 3, 1):
        other = inputs_for(device, seed)
        give(inputs, other)
        replay()
        kept = out.clone()
        assert_same_bits(kept, layer(*other.args))


def test_a_graph_of_a_group(device):
    group, alone, inputs = layer_for(device, ranks=3), layer_for(device), inputs_for(device)
    parts = inputs.split([T // 3, 0, T - T // 3], group.placement)
    replay, out = capture(lambda: torch.cat(group(*parts)), device)
    for seed in (1, 2):
        other = inputs_for(device, seed)
        give(inputs, other)
        replay()
        assert_same_bits(out.clone(), alone(*other.args))


def test_a_graph_of_several_layers_among_calls(device):
    """One graph with calls of other sizes and schedules, replayed between calls on the same stream."""
    layers = [layer_for(device), layer_for(device, fuse="none"), layer_for(device, relay="copy")]
    inputs = inputs_for(device)

    def chain():
        x = inputs.x
        for layer, tokens in zip(layers, (T, T // 2, 10), strict=True):
            x = layer(x[:tokens], inputs.ids[:tokens], inputs.weights[:tokens], inputs.w13, inputs.w2)
        return x

    replay, out = capture(chain, device)
    for seed in range(1, 6):
        give(inputs, inputs_for(device, seed))
        expected = chain()
        replay()
        assert_same_bits(out.clone(), expected)
        layers[0](*inputs_for(device, seed, LARGE).args)


def test_a_graph_holds_no_workspace(device):
    """The workspace of its stream grows, and so moves, after the capture; what was there is given to others."""
    layer, inputs = layer_for(device), inputs_for(device)
    workspace = workspace_of(layer.device)
    workspace.arena = torch.empty(0, dtype=torch.uint8, device=device)
    replay, out = capture(lambda: layer(*inputs.args), device)
    expected, before = layer(*inputs.args), workspace.arena.numel()
    layer(*inputs_for(device, 1, LARGE).args)
    assert workspace.arena.numel() > before
    rubbish = [torch.full((2**20,), float("nan"), device=device) for _ in range(20)]
    for _ in range(3):
        out.zero_()
        replay()
        assert_same_bits(out.clone(), expected)
    assert len(rubbish) == 20


def test_graphs_run_at_once_on_several_streams(device):
    """They were captured on one stream, and share nothing."""
    layer, options = layer_for(device), [inputs_for(device, seed) for seed in range(3)]
    graphs = [capture(lambda inputs=inputs: layer(*inputs.args), device) for inputs in options]
    expected = [layer(*inputs.args) for inputs in options]
    synchronize(device)
    streams = [torch.cuda.Stream() for _ in graphs] if device == "cuda" else [None] * 3
    for _ in range(20):
        for stream, (replay, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                replay()
        layer(*options[0].args)
    synchronize(device)
    layer.check()
    for (_, out), wanted in zip(graphs, expected, strict=True):
        assert_same_bits(out, wanted)


def test_graphs_of_one_pool(device):
    layer, sizes = layer_for(device), (T, 7, T // 4)
    inputs = inputs_for(device)
    pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
    cases = [inputs.tokens(slice(tokens)) for tokens in sizes]
    graphs = [capture(lambda case=case: layer(*case.args), device, pool) for case in cases]
    for (replay, out), case in zip(graphs, cases, strict=True):
        replay()
        assert_same_bits(out.clone(), layer(*case.args))


def test_an_error_in_a_replay(device):
    if device == "cpu":
        pytest.skip("there a call raises its own errors")
    late = uniep.compile(uniep.parse(SWIGLU), dims=SHAPE.dims, target=device, dtype="bf16")
    inputs = inputs_for(device)
    replay, out = capture(lambda: late(*inputs.args), device)
    expected = late(*inputs.args)
    kept = inputs.ids[17, 1].item()
    for tell in (late.check, lambda: late(*inputs_for(device, 1).args)):
        inputs.ids[17, 1] = E
        replay()
        torch.cuda.synchronize()
        assert out.isnan().all()
        with pytest.raises(uniep.UniepError, match=f"expert id {E} of token 17, route 1"):
            tell()
        inputs.ids[17, 1] = kept
        replay()
        assert_same_bits(out.clone(), expected)
        late.check()


def test_a_first_call_cannot_be_captured(device):
    if device == "cpu":
        pytest.skip("nothing is captured there")
    layer, inputs = copy.copy(layer_for(device, group=3)), inputs_for(device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(uniep.UniepError, match="UEP0607"), torch.cuda.graph(graph):
        layer(*inputs.args)
    assert_same_bits(layer(*inputs.args), layer_for(device)(*inputs.args))


def test_nothing_waits_in_calls_of_known_and_of_new_shapes(device):
    layer = uniep.compile(uniep.parse(SWIGLU), dims=SHAPE.dims, target=device, dtype="bf16")
    operator = layer.register(f"waits_for_nothing_{device}")
    inputs = inputs_for(device)
    few = inputs.tokens(slice(40))
    half = inputs.but(weights=inputs.weights.bfloat16(), ids=inputs.ids.long())
    for args in (inputs.args, half.args):
        layer(*args)
    with no_waiting(device):
        for args in (inputs.args, few.args, half.args, few.args):
            layer(*args)
            operator(*args)
    layer.check()


# -- streams and threads -----------------------------------------------------------------------------------------------


def test_threads_with_streams_of_their_own(device):
    layers = [layer_for(device), layer_for(device, fuse="none"), layer_for(device, ranks=2)]
    cases = [inputs_for(device, seed) for seed in range(4)]
    expected = [layers[0](*inputs.args) for inputs in cases]
    synchronize(device)
    found = {}

    def work(number):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None):
            outs = []
            for layer in layers:
                if layer.group is None:
                    outs.append(layer(*cases[number].args))
                else:
                    outs.append(torch.cat(layer(*cases[number].split([9, T - 9], layer.placement))))
            synchronize(device)
            found[number] = outs

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, outs in found.items():
        for out in outs:
            assert_same_bits(out, expected[number])
    assert len(found) == 4


def test_threads_on_one_stream(device):
    layer, inputs = layer_for(device), inputs_for(device)
    expected = layer(*inputs.args)
    outs = []

    def work():
        with torch.no_grad():
            outs.extend(layer(*inputs.args) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    synchronize(device)
    assert len(outs) == 20
    for out in outs:
        assert_same_bits(out, expected)


def test_memory_pools_of_the_caller_do_not_hold_the_workspace(device):
    """What the first call on a stream allocates for later ones has to survive the pool that is in use."""
    if device == "cpu":
        pytest.skip("there are no pools")
    layer, inputs = layer_for(device), inputs_for(device)
    expected = layer(*inputs.args)
    with torch.cuda.stream(torch.cuda.Stream()):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            layer(*inputs.args)
        workspace = workspace_of(layer.device)
        inside = {segment["address"] for segment in pool.snapshot()}
        segments = torch.cuda.memory_snapshot()
        home = next(s["address"] for s in segments if 0 <= workspace.arena.data_ptr() - s["address"] < s["total_size"])
        assert home not in inside
        del pool
        assert_same_bits(layer(*inputs.args), expected)


# -- torch.compile -----------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_tracer():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_functions(device, fresh_tracer, mode):
    layer = layer_for(device)

    def function(x, ids, weights, w13, w2):
        return layer(layer(x * 2, ids, weights, w13, w2), ids, weights, w13, w2) + 1

    compiled = torch.compile(function, mode=mode, fullgraph=True, dynamic=False)
    for tokens in (T, 17):
        for seed in (0, 1, 2, 3):
            args = inputs_for(device, seed, replace(SHAPE, tokens=tokens)).args
            torch.compiler.cudagraph_mark_step_begin()
            assert_same_bits(compiled(*args).clone(), function(*args))
    assert device == "cpu" or counters["inductor"]["cudagraph_skips"] == 0


def test_one_graph_for_every_number_of_tokens(device, fresh_tracer):
    layer = layer_for(device)
    compiled = torch.compile(lambda *args: layer(*args), fullgraph=True, dynamic=True)
    for tokens in (T, 17, 9, T - 1):
        args = inputs_for(device, shape=replace(SHAPE, tokens=tokens)).args
        assert_same_bits(compiled(*args), layer(*args))
    assert counters["stats"]["unique_graphs"] == 1


def test_operators_pass_opcheck(device):
    first, second = (layer_for(device, text=text) for text in (FIRST_PART, SECOND_PART))
    inputs = inputs_for(device)
    storage, a = first.register(f"first_on_{device}")(inputs.x, inputs.ids, inputs.w13)
    calls = [
        (layer_for(device).register(f"whole_on_{device}"), inputs.args),
        (second.register(f"second_on_{device}"), (storage, [T], a, inputs.weights, inputs.w2)),
    ]
    for operator, args in calls:
        torch.library.opcheck(operator.default, args)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_call_takes_what_is_reported(device):
    if device == "cpu":
        pytest.skip("tests/unit/runtime/test_memory.py has it")
    layer, inputs = layer_for(device), inputs_for(device)
    layer(*inputs.args)
    report = layer.memory(T)
    rounding = 512 * 4
    whole_counters = 2 * 8 * ALIGNMENT_BYTES  # the counters of each half of a scoreboard are rounded up as well
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # a new workspace
        before = torch.cuda.memory_allocated()
        out = layer(*inputs.args)
        first = torch.cuda.memory_allocated() - before
        assert report.output_bytes + report.workspace_bytes <= first
        assert first <= report.output_bytes + report.workspace_bytes * 9 // 8 + whole_counters + rounding
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        again = layer(*inputs.args)
        assert 0 <= torch.cuda.memory_allocated() - before - report.output_bytes <= rounding
        peak = torch.cuda.max_memory_allocated() - before
        assert 0 <= peak - report.output_bytes - report.plan_bytes <= rounding
    torch.cuda.synchronize()
    assert_same_bits(out, again)
