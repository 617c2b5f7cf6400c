"""Runs of the schedule machine: at random by a seed, with one worker per rank, or through all interleavings.

report = run(schedule, routing, workers=3, seed=0)
assert not report.findings, report
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy

from uniep_compiler.ir.index import Environment
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.machine.findings import MachineReport, joined
from uniep_compiler.machine.machine import Agent, Cursor, Machine, Setup
from uniep_compiler.machine.memory import Knowledge
from uniep_compiler.machine.program import Program, load

Choose = Callable[[list[Agent]], Agent]
"""Picks who takes the next step, among the agents that can."""


def run(
    schedule: Schedule | Program,
    routing: Environment | None = None,
    *,
    workers: int = 2,
    seed: int = 0,
    merged: bool = False,
    ids_ahead: int = 1,
    split: bool = False,
    shared_device: bool = True,
) -> MachineReport:
    """Execute a schedule under one routing, in an interleaving that the seed picks, and with one worker per cursor.

    A `Program` (`machine/program.py`) may stand for both schedule and routing, so that many seeds share its making.
    """
    program = schedule if isinstance(schedule, Program) else _load(schedule, routing)
    setups = [
        Setup(workers=number, merged=merged, ids_ahead=ids_ahead, split=split, shared_device=shared_device)
        for number in dict.fromkeys((workers, 1))
    ]
    return joined([_execute(Machine(program, setup), _policy(seed)) for setup in setups])


def explore(
    schedule: Schedule | Program,
    routing: Environment | None = None,
    *,
    workers: int = 2,
    merged: bool = False,
    ids_ahead: int = 1,
    split: bool = False,
    shared_device: bool = True,
    max_states: int = 20_000,
) -> MachineReport:
    """Execute every interleaving, up to the order of steps that don't touch each other. For tiny cases.

    `complete` is False in the report if there were more than `max_states` states.
    """
    program = schedule if isinstance(schedule, Program) else _load(schedule, routing)
    setup = Setup(workers=workers, merged=merged, ids_ahead=ids_ahead, split=split, shared_device=shared_device)
    return _explore(Machine(program, setup), max_states)


def _load(schedule: Schedule, routing: Environment | None) -> Program:
    if routing is None:
        raise TypeError("a schedule runs under a routing")
    return load(schedule, routing)


def _execute(machine: Machine, choose: Choose) -> MachineReport:
    while enabled := machine.enabled():
        machine.step(choose(enabled))
    machine.judge_end()
    return MachineReport(findings=tuple(machine.findings.values()), num_steps=machine.num_steps)


# -- interleavings by seed ------------------------------------------------------------------------------------------


def _policy(seed: int) -> Choose:
    """Three ways to pick, in turn by seed: evenly, by priorities that change now and then, and one agent at a time.

    Priorities find orders that even picks all but never do: a worker that sleeps while others finish everything else
    (Burckhardt et al., A randomized scheduler with probabilistic guarantees of finding bugs, ASPLOS 2010).
    """
    source = random.Random(seed)
    match seed % 3:
        case 0:
            return lambda enabled: source.choice(enabled)
        case 1:
            return _by_priority(source)
        case _:
            return _one_at_a_time(source)


def _by_priority(source: random.Random) -> Choose:
    priorities: dict[int, float] = {}

    def choose(enabled: list[Agent]) -> Agent:
        best = max(enabled, key=lambda agent: priorities.setdefault(agent.number, source.random()))
        if source.random() < 0.02:
            priorities[best.number] = source.random() - 1
        return best

    return choose


def _one_at_a_time(source: random.Random) -> Choose:
    current = -1

    def choose(enabled: list[Agent]) -> Agent:
        nonlocal current
        chosen = next((agent for agent in enabled if agent.number == current), None)
        if chosen is None or source.random() < 0.02:
            chosen = source.choice(enabled)
        current = chosen.number
        return chosen

    return choose


# -- all interleavings ----------------------------------------------------------------------------------------------


def _explore(start: Machine, max_states: int) -> MachineReport:
    """Depth first over the choices that matter: accesses follow at once, as knowledge alone decides what they see."""
    seen: set[object] = set()
    stack = [start]
    findings = dict(start.findings)
    num_steps = 0
    while stack and len(seen) < max_states:
        machine = stack.pop()
        num_steps += _run_accesses(machine)
        state = _state(machine)
        if state in seen:
            continue
        seen.add(state)
        enabled = [agent.number for agent in machine.enabled()]
        if not enabled:
            machine.judge_end()
        findings.update(machine.findings)
        for number in enabled:
            successor = _clone(machine)
            successor.step(successor.agents[number])
            stack.append(successor)
    return MachineReport(findings=tuple(findings.values()), num_steps=num_steps, complete=not stack)


def _run_accesses(machine: Machine) -> int:
    before = machine.num_steps
    for agent in machine.agents:
        while machine.is_local(agent):
            machine.step(agent)
    return machine.num_steps - before


def _state(machine: Machine) -> object:
    """What two interleavings have in common when nothing later can tell them apart."""
    agents = tuple((a.job.work.id if a.job else None, a.next_op, tuple(a.held)) for a in machine.agents)
    cursors = tuple((cursor.launch, cursor.handed_out, cursor.done) for cursor in machine.cursors)
    counters = tuple((c.value, tuple(c.own_rank), tuple(c.every_rank)) for c in machine.counters)
    channels = tuple(tuple(job.work.id for job in jobs) for jobs in machine.channels.values())
    return agents, cursors, counters, channels, tuple(map(_knowledge_key, machine.knowledge))


def _knowledge_key(knowledge: Knowledge) -> tuple[tuple[int, ...], ...]:
    return tuple(knowledge.known), tuple(knowledge.unscoped), tuple(knowledge.fenced)


def _clone(machine: Machine) -> Machine:
    """An independent copy of a machine's state."""
    twin = copy(machine)
    twin.cursors = [
        Cursor(launches=c.launches, launch=c.launch, handed_out=c.handed_out, done=c.done) for c in machine.cursors
    ]
    twin.agents = [copy(agent) for agent in machine.agents]
    for agent in twin.agents:
        agent.held = agent.held.copy()
    twin.channels = {number: jobs.copy() for number, jobs in machine.channels.items()}
    twin.knowledge = [knowledge.copy() for knowledge in machine.knowledge]
    twin.counters = [counter.copy() for counter in machine.counters]
    twin.memory = machine.memory.copy()
    twin.executions = machine.executions.copy()
    twin.findings = machine.findings.copy()
    return twin
