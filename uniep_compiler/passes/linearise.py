"""Puts all tasks into one linear order (per rank), as segments over counts known when a kernel runs.

Families over M tiles run as a software pipeline over groups of `group` tiles: in step s, family i does the tiles of
group s - lag_i. So a tile's results are consumed while they are still in L2, and nobody waits for a tile that has just
started.

    ramp-up      relay 0..., gemm_a 0...
    steady       step: relay (group s), gemm_a (group s - 1), gemm_y (group s - 3), push (group s - 4)
    ramp-down    the last groups of the later families
    rest         the tiles after the last full group, family after family

Comm lanes stand first, and what waits for other ranks' results stands after all own tasks that post to them (phases).
"""

from __future__ import annotations

from dataclasses import dataclass

from uniep_compiler.ir.index import Expr, Int, Sym, minimum
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Schedule, Segment, Slice, Stage
from uniep_compiler.ir.tasks import Family, Role, TaskGraph
from uniep_compiler.options import Fuse
from uniep_compiler.passes.settings import Settings

IDS_APART = 4
"""Ids per worker between a task and one that reads its result. Fewer make readers wait.

`python -m benchmarks.forward --systems dense torch_grouped uniep --variants lag=1 lag=2 lag=4` shows how much.
"""


def linearise(graph: TaskGraph, settings: Settings) -> Schedule:
    """The schedule of `graph`: one launch (`fuse = layer`), two (`pairs`), or one per family (`none`)."""
    launches = tuple(
        Launch(name=f"launch_{number}", stages=_stages(families, settings))
        for number, families in enumerate(_cut(graph, settings.options.fuse))
    )
    return Schedule(graph=graph, launches=launches)


def _cut(graph: TaskGraph, fuse: Fuse) -> tuple[tuple[Family, ...], ...]:
    """The families of each launch. `pairs` cuts after the first GEMM, as UniEP's two kernels do."""
    if not graph.families:
        return ((),)  # a call has at least one launch, which ends it
    match fuse:
        case Fuse.LAYER:
            return (graph.families,)
        case Fuse.NONE:
            return tuple((family,) for family in graph.families)
        case Fuse.PAIRS:
            gemms = [i for i, family in enumerate(graph.families) if family.role is Role.COMPUTE]
            cut = gemms[0] + 1 if gemms else len(graph.families)
            parts = (graph.families[:cut], graph.families[cut:])
            return tuple(part for part in parts if part)


def _stages(families: tuple[Family, ...], settings: Settings) -> tuple[Stage, ...]:
    """Lanes; then everything over M tiles; then what reads other ranks' results or everything."""
    lanes = tuple(_whole(family) for family in families if family.role is Role.COMM)
    tiled = [family for family in families if family.domain[0].coord == "tile"]
    last = tuple(
        _whole(family) for family in families if family.role is not Role.COMM and family.domain[0].coord != "tile"
    )
    stages = (lanes, _pipeline(tiled, settings), last)
    return tuple(Stage(segments=segments) for segments in stages if segments)


def num_tasks(family: Family) -> Expr:
    """Number of tasks of a family on a rank."""
    product: Expr = Int(1)
    for item in family.domain:
        product = product * item.extent
    return product


def _whole(family: Family) -> Segment:
    return Slice(family=family.name, start=Int(0), count=num_tasks(family))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A family in the pipeline: tasks per M tile, and how many groups it runs behind the first."""

    family: str
    per_tile: int
    lag: Expr


def _pipeline(tiled: list[Family], settings: Settings) -> tuple[Segment, ...]:
    if len(tiled) <= 1:
        return tuple(_whole(family) for family in tiled)
    group = settings.options.group
    groups = Sym("num_tiles") // group
    lines = _lines(tiled, groups, settings.options.lag or default_lag(tiled, settings))
    segments: list[Segment] = []
    for i in range(len(lines) - 1):  # ramp-up: lines 0..i run, until line i + 1 starts
        segments.append(_steps(lines[: i + 1], lines[i].lag, lines[i + 1].lag - lines[i].lag, group))
    segments.append(_steps(lines, lines[-1].lag, groups - lines[-1].lag, group))
    for i in range(len(lines) - 1):  # line i has finished; its rest comes before later lines' last groups
        segments.append(_rest(lines[i], groups, group))
        segments.append(_steps(lines[i + 1 :], groups + lines[i].lag, lines[i + 1].lag - lines[i].lag, group))
    segments.append(_rest(lines[-1], groups, group))
    return tuple(segments)


def _lines(tiled: list[Family], groups: Expr, lag: int) -> list[_Line]:
    """Lags add up along the families: each runs `lag` groups behind the one whose rows it reads."""
    lines: list[_Line] = []
    behind = 0
    for family in tiled:
        per_tile = _tasks_per_tile(family)
        lines.append(
            _Line(family=family.name, per_tile=per_tile, lag=minimum(Int(behind), groups) if behind else Int(0))
        )
        behind += lag
    return lines


def _tasks_per_tile(family: Family) -> int:
    """Tasks that a family has for each M tile."""
    per_tile = 1
    for item in family.domain[1:]:
        if not isinstance(item.extent, Int):
            raise TypeError(f"{family.name} has no fixed number of tasks per tile")
        per_tile *= item.extent.value
    return per_tile


def default_lag(tiled: list[Family], settings: Settings) -> int:
    """Groups between a family and its reader, so that nobody waits for a task that is still running.

    Each worker runs one task and holds the id of its next, so at least two ids per worker are in flight; tasks differ
    in length, so a reader stands `IDS_APART` ids per worker behind.
    """
    per_group = settings.options.group * sum(_tasks_per_tile(family) for family in tiled)
    return max(1, -(-IDS_APART * settings.target.workers // per_group))


def _steps(lines: list[_Line], start: Expr, count: Expr, group: int) -> Segment:
    """`count` steps of the pipeline from `start` on, in which all of `lines` run."""
    members = tuple(
        Member(
            family=line.family,
            start=(start - line.lag) * (group * line.per_tile),
            per_step=group * line.per_tile,
        )
        for line in lines
    )
    return Interleave(steps=count, members=members)


def _rest(line: _Line, groups: Expr, group: int) -> Segment:
    """The tiles after the last full group."""
    rest = Sym("num_tiles") - groups * group
    return Slice(family=line.family, start=groups * (group * line.per_tile), count=rest * line.per_tile)
