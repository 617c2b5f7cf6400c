"""Calls in a row: what breaks off leaves nothing behind, and workspaces outlive modes of the caller."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import Shape, assert_same_bits, compile_layer, make_inputs
from uniep_compiler.codegen.state_layout import ERROR_KIND
from uniep_compiler.runtime import calls
from uniep_compiler.runtime.kernels import Launch
from uniep_compiler.runtime.workspace import RECORDS_PER_SHEET, Records, Workspace, workspace_of

SHAPE = Shape(tokens=5, experts=3, topk=2)


def in_new_thread(function):
    """Runs a function in a thread, and so in a workspace, of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_call_that_breaks_off_before_some_launch(monkeypatch, ranks, place):
    """Whatever stops a call half way, the next ones start from a clean state."""
    layer = compile_layer(SHAPE, "cpu", ranks=ranks, fuse="none")
    inputs = make_inputs(SHAPE, "cpu")
    args = inputs.args if ranks is None else inputs.split([2, 3], layer.placement)
    expected = layer(*args)
    launches = []
    run = Launch.run

    def break_off(self, memories):
        if len(launches) == place:
            raise KeyboardInterrupt
        launches.append(self)
        run(self, memories)

    for _ in range(3):
        launches.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Launch, "run", break_off)
            with pytest.raises(KeyboardInterrupt):
                layer(*args)
        assert all(map(torch.equal, layer(*args), expected))


def test_a_workspace_that_was_made_in_inference_mode(monkeypatch):
    layer, inputs = compile_layer(SHAPE, "cpu"), make_inputs(SHAPE, "cpu")
    expected = layer(*inputs.args)

    def work():
        with torch.inference_mode():
            first = layer(*inputs.args)
        with monkeypatch.context() as patch:
            patch.setattr(Launch, "run", interrupt)
            with pytest.raises(KeyboardInterrupt):
                layer(*inputs.args)
        return first.clone(), layer(*inputs.args)

    def interrupt(self, memories):
        raise KeyboardInterrupt

    for out in in_new_thread(work):
        assert_same_bits(out, expected)


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_workspace_of_inference_mode_after_a_bad_id(ranks):
    """What the first call makes outlives the mode: it can be cleared, and results have the same bits in any mode."""
    layer, inputs = compile_layer(SHAPE, "cpu", ranks=ranks), make_inputs(SHAPE, "cpu")

    def run(ids):
        given = inputs.but(ids=ids)
        return layer(*given.args) if ranks is None else torch.cat(layer(*given.split([2, 3], layer.placement)))

    expected, bad = run(inputs.ids), inputs.ids + 1

    def work():
        outs = []
        for inside in (True, False, True):
            with torch.inference_mode(inside):
                outs.append(run(inputs.ids).clone())
                with pytest.raises(uniep.UniepError, match="UEP0603"):
                    run(bad)
        workspace = workspace_of(torch.device("cpu"))
        made = (workspace.arena, workspace.board, workspace.state, *workspace.records._sheets)
        return [*outs, run(inputs.ids)], [tensor.is_inference() for tensor in made]

    outs, are_of_inference = in_new_thread(work)
    assert not any(are_of_inference)
    for out in outs:
        assert_same_bits(out, expected)


def test_a_reset_that_fails_is_not_hidden(monkeypatch):
    layer, inputs = compile_layer(SHAPE, "cpu"), make_inputs(SHAPE, "cpu")
    layer(*inputs.args)

    def fail(self, memories=None):
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Launch, "run", lambda self, memories: 1 / 0)
        patch.setattr(Workspace, "reset", fail)
        with pytest.raises(RuntimeError, match="the device is lost") as caught:
            layer(*inputs.args)
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_arguments_made_in_inference_mode():
    layer = compile_layer(SHAPE, "cpu")
    with torch.inference_mode():
        inputs = make_inputs(SHAPE, "cpu")
        inside = layer(*inputs.args)
    with torch.no_grad():
        assert_same_bits(layer(*inputs.args), inside.clone())


def test_a_workspace_never_shrinks_and_moves_only_to_grow():
    workspace = workspace_of(torch.device("cpu"))
    workspace.reserve(10_000, 100)
    before = workspace.arena.data_ptr(), workspace.board.data_ptr()
    workspace.reserve(10, 1)
    workspace.reserve(10_000, 100)
    assert (workspace.arena.data_ptr(), workspace.board.data_ptr()) == before
    size = workspace.arena.numel()
    workspace.reserve(size + 1, 100)
    assert workspace.arena.numel() > size + size // 8 - 1
    workspace.reserve(2**31, 100)
    assert workspace.arena.numel() <= 2**31 + 2**26
    workspace.arena = torch.empty(0, dtype=torch.uint8)


def captured_workspace(records):
    device, nothing = torch.device("cpu"), torch.empty(0, dtype=torch.int64)
    return Workspace(device=device, arena=nothing, board=nothing, state=nothing, records=records, captured=True)


def test_a_captured_call_has_memory_of_its_own():
    """Its state and its scoreboard are zeros that the graph itself writes; its error record outlives it."""
    compiled = compile_layer(SHAPE, "cpu")._default
    records = Records(torch.device("cpu"))
    records.make(compiled)
    workspaces = [captured_workspace(records) for _ in range(2)]
    for workspace in workspaces:
        workspace.reserve(1000, 10)
        assert workspace.arena.numel() == 1000
        assert workspace.board_capacity == 10
        assert not workspace.state.any()
        assert not workspace.board.any()
        assert workspace.board.data_ptr() % 16 == 0
        assert workspace.state.untyped_storage().data_ptr() == workspace.board.untyped_storage().data_ptr()
    first, second = workspaces
    assert first.state.data_ptr() != second.state.data_ptr()
    assert first.record_of(compiled) is second.record_of(compiled)


@pytest.mark.parametrize("options", [{}, {"fuse": "none"}, {"ranks": 2}], ids=str)
def test_captured_calls_give_the_same_bits(monkeypatch, options):
    """Here they run at once: what counts is that each begins with state and scoreboard of its own."""
    layer, inputs = compile_layer(SHAPE, "cpu", **options), make_inputs(SHAPE, "cpu")
    args = inputs.args if layer.group is None else inputs.split([2, 3], layer.placement)
    expected = layer(*args)
    records = workspace_of(torch.device("cpu")).records
    monkeypatch.setattr(calls, "workspace_of", lambda device: captured_workspace(records))
    for _ in range(3):
        assert all(map(torch.equal, layer(*args), expected))
    records = Records(torch.device("cpu"))
    with pytest.raises(uniep.UniepError, match="UEP0607"):
        layer(*args)


def test_records_of_many_modules():
    """Each module has one, which never moves; whoever looks finds those that are filled, in any sheet."""
    compiled = compile_layer(SHAPE, "cpu")._default
    modules = [
        replace(compiled, kernels=replace(compiled.kernels, source=f"# {i}")) for i in range(2 * RECORDS_PER_SHEET + 1)
    ]
    records = Records(torch.device("cpu"))
    made = [records.make(module) for module in modules]
    assert len({record.words.data_ptr() for record in made}) == len(modules)
    assert all(
        records.make(module) is record is records.find(module) for module, record in zip(modules, made, strict=True)
    )
    assert list(records.filled()) == []
    for place in (0, RECORDS_PER_SHEET, 2 * RECORDS_PER_SHEET):
        made[place].words[ERROR_KIND] = 2
    assert [record.compiled for record in records.filled()] == modules[::RECORDS_PER_SHEET]
    records.clear()
    assert list(records.filled()) == []


def test_several_layers_in_several_threads():
    """Each thread has a workspace of its own; layers, and what they know of their calls, are shared."""
    layers = [
        compile_layer(SHAPE, "cpu"),
        compile_layer(SHAPE, "cpu", fuse="none"),
        compile_layer(SHAPE, "cpu", ranks=2),
    ]
    inputs = make_inputs(SHAPE, "cpu")
    expected = layers[0](*inputs.args)
    outs = []

    def work(places):
        for place in places:
            if layers[place].group is None:
                outs.append(layers[place](*inputs.args))
            else:
                outs.append(torch.cat(layers[place](*inputs.split([1, 4], layers[place].placement))))

    threads = [threading.Thread(target=work, args=(places,)) for places in ([0, 1, 2], [2, 1, 0], [1, 1, 0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outs) == 9
    for out in outs:
        assert_same_bits(out, expected)
