"""Turns launches into what the module's template sees: the code that finds a task of the linear order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from uniep_compiler.codegen.family_views import printable
from uniep_compiler.codegen.places import Places, starts
from uniep_compiler.codegen.prelude import words
from uniep_compiler.codegen.view import LaunchView, StageView
from uniep_compiler.ir.index import Binary, BinaryOp, Expr, Int, Sym, minimum, substitute
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Segment, Slice, Stage, families_of
from uniep_compiler.passes.linearise import num_tasks


def launch_view(launch: Launch, number: int, places: Places, direction: str) -> LaunchView:
    """The view of launch `number` of a schedule; its kernel is called after the pass's direction."""
    schedule = places.schedule
    count = len(schedule.launches)
    families = tuple(dict.fromkeys(name for segment in launch.segments for name in families_of(segment)))
    names = ", ".join(places.names.functions[name] for name in families)
    whose = "Family" if places.local else "Rank and family"
    order = "" if places.local else " (stage, rank, index)"
    return LaunchView(
        name=direction if count == 1 else f"{direction}_{number}",
        number=number,
        suffix="" if count == 1 else f"_{number}",
        doc="The persistent kernel: takes tasks in order, until there are none left."
        if count == 1
        else f"Launch {number} of {count}: {names}.",
        locate_doc=f"{whose} of a task of the linear order{order}, and its index in the family.",
        first=number == 0,
        last=number == count - 1,
        stages=tuple(StageView(lines=_stage_lines(launch, stage, places)) for stage in launch.stages),
        num_tasks=_terms(families, places),
        families=families,
    )


def _terms(names: Sequence[str], places: Places) -> tuple[str, ...]:
    """The sum of the numbers of tasks of some families; of equal ones, one with the number of times that it occurs."""
    counts = Counter(_num_tasks(name, places) for name in names)
    return tuple(places.text(count * times, outer=2) for count, times in counts.items()) or ("0",)


def _num_tasks(family: str, places: Places) -> Expr:
    return _named_count(num_tasks(places.schedule.graph.family(family)), family, places)


def _named_count(count: Expr, family: str, places: Places) -> Expr:
    """A number of a family's tasks, with names for the numbers in it."""
    coord = places.schedule.graph.family(family).domain[0].coord
    if coord == "tile":
        return places.tasks_by_name(family, count)
    if coord == "expert":
        outer = places.names.outers.get(family)
        experts = places.schedule.graph.experts
        return count if outer is None else Binary(BinaryOp.MUL, Int(experts), Sym(outer.places))
    settings = places.settings
    named: dict[str, Mapping[Expr, Expr]] = {
        "lane": {Int(settings.lanes): Sym("LANES")},
        "piece": {Int(settings.options.chunk): Sym("CHUNK")},
    }
    return substitute(count, named.get(coord, {}))


def _stage_lines(launch: Launch, stage: Stage, places: Places) -> tuple[str, ...]:
    """Lines that find a task of a stage. On one rank, what is not found before the last segment is in there."""
    lags = _lags(launch, stage, places)
    last = launch.segments[-1] if places.local else None
    found = [line for segment in stage.segments for line in _segment_lines(segment, lags, places, segment is last)]
    lines = [*_lag_lines(lags, places), *found]
    if "groups" in words("\n".join(lines)):
        lines.insert(0, "groups = num_tiles // GROUP")
    return tuple(lines)


def _lags(launch: Launch, stage: Stage, places: Places) -> dict[str, int]:
    """The families of a pipeline but the first, in order, with the number of groups that they run behind it."""
    if not any(isinstance(segment, Interleave) for segment in stage.segments):
        return {}
    names = list(dict.fromkeys(name for segment in stage.segments for name in families_of(segment)))
    return dict(zip(names[1:], starts(launch, places.groups), strict=True))


def _lag_lines(lags: Mapping[str, int], places: Places) -> list[str]:
    """Lines that cut the lags off where a rank has fewer groups."""
    if not lags:
        return []
    unit, groups = min(lags.values()), places.text(places.groups)
    lines = ["# How many groups of M tiles a family runs behind the first one."]
    for name, lag in lags.items():
        times = f"{lag // unit} * " if lag > unit else ""
        lines.append(f"{places.names.lags[name]} = minimum({times}{places.lags[unit]}, {groups})")
    return lines


def _segment_lines(segment: Segment, lags: Mapping[str, int], places: Places, ends: bool) -> list[str]:
    """Lines that find a task in the segment, or else take its tasks off the index, unless it `ends` the order."""
    match segment:
        case Slice(family=name, start=start, count=count):
            before = [f"# {places.names.functions[name]}"]
            size = places.text(_named_count(count, name, places))
            inside = [f"family = {places.names.families[name]}", *_moved(start, name, lags, places)]
        case Interleave(steps=steps, members=members):
            before, per_step = _step_lines(members, places)
            size = places.text(_with_lags(steps, lags, places) * per_step)
            inside = _member_lines(members, per_step, lags, places)
        case _:
            assert_never(segment)
    found = inside if places.local else ["rank = candidate", *inside]
    return [
        *before,
        f"size = {size}",
        "if family < 0:",
        "    if index < size:",
        *(f"        {line}" for line in found),
        *([] if ends else ["    else:", "        index -= size"]),
    ]


def _step_lines(members: tuple[Member, ...], places: Places) -> tuple[list[str], Expr]:
    """Lines that say how a step of an interleaving is divided, and the number of its tasks."""
    parts = ", ".join(places.names.functions[member.family] for member in members)
    lines = [f"# {printable(f'in each step tasks of {parts}', beside=16)}"]
    passed = _per_step(members[0], places)
    for member in members[1:]:
        place = places.names.firsts[member.family]
        lines.append(f"{place} = {passed}")
        passed = f"{place} + {_per_step(member, places)}"
    if len(members) == 1:
        return lines, Sym(passed)
    return [*lines, f"per_step = {passed}"], Sym("per_step")


def _per_step(member: Member, places: Places) -> str:
    """The tasks of a member in each step."""
    return places.text(places.tasks_by_name(member.family, Int(member.per_step)))


def _member_lines(members: tuple[Member, ...], per_step: Expr, lags: Mapping[str, int], places: Places) -> list[str]:
    """Lines that find the family of a task of an interleaving."""
    if len(members) == 1:
        only = members[0]
        return [f"family = {places.names.families[only.family]}", *_moved(only.start, only.family, lags, places)]
    lines = [f"step = index // {places.text(per_step)}", f"place = index % {places.text(per_step)}"]
    ends = [*(places.names.firsts[member.family] for member in members[1:]), None]
    for number, (member, end) in enumerate(zip(members, ends, strict=True)):
        lines.append(f"{'elif' if number else 'if'} place < {end}:" if end else "else:")
        place = f"place - {places.names.firsts[member.family]}" if number else "place"
        body = [
            f"family = {places.names.families[member.family]}",
            f"index = step * {_per_step(member, places)} + {place}",
            *_moved(member.start, member.family, lags, places),
        ]
        lines += [f"    {line}" for line in body]
    return lines


def _moved(start: Expr, family: str, lags: Mapping[str, int], places: Places) -> list[str]:
    """The line that moves an index to where the segment's part of the family starts."""
    if start == Int(0):
        return []
    return [f"index += {places.text(places.tasks_by_name(family, _with_lags(start, lags, places)))}"]


def _with_lags(expr: Expr, lags: Mapping[str, int], places: Places) -> Expr:
    """The expression with the names of the families' lags."""
    return substitute(expr, {minimum(lag, places.groups): Sym(places.names.lags[name]) for name, lag in lags.items()})
