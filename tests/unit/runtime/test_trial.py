"""A trial tells right layers from wrong ones, and random inputs are what a layer takes."""

from __future__ import annotations

import pytest
import torch

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.parse import parse
from uniep_compiler.runtime.layer import Layer
from uniep_compiler.runtime.layer import compile as compile_layer
from uniep_compiler.runtime.trial import num_tokens, random_arguments, try_layer
from uniep_compiler.transports.virtual import virtual_group

PROGRAM = """
uniep 1
moe small(x : f32[T, H], experts : i32[T, K], weights : f32[T, K], w : f32[E, N, H]) -> f32[T, N] {
    return combine(group_gemm(dispatch(x, experts), w), weights)
}
"""
DIMS = {"H": 16, "N": 32, "E": 5, "K": 3}


@pytest.fixture
def layer():
    return compile_layer(parse(PROGRAM), dims=DIMS, target="cpu")


def test_random_arguments_are_what_the_layer_takes(layer):
    made = random_arguments(layer, 7, seed=3)
    assert {name: tuple(value.shape) for name, value in made.items()} == {
        "x": (7, 16),
        "experts": (7, 3),
        "weights": (7, 3),
        "w": (5, 32, 16),
    }
    assert made["experts"].dtype == torch.int32
    assert all(len(set(row)) == 3 and 0 <= min(row) <= max(row) < 5 for row in made["experts"].tolist())
    torch.testing.assert_close(made["weights"].sum(dim=1), torch.ones(7))
    again, other = random_arguments(layer, 7, seed=3), random_arguments(layer, 7, seed=4)
    assert all(torch.equal(made[name], again[name]) for name in made)
    assert not torch.equal(made["x"], other["x"])


def test_a_right_layer_is_right_on_one_rank_and_on_several(layer):
    group = compile_layer(parse(PROGRAM), dims=DIMS, target="cpu", group=virtual_group(3))
    arguments = random_arguments(layer, 7, seed=0)
    trials = [try_layer(one, arguments) for one in (layer, group)]
    assert all(trial.ok for trial in trials)
    assert len({trial.results[0].sha256 for trial in trials}) == 1
    assert trials[0].results[0].relative_error < 1e-6


PARTS = """
uniep 1
moe first(x : f32[T, H], experts : i32[T, K], w : f32[E, N, H]) -> routes[T, K, E], f32[rows(r), N], i32[E] {
    r = route(experts)
    h = group_gemm(dispatch(x, r), w)
    return r, h, counts(r)
}
moe second(r : routes[T, K, E], h : f32[rows(r), N], w : f32[E, H, N]) -> f32[T, H], f32[rows(r), H] {
    y = group_gemm(h, w)
    return combine(y), y
}
"""


@pytest.mark.parametrize("name", ["first", "second"])
def test_parts_of_layers_are_tried_on_one_rank_and_on_several(name):
    """Routes, rows and counts are compared as one big rank has them, and have the same bits for all ranks."""
    digests = set()
    for group in (None, virtual_group(1), virtual_group(3)):
        layer = compile_layer(parse(PARTS)[name], dims=DIMS, target="cpu", group=group, schedule={"block": 4})
        trial = try_layer(layer, random_arguments(layer, 7, seed=0))
        assert len(trial.results) == 2
        assert trial.ok
        digests.add(tuple(result.sha256 for result in trial.results))
    assert len(digests) == 1


@pytest.mark.parametrize("wrong", ["rows", "a tail", "the counts of one rank"])
def test_what_is_wrong_on_one_rank_is_seen(monkeypatch, wrong):
    layer = compile_layer(parse(PARTS)["first"], dims=DIMS, target="cpu", group=virtual_group(2))
    arguments, right = random_arguments(layer, 7, seed=0), Layer.__call__

    def spoiled(self, *args):
        routes, rows, counts = right(self, *args)
        row, value = {"rows": (0, 1.0), "a tail": (-1, 1.0)}.get(wrong, (0, 0.0))
        rows[1][row, 0] += value
        counts[1][0] += wrong == "the counts of one rank"
        return routes, rows, counts

    monkeypatch.setattr(Layer, "__call__", spoiled)
    assert [result.ok for result in try_layer(layer, arguments).results] == [wrong[0] == "t", wrong[0] != "t"]


class Fake:
    """A layer that answers with what it is given, in turn."""

    def __init__(self, layer, *answers):
        self.answers = list(answers)
        self.ops, self.dims, self.group, self.placement = layer.ops, layer.dims, None, layer.placement
        self.device, self.reference, self.check = layer.device, layer.reference, layer.check

    def __call__(self, *_):
        return self.answers.pop(0)


def test_wrong_numbers_other_bits_and_nan_are_seen(layer):
    arguments = random_arguments(layer, 7, seed=0)
    right = layer(*arguments.values())
    nan = right.clone()
    nan[0, 0] = torch.nan
    flipped = right.clone()
    flipped.view(torch.int32)[3, 3] ^= 1
    assert try_layer(Fake(layer, right, right.clone()), arguments).ok
    assert not try_layer(Fake(layer, right * 1.01, right * 1.01), arguments).ok
    assert not try_layer(Fake(layer, nan, nan.clone()), arguments).ok
    (result,) = try_layer(Fake(layer, right, flipped), arguments).results
    assert not result.same_bits
    assert not result.ok


def test_arguments_that_do_not_fit_are_refused(layer):
    arguments = random_arguments(layer, 7, seed=0)
    with pytest.raises(UniepError, match="`w` has shape"):
        try_layer(layer, {**arguments, "w": arguments["w"][:, :-1]})


def test_the_number_of_tokens_is_found(layer):
    arguments = random_arguments(layer, 7, seed=0)
    assert num_tokens(layer, arguments) == 7
    assert num_tokens(layer, {"w": arguments["w"]}) is None
