"""Turns a schedule under one routing into what the machine runs: a list of operations per task, over numbered cells.

A *cell* is one row of one column stretch of a buffer on a rank; stretches are cut so that every box is made of whole
cells. A *counter* is one entry of a signal on a rank. Buffers that nothing writes have no cells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

from uniep_compiler.ir.index import Environment, Expr, evaluate
from uniep_compiler.ir.instance import Box, Increment, Step, Task, TaskId, build_task, linear_order, merged_order
from uniep_compiler.ir.numbering import num_tasks
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import BufferKind, Proxy, Scope, TaskGraph
from uniep_compiler.machine.findings import Fault, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOp:
    """Go on when a counter has reached `target`; an acquire of scope sys or gpu, then perhaps a proxy fence."""

    counter: int
    target: int
    is_sys: bool
    fence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOp:
    """Read cells. `expected` holds, per cell, the number of the family whose value it has to find (None: no one's)."""

    cells: tuple[int, ...]
    expected: tuple[int | None, ...]
    is_async: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOp:
    """Write cells."""

    cells: tuple[int, ...]
    is_async: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PostOp:
    """Add to a counter: a release of scope sys or gpu. `is_remote`: the counter belongs to another rank."""

    counter: int
    count: int
    is_sys: bool
    is_remote: bool


Op = WaitOp | ReadOp | WriteOp | PostOp

INPUT = -1
"""Number of the family that "wrote" what a call finds in its input buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task as the machine runs it. `family` is the family's number in data-flow order."""

    id: TaskId
    family: int
    ops: tuple[Op, ...]


@dataclass(slots=True, kw_only=True)
class Program:
    """Everything a run needs, and what was found wrong before any run."""

    graph: TaskGraph
    work: dict[TaskId, Work]
    rank_orders: tuple[tuple[tuple[TaskId, ...], ...], ...]
    merged: tuple[tuple[TaskId, ...], ...]
    num_cells: int
    counters: list[str]
    posts_to: list[int]
    results: tuple[int, ...]
    input_cells: frozenset[int]
    cells: Cells
    findings: list[Finding] = field(default_factory=list)


def load(schedule: Schedule, routing: Environment) -> Program:
    """The program of a schedule under one routing."""
    return _Loader(schedule, routing).load()


class Cells:
    """The numbering of cells."""

    def __init__(self, graph: TaskGraph, routing: Environment, tasks: list[Task]) -> None:
        cuts: dict[str, set[int]] = defaultdict(set)
        written = {box.buffer for task in tasks for step in task.steps for box in step.writes}
        for task in tasks:
            for step in task.steps:
                for box in (*step.reads, *step.writes):
                    cuts[box.buffer].update((box.col, box.col + box.num_cols))
        self.first: dict[tuple[str, int], int] = {}
        self.num_rows: dict[tuple[str, int], int] = {}
        self.cuts: dict[str, list[int]] = {}
        self.count = 0
        for buffer in graph.buffers:
            for rank in range(graph.ranks):
                width = evaluate(buffer.cols, routing, rank, {})
                self.cuts[buffer.name] = sorted({0, width} | {cut for cut in cuts[buffer.name] if 0 < cut < width})
                rows = evaluate(buffer.rows, routing, rank, {}) * max(1, buffer.experts)
                self.num_rows[buffer.name, rank] = rows
                if buffer.name in written or buffer.kind is not BufferKind.INPUT:
                    self.first[buffer.name, rank] = self.count
                    self.count += rows * (len(self.cuts[buffer.name]) - 1)

    def inside(self, box: Box) -> bool:
        """Whether the box lies in its buffer."""
        rows, cuts = self.num_rows.get((box.buffer, box.rank)), self.cuts.get(box.buffer, [0])
        if rows is None:
            return False
        rows_fit = min(box.row, rows - box.row - box.num_rows) >= 0
        return rows_fit and min(box.col, cuts[-1] - box.col - box.num_cols) >= 0

    def of(self, box: Box) -> tuple[int, ...]:
        """The cells of a box, row by row."""
        cuts = self.cuts[box.buffer]
        low, high = bisect_left(cuts, box.col), bisect_left(cuts, box.col + box.num_cols)
        width, first = len(cuts) - 1, self.first[box.buffer, box.rank]
        rows = range(box.row, box.row + box.num_rows)
        return tuple(first + row * width + col for row in rows for col in range(low, high))

    def whole(self, buffer: str, rank: int) -> range:
        """All cells of a buffer on a rank."""
        first, width = self.first[buffer, rank], len(self.cuts[buffer]) - 1
        return range(first, first + self.num_rows[buffer, rank] * width)

    def name(self, cell: int) -> str:
        """A cell in words."""
        (buffer, rank), first = max(
            ((key, first) for key, first in self.first.items() if first <= cell and self.whole(*key)),
            key=lambda item: item[1],
        )
        row, stretch = divmod(cell - first, len(self.cuts[buffer]) - 1)
        return f"{buffer}[row {row}, column {self.cuts[buffer][stretch]}]@{rank}"


class _Loader:
    def __init__(self, schedule: Schedule, routing: Environment) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.routing = routing
        self.findings: list[Finding] = []
        self.counters: dict[tuple[int, str, int], int] = {}
        self.counter_names: list[str] = []
        self.places = {place.signal: place for place in schedule.scoreboard}
        self.numbers = {family.name: number for number, family in enumerate(self.graph.families)}

    def load(self) -> Program:
        graph, ranks = self.graph, range(self.graph.ranks)
        orders = tuple(linear_order(self.schedule, self.routing, rank) for rank in ranks)
        tasks = {task.id: task for task in self._tasks(orders)}
        self.cells = Cells(graph, self.routing, list(tasks.values()))
        self.writers = self._writers(tasks)
        work = {task.id: self._work(task) for task in tasks.values()}
        posts_to = [0] * len(self.counters)
        for order in (launch for launches in orders for launch in launches):
            for op in (op for task in order if task in work for op in work[task].ops):
                if isinstance(op, PostOp):
                    posts_to[op.counter] += op.count
        return Program(
            graph=graph,
            work=work,
            rank_orders=tuple(self._known(order, work) for order in orders),
            merged=self._known(merged_order(self.schedule, self.routing), work),
            num_cells=self.cells.count,
            counters=self.counter_names,
            posts_to=posts_to,
            results=self._cells_of_kind(BufferKind.OUTPUT),
            input_cells=frozenset(self._cells_of_kind(BufferKind.INPUT)),
            cells=self.cells,
            findings=self.findings,
        )

    def _tasks(self, orders: tuple[tuple[tuple[TaskId, ...], ...], ...]) -> list[Task]:
        """Every task that the order names, and every task that the graph has."""
        families = {family.name: family for family in self.graph.families}
        sizes = {
            (rank, family.name): num_tasks(family, self.routing, rank)
            for rank in range(self.graph.ranks)
            for family in self.graph.families
        }
        ids = {
            TaskId(rank=rank, family=name, index=index): True
            for (rank, name), size in sizes.items()
            for index in range(size)
        }
        for task in (task for launches in orders for launch in launches for task in launch):
            if task not in ids:
                self._found(Fault.OUT_OF_BOUNDS, f"{task.family}[{task.index}]", task)
        built: list[Task] = []
        for task in ids:
            try:
                built.append(build_task(families[task.family], task.index, self.routing, task.rank))
            except (IndexError, KeyError, ZeroDivisionError) as error:
                self._found(Fault.OUT_OF_BOUNDS, str(error), task)
        return built

    def _known(
        self, launches: tuple[tuple[TaskId, ...], ...], work: dict[TaskId, Work]
    ) -> tuple[tuple[TaskId, ...], ...]:
        return tuple(tuple(task for task in launch if task in work) for launch in launches)

    def _cells_of_kind(self, kind: BufferKind) -> tuple[int, ...]:
        return tuple(
            cell
            for buffer in self.graph.buffers
            if buffer.kind is kind and (buffer.name, 0) in self.cells.first
            for rank in range(self.graph.ranks)
            for cell in self.cells.whole(buffer.name, rank)
        )

    def _writers(self, tasks: dict[TaskId, Task]) -> dict[int, list[int]]:
        """The numbers of the families that write each cell, in data-flow order."""
        writers: dict[int, set[int]] = defaultdict(set)
        for cell in self._cells_of_kind(BufferKind.INPUT):
            writers[cell].add(INPUT)
        for task in tasks.values():
            number = self.numbers[task.id.family]
            for box in (box for step in task.steps for box in step.writes):
                if self.cells.inside(box):
                    for cell in self.cells.of(box):
                        writers[cell].add(number)
        return {cell: sorted(numbers) for cell, numbers in writers.items()}

    def _work(self, task: Task) -> Work:
        number = self.numbers[task.id.family]
        ops = tuple(op for step in task.steps for op in self._ops(task.id, number, step))
        return Work(id=task.id, family=number, ops=ops)

    def _ops(self, task: TaskId, family: int, step: Step) -> list[Op]:
        ops: list[Op] = []
        for wait in step.waits:
            counter = self._counter(task, wait.signal, task.rank, wait.index)
            if counter is not None:
                ops.append(
                    WaitOp(counter=counter, target=wait.target, is_sys=wait.scope is Scope.SYS, fence=wait.fence)
                )
        for box in step.reads:
            cells = self._box(task, box)
            if cells:
                expected = tuple(self._expected(cell, family) for cell in cells)
                ops.append(ReadOp(cells=cells, expected=expected, is_async=box.proxy is Proxy.ASYNC))
        for box in step.writes:
            cells = self._box(task, box)
            if cells:
                ops.append(WriteOp(cells=cells, is_async=box.proxy is Proxy.ASYNC))
        ops.extend(op for post in step.posts for op in self._post(task, post))
        return ops

    def _expected(self, cell: int, family: int) -> int | None:
        """Whose value a read by `family` has to find: that of the last writer before it in data-flow order."""
        numbers = self.writers.get(cell, [])
        earlier = [number for number in numbers if number < family]
        if earlier:
            return earlier[-1]
        return family if family in numbers else None

    def _box(self, task: TaskId, box: Box) -> tuple[int, ...]:
        if not self.cells.inside(box):
            self._found(Fault.OUT_OF_BOUNDS, f"{box.buffer}[{box.row} : +{box.num_rows}]@{box.rank}", task)
            return ()
        if box.rank != task.rank and self.graph.buffer(box.buffer).kind is not BufferKind.SYMMETRIC:
            self._found(Fault.OUT_OF_REACH, f"{box.buffer}[{box.row} : +{box.num_rows}]@{box.rank}", task)
        return self.cells.of(box) if (box.buffer, box.rank) in self.cells.first else ()

    def _post(self, task: TaskId, post: Increment) -> list[Op]:
        counter = self._counter(task, post.signal, post.rank, post.index)
        if counter is None:
            return []
        is_remote = post.rank != task.rank
        return [PostOp(counter=counter, count=post.count, is_sys=post.scope is Scope.SYS, is_remote=is_remote)]

    def _counter(self, task: TaskId, signal: str, rank: int, index: int) -> int | None:
        """The number of a counter: signals that share a place in the scoreboard share counters."""
        name, address = f"{signal}[{index}]@{rank}", (rank, signal, index)
        if not (0 <= rank < self.graph.ranks and 0 <= index < self._value(self.graph.signal(signal).extent, rank)):
            self._found(Fault.OUT_OF_BOUNDS, name, task)
            return None
        if signal in self.places and self.schedule.scoreboard_size is not None:
            address = (rank, "", self._value(self.places[signal].offset, rank) + index)
            if not 0 <= address[2] < self._value(self.schedule.scoreboard_size, rank):
                self._found(Fault.OUT_OF_BOUNDS, name, task)
                return None
        if address not in self.counters:
            self.counter_names.append(name)
        return self.counters.setdefault(address, len(self.counters))

    def _value(self, expr: Expr, rank: int) -> int:
        return evaluate(expr, self.routing, rank, {})

    def _found(self, fault: Fault, place: str, task: TaskId) -> None:
        self.findings.append(Finding(fault=fault, place=place, task=task))
