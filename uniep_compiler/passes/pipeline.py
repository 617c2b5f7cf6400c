"""The compiler's passes, in order. Nothing is discovered and nothing is reordered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from uniep_compiler.ir.ops import OpGraph
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.tasks import TaskGraph
from uniep_compiler.passes.assign_signals import assign_signals
from uniep_compiler.passes.build_tasks import build_tasks
from uniep_compiler.passes.drop_redundant_waits import drop_redundant_waits
from uniep_compiler.passes.insert_relays import insert_relays
from uniep_compiler.passes.keep_results_local import keep_results_local
from uniep_compiler.passes.linearise import linearise
from uniep_compiler.passes.place_signals import place_signals
from uniep_compiler.passes.settings import Settings

TASK_PASSES: tuple[Callable[[TaskGraph, Settings], TaskGraph], ...] = (
    insert_relays,
    keep_results_local,
    assign_signals,
)
SCHEDULE_PASSES: tuple[Callable[[Schedule], Schedule], ...] = (drop_redundant_waits, place_signals)

PASS_NAMES: tuple[str, ...] = (
    build_tasks.__name__,
    *(task_pass.__name__ for task_pass in TASK_PASSES),
    linearise.__name__,
    *(schedule_pass.__name__ for schedule_pass in SCHEDULE_PASSES),
)
"""Every pass from the OpGraph to the Schedule, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The IR as a pass left it."""

    after: str
    ir: TaskGraph | Schedule


def run_passes(ops: OpGraph, settings: Settings) -> Iterator[State]:
    """Yield the IR after each pass; the last state holds the finished schedule."""
    graph = build_tasks(ops, settings)
    yield State(after=build_tasks.__name__, ir=graph)
    for task_pass in TASK_PASSES:
        graph = task_pass(graph, settings)
        yield State(after=task_pass.__name__, ir=graph)
    schedule = linearise(graph, settings)
    yield State(after=linearise.__name__, ir=schedule)
    for schedule_pass in SCHEDULE_PASSES:
        schedule = schedule_pass(schedule)
        yield State(after=schedule_pass.__name__, ir=schedule)
