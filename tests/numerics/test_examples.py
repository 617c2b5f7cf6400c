"""Every program in examples/: it computes what a loop over routes in PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import DTYPES, TOLERANCE, relative_error
from tests.unit.test_programs import DIMS, arguments, in_pytorch
from uniep_compiler.frontend.lower import lower
from uniep_compiler.programs import ExpertsForm
from uniep_compiler.runtime.reference import run_reference

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
    assert {path.stem for path in FOLDER.glob("*.uniep")} == {*SAME_AS, *PARTS}


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
