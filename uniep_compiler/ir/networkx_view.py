"""Copies of task graphs as networkx graphs, for users and pictures.

`families_graph` has a vertex per family, by name, with attributes `role`, `value`, `domain` (text) and `span`.
`tasks_graph` has a vertex per single task (`TaskId`), with `role` and `coords`. In both an edge leads from who posts a
signal to who waits for it, and its attribute `signals` names those signals. An edge of a copy says what waits for what;
changing it changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from uniep_compiler.ir.index_text import print_term
from uniep_compiler.ir.instance import Instance, TaskId
from uniep_compiler.ir.tasks import TaskGraph

if TYPE_CHECKING:
    import networkx as nx


def families_graph(graph: TaskGraph) -> nx.DiGraph:
    """The families and what waits for what, in data-flow order."""
    import networkx as nx

    copy = nx.DiGraph(name=graph.name)
    for family in graph.families:
        domain = ", ".join(f"{item.coord} < {print_term(item.extent)}" for item in family.domain)
        copy.add_node(family.name, role=str(family.role), value=family.value, domain=domain, span=family.span)
    signals: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for family in graph.families:
        for wait in family.waits:
            for poster in graph.families:
                if any(post.signal == wait.signal for post in poster.posts):
                    signals[poster.name, family.name][wait.signal] = None
    for (poster_name, waiter), names in signals.items():
        copy.add_edge(poster_name, waiter, signals=tuple(names))
    return copy


def tasks_graph(instance: Instance) -> nx.DiGraph:
    """The single tasks of every rank and what waits for what."""
    import networkx as nx

    copy = nx.DiGraph(name=instance.graph.name)
    for task in instance.tasks.values():
        role = str(instance.graph.family(task.id.family).role)
        copy.add_node(task.id, role=role, coords=dict(task.coords))
    signals: dict[tuple[TaskId, TaskId], dict[str, None]] = defaultdict(dict)
    for poster, waiter, signal in edges(instance):
        signals[poster, waiter][signal] = None
    for (poster, waiter), names in signals.items():
        copy.add_edge(poster, waiter, signals=tuple(names))
    return copy


def edges(instance: Instance) -> Iterator[tuple[TaskId, TaskId, str]]:
    """Who posts, who waits for it, and by which signal: for each counter that is waited for."""
    posters: dict[tuple[str, int, int], dict[TaskId, None]] = defaultdict(dict)
    for task in instance.tasks.values():
        for step in task.steps:
            for post in step.posts:
                posters[post.signal, post.rank, post.index][task.id] = None
    for task in instance.tasks.values():
        for step in task.steps:
            for wait in step.waits:
                for poster in posters[wait.signal, task.id.rank, wait.index]:
                    yield poster, task.id, wait.signal
