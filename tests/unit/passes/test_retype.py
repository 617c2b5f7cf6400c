from __future__ import annotations

import re

import pytest

from tests.modules import LAYER
from tests.programs import SUPPORTED
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.ops_text import print_ops
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.retype import retype

FP32 = LAYER.replace("bf16", "f32")


def text_of(ops):
    """The graph as text, with unnamed values numbered in order."""
    numbers: dict[str, str] = {}
    return re.sub(r"\b_\d+\b", lambda found: numbers.setdefault(found[0], f"_{len(numbers) + 1}"), print_ops(ops))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("text", [LAYER, FP32], ids=["bf16", "f32"])
def test_it_is_the_program_with_another_header(text, dtype):
    """But for roundings of fp32 to fp32, which are none."""
    ops = lower(parse(text))
    made = text_of(retype(ops, DType(dtype)))
    expected = text_of(lower(parse(LAYER.replace("bf16", dtype))))
    if dtype == "f32" and text is LAYER:
        assert made.count("= round(") == expected.count("= round(") + 4
        assert "bf16" not in made
    else:
        assert made == expected


def test_the_same_dtype_changes_nothing():
    ops = lower(parse(LAYER))
    assert retype(ops, DType.BF16) is ops


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("name", SUPPORTED)
def test_router_weights_stay_fp32_and_everything_fits(name, dtype):
    ops = retype(lower(parse(SUPPORTED[name])), dtype)
    for param in ops.params:
        if param.name in ("weights", "gates"):
            assert param.type.dtype is DType.F32
    assert DType.BF16 not in {getattr(kind, "dtype", None) for kind in ops.types.values()} or name == "routing alone"
