"""The compiler as functions: from a program, dims, target and options to kernels as text.

Loads neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from uniep_compiler.codegen.emit import Emitted, emit
from uniep_compiler.codegen.plan_view import PlanView, plan_source, plan_view
from uniep_compiler.diagnostics import Diagnostic, InternalError, Label, Severity, UniepError
from uniep_compiler.frontend.lower import lower_retyped
from uniep_compiler.frontend.parse import Program
from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import Role, TaskGraph
from uniep_compiler.ir.types import DType, RoutesType
from uniep_compiler.ir.verify import verify
from uniep_compiler.passes.check_options import check_options
from uniep_compiler.passes.check_support import check_support
from uniep_compiler.passes.choose_options import active_blocks, choose_options, option_spans, token_tiles
from uniep_compiler.passes.clusters import is_matrix
from uniep_compiler.passes.pipeline import State, run_passes
from uniep_compiler.passes.settings import Settings
from uniep_compiler.passes.stages import row_dtype as row_dtype
from uniep_compiler.passes.target import Target
from uniep_compiler.source import Source


class Direction(StrEnum):
    """Which pass of a layer a graph is. Its kernels are called so."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What one compilation made: the IR at its three levels, and the modules' sources.

    `plan_source` is empty where the program takes its routes as a parameter.
    """

    ops: OpGraph
    settings: Settings
    schedule: Schedule
    kernels: Emitted
    plan_source: str
    direction: Direction

    @property
    def sources(self) -> dict[str, str]:
        """The generated modules by what they do."""
        modules = {str(self.direction): self.kernels.source, "plan": self.plan_source}
        return {name: text for name, text in modules.items() if text}


def make_settings(
    program: Program,
    *,
    dims: Mapping[str, int],
    target: Target,
    placement: tuple[int, ...],
    local: bool,
    overrides: Mapping[str, object] | None = None,
    tokens: Mapping[str, int] | None = None,
) -> Settings:
    """The settings of one compilation. `tokens` binds the token dim for `when` conditions, where it is known."""
    chosen_by = (program, target, {**dims, **(tokens or {})}, overrides or {})
    return Settings(
        dims=dict(dims),
        target=target,
        options=choose_options(*chosen_by),
        placement=placement,
        local=local,
        source=program.source,
        rows=program.rows,
        spans=option_spans(*chosen_by),
        base_tiles=choose_options(program, target, dims, overrides or {}).tiles,
        token_tiles=token_tiles(program, target, dims),
    )


def build(
    ops: OpGraph,
    settings: Settings,
    prove: Callable[[Schedule, Source | None], None] | None = None,
    direction: Direction = Direction.FORWARD,
) -> Compiled:
    """Run all passes, prove the result safe, and print the kernels. Raises UniepError for what can't be built.

    `prove` stands for `check`, for callers that remember what was proved.
    """
    check_support(ops, settings)
    check_options(ops, settings)
    schedule = final_schedule(states(ops, settings))
    (prove or check)(schedule, settings.source)
    plans = any(op.kind == "route" for op in ops.ops)
    return Compiled(
        ops=ops,
        settings=settings,
        schedule=schedule,
        kernels=emit(schedule, settings, ops, direction),
        plan_source=plan_source(plan_view_of(schedule.graph, settings)) if plans else "",
        direction=direction,
    )


def states(ops: OpGraph, settings: Settings) -> tuple[State, ...]:
    """The IR after every pass."""
    return tuple(run_passes(ops, settings))


def final_schedule(passed: tuple[State, ...]) -> Schedule:
    """The schedule that the last pass made."""
    last = passed[-1].ir
    if not isinstance(last, Schedule):
        raise InternalError("the last pass made no schedule")
    return last


def check(schedule: Schedule, source: Source | None) -> None:
    """Prove the schedule free of deadlock and races; a compiler bug if it is not."""
    found = verify(schedule)
    if found:
        raise InternalError(
            "the compiler made a schedule that it cannot prove safe",
            notes=[diagnostic.render(source) for diagnostic in found],
        )


def plan_view_of(graph: TaskGraph, settings: Settings) -> PlanView:
    """What the plan's template needs to know of a task graph."""
    sends = any(family.role is Role.COMM for family in graph.families)
    return plan_view(
        ranks=graph.ranks,
        experts=graph.experts,
        topk=graph.topk,
        tile_rows=graph.tile_rows,
        block=graph.block,
        send=settings.send if sends else None,
        order=settings.order,
        interpret=settings.target.interpreted,
    )


def token_dim(ops: OpGraph) -> str:
    """The name of the token dim: the first dim of the routes."""
    routes = next(kind for kind in ops.types.values() if isinstance(kind, RoutesType))
    return routes.tokens.names[0]


def in_dtype(program: Program, ops: OpGraph, dtype: DType) -> tuple[Program, OpGraph]:
    """A program and its graph with rows of `dtype`, as if the program said so.

    In a dtype of another size, the program is without the tiles of its schedules: `tiles_left_out` tells which. Raises
    UEP0601 for a program without rows, and the errors of `lower_retyped`.
    """
    own = row_dtype(ops)
    if not any(is_matrix(ops, name) for name in ops.types):
        message = f"`{ops.name}` has no rows, whose element type could be {dtype}"
        raise UniepError([Diagnostic(code="UEP0601", message=message, help="leave the element type out")])
    if dtype is own:
        return program, ops
    kept = program if dtype.num_bytes == own.num_bytes else _without_tiles(program)
    return replace(kept, rows=dtype), lower_retyped(program, ops, own, dtype)


def _without_tiles(program: Program) -> Program:
    return replace(program, schedules=tuple(replace(block, tiles=()) for block in program.schedules))


def tiles_left_out(
    program: Program, changed: Program, target: Target, dims: Mapping[str, int]
) -> tuple[Diagnostic, ...]:
    """A warning for the tiles that a program sets for a target and dims, and that `changed` no longer has."""
    before = {tile for block in active_blocks(program, target, dims) for tile in block.tiles}
    after = {tile for block in changed.schedules for tile in block.tiles}
    spans = sorted(tile.span for tile in before - after)
    if not spans:
        return ()
    return (
        Diagnostic(
            code="UEP0326",
            message="tiles of the schedule are left out, which were chosen for another element type",
            labels=tuple(Label(span=span, text="left out", primary=span == spans[0]) for span in spans),
            help="the default ones are used; give others by `tiles` of `schedule=`, or by `--schedule`",
            severity=Severity.WARNING,
        ),
    )
