"""Runs a program step by step: cursors, workers that hold ids ahead, waits, accesses and posts as single steps.

A *worker* takes ids from its cursor. It is one agent, or two with `split`: a loader that waits and reads, ahead of a
computer that writes and posts (as producer and consumer warps do). What is enabled may run in any order; the caller
chooses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from uniep_compiler.diagnostics import InternalError
from uniep_compiler.ir.instance import TaskId
from uniep_compiler.machine.findings import Fault, Finding
from uniep_compiler.machine.memory import Counter, Knowledge, Memory, Write, join
from uniep_compiler.machine.program import Op, PostOp, Program, ReadOp, WaitOp, Work, WriteOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a program is run.

    `workers` per cursor; `merged`: one cursor for all ranks; `ids_ahead`: ids that a worker holds beyond its current
    task; `split`: workers with a loader; `shared_device`: a kernel boundary orders all ranks, not only the own.
    """

    workers: int = 2
    merged: bool = False
    ids_ahead: int = 1
    split: bool = False
    shared_device: bool = True


@dataclass(slots=True, kw_only=True)
class Cursor:
    """The ids of one order, launch by launch, and how many of the current launch's are handed out and done."""

    launches: tuple[tuple[TaskId, ...], ...]
    launch: int = 0
    handed_out: int = 0
    done: int = 0

    @property
    def finished(self) -> bool:
        """Whether all tasks of the current launch are done."""
        return self.done == len(self.launches[self.launch])


@dataclass(slots=True, kw_only=True)
class Job:
    """A task on its way from a loader to a computer, with what the loader knows."""

    work: Work
    execution: int
    knowledge: Knowledge | None = None


@dataclass(slots=True, kw_only=True)
class Agent:
    """One thread of a worker: its task, its place in it, and what it knows."""

    number: int
    cursor: int
    loads: bool
    computes: bool
    job: Job | None = None
    ops: tuple[Op, ...] = ()
    next_op: int = 0
    held: deque[TaskId] = field(default_factory=deque)


class Machine:
    """The state of one run. `enabled` says which agents can take a step, `step` lets one take it."""

    def __init__(self, program: Program, setup: Setup) -> None:
        self.program = program
        self.setup = setup
        orders = (program.merged,) if setup.merged else program.rank_orders
        self.cursors = [Cursor(launches=order) for order in orders]
        roles = ((True, False), (False, True)) if setup.split else ((True, True),)
        places = [(c, role) for c in range(len(orders)) for _ in range(setup.workers) for role in roles]
        self.agents = [
            Agent(number=number, cursor=cursor, loads=loads, computes=computes)
            for number, (cursor, (loads, computes)) in enumerate(places)
        ]
        self.knowledge = [Knowledge.initial(agent.number, len(self.agents)) for agent in self.agents]
        self.channels: dict[int, deque[Job]] = {agent.number: deque() for agent in self.agents if agent.loads}
        self.counters = [Counter.initial(len(self.agents)) for _ in program.counters]
        self.memory = Memory()
        self.executions: list[TaskId] = []
        self.findings: dict[tuple[str, ...], Finding] = {finding.kind: finding for finding in program.findings}
        self.num_steps = 0
        self._cross_boundaries()

    # -- what can run -----------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every task of every launch is done."""
        return all(c.finished and c.launch == len(c.launches) - 1 for c in self.cursors)

    def is_enabled(self, agent: Agent) -> bool:
        """Whether the agent can take a step."""
        if agent.next_op < len(agent.ops):
            op = agent.ops[agent.next_op]
            return not isinstance(op, WaitOp) or self.counters[op.counter].value >= op.target
        if agent.job is not None:  # only a loader keeps its job past its last operation: until the channel has room
            return len(self.channels[agent.number]) <= self.setup.ids_ahead
        if not agent.loads:
            return bool(self.channels[agent.number - 1])
        cursor = self.cursors[agent.cursor]
        return bool(agent.held) or cursor.handed_out < len(cursor.launches[cursor.launch])

    def enabled(self) -> list[Agent]:
        """The agents that can take a step."""
        return [agent for agent in self.agents if self.is_enabled(agent)]

    def is_local(self, agent: Agent) -> bool:
        """Whether the agent's next step is an access, which no other agent's enabling depends on."""
        return agent.next_op < len(agent.ops) and isinstance(agent.ops[agent.next_op], ReadOp | WriteOp)

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self, agent: Agent) -> None:
        """Let an enabled agent take a step."""
        self.num_steps += 1
        if agent.next_op < len(agent.ops):
            op = agent.ops[agent.next_op]
            agent.next_op += 1
            self._perform(agent, op)
            if agent.next_op == len(agent.ops) and agent.computes:
                self._finish(agent)
        elif agent.job is not None:
            self._hand_over(agent, agent.job)
        elif agent.loads:
            self._fetch(agent)
        else:
            job = self.channels[agent.number - 1].popleft()
            if job.knowledge is not None:
                join(self.knowledge[agent.number].known, job.knowledge.known)
                join(self.knowledge[agent.number].unscoped, job.knowledge.unscoped)
            self._start(agent, job, tuple(op for op in job.work.ops if isinstance(op, WriteOp | PostOp)))

    def _fetch(self, agent: Agent) -> None:
        """Take the next held id, after fetching ids ahead."""
        cursor = self.cursors[agent.cursor]
        ids = cursor.launches[cursor.launch]
        while len(agent.held) <= self.setup.ids_ahead and cursor.handed_out < len(ids):
            agent.held.append(ids[cursor.handed_out])
            cursor.handed_out += 1
        job = Job(work=self.program.work[agent.held.popleft()], execution=len(self.executions))
        self.executions.append(job.work.id)
        ops = job.work.ops
        if not agent.computes:
            ops = tuple(op for op in ops if isinstance(op, WaitOp | ReadOp))
        self._start(agent, job, ops)

    def _start(self, agent: Agent, job: Job, ops: tuple[Op, ...]) -> None:
        agent.job, agent.ops, agent.next_op = job, ops, 0
        if not ops and agent.computes:
            self._finish(agent)

    def _hand_over(self, agent: Agent, job: Job) -> None:
        job.knowledge = self.knowledge[agent.number].copy()
        self.knowledge[agent.number].tick(agent.number)
        self.channels[agent.number].append(job)
        agent.job = None

    def _finish(self, agent: Agent) -> None:
        agent.job = None
        self.cursors[agent.cursor].done += 1
        self._cross_boundaries()

    def _perform(self, agent: Agent, op: Op) -> None:
        knowledge = self.knowledge[agent.number]
        match op:
            case WaitOp(counter=counter, is_sys=is_sys, fence=fence):
                self.counters[counter].acquire(knowledge, is_sys=is_sys, fence=fence)
                if fence:
                    knowledge.tick(agent.number)
            case PostOp(counter=counter, count=count, is_sys=is_sys, is_remote=is_remote):
                self.counters[counter].release(knowledge, count, is_sys=is_sys, is_remote=is_remote)
                knowledge.tick(agent.number)
            case ReadOp(cells=cells, expected=expected, is_async=is_async):
                by = self._access(agent, is_async)
                for cell, family in zip(cells, expected, strict=True):
                    self._judge(agent, cell, self.memory.read(cell, family, by, knowledge))
            case WriteOp(cells=cells, is_async=is_async):
                by = self._access(agent, is_async)
                for cell in cells:
                    self._judge(agent, cell, self.memory.write(cell, by, knowledge))

    def _access(self, agent: Agent, is_async: bool) -> Write:
        job, cursor = agent.job, self.cursors[agent.cursor]
        if job is None:
            raise InternalError("the schedule machine let an agent without a job access memory")
        time = self.knowledge[agent.number].known[agent.number]
        return Write(
            family=job.work.family,
            execution=job.execution,
            agent=agent.number,
            time=time,
            is_async=is_async,
            launch=cursor.launch,
        )

    # -- kernel boundaries ------------------------------------------------------------------------------------------

    def _cross_boundaries(self) -> None:
        """Start the next launch of every cursor that has finished one, together if the ranks share a device."""
        while True:
            ready = [c for c in self.cursors if c.finished and c.launch < len(c.launches) - 1]
            if not ready or (self.setup.shared_device and len(ready) < len(self.cursors)):
                return
            groups = [ready] if self.setup.shared_device else [[cursor] for cursor in ready]
            for group in groups:
                self._cross(group)

    def _cross(self, cursors: list[Cursor]) -> None:
        numbers = {id(cursor) for cursor in cursors}
        members = [agent.number for agent in self.agents if id(self.cursors[agent.cursor]) in numbers]
        everything = [0] * len(self.agents)
        for number in members:
            join(everything, self.knowledge[number].known)
        for number in members:
            self.knowledge[number] = Knowledge(
                known=everything.copy(), unscoped=everything.copy(), fenced=everything.copy()
            )
            self.knowledge[number].tick(number)
        for cursor in cursors:
            cursor.launch, cursor.handed_out, cursor.done = cursor.launch + 1, 0, 0

    # -- findings ---------------------------------------------------------------------------------------------------

    def _judge(self, agent: Agent, cell: int, wrong: tuple[Fault, int | None] | None) -> None:
        if wrong is None or agent.job is None:
            return
        fault, execution = wrong
        other = None if execution is None else self.executions[execution]
        self.found(fault, self.program.cells.name(cell), agent.job.work.id, other)

    def found(self, fault: Fault, place: str, task: TaskId | None = None, other: TaskId | None = None) -> None:
        """Keep a finding, the first of its kind."""
        finding = Finding(fault=fault, place=place, task=task, other=other)
        self.findings.setdefault(finding.kind, finding)

    def judge_end(self) -> None:
        """Say what is wrong when nothing can run: tasks that still wait, and results that nobody wrote."""
        if not self.finished:
            for agent in self.agents:
                if agent.job is not None and agent.next_op < len(agent.ops):
                    self._judge_blocked(agent, agent.job, agent.ops[agent.next_op])
            return
        for cell in self.program.results:
            if cell not in self.memory.writes:
                self.found(Fault.NEVER_WRITTEN, self.program.cells.name(cell))

    def _judge_blocked(self, agent: Agent, job: Job, op: Op) -> None:
        if isinstance(op, WaitOp):
            lost = self.program.posts_to[op.counter] < op.target
            fault = Fault.LOST_POST if lost else Fault.DEADLOCK
            self.found(fault, self.program.counters[op.counter], job.work.id)
