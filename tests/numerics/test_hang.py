"""A schedule that waits for more than will ever come: who waited for what is told, and the next call works.

One worker runs all tasks in order, so that the first to give up is known on a GPU, too.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

import uniep_compiler as uniep
from tests.numerics.layers import Allocations, Shape, assert_same_bits, compile_layer, make_inputs, run
from uniep_compiler.codegen.emit import emit
from uniep_compiler.ir.index import Int

SHAPE = Shape(tokens=40, experts=3, topk=2)
SECONDS = 0.5


def broken(layer, name, change):
    """A copy of the layer with one family changed, past all proofs."""
    compiled = layer._default
    graph = compiled.schedule.graph
    families = tuple(change(family) if family.name == name else family for family in graph.families)
    schedule = replace(compiled.schedule, graph=replace(graph, families=families))
    other = copy.copy(layer)
    other._default = replace(compiled, schedule=schedule, kernels=emit(schedule, compiled.settings, compiled.ops))
    return other


def waits_for_one_more(family):
    first, *others = family.waits
    return replace(family, waits=(replace(first, target=first.target + Int(1)), *others))


def loses_its_posts(family):
    return replace(family, posts=())


@pytest.mark.parametrize(
    ("ranks", "options", "family", "signal", "line"),
    [
        (None, {}, "gemm_y", "a_ready", 16),
        (None, {}, "reduce_out", "y_ready", 17),
        (None, {"relay": "copy"}, "gemm_a", "xs_ready", 13),
        (None, {"relay": "off", "fuse": "pairs"}, "gemm_a", "xs_ready", 13),
        (2, {}, "relay_xs", "xs_arrived_ready", 12),
        (2, {}, "push_y", "y_ready", 17),
        (2, {"relay": "gather"}, "gemm_a", "xs_arrived_ready", 13),
        (2, {"fuse": "pairs"}, "push_y", "y_ready", 17),
    ],
)
def test_a_wait_that_never_ends(device, ranks, options, family, signal, line):
    layer = compile_layer(SHAPE, device, ranks=ranks, timeout=SECONDS, workers=1, **options)
    inputs = make_inputs(SHAPE, device)
    expected = run(layer, inputs)
    with Allocations() as made, pytest.raises(uniep.HangError) as caught:
        run(broken(layer, family, waits_for_one_more), inputs)
    message = str(caught.value)
    pattern = (
        rf"error\[UEP0602\]: task (\d+) of `{family}` on rank ([01]) waited for signal `{signal}\[(\d+)\]` "
        r"to reach (\d+), and saw (\d+) at last\n"
    )
    task, rank, place, wanted, seen = map(int, re.match(pattern, message).groups())
    assert wanted == seen + 1
    assert rank < (ranks or 1)
    assert task >= place
    assert f"\n{line} | " in message
    assert f"`{family}` stands for this" in message
    assert [bool(out.isnan().all()) for out in made.outputs] == [True]
    for _ in range(3):
        assert_same_bits(run(layer, inputs), expected)


@pytest.mark.parametrize(
    ("ranks", "options", "family", "waiting", "signal"),
    [
        (None, {}, "gemm_y", "reduce_out", "y_ready"),
        (2, {}, "push_y", "reduce_out", "y_returned_ready"),
        (2, {"relay": "off"}, "send_xs", "gemm_a", "xs_ready"),
    ],
)
def test_posts_that_are_lost(device, ranks, options, family, waiting, signal):
    layer = compile_layer(SHAPE, device, ranks=ranks, timeout=SECONDS, workers=1, **options)
    inputs = make_inputs(SHAPE, device)
    expected = run(layer, inputs)
    pattern = rf"`{waiting}` on rank \d waited for signal `{signal}\[\d+\]` to reach \d+, and saw 0 at last"
    with pytest.raises(uniep.HangError, match=pattern):
        run(broken(layer, family, loses_its_posts), inputs)
    assert_same_bits(run(layer, inputs), expected)


def test_hangs_in_a_row_between_calls_that_work(device):
    layer = compile_layer(SHAPE, device, timeout=SECONDS)
    inputs = make_inputs(SHAPE, device)
    expected = run(layer, inputs)
    stuck = broken(layer, "gemm_y", waits_for_one_more)
    for pause in (0, 1, 2, 0):
        with pytest.raises(uniep.HangError):
            run(stuck, inputs)
        for _ in range(pause):
            assert_same_bits(run(layer, inputs), expected)
    assert_same_bits(run(layer, inputs), expected)
