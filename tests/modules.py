"""Programs as each pass leaves them, and the modules generated of them, for tests of passes and of code generation."""

from __future__ import annotations

from functools import cache

from uniep_compiler import compiler
from uniep_compiler.codegen.emit import emit
from uniep_compiler.frontend.bind import dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.types import DType, RoutesType
from uniep_compiler.passes.differentiate import differentiable_params, differentiate
from uniep_compiler.passes.settings import backward_settings
from uniep_compiler.passes.target import find_target

LAYER = """
uniep 1

moe layer(
    x       : bf16[T, H],
    experts : i32[T, K],
    weights : f32[T, K],
    w13     : bf16[E, 2*I, H],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
    r  = route(experts)
    xs = dispatch(x, r)
    h  = group_gemm(xs, w13)
    gate, up = split(h, halves)
    a  = silu(gate) * up
    y  = group_gemm(a, w2)
    return combine(y, weights)
}
"""

DIMS = (("H", 64), ("I", 48), ("E", 8), ("K", 2))


@cache
def lowered(text=LAYER, *, target="cpu", ranks=None, dtype=None, dims=DIMS, **options):
    """A program's OpGraph, and the settings that it is compiled with. `ranks` is the size of a virtual group."""
    program = parse(text)
    ops = lower(program)
    if dtype is not None:
        program, ops = compiler.in_dtype(program, ops, DType(dtype))
    bound = {name: size for name, size in dims if name in dims_to_bind(ops)}
    routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
    settings = compiler.make_settings(
        program,
        dims=bound,
        target=find_target(target),
        placement=balanced_placement(routes.experts.value(bound), ranks or 1),
        local=ranks is None,
        overrides=options,
    )
    return ops, settings


def after(name, text=LAYER, **options):
    """The IR of a program as the pass of that name left it."""
    return {state.after: state.ir for state in compiler.states(*lowered(text, **options))}[name]


def finished(text=LAYER, **options):
    """The schedule of a program as the last pass left it."""
    return compiler.final_schedule(compiler.states(*lowered(text, **options)))


@cache
def emitted(text=LAYER, **options):
    """The forward module of a program, neither proved nor built."""
    ops, settings = lowered(text, **options)
    return emit(finished(text, **options), settings, ops)


def source(text=LAYER, **options):
    """The text of that module."""
    return emitted(text, **options).source


def backward_source(text=LAYER, **options):
    """The text of the module of the backward pass, with the gradients of all parameters."""
    ops, settings = lowered(text, **options)
    derivative = differentiate(ops, differentiable_params(ops))
    built = compiler.build(derivative.backward, backward_settings(settings), direction=compiler.Direction.BACKWARD)
    return built.kernels.source
