"""The kernels of the examples, as text beside: `kernels/example.variant.kernel.py`.

`pytest --update-golden` rewrites the files that differ and then fails. A golden pins text, not truth: what the kernels
compute is tested in tests/numerics, and that they build in tests/unit/runtime.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.modules import backward_source, source

KERNELS = Path(__file__).parent / "kernels"
EXAMPLES = Path(__file__).parents[2] / "examples"

QWEN3 = {"H": 2048, "I": 768, "N": 1536, "E": 128, "K": 8}
DIMS = {
    "bottleneck": {"H": 4096, "R": 512, "I": 2048, "E": 64, "K": 6},
    "dispatch_gemm": QWEN3,
    "gemm_combine": QWEN3,
    "gpt_oss": {"H": 2880, "I": 2880, "E": 32, "K": 4},
    "megatron": {"H": 7168, "I": 2048, "E": 256, "K": 8},
    "mixtral": {"H": 4096, "I": 14336, "E": 8, "K": 2},
    "qwen3_moe": QWEN3,
    "relu2": {"H": 2688, "I": 1856, "E": 128, "K": 6},
    "torchtitan": {"H": 5120, "I": 8192, "E": 16, "K": 1},
}
"""Dims that the examples name."""

VARIANTS = {
    **{(example, target): {"target": target} for example, target in product(DIMS, ("cpu", "sm_90"))},
    ("qwen3_moe", "group"): {"target": "sm_90", "ranks": 2},
    ("qwen3_moe", "serial"): {"target": "sm_90", "fuse": "none"},
    ("qwen3_moe", "sm_80"): {"target": "sm_80"},
    ("gpt_oss", "backward"): {"target": "sm_90"},
    ("qwen3_moe", "backward"): {"target": "sm_90"},
    ("qwen3_moe", "backward.cpu"): {"target": "cpu"},
}


@pytest.mark.parametrize(("example", "variant"), VARIANTS)
def test_kernel_is_what_its_golden_file_holds(example, variant, request):
    path = KERNELS / f"{example}.{variant}.kernel.py"
    program = (EXAMPLES / f"{example}.uniep").read_text("utf-8")
    make = backward_source if variant.startswith("backward") else source
    text = make(program, dims=tuple(DIMS[example].items()), **VARIANTS[example, variant])
    if request.config.getoption("--update-golden") and (not path.exists() or path.read_text("utf-8") != text):
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"rewrote {path.name}: look at the difference, and run again")
    assert path.exists(), f"{path.name} is missing; --update-golden writes it"
    assert path.read_text("utf-8") == text


def test_every_example_has_its_kernels_and_no_golden_file_is_unused():
    assert {path.stem for path in EXAMPLES.glob("*.uniep")} == set(DIMS)
    used = {f"{example}.{variant}.kernel.py" for example, variant in VARIANTS}
    assert {path.name for path in KERNELS.iterdir()} == used
