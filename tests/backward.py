"""Schedules of backward passes on one rank: those of all programs that have one, by name. Small shapes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.programs import SUPPORTED
from uniep_compiler import compiler
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import Program, parse
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.passes.differentiate import differentiable_params, differentiate
from uniep_compiler.passes.target import find_target

EXAMPLES = Path(__file__).parents[1] / "examples"
DIMS = {"H": 32, "I": 24, "E": 4, "K": 2, "N": 40, "R": 16}
RAGGED = {"H": 200, "I": 328, "E": 5, "K": 3, "N": 1000, "R": 136}
"""More than a tile in both directions, and not a multiple of one."""
SMALL_STEPS = {"chunk": 2, "group": 2, "lag": 2, "block": 4}

PROGRAMS: dict[str, str] = {path.stem: path.read_text() for path in sorted(EXAMPLES.glob("*.uniep"))} | SUPPORTED
"""The text of every program, by name."""


def has_gradients(name: str) -> bool:
    """Whether a result of the program depends on a parameter that can have a gradient."""
    ops = lower(parse(PROGRAMS[name]))
    return bool(differentiate(ops, differentiable_params(ops)).wrt)


@cache
def backward(
    name: str, *, target: str = "sm_90", relay: str = "copy", fuse: str = "layer", ragged: bool = False
) -> Schedule | None:
    """The schedule of a program's backward pass, for gradients of all parameters; None if none of them has one."""
    program: Program = parse(PROGRAMS[name])
    ops = lower(program)
    derivative = differentiate(ops, differentiable_params(ops))
    if not derivative.wrt:
        return None
    found = find_target(target)
    assert found is not None
    dims = RAGGED if ragged else DIMS
    settings = compiler.make_settings(
        program,
        dims=dims,
        target=found,
        placement=(dims["E"],),
        local=True,
        overrides={"relay": relay, "fuse": fuse, **SMALL_STEPS},
    )
    return compiler.final_schedule(compiler.states(derivative.backward, settings))


NAMES = tuple(name for name in PROGRAMS if has_gradients(name))
"""The programs that have a backward pass."""
