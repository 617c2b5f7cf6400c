"""Kernels built ahead of time, on a machine that need not have a GPU: their assembly, and what they take."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from uniep_compiler.codegen.plan_view import NUM_WARPS as PLAN_WARPS
from uniep_compiler.compiler import Compiled
from uniep_compiler.diagnostics import Diagnostic, UniepError
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.target import NUM_STAGES, NUM_WARPS, Target
from uniep_compiler.runtime.modules import load_module

WARP_SIZE = 32
PLAN_KERNELS = ("plan_count", "plan_place")

TRITON_TYPES = {DType.BF16: "bf16", DType.F16: "fp16", DType.F32: "fp32", DType.I32: "i32", DType.I64: "i64"}
"""Element types as Triton's signatures spell them."""

_WIDE_POINTERS = ("state", "scoreboard", "error")
_WIDE_NUMBERS = ("board_capacity", "time_limit")
_NUMBERS = (
    "tokens",
    "rows_bound",
    "tiles_bound",
    "tokens_bound",
    "routes_bound",
    "blocks_bound",
    "board_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadKernel:
    """One kernel of a module. `num_registers` and `spill_bytes` (its stack) are per thread, `shared_bytes` per CTA."""

    module: str
    name: str
    num_warps: int
    num_registers: int
    spill_bytes: int
    shared_bytes: int
    seconds: float
    ttgir: str = field(repr=False)
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    def sass(self) -> str:
        """The machine code, disassembled."""
        return _cuobjdump("-sass", self.cubin)


def compile_ahead(
    compiled: Compiled, target: Target | None = None, *, modules: Sequence[str] = ("forward", "backward", "plan")
) -> tuple[AheadKernel, ...]:
    """Build the kernels of some modules for `target` (by default the one that they were generated for), in order.

    Pointers and strides are taken to be multiples of 16, as Triton finds them to be at ordinary calls. Needs Triton
    with its NVIDIA tools, but neither a GPU nor a driver. UEP0604 for a target whose kernels are interpreted.
    """
    target = target or compiled.settings.target
    if target.interpreted:
        message = f"kernels for `{target.name}` are interpreted: nothing is built ahead of time"
        raise UniepError([Diagnostic(code="UEP0604", message=message)])
    return tuple(
        _build(module, name, source, target, signature, num_warps)
        for module, source in compiled.sources.items()
        if module in modules
        for name, signature, num_warps in _kernels(compiled, module)
    )


def _kernels(compiled: Compiled, module: str) -> list[tuple[str, dict[str, str] | None, int]]:
    """The kernels of a module: name, types of the arguments (None: those of a plan), warps."""
    if module == "plan":
        return [(name, None, PLAN_WARPS) for name in PLAN_KERNELS]
    signature = kernel_signature(compiled)
    return [(launch.name, signature, NUM_WARPS) for launch in compiled.kernels.view.launches]


def _build(
    module: str, name: str, source: str, target: Target, signature: dict[str, str] | None, num_warps: int
) -> AheadKernel:
    start = perf_counter()
    function = getattr(load_module(source, f"{module}_ahead", interpret=False), name)
    if signature is None:
        signature = _plan_signature(function.arg_names)
    kernel: Any = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs={}, attrs=_divisible(signature)),
        target=GPUTarget("cuda", target.capability, WARP_SIZE),
        options={"num_warps": num_warps, "num_stages": NUM_STAGES, "enable_fp_fusion": False},
    )
    usage = _resources(kernel.asm["cubin"])
    return AheadKernel(
        module=module,
        name=name,
        num_warps=num_warps,
        num_registers=usage["REG"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=int(kernel.metadata.shared),
        seconds=perf_counter() - start,
        ttgir=str(kernel.asm["ttgir"]),
        ptx=str(kernel.asm["ptx"]),
        cubin=bytes(kernel.asm["cubin"]),
    )


def kernel_signature(compiled: Compiled) -> dict[str, str]:
    """The Triton type of every argument of a pass's kernels."""
    view, graph = compiled.kernels.view, compiled.schedule.graph
    elements = {buffer.name: TRITON_TYPES[buffer.dtype] for buffer in graph.buffers}
    blocks = {
        d.name: f"tensordesc<{elements[d.buffer]}[{'1,1,' if d.ragged else ''}{d.block[0]},{d.block[1]}]>"
        for d in view.descriptors
    }
    pointers = {f"{name}_ptr": f"*{element}" for name, element in elements.items()}
    return {name: blocks.get(name) or pointers.get(name) or _type_of(name) for name in view.arguments}


def _type_of(name: str) -> str:
    """The type of an argument that is neither a buffer nor a descriptor: a number, or a table of the plan."""
    if name in _NUMBERS or name.endswith("_stride"):
        return "i32"
    if name in _WIDE_NUMBERS or name.endswith("_size"):
        return "i64"
    return "*i64" if name in _WIDE_POINTERS else "*i32"


def _plan_signature(names: Sequence[str]) -> dict[str, str]:
    return {name: _type_of(name) for name in names}


def _divisible(signature: dict[str, str]) -> dict[tuple[int, ...], list[list[object]]]:
    """Says that pointers and strides are multiples of 16; without, loads are narrow and nothing is pipelined."""
    return {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("_stride")
    }


def _resources(cubin: bytes) -> dict[str, int]:
    """What the driver would reserve for the kernel, by the names that cuobjdump gives: REG, STACK, LOCAL and more."""
    return {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", _cuobjdump("-res-usage", cubin))}


def _cuobjdump(what: str, cubin: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="uniep-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([knobs.nvidia.cuobjdump.path, what, path], capture_output=True, text=True, check=True)
    return done.stdout
