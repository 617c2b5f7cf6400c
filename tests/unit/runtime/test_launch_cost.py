"""Calls of known shapes: what is done again, what kernels are handed, and which variant of them. No clock is read.

Kernels are compiled for sm_90 and launched into nothing (`benchmarks/stub.py`), so this needs no GPU.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.tools.tensor_descriptor import TensorDescriptor

import uniep_compiler as uniep
from benchmarks import host
from benchmarks.stub import stub_device
from tests.numerics.layers import SWIGLU, Shape, make_inputs
from uniep_compiler.runtime import calls, kernels, launch
from uniep_compiler.runtime.kernels import Launch, Memories
from uniep_compiler.runtime.layout import ARENA, PLAN, Part
from uniep_compiler.runtime.workspace import workspace_of

SHAPE = Shape(tokens=40, experts=4, topk=2, hidden=64, inner=64)

MOST_FUNCTION_CALLS = 300
"""Of Python and of C, in one call of a layer with three launches. There were 1600 before calls were prepared."""


@cache
def compiled(ranks, options):
    group = None if ranks is None else uniep.virtual_group(ranks)
    return uniep.compile(uniep.parse(SWIGLU), dims=SHAPE.dims, target="sm_90", group=group, schedule=dict(options))


def layer(ranks=None, **options):
    """A layer that has not been called yet, but for the kernels that Triton remembers."""
    return copy.copy(compiled(ranks, tuple(options.items())))


def runner_of(one):
    (runner,) = one.calls._runners.values()
    return runner


def args_of(tokens=40, ranks=None):
    shape = Shape(tokens=tokens, experts=4, topk=2, hidden=64, inner=64)
    inputs = make_inputs(shape, "cpu", dtype="bf16")
    return list(inputs.args if ranks is None else inputs.split([tokens - 1, 1], layer(ranks).placement))


@pytest.fixture(autouse=True)
def launches():
    """What was launched: name, programs, arguments."""
    found = []
    with torch.no_grad(), stub_device(lambda *launch: found.append(launch)):
        yield found


# -- what kernels are handed -------------------------------------------------------------------------------------------


def plain(value):
    """An argument as the kernel sees it."""
    if isinstance(value, TensorDescriptor):
        return value.base.data_ptr(), list(value.shape), list(value.strides), value.block_shape, value.padding
    return value.data_ptr() if hasattr(value, "data_ptr") else value


@pytest.mark.parametrize(("ranks", "options"), [(None, {}), (None, {"fuse": "none", "relay": "copy"}), (2, {})])
def test_addresses_are_those_of_the_tensors(monkeypatch, launches, ranks, options):
    """Each kernel gets by its second launch what Triton would make of the call's tensors."""
    seen = []
    monkeypatch.setattr(Launch, "run", lambda self, memories: seen.append((self, memories)))
    layer(ranks, **options)(*args_of(ranks=ranks))
    monkeypatch.undo()
    names = [each.kernel.function.__name__ for each, _ in seen]
    assert names[:3] == ["plan_count", "plan_place", "forward" if "fuse" not in options else "forward_0"]
    for each, memories in seen:
        each.run(memories)
        each.run(memories)
        (name, programs, first), (_, _, second) = launches[-2:]
        assert (name, programs) == (each.kernel.function.__name__, each.programs)
        for place, (tensor, address) in enumerate(zip(first, second, strict=True)):
            part = each._arguments[place]
            if not (isinstance(part, Part) and part.shape is not None and part.num_bytes == 0):
                assert plain(tensor) == plain(address), each.kernel.names[place]
        assert not any(isinstance(value, torch.Tensor) for value in second)


def test_parts_of_a_memory_do_not_overlap():
    """But the plan's scratch may lie where rows will lie: it is dead by then."""
    one = layer(2)
    runner = one.calls.runner(one._default, torch.device("cpu"))
    layout = runner.layout(one.plan_shape((39, 1)), one.signature.examples((39, 1)))
    tables = [part for part in layout.arguments.values() if isinstance(part, Part) and part.memory == PLAN]
    for parts in (list(layout.rows.values()), tables):
        ordered = sorted(parts, key=lambda part: part.offset)
        assert len(ordered) > 3
        for part, following in pairwise(ordered):
            assert part.offset % 16 == 0
            assert part.offset + part.num_bytes <= following.offset
    parts = [part for part in layout.arguments.values() if isinstance(part, Part) and part.memory == ARENA]
    assert {name for name in layout.arguments if layout.arguments[name] in parts} > {"counts", "next_send", "xs_ptr"}
    assert max(part.offset + part.num_bytes for part in parts) <= layout.arena_bytes


def test_calls_of_one_size_share_their_variants(launches):
    one = layer()
    for tokens in (40, 41, 48, 1, 640):
        one(*args_of(tokens))
    runner = runner_of(one)
    assert [len(kernel.variants) for kernel in (*runner._plan, *runner._kernels)] == [1, 1, 1]
    assert len(launches) == 15


def test_a_tensor_at_an_odd_address_gets_a_variant_of_its_own(launches):
    one, args = layer(), args_of()
    one(*args)
    odd = torch.cat([args[0].new_zeros(1), args[0].flatten()])[1:].view(args[0].shape)
    for _ in range(2):
        one(odd, *args[1:])
        one(*args)
    (forward,) = runner_of(one)._kernels
    assert len(forward.variants) == 2
    place = forward.names.index("x_ptr")
    assert [plain(arguments[place]) for name, _, arguments in launches if name == "forward"] == [
        x.data_ptr() for x in (args[0], odd, args[0], odd, args[0])
    ]


def test_a_descriptor_cannot_start_at_an_odd_address():
    one, args = layer(), args_of()
    for place, name in ((3, "w13"), (4, "w2")):
        value = args[place]
        odd = torch.cat([value.new_zeros(1), value.flatten()])[1:].view(value.shape)
        with pytest.raises(uniep.UniepError, match=f"`{name}` starts at an address that is not a multiple of 16"):
            one(*args[:place], odd, *args[place + 1 :])
    one(*args)


def test_strides_are_handed_over(launches):
    one, args = layer(), args_of()
    wide = torch.zeros(40, 96, dtype=torch.bfloat16)
    for x in (args[0], wide[:, :64], wide[:, :64]):
        one(x, *args[1:])
    (forward,) = runner_of(one)._kernels
    place = forward.names.index("x_stride")
    assert [arguments[place] for name, _, arguments in launches if name == "forward"] == [64, 96, 96]


def test_weights_of_several_modules_share_a_layer(launches):
    one, (x, ids, weights, *_) = layer(), args_of()
    modules = [make_inputs(SHAPE, "cpu", dtype="bf16", seed=seed) for seed in range(3)]
    for inputs in (*modules, *modules):
        one(x, ids, weights, inputs.w13, inputs.w2)
    (forward,) = runner_of(one)._kernels
    place = forward.names.index("w2_tma")
    bases = [plain(arguments[place])[0] for name, _, arguments in launches if name == "forward"]
    assert bases == [inputs.w2.data_ptr() for inputs in (*modules, *modules)]


def test_few_descriptors_are_kept(monkeypatch):
    monkeypatch.setattr(kernels, "MOST_DESCRIPTORS", 4)
    one, (x, ids, weights, w13, w2) = layer(), args_of()
    for _ in range(10):
        w13 = w13.clone()
        one(x, ids, weights, w13, w2)
    assert all(len(each._descriptors) <= 4 for each in next(iter(one.calls._known.values())).prepared.launches)


# -- what is done again ------------------------------------------------------------------------------------------------


class Dispatched(TorchDispatchMode):
    """The operators of PyTorch that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_call_allocates_its_plan_and_its_output_and_does_nothing_else():
    one, args = layer(), args_of()
    one(*args)
    with Dispatched() as dispatched:
        one(*args)
    assert dispatched.names == ["aten.empty.memory_format"] * 2


def test_a_call_takes_few_steps():
    """However many modules the process has called before."""
    one, args = layer(), args_of()
    for number in range(300):
        forward = replace(one._default.kernels, source=f"# {number}")
        workspace_of(torch.device("cpu")).record_of(replace(one._default, kernels=forward))
    for _ in range(3):
        one(*args)
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        one(*args)
    finally:
        sys.setprofile(None)
    assert sum(event in ("call", "c_call") for event in events) < MOST_FUNCTION_CALLS


def test_sizes_are_worked_out_once(monkeypatch):
    made = []
    plain_layout = launch.make_layout
    monkeypatch.setattr(launch, "make_layout", lambda *args: made.append(args[1].tokens) or plain_layout(*args))
    one = layer()
    for tokens in (40, 8, 40, 8, 40):
        one(*args_of(tokens))
    assert made == [(40,), (8,)]


def test_few_sizes_are_remembered(monkeypatch):
    monkeypatch.setattr(calls, "MOST_KNOWN", 3)
    one = layer()
    for tokens in (1, 2, 3, 4, 5, 4, 3):
        one(*args_of(tokens))
        assert len(one.calls._known) <= 3


def test_copies_are_made_on_each_call(launches):
    """Router weights in bf16 are widened."""
    one, args = layer(), args_of()
    args[2] = args[2].bfloat16()
    for _ in range(2):
        with Dispatched() as dispatched:
            one(*args)
        assert dispatched.names.count("aten._to_copy.default") == 1


def test_kernels_are_not_built_during_a_capture():
    one, args = layer(), args_of()
    one(*args)
    (each, *_) = next(iter(one.calls._known.values())).prepared.launches
    tensors = [torch.zeros(4096, dtype=torch.int64) for _ in range(20)]
    each._ready.clear()
    each.run(Memories.of(tensors, 1, True))  # it is built: only the size is new
    each._ready.clear()
    each.kernel.variants.clear()
    with pytest.raises(uniep.UniepError, match="`plan_count` would have to be built while a CUDA graph") as caught:
        each.run(Memories.of(tensors, 1, True))
    assert caught.value.codes == ("UEP0607",)


def test_the_benchmark_of_the_host_runs(capsys):
    assert host.main(["--device", "stub", "--calls", "1", "--repeats", "1"]) == 0
    names = [line[:28].strip() for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["empty", "call"]
    assert {"operator", "call, new number of tokens"} < set(names)
