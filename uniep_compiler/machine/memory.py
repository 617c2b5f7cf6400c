"""Memory as the machine sees it: who wrote and read each cell last, and who may know of it.

Each agent has a vector clock per strength of knowledge. An agent *knows* a write when a chain of releases and acquires,
each of sufficient scope, leads from the write to it; it knows it *for the async proxy* when a proxy fence of its own
came after.
"""

from __future__ import annotations

from dataclasses import dataclass

from uniep_compiler.machine.findings import Fault

Clock = list[int]


def join(into: Clock, other: Clock) -> None:
    """Make `into` know all that `other` knows."""
    for agent, time in enumerate(other):
        if time > into[agent]:
            into[agent] = time


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """What an agent knows of every agent's past: in fact, if scopes did not matter, and for the async proxy."""

    known: Clock
    unscoped: Clock
    fenced: Clock

    @staticmethod
    def initial(agent: int, num_agents: int) -> Knowledge:
        """An agent that knows of itself only."""
        clock = [int(other == agent) for other in range(num_agents)]
        return Knowledge(known=clock, unscoped=clock.copy(), fenced=[0] * num_agents)

    def copy(self) -> Knowledge:
        """The same, independent of this one."""
        return Knowledge(known=self.known.copy(), unscoped=self.unscoped.copy(), fenced=self.fenced.copy())

    def tick(self, agent: int) -> None:
        """Start a new stretch of the agent's own time: what follows is not part of what was released."""
        self.known[agent] += 1
        self.unscoped[agent] += 1


@dataclass(slots=True, kw_only=True)
class Counter:
    """A counter of the scoreboard with what its posts have released, by who may acquire it."""

    value: int
    own_rank: Clock
    every_rank: Clock
    unscoped: Clock

    @staticmethod
    def initial(num_agents: int) -> Counter:
        """A counter that nobody has posted to."""
        return Counter(value=0, own_rank=[0] * num_agents, every_rank=[0] * num_agents, unscoped=[0] * num_agents)

    def copy(self) -> Counter:
        """The same, independent of this one."""
        return Counter(
            value=self.value,
            own_rank=self.own_rank.copy(),
            every_rank=self.every_rank.copy(),
            unscoped=self.unscoped.copy(),
        )

    def release(self, knowledge: Knowledge, count: int, *, is_sys: bool, is_remote: bool) -> None:
        """Post: a release from another rank is heard only if its scope is sys."""
        self.value += count
        join(self.unscoped, knowledge.unscoped)
        if not is_remote:
            join(self.own_rank, knowledge.known)
        elif is_sys:
            join(self.every_rank, knowledge.known)

    def acquire(self, knowledge: Knowledge, *, is_sys: bool, fence: bool) -> None:
        """A wait that came through: an acquire hears other ranks only if its scope is sys."""
        join(knowledge.unscoped, self.unscoped)
        join(knowledge.known, self.own_rank)
        if is_sys:
            join(knowledge.known, self.every_rank)
        if fence:
            knowledge.fenced = knowledge.known.copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """The last write to a cell: by which family (its number), which execution of a task, at what time."""

    family: int
    execution: int
    agent: int
    time: int
    is_async: bool
    launch: int


Reads = dict[int, tuple[int, int]]
"""The readers of a cell since its last write: agent to (time, execution)."""


class Memory:
    """Every cell's last write and the reads since."""

    def __init__(self, writes: dict[int, Write] | None = None, reads: dict[int, Reads] | None = None) -> None:
        self.writes = {} if writes is None else writes
        self.reads = {} if reads is None else reads

    def copy(self) -> Memory:
        """The same, independent of this one."""
        return Memory(dict(self.writes), {cell: dict(reads) for cell, reads in self.reads.items()})

    def read(self, cell: int, expected: int | None, by: Write, knowledge: Knowledge) -> tuple[Fault, int | None] | None:
        """Record a read (`by` says who and when), and tell what is wrong with it and whose fault that is."""
        last = self.writes.get(cell)
        self.reads.setdefault(cell, {})[by.agent] = (by.time, by.execution)
        if expected is None:
            return Fault.NEVER_WRITTEN, None
        if last is None:
            return None if expected < 0 else (Fault.STALE_READ, None)
        if last.execution == by.execution:
            return None
        if last.family != expected:
            return Fault.STALE_READ, last.execution
        if knowledge.known[last.agent] < last.time:
            return _unordered(last, knowledge), last.execution
        if last.launch < by.launch:
            return None
        if last.is_async:
            return Fault.ASYNC_WRITE, last.execution
        if by.is_async and knowledge.fenced[last.agent] < last.time:
            return Fault.MISSING_FENCE, last.execution
        return None

    def write(self, cell: int, by: Write, knowledge: Knowledge) -> tuple[Fault, int | None] | None:
        """Record a write, and tell what is wrong with it and whose fault that is."""
        last, readers = self.writes.get(cell), self.reads.pop(cell, {})
        self.writes[cell] = by
        if last is not None and last.execution != by.execution:
            if last.family == by.family:
                return Fault.DOUBLE_WRITE, last.execution
            if last.family > by.family:
                return Fault.STALE_WRITE, last.execution
            if knowledge.known[last.agent] < last.time:
                return _unordered(last, knowledge), last.execution
        for agent, (time, execution) in readers.items():
            if knowledge.known[agent] < time and execution != by.execution:
                return Fault.RACE, execution
        return None


def _unordered(write: Write, knowledge: Knowledge) -> Fault:
    """Why a write is not known: scopes, or nothing orders it at all."""
    return Fault.NARROW_SCOPE if knowledge.unscoped[write.agent] >= write.time else Fault.RACE
