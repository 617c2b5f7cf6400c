"""Checks what `uniep.compile` is given beside the program, and names the keyword whose value cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.ir.types import DType, RoutesType
from uniep_compiler.runtime.arguments import argument_error
from uniep_compiler.transports.virtual import VirtualGroup

SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 1e-6, 1e9
"""In seconds. Kernels count nanoseconds in 64 bits."""


def check_dims(dims: object) -> None:
    """UEP0601 unless `dims` is a mapping from names."""
    _check_mapping("dims", dims, 'from names to integers, like {"H": 2048}')


def check_schedule(schedule: object) -> None:
    """UEP0601 unless `schedule` is a mapping from names, or None."""
    if schedule is not None:
        _check_mapping("schedule", schedule, 'from keys of a schedule block to values, like {"fuse": "none"}')


def check_group(group: object) -> None:
    """UEP0601 unless `group` is a virtual group or None."""
    if group is not None and not isinstance(group, VirtualGroup):
        raise argument_error(f"group has to be uniep.virtual_group(n) or None, not {type(group).__name__}")


def check_timeout(timeout: object) -> None:
    """UEP0601 unless `timeout` is a number of seconds that kernels can count."""
    if not is_number(timeout) or not SHORTEST_TIMEOUT <= timeout <= LONGEST_TIMEOUT:
        raise argument_error(
            f"timeout is a number of seconds from {SHORTEST_TIMEOUT:g} to {LONGEST_TIMEOUT:g}, not {timeout!r}"
        )


def check_debug(debug: object) -> None:
    """UEP0601 unless `debug` is True or False."""
    if not isinstance(debug, bool):
        raise argument_error(f"debug is True or False, not {debug!r}")


def dtype_named(name: object) -> DType:
    """The element type of that name. UEP0601 if rows cannot have it."""
    if name not in ("bf16", "f16", "f32"):
        raise argument_error(f"dtype is one of bf16, f16, f32, not {name!r}")
    return DType(name)


def placement_of(ops: OpGraph, dims: Mapping[str, int], group: VirtualGroup | None, given: object) -> tuple[int, ...]:
    """The number of experts of each rank: what is given, else a balanced one. UEP0601 if it does not fit."""
    routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
    experts, ranks = routes.experts.value(dims), 1 if group is None else group.num_ranks
    if given is None:
        return balanced_placement(experts, ranks)
    help_text = "it holds the number of experts of each rank, zeros allowed"
    if not isinstance(given, Sequence) or not all(is_count(number) for number in given):
        raise argument_error(f"placement has to be a tuple of integers, not {given!r}", help_text)
    placement = tuple(given)
    if len(placement) != ranks or sum(placement) != experts or any(count < 0 for count in placement):
        raise argument_error(f"placement {placement} does not fit {experts} experts on {ranks} ranks", help_text)
    return placement


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is an integer; truth values are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_mapping(name: str, value: object, what: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise argument_error(f"{name} has to be a mapping {what}, not {value!r}")
