"""What a layer says of itself, and of what is no program."""

from __future__ import annotations

import pytest
import torch

import uniep_compiler as uniep

DIMS = {"H": 64, "I": 32, "E": 8, "K": 2}


@pytest.mark.parametrize("given", ["examples/qwen3_moe.uniep", None, 3])
def test_only_parsed_programs_are_compiled(given):
    with pytest.raises(uniep.UniepError, match=r"(?s)UEP0601.*not \w+\n.*parse it first: .*parse_file"):
        uniep.compile(given, dims=DIMS)


def test_a_layer_says_what_it_is():
    program = uniep.parse_file("examples/qwen3_moe.uniep")
    one = uniep.compile(program, dims=DIMS, target="sm_90")
    group = uniep.compile(program, dims=DIMS, target="cpu", group=uniep.virtual_group(2))
    assert repr(one) == "<Layer qwen3_moe for sm_90: E=8, H=64, I=32, K=2>"
    assert repr(group) == "<Layer qwen3_moe for cpu: E=8, H=64, I=32, K=2, 2 ranks>"


@pytest.mark.parametrize("tokens", ["x", None, -1, 2.5, True, [1.0], ["a"], [1, 2], [], [-1]], ids=repr)
def test_what_is_no_number_of_tokens(tokens):
    layer = uniep.compile(uniep.parse_file("examples/qwen3_moe.uniep"), dims=DIMS, target="cpu")
    with pytest.raises(uniep.UniepError, match="is not a number of tokens"):
        layer.memory(tokens)
    with pytest.raises(uniep.UniepError, match="is not a number of tokens"):
        layer.rows_bound(tokens)


def test_what_the_reference_refuses():
    layer = uniep.compile(uniep.parse_file("examples/qwen3_moe.uniep"), dims=DIMS, target="cpu")
    tensors = [torch.zeros(1)] * 5
    for args, options, message in [
        (tensors[:1], {}, "takes 5 arguments"),
        ([tensors[0], [[0]], *tensors[2:]], {}, "`experts` has to be Tensor, not list"),
        (tensors, {"dtype": "f32"}, "dtype has to be a floating-point torch.dtype, not 'f32'"),
        (tensors, {"dtype": torch.int32}, "not torch.int32"),
    ]:
        with pytest.raises(uniep.UniepError, match=message):
            layer.reference(*args, **options)
