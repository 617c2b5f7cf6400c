"""Lays the signals out in a scoreboard set: one after the other, in the order of the graph."""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.index import Expr, Int
from uniep_compiler.ir.schedule import Schedule, SignalPlace


def place_signals(schedule: Schedule) -> Schedule:
    """The schedule with a place for every signal, and the number of counters of a set."""
    before: dict[Expr, int] = {}
    places: list[SignalPlace] = []
    for signal in schedule.graph.signals:
        places.append(SignalPlace(signal=signal.name, offset=_total(before), extent=signal.extent))
        before[signal.extent] = before.get(signal.extent, 0) + 1
    return replace(schedule, scoreboard=tuple(places), scoreboard_size=_total(before))


def _total(extents: dict[Expr, int]) -> Expr:
    """The sum of extents, each with the number of times that it occurs."""
    total: Expr = Int(0)
    for extent, times in extents.items():
        total = total + extent * times
    return total
