"""What a layer says of itself, and of what is no program."""

from __future__ import annotations

import pytest

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
