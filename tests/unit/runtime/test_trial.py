"""A trial tells right layers from wrong ones, and random inputs are what a layer takes."""

from __future__ import annotations

import pytest
import torch

from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.parse import parse
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
