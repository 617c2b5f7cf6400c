"""What the kernels compile to, without a GPU: the right units, scopes and fences, and nothing spilled."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest

from tests.golden.test_kernels import DIMS, EXAMPLES
from tests.ptx import reaches
from uniep_compiler import compiler
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse_file
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.tasks import GemmBody, Proxy, Scope
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.target import find_target
from uniep_compiler.runtime.ahead import compile_ahead

UNITS = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}
"""The matrix instructions of each architecture."""
TMA, PROXY_FENCE, ACQUIRE = r"cp\.async\.bulk\.tensor", r"fence\.proxy\.async\.global", r"\bld\.global\.\w+\.acquire"
RELAYS = ("copy", "gather", "off")


@cache
def build(example, target, ranks=None, dtype=None, **options):
    """The graph and the forward kernel of an example, with the dims of its model. Its schedule is proved elsewhere."""
    program = parse_file(EXAMPLES / f"{example}.uniep")
    ops = lower(program)
    if dtype is not None:
        program, ops = compiler.in_dtype(program, ops, DType(dtype))
    dims = {name: size for name, size in DIMS[example].items() if name in dims_to_bind(ops)}
    settings = compiler.make_settings(
        program,
        dims=dims,
        target=find_target(target),
        placement=balanced_placement(dims["E"], ranks or 1),
        local=ranks is None,
        overrides=options,
    )
    compiled = compiler.build(ops, settings, prove=lambda schedule, source: None)
    (kernel,) = compile_ahead(compiled, modules=("forward",))
    return compiled.schedule.graph, kernel


@pytest.mark.parametrize(("example", "target"), list(product(DIMS, UNITS)))
def test_examples_use_the_units_of_each_architecture(example, target):
    _, kernel = build(example, target)
    for name, instruction in UNITS.items():
        assert (instruction in kernel.ptx) == (name == target)
    assert bool(re.search(TMA, kernel.ptx)) == (target != "sm_80")
    assert f".target {target}" in kernel.ptx
    if target == "sm_90":
        assert kernel.spill_bytes == 0
        assert kernel.shared_bytes <= 227 * 1024


@pytest.mark.parametrize(("relay", "ranks", "dtype"), list(product(RELAYS, (None, 2), (None, "f32"))))
def test_nothing_spills_on_hopper(relay, ranks, dtype):
    graph, kernel = build("qwen3_moe", "sm_90", ranks, dtype, relay=relay)
    assert kernel.spill_bytes == 0
    assert kernel.num_registers <= 255
    # fp32 is multiplied in fp32: on CUDA cores, never in TF32.
    assert ("wgmma.mma_async" in kernel.ptx) == (dtype is None)
    assert_scopes_fit(graph, kernel.ptx)
    assert_fences_fit(graph, kernel.ptx)


@pytest.mark.parametrize("target", ["sm_80", "sm_100"])
def test_a_group_on_other_architectures(target):
    graph, kernel = build("qwen3_moe", target, 2)
    assert UNITS[target] in kernel.ptx
    assert_scopes_fit(graph, kernel.ptx)
    assert_fences_fit(graph, kernel.ptx)


def assert_scopes_fit(graph, ptx):
    """Waits acquire and posts release at the scope of their signal: the GPU on one rank, the system between ranks."""
    waits = [wait.scope for family in graph.families for wait in family.waits]
    posts = [post.scope for family in graph.families for post in family.posts]
    for scope in Scope:
        # A wait loads once before its loop, and once in it.
        acquires = re.findall(rf"\bld\.global\.{scope}\.acquire", ptx)
        assert len(acquires) == 2 * waits.count(scope)
        assert len(re.findall(rf"\batom\.global\.{scope}\.release\.add", ptx)) == posts.count(scope)
    assert (Scope.SYS in waits) == (graph.ranks > 1)


def assert_fences_fit(graph, ptx):
    """Whichever way a kernel goes from a wait for rows to the TMA loads that read them, it passes a proxy fence."""
    fenced = {family.name for family in graph.families if any(wait.fence for wait in family.waits)}
    by_tma = {family.name for family in graph.families if any(access.proxy is Proxy.ASYNC for access in family.reads)}
    assert fenced == by_tma
    assert len(re.findall(PROXY_FENCE, ptx)) == len(fenced)
    unfenced_gemms = [f for f in graph.families if isinstance(f.body, GemmBody) and f.name not in fenced]
    if fenced and not unfenced_gemms:
        assert reaches(ptx, ACQUIRE, TMA, barrier="no such thing")
        assert not reaches(ptx, ACQUIRE, TMA, barrier=PROXY_FENCE)
