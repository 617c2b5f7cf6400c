"""Every program in examples/: it computes what a loop over routes in PyTorch does."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import DTYPES, TOLERANCE, relative_error
from tests.unit.test_programs import DIMS, arguments, in_pytorch
from uniep_compiler.frontend.lower import lower
from uniep_compiler.programs import ExpertsForm
from uniep_compiler.runtime.reference import run_reference
from uniep_compiler.runtime.trial import random_arguments

FOLDER = Path(__file__).parents[2] / "examples"

SAME_AS = {
    "gpt_oss": ExpertsForm(limit=7.0, alpha=1.702, up_offset=1.0, bias=True, layout="kn", split="interleaved"),
    "megatron": ExpertsForm(weight_on="activation"),
    "mixtral": ExpertsForm(),
    "qwen3_moe": ExpertsForm(),
    "relu2": ExpertsForm(gated=False, activation="relu2"),
    "torchtitan": ExpertsForm(separate_gate=True, weight_on="input"),
}
"""What each whole layer is, in options."""

OWN = {"bottleneck"}
"""Layers that options cannot make; each has a test of its own."""

PARTS = {"dispatch_gemm", "gemm_combine"}
"""Parts of layers; test_parts.py puts them together."""


def program(name):
    return uniep.parse_file(FOLDER / f"{name}.uniep")


def sizes(name):
    """Small dims; some examples want multiples of 16."""
    return {**DIMS, "H": 32, "I": 16}


def large(args):
    """The same with tokens that reach the limits of clamps."""
    return [args[0] * 8, *args[1:]]


def test_every_example_is_here():
    assert {path.stem for path in FOLDER.glob("*.uniep")} == {*SAME_AS, *OWN, *PARTS}


@pytest.mark.parametrize("name", SAME_AS)
def test_it_says_what_its_comment_says(name):
    args = large(arguments(SAME_AS[name], torch.float64, sizes(name)))
    expected = in_pytorch(SAME_AS[name], *args)
    assert relative_error(reference(name, args), expected) < 1e-12


def reference(name, args):
    ops = lower(program(name))
    given = dict(zip((param.name for param in ops.params), args, strict=True))
    return run_reference(ops, sizes(name), given, torch.float64)[0]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", SAME_AS)
def test_kernels_compute_it(name, dtype, device):
    layer = uniep.compile(program(name), dims=sizes(name), target=device, dtype=dtype, debug=True)
    args = large(arguments(SAME_AS[name], DTYPES[dtype], sizes(name)))
    args[2] = args[2].float()
    out = layer(*(arg.to(device) for arg in args)).cpu()
    expected = in_pytorch(SAME_AS[name], *(arg.double() if arg.is_floating_point() else arg for arg in args))
    assert out.dtype == DTYPES[dtype]
    assert relative_error(out, expected) <= TOLERANCE[dtype]


def bottleneck(x, ids, weights, w0, w13, b13, w2):
    """What examples/bottleneck.uniep says, as a loop over routes."""
    out = torch.zeros_like(x)
    for token, k in product(range(x.shape[0]), range(ids.shape[1])):
        expert = int(ids[token, k])
        if expert >= 0:
            gate, up = (w13[expert] @ (w0[expert] @ x[token]) + b13[expert]).chunk(2)
            out[token] += weights[token, k] * (w2[expert] @ (torch.tanh(gate) * (up + 1)))
    return out


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_three_gemms_with_a_bias_and_a_gate_of_its_own(ranks, dtype, device):
    dims = {"H": 48, "R": 20, "I": 36, "E": 4, "K": 2}
    group = None if ranks is None else uniep.virtual_group(ranks)
    layer = uniep.compile(program("bottleneck"), dims=dims, target=device, dtype=dtype, group=group, debug=True)
    args = list(random_arguments(layer, 13, seed=0).values())
    args[1][3, 0] = -1
    expected = bottleneck(*(arg.double() if arg.is_floating_point() else arg for arg in args))
    assert relative_error(layer.reference(*args, dtype=torch.float64), expected) < 1e-12
    if ranks:
        parts = [(6, 7)] * 3 + [layer.placement] * 4
        args = [list(arg.split(list(sizes))) for arg, sizes in zip(args, parts, strict=True)]
    out = torch.cat(layer(*args)) if ranks else layer(*args)
    assert out.dtype == DTYPES[dtype]
    assert relative_error(out, expected) <= TOLERANCE[dtype]
