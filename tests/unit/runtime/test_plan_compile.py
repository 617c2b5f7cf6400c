"""The plan's kernels, compiled ahead of time: they build for every architecture, and keep to their registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.plans import PlanCase
from uniep_compiler.codegen.plan_view import NUM_WARPS
from uniep_compiler.options import Order, Send
from uniep_compiler.runtime.modules import load_module

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    "ids": "*i64",
    "state": "*i64",
    "error": "*i64",
    "tokens": "i32",
    "blocks_bound": "i32",
    "tiles_bound": "i32",
}


def case(*, ranks, experts, topk, send=None, order=Order.PRIORITY):
    return PlanCase(ids=[[]] * ranks, experts=experts, topk=topk, tile_rows=128, send=send, order=order)


CASES = {
    "local": case(ranks=1, experts=128, topk=8),
    "few": case(ranks=1, experts=8, topk=2),
    "many": case(ranks=1, experts=1025, topk=8),
    "rank": case(ranks=8, experts=256, topk=8, send=Send.RANK),
    "route": case(ranks=2, experts=60, topk=4, send=Send.ROUTE, order=Order.FIFO),
    "all": case(ranks=4, experts=128, topk=8, send=Send.ALL),
}


def build(plan_case, kernel_name, capability):
    module = load_module(plan_case.source_for(interpret=False), "plan", interpret=False)
    kernel = getattr(module, kernel_name)
    signature = {name: TYPES.get(name, "*i32") for name in kernel.arg_names}
    if len(plan_case.ids) == 1:
        signature |= {"token_start": "constexpr", "expert_first": "constexpr"}
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind.startswith("*")
    }
    constants = {name: None for name, kind in signature.items() if kind == "constexpr"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": NUM_WARPS})


def resources(kernel, path):
    path.write_bytes(kernel.asm["cubin"])
    done = subprocess.run([CUOBJDUMP, "-res-usage", path], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", done.stdout)}


@pytest.mark.parametrize("kernel", ["plan_count", "plan_place"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_spilled_on_hopper(name, kernel, tmp_path):
    used = resources(build(CASES[name], kernel, 90), tmp_path / "kernel.cubin")
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    assert 0 < used["REG"] <= 255


@pytest.mark.parametrize("capability", [80, 100])
@pytest.mark.parametrize("kernel", ["plan_count", "plan_place"])
def test_other_architectures_build(kernel, capability):
    assert f".target sm_{capability}" in build(CASES["rank"], kernel, capability).asm["ptx"]


def test_places_are_taken_between_barriers():
    """Load, barrier, add, barrier: neither Triton nor LLVM may reorder these."""
    text = build(CASES["local"], "plan_place", 90).asm["ptx"]
    loop = text[: text.rindex("atom.global.gpu.relaxed.add.u32")]
    after = text[len(loop) :]
    load = loop.rindex("ld.global")
    assert "bar.sync" in loop[load:]
    assert after.index("bar.sync") < after.index("st.global")
