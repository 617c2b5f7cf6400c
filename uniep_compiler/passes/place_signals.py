"""Lays the signals out in a scoreboard set: one after the other, in the order of the graph."""

from __future__ import annotations

from dataclasses import replace

from uniep_compiler.ir.index import Expr, Int
from uniep_compiler.ir.schedule import Schedule, SignalPlace


def place_signals(schedule: Schedule) -> Schedule:
    """The schedule with a place for every signal, and the number of counters of a set."""
    offset: Expr = Int(0)
    places: list[SignalPlace] = []
    for signal in schedule.graph.signals:
        places.append(SignalPlace(signal=signal.name, offset=offset, extent=signal.extent))
        offset = offset + signal.extent
    return replace(schedule, scoreboard=tuple(places), scoreboard_size=offset)
