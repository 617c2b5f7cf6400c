"""Schedule: the third level of the IR. The linear order of all tasks, as segments over counts known when a kernel runs.

Every rank runs the segments of a launch in order. Ranks that share one cursor (`virtual`) run them in the order (stage,
rank, index): a stage is a run of segments between two waits for other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from uniep_compiler.ir.index import Expr
from uniep_compiler.ir.tasks import Positive, TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Tasks `start .. start + count - 1` of a family."""

    family: str
    start: Expr
    count: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A family's part in an interleaving: `per_step` tasks in each step, from task `start` on."""

    family: str
    start: Expr
    per_step: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleave:
    """`steps` steps, each with `per_step` consecutive tasks of every member, member after member."""

    steps: Expr
    members: tuple[Member, ...]


Segment = Slice | Interleave


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Segments that a rank runs without a wait for other ranks between them, except at the start."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch. Everything in it happens after everything in the launches before it."""

    name: str
    stages: tuple[Stage, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments in order."""
        return tuple(segment for stage in self.stages for segment in stage.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPlace:
    """Where a signal's counters lie in a scoreboard set, in counters from its start."""

    signal: str
    offset: Expr
    extent: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A task graph in linear order, with the scoreboard's layout (`scoreboard_size` counters per rank and set)."""

    graph: TaskGraph
    launches: tuple[Launch, ...]
    scoreboard: tuple[SignalPlace, ...] = ()
    scoreboard_size: Expr | None = None

    def __str__(self) -> str:
        from uniep_compiler.ir.schedule_text import print_schedule

        return print_schedule(self)


def families_of(segment: Segment) -> Iterator[str]:
    """Names of the families in a segment, in order."""
    match segment:
        case Slice(family=family):
            yield family
        case Interleave(members=members):
            yield from (member.family for member in members)
