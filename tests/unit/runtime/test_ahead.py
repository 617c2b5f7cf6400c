"""Kernels built ahead of time: they build for each architecture, and say what they take."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from uniep_compiler import compiler
from uniep_compiler.codegen.plan_view import NUM_WARPS as PLAN_WARPS
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse_file
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.passes.target import find_target
from uniep_compiler.runtime.ahead import compile_ahead, kernel_signature

EXAMPLE = Path(__file__).parents[3] / "examples" / "qwen3_moe.uniep"
DIMS = {"H": 64, "I": 64, "E": 8, "K": 2}


@cache
def compiled(target, ranks=None):
    program = parse_file(EXAMPLE)
    settings = compiler.make_settings(
        program,
        dims=DIMS,
        target=find_target(target),
        placement=balanced_placement(DIMS["E"], ranks or 1),
        local=ranks is None,
    )
    return compiler.build(lower(program), settings)


def test_hopper_kernels_use_its_units_and_spill_nothing():
    forward, count, place = compile_ahead(compiled("sm_90"))
    assert [(kernel.module, kernel.name) for kernel in (forward, count, place)] == [
        ("forward", "forward"),
        ("plan", "plan_count"),
        ("plan", "plan_place"),
    ]
    assert {count.num_warps, place.num_warps} == {PLAN_WARPS}  # those that calls launch
    assert "wgmma.mma_async" in forward.ptx
    assert "ttng.warp_group_dot" in forward.ttgir
    assert "HGMMA" in forward.sass()
    assert forward.shared_bytes > 16 * 1024
    for kernel in (forward, count, place):
        assert 16 <= kernel.num_registers <= 255
        assert kernel.spill_bytes == 0
        assert kernel.cubin.startswith(b"\x7fELF")


def test_code_for_one_architecture_can_be_built_for_another():
    (kernel,) = compile_ahead(compiled("sm_80"), find_target("sm_90"), modules=("forward",))
    assert ".target sm_90a" in kernel.ptx


def test_a_group_builds_on_older_and_newer_architectures():
    for target in ("sm_80", "sm_100"):
        (kernel,) = compile_ahead(compiled(target, 2), modules=("forward",))
        assert f".target {target}" in kernel.ptx


@pytest.mark.parametrize("ranks", [None, 2])
def test_every_argument_has_a_type(ranks):
    built = compiled("sm_90", ranks)
    signature = kernel_signature(built)
    assert tuple(signature) == built.kernels.view.arguments
    assert (signature["x_ptr"], signature["weights_ptr"]) == ("*bf16", "*fp32")
    assert (signature["state"], signature["time_limit"], signature["tiles_bound"]) == ("*i64", "i64", "i32")
    assert any(kind.startswith("tensordesc<bf16[") for kind in signature.values())


def test_the_interpreter_has_nothing_to_build():
    with pytest.raises(UniepError, match="UEP0604"):
        compile_ahead(compiled("cpu"))
