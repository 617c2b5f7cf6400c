"""Drops waits for what earlier launches did, and signals that nobody waits for any more.

A kernel boundary orders everything before it, for every rank that shares the device, so with `fuse = none` nothing is
left to wait for. For ranks with launches of their own that would be wrong: `verify(schedule, shared_device=False)`
finds every wait for another rank that is missing then.
"""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.schedule import Schedule, families_of
from uniep_compiler.ir.tasks import Family


def drop_redundant_waits(schedule: Schedule) -> Schedule:
    """The schedule without waits that a launch boundary makes needless."""
    launch_of = {
        name: number
        for number, launch in enumerate(schedule.launches)
        for segment in launch.segments
        for name in families_of(segment)
    }
    graph = schedule.graph
    posted_in = {
        signal.name: max(
            (launch_of[f.name] for f in graph.families for post in f.posts if post.signal == signal.name), default=-1
        )
        for signal in graph.signals
    }
    families = [_without_waits(family, launch_of[family.name], posted_in) for family in graph.families]
    wanted = {wait.signal for family in families for wait in family.waits}
    families = [replace(f, posts=tuple(post for post in f.posts if post.signal in wanted)) for f in families]
    signals = tuple(signal for signal in graph.signals if signal.name in wanted)
    return replace(schedule, graph=replace(graph, families=tuple(families), signals=signals))


def _without_waits(family: Family, launch: int, posted_in: dict[str, int]) -> Family:
    waits = tuple(wait for wait in family.waits if posted_in[wait.signal] >= launch)
    return replace(family, waits=waits)
