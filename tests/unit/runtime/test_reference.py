"""The reference: it takes the arguments that a layer takes, in any dtype, and refuses those that a layer refuses."""

from __future__ import annotations

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import Shape, compile_layer, make_inputs

SHAPE = Shape(tokens=5, experts=4, topk=2)


def call(**changes):
    """What the layer and its reference say of such arguments."""
    layer, args = compile_layer(SHAPE, "cpu"), make_inputs(SHAPE, "cpu").but(**changes).args
    said = []
    for function in (layer, layer.reference):
        with pytest.raises(uniep.UniepError) as caught:
            function(*args)
        said.append(caught.value)
    return said


def test_an_id_of_no_expert_is_refused():
    for wrong in (50, 4, -2, -7):
        ids = make_inputs(SHAPE, "cpu").ids.clone()
        ids[2, 1] = wrong
        for error in call(ids=ids):
            assert error.codes == ("UEP0603",)
            assert f"expert id {wrong} of token 2, route 1" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: {"ids": inputs.ids[:4]},
        lambda inputs: {"x": inputs.x[:4]},
        lambda inputs: {"ids": inputs.ids[0]},
        lambda inputs: {"ids": inputs.ids.float()},
        lambda inputs: {"ids": inputs.ids.bool()},
        lambda inputs: {"x": inputs.x.long()},
        lambda inputs: {"x": inputs.x.to("meta")},
        lambda inputs: {"x": None},
    ],
)
def test_what_does_not_fit_is_refused(change):
    assert [error.codes for error in call(**change(make_inputs(SHAPE, "cpu")))] == [("UEP0601",), ("UEP0601",)]


def test_any_dtype_will_do():
    layer, inputs = compile_layer(SHAPE, "cpu"), make_inputs(SHAPE, "cpu")
    doubles = [arg.double() if arg.is_floating_point() else arg for arg in inputs.args]
    exact = layer.reference(*doubles, dtype=torch.float64)
    assert exact.dtype is torch.float64
    assert torch.equal(exact, layer.reference(*inputs.args, dtype=torch.float64))
