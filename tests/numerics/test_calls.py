"""Calls in a row: other sizes, other layers, other threads, and what a call that failed leaves behind."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import traceback
import warnings
from dataclasses import replace

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import (
    SWIGLU,
    Allocations,
    Shape,
    assert_same_bits,
    call,
    compile_layer,
    make_inputs,
    random_ids,
    run,
)
from uniep_compiler.codegen import state_layout
from uniep_compiler.runtime.workspace import workspace_of

SMALL = Shape(tokens=5, experts=3, topk=2)
WIDE = Shape(tokens=33, experts=6, topk=2, hidden=40, inner=20)


def test_growing_and_shrinking(device):
    """Each size gives what it gives on its own, whatever the workspace held before."""
    layer = compile_layer(WIDE, device)
    sizes = (5, 50, 0, 3, 50, 33)
    shapes = [replace(WIDE, tokens=tokens) for tokens in sizes]
    inputs = [make_inputs(s, device, seed=i, ids=random_ids(s, i)) for i, s in enumerate(shapes)]
    together = [run(layer, one) for one in inputs]
    for one, out in zip(inputs, together, strict=True):
        assert_same_bits(run(layer, one), out)
        assert_same_bits(run(compile_layer(WIDE, device, fuse="none"), one), out)


def test_two_layers_in_turn(device):
    small, wide = compile_layer(SMALL, device, dtype="bf16"), compile_layer(WIDE, device)
    group = compile_layer(WIDE, device, ranks=2)
    few, many = make_inputs(SMALL, device, dtype="bf16"), make_inputs(WIDE, device)
    alone, expected = run(small, few), run(wide, many)
    for _ in range(3):
        assert_same_bits(run(wide, many), expected)
        assert_same_bits(run(small, few), alone)
        assert_same_bits(run(group, many), expected)


def test_results_are_new_tensors_and_arguments_stay(device):
    layer, inputs = compile_layer(WIDE, device), make_inputs(WIDE, device)
    before = [value.clone() for value in inputs.args]
    first = call(layer, *inputs.args)
    kept = first.clone()
    second = call(layer, *make_inputs(WIDE, device, seed=2).args)
    assert_same_bits(first, kept)
    pointers = {value.untyped_storage().data_ptr() for value in (first, second, *inputs.args)}
    assert len(pointers) == 7
    assert all(torch.equal(value, old) for value, old in zip(inputs.args, before, strict=True))


def test_threads(device):
    """Layers are called from several threads at once; each gets its own results."""
    layers = [compile_layer(WIDE, device), compile_layer(SMALL, device), compile_layer(WIDE, device, ranks=2)]
    cases = [(layer, make_inputs(SMALL if i == 1 else WIDE, device, seed=i)) for i, layer in enumerate(layers)]
    expected = [run(layer, inputs) for layer, inputs in cases]
    found: dict[int, list[torch.Tensor]] = {}

    def work(place):
        layer, inputs = cases[place]
        args = inputs.args if layer.group is None else inputs.split([30, 3], layer.placement)
        results = [layer(*args) for _ in range(3)]
        found[place] = [out if layer.group is None else torch.cat(out) for out in results]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, out in enumerate(expected):
        for other in found[place]:
            assert_same_bits(other, out)


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [3, -2, 2**31 - 1, -(2**31)])
def test_an_id_out_of_range(device, bad, dtype, ranks):
    """The error has the numbers, outputs are NaN, and the next call is right."""
    layer, inputs = compile_layer(SMALL, device, ranks=ranks), make_inputs(SMALL, device)
    expected = run(layer, inputs)
    ids = inputs.ids.to(dtype, copy=True)
    ids[3, 1] = bad
    with Allocations() as made, pytest.raises(uniep.UniepError) as caught:
        run(layer, inputs.but(ids=ids), [2, 3])
    assert caught.value.codes == ("UEP0603",)
    place = "token 3, route 1 (rank 0)" if ranks is None else "token 1, route 1 (rank 1)"
    assert f"expert id {bad} of {place} is out of range: there are 3 experts" in str(caught.value)
    assert [bool(out.isnan().all()) for out in made.outputs] == [True]
    for _ in range(3):
        assert_same_bits(run(layer, inputs), expected)


ROUTES_ALONE = """
uniep 1

moe only(experts : i32[T, K], _w : bf16[E, H, I]) -> routes[T, K, E] {
    r = route(experts)
    return r
}
"""


@pytest.mark.parametrize("ranks", [None, 2])
def test_an_id_out_of_range_in_a_layer_that_only_routes(device, ranks):
    """There is no task that could look at the abort flag: the kernel that ends the call lowers it all the same."""
    only, layer = compile_layer(SMALL, device, dtype=None, ranks=ranks, text=ROUTES_ALONE), compile_layer(SMALL, device)
    inputs = make_inputs(SMALL, device)
    expected, weights = run(layer, inputs), inputs.w2.bfloat16()

    def routes_of(ids):
        if ranks is None:
            return [only(ids, weights)]
        return only(list(ids.split([2, 3])), [weights, weights])  # what no op reads is replicated

    good = torch.cat([routes.row_of for routes in routes_of(inputs.ids)])
    bad = inputs.ids.clone()
    bad[3, 1] = 99
    for _ in range(3):
        with pytest.raises(uniep.UniepError, match="expert id 99 of token"):
            routes_of(bad)
        assert torch.equal(torch.cat([routes.row_of for routes in routes_of(inputs.ids)]), good)
        with pytest.raises(uniep.UniepError, match="expert id 99 of token"):
            routes_of(bad)
        assert_same_bits(run(layer, inputs), expected)


@pytest.mark.parametrize("bad", [2**32, 2**32 + 1, -(2**32) - 1])
def test_a_long_id_is_not_cut_to_32_bits(device, bad):
    layer, inputs = compile_layer(SMALL, device), make_inputs(SMALL, device)
    ids = inputs.ids.long()
    ids[0, 0] = bad
    with pytest.raises(uniep.UniepError, match=f"expert id {bad} of token 0, route 0"):
        run(layer, inputs.but(ids=ids))


@pytest.mark.parametrize("fuse", ["layer", "none"])
def test_a_bad_id_stops_every_launch(device, fuse):
    layer, inputs = compile_layer(SMALL, device, fuse=fuse), make_inputs(SMALL, device)
    expected = run(layer, inputs)
    with Allocations() as made, pytest.raises(uniep.UniepError):
        run(layer, inputs.but(ids=inputs.ids + 2))
    assert [bool(out.isnan().all()) for out in made.outputs] == [True]
    assert_same_bits(run(layer, inputs), expected)


def test_a_call_after_wrong_arguments(device):
    layer, inputs = compile_layer(SMALL, device), make_inputs(SMALL, device)
    expected = run(layer, inputs)
    with pytest.raises(uniep.UniepError):
        run(layer, inputs.but(x=inputs.x.double()))
    assert_same_bits(run(layer, inputs), expected)


def test_a_call_that_breaks_off_between_launches(device):
    """Whatever stops a call half way, the next one starts from a clean state."""
    layer, inputs = compile_layer(SMALL, device, fuse="none"), make_inputs(SMALL, device)
    expected = run(layer, inputs)
    head = re.compile(r'def reduce_out\((?:.|\n)*?\):\n    """.*?"""\n')
    source, count = head.subn(lambda found: found[0] + "    nobody_knows(index)\n", layer._default.kernels.source)
    assert count == 1
    broken = copy.copy(layer)
    broken._default = replace(layer._default, kernels=replace(layer._default.kernels, source=source))
    for _ in range(3):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - Triton's own; compiled, it names the caller's line first
            run(broken, inputs)
        assert "nobody_knows" in "".join(traceback.format_exception(raised.value))
        assert_same_bits(run(layer, inputs), expected)


def test_an_error_is_told_by_the_layer_that_made_it(device):
    """A record that shows up late, in another layer's call, still speaks of its own layer."""
    text = SWIGLU.replace("moe layer(", "moe other(")
    mine, other = compile_layer(SMALL, device), compile_layer(SMALL, device, text=text, fuse="none")
    inputs = make_inputs(SMALL, device)
    run(mine, inputs)
    record = workspace_of(mine.device).record_of(mine._default)
    families = [family.name for family in mine.graph.families]
    record[state_layout.ERROR_FAMILY] = families.index("gemm_y")
    record[state_layout.ERROR_KIND] = int(state_layout.ErrorKind.HANG)
    with pytest.raises(uniep.HangError, match=r"task 0 of `gemm_y` on rank 0 waited for signal `a_ready\[0\]`"):
        run(other, inputs)
    run(other, inputs)
    mine.check()


def test_copies_and_pickles_work(device):
    layer, inputs = compile_layer(SMALL, device), make_inputs(SMALL, device)
    expected = run(layer, inputs)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same_bits(run(other, inputs), expected)


def test_nothing_warns(interpreter):
    """NaN, infinities and overflow are values, not warnings; and no numpy that is deprecated is used."""
    layer, inputs = compile_layer(SMALL, interpreter, ranks=2, relay="gather"), make_inputs(SMALL, interpreter)
    x = inputs.x * 1e38
    x[0, 0] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(layer, inputs.but(x=x))
        run(compile_layer(SMALL, interpreter), inputs.but(x=x))
