"""What a call takes of memory, as reported and as it is."""

from __future__ import annotations

import threading

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, compile_layer, make_inputs
from uniep_compiler.codegen.state_layout import STATE_WORDS
from uniep_compiler.runtime.memory import Use
from uniep_compiler.runtime.workspace import workspace_of

SHAPE = Shape(tokens=40, experts=4, topk=2, hidden=16, inner=24)


def empty_workspace():
    workspace = workspace_of(torch.device("cpu"))
    workspace.arena, workspace.board = torch.empty(0, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)


def test_outputs_and_rows_of_a_local_layer():
    report = compile_layer(SHAPE, "cpu", dtype="bf16").memory(40)
    found = {buffer.name: (buffer.use, buffer.shape, buffer.num_bytes) for buffer in report.buffers}
    assert found["out"] == (Use.OUTPUT, (40, 16), 40 * 16 * 2)
    assert found["a"] == (Use.WORKSPACE, (80, 24), 80 * 24 * 2)
    assert found["y"] == (Use.WORKSPACE, (80, 16), 80 * 16 * 2)
    assert found["row_of"] == (Use.PLAN, (80,), 80 * 4)
    assert found["state"] == (Use.WORKSPACE, (STATE_WORDS,), STATE_WORDS * 8)
    assert report.output_bytes == 40 * 16 * 2
    assert report.total_bytes == report.output_bytes + report.plan_bytes + report.workspace_bytes
    assert set(found) == {buffer.name for buffer in report.buffers}


@pytest.mark.parametrize("ranks", [None, 3])
def test_a_call_takes_what_is_reported(ranks):
    """The first call on a new workspace makes it as large as the call needs, and a little larger."""
    layer, inputs = compile_layer(SHAPE, "cpu", ranks=ranks), make_inputs(SHAPE, "cpu")
    tokens = 40 if ranks is None else [13, 0, 27]
    report = layer.memory(tokens)
    sizes = {}

    def work():
        empty_workspace()  # it may be that of a thread which had this thread's number
        outs = layer(*(inputs.args if ranks is None else inputs.split(tokens, layer.placement)))
        workspace = workspace_of(torch.device("cpu"))
        sizes["workspace"] = workspace.arena.numel() + 8 * (workspace.board.numel() + workspace.state.numel())
        sizes["output"] = sum(out.nbytes for out in ([outs] if ranks is None else outs))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert sizes["output"] == report.output_bytes
    assert report.workspace_bytes <= sizes["workspace"] <= report.workspace_bytes * 9 / 8 + 4096


def test_routes_keep_their_plan():
    text = SWIGLU.replace("-> bf16[T, H] {", "-> routes[T, K, E], bf16[T, H] {").replace("return ", "return r, ")
    layer = compile_layer(SHAPE, "cpu", text=text)
    routes, _ = layer(*make_inputs(SHAPE, "cpu").args)
    assert routes.plan.storage.nbytes == layer.memory(40).plan_bytes


def test_no_gpu_is_needed_to_ask():
    layer = uniep.compile(uniep.parse(SWIGLU), dims=SHAPE.dims, target="sm_90")
    assert layer.memory(8192).output_bytes == 8192 * 16 * 2
    assert layer.memory(0).output_bytes == 0


def test_a_report_is_a_table():
    text = str(compile_layer(SHAPE, "cpu", dtype="bf16").memory(4096))
    assert text.startswith("memory of a call with 4096 tokens: ")
    assert "    out                               128.0 KiB   bfloat16[4096, 16]" in text.splitlines()
    assert "4096 + 1 tokens" in str(compile_layer(SHAPE, "cpu", ranks=2).memory((4096, 1)))


@pytest.mark.parametrize(("ranks", "tokens"), [(None, [1, 2]), (None, -1), (2, 5), (2, [1]), (2, [1, -1])])
def test_tokens_that_cannot_be(ranks, tokens):
    with pytest.raises(uniep.UniepError, match="is not a number of tokens for each of"):
        compile_layer(SHAPE, "cpu", ranks=ranks).memory(tokens)
