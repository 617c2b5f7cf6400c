"""Single tasks: what a task graph and a schedule stand for under one routing.

Verification by execution, simulation and pictures work on these. Everything here is numbers: an index expression is
evaluated once per task, in the environment of a `Routing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from uniep_compiler.ir.index import Environment, Expr, evaluate
from uniep_compiler.ir.numbering import coordinates_at, num_tasks
from uniep_compiler.ir.schedule import Interleave, Launch, Schedule, Segment, Slice, Stage
from uniep_compiler.ir.tasks import Access, Family, Post, Proxy, Range, Scope, TaskGraph, Wait

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskId:
    """A task: number `index` of a family, on a rank."""

    rank: int
    family: str
    index: int

    def __str__(self) -> str:
        return f"{self.family}[{self.index}]@{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Rows `row .. row + num_rows - 1` and columns `col .. col + num_cols - 1` of a buffer of `rank`."""

    buffer: str
    rank: int
    row: int
    num_rows: int
    col: int
    num_cols: int
    proxy: Proxy = Proxy.GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait until counter `index` of a signal of the own rank is at least `target`."""

    signal: str
    index: int
    target: int
    scope: Scope = Scope.GPU
    fence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """Add `count` to counter `index` of a signal of `rank`, in `count` single posts."""

    signal: str
    rank: int
    index: int
    count: int
    scope: Scope = Scope.GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens between two barriers of a task: waits in order, then accesses, then posts."""

    waits: tuple[Await, ...] = ()
    reads: tuple[Box, ...] = ()
    writes: tuple[Box, ...] = ()
    posts: tuple[Increment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A single task with everything that it touches. Only stepwise families have other than one step."""

    id: TaskId
    coords: Mapping[str, int]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """All tasks of a graph under one routing, by id: rank by rank, family by family, in task order."""

    graph: TaskGraph
    tasks: Mapping[TaskId, Task]

    def to_networkx(self) -> nx.DiGraph:
        """A networkx copy: single tasks, and which waits for which (`ir/networkx_view.py` says what is in it)."""
        from uniep_compiler.ir.networkx_view import tasks_graph

        return tasks_graph(self)


def instantiate(graph: TaskGraph | Schedule, routing: Environment) -> Instance:
    """Every task of every rank of `graph` (or of a schedule's graph)."""
    if isinstance(graph, Schedule):
        graph = graph.graph
    tasks = (
        build_task(family, index, routing, rank)
        for rank in range(graph.ranks)
        for family in graph.families
        for index in range(num_tasks(family, routing, rank))
    )
    return Instance(graph=graph, tasks={task.id: task for task in tasks})


def build_task(family: Family, index: int, routing: Environment, rank: int) -> Task:
    """Task `index` of a family on a rank."""
    coords = coordinates_at(family, index, routing, rank)
    scope = _Scope(routing=routing, rank=rank, coords=coords)
    waits = tuple(scope.wait(wait) for wait in family.waits)
    steps = scope.steps(family) if family.stepwise else (scope.step(family, ()),)
    if waits:
        first = steps[0] if steps else Step()
        steps = (Step(waits=waits, reads=first.reads, writes=first.writes, posts=first.posts), *steps[1:])
    return Task(id=TaskId(rank=rank, family=family.name, index=index), coords=coords, steps=steps)


def step_ranges(family: Family) -> tuple[Range, ...]:
    """The ranges whose items are the steps of a stepwise family: those that all that it touches have in common."""
    overs = [*(access.over for access in (*family.reads, *family.writes)), *(post.over for post in family.posts)]
    common: list[Range] = []
    for ranges in zip(*overs, strict=False):
        if any(item != ranges[0] for item in ranges):
            break
        common.append(ranges[0])
    return tuple(common)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Where the expressions of one task are evaluated."""

    routing: Environment
    rank: int
    coords: dict[str, int]

    def value(self, expr: Expr) -> int:
        return evaluate(expr, self.routing, self.rank, self.coords)

    def owner(self, expr: Expr | None) -> int:
        return self.rank if expr is None else self.value(expr)

    def items(self, ranges: tuple[Range, ...]) -> Iterator[_Scope]:
        """A scope for each item of nested ranges, in order."""
        if not ranges:
            yield self
            return
        for number in range(self.value(ranges[0].extent)):
            inner = _Scope(routing=self.routing, rank=self.rank, coords={**self.coords, ranges[0].coord: number})
            yield from inner.items(ranges[1:])

    def chosen(self, touched: Access | Post, done: int) -> Iterator[_Scope]:
        """A scope for each item of what is left of `over` after `done` ranges, where `when` holds."""
        for item in self.items(touched.over[done:]):
            if touched.when is None or item.value(touched.when):
                yield item

    def wait(self, wait: Wait) -> Await:
        return Await(
            signal=wait.signal,
            index=self.value(wait.index),
            target=self.value(wait.target),
            scope=wait.scope,
            fence=wait.fence,
        )

    def steps(self, family: Family) -> tuple[Step, ...]:
        """One step for each item that touches anything."""
        common = step_ranges(family)
        steps = (item.step(family, common) for item in self.items(common))
        return tuple(step for step in steps if step != Step())

    def step(self, family: Family, common: tuple[Range, ...]) -> Step:
        done = len(common)
        return Step(
            reads=tuple(box for access in family.reads for box in self.boxes(access, done)),
            writes=tuple(box for access in family.writes for box in self.boxes(access, done)),
            posts=tuple(post for posts in family.posts for post in self.increments(posts, done)),
        )

    def boxes(self, access: Access, done: int) -> Iterator[Box]:
        for item in self.chosen(access, done):
            box = Box(
                buffer=access.buffer,
                rank=item.owner(access.rank),
                row=item.value(access.row),
                num_rows=item.value(access.num_rows),
                col=item.value(access.col),
                num_cols=item.value(access.num_cols),
                proxy=access.proxy,
            )
            if box.num_rows > 0 and box.num_cols > 0:
                yield box

    def increments(self, post: Post, done: int) -> Iterator[Increment]:
        counts = Counter((item.owner(post.rank), item.value(post.index)) for item in self.chosen(post, done))
        for (rank, index), count in counts.items():
            yield Increment(signal=post.signal, rank=rank, index=index, count=count, scope=post.scope)


# -- the linear order -----------------------------------------------------------------------------------------------


def linear_order(schedule: Schedule, routing: Environment, rank: int) -> tuple[tuple[TaskId, ...], ...]:
    """The tasks of a rank in order, launch by launch."""
    return tuple(
        tuple(task for stage in launch.stages for task in _stage_order(stage, routing, rank))
        for launch in schedule.launches
    )


def merged_order(schedule: Schedule, routing: Environment) -> tuple[tuple[TaskId, ...], ...]:
    """The tasks of all ranks as one cursor hands them out, launch by launch: by (stage, rank, index)."""
    return tuple(tuple(_merged_launch(launch, routing, schedule.graph.ranks)) for launch in schedule.launches)


def _merged_launch(launch: Launch, routing: Environment, num_ranks: int) -> Iterator[TaskId]:
    for stage in launch.stages:
        for rank in range(num_ranks):
            yield from _stage_order(stage, routing, rank)


def _stage_order(stage: Stage, routing: Environment, rank: int) -> Iterator[TaskId]:
    for segment in stage.segments:
        yield from _segment_order(segment, lambda expr: evaluate(expr, routing, rank, {}), rank)


def _segment_order(segment: Segment, value: Callable[[Expr], int], rank: int) -> Iterator[TaskId]:
    match segment:
        case Slice(family=family, start=start, count=count):
            yield from _consecutive(rank, family, value(start), value(count))
        case Interleave(steps=steps, members=members):
            firsts = [value(member.start) for member in members]
            for step in range(value(steps)):
                for member, first in zip(members, firsts, strict=True):
                    yield from _consecutive(rank, member.family, first + step * member.per_step, member.per_step)
        case _:
            assert_never(segment)


def _consecutive(rank: int, family: str, first: int, count: int) -> Iterator[TaskId]:
    return (TaskId(rank=rank, family=family, index=first + i) for i in range(count))
