"""Turns launches into what the module's template sees: the code that finds a task of the linear order."""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from uniep_compiler.codegen.places import Places
from uniep_compiler.codegen.view import LaunchView, StageView
from uniep_compiler.ir.index import Expr, Int, Sym
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Segment, Slice, families_of
from uniep_compiler.passes.linearise import num_tasks


def launch_view(launch: Launch, number: int, places: Places) -> LaunchView:
    """The view of launch `number` of a schedule."""
    schedule = places.schedule
    count = len(schedule.launches)
    families = tuple(dict.fromkeys(name for segment in launch.segments for name in families_of(segment)))
    names = ", ".join(places.names.functions[name] for name in families)
    whose = "Family" if places.local else "Rank and family"
    order = "" if places.local else " (stage, rank, index)"
    return LaunchView(
        name="forward" if count == 1 else f"forward_{number}",
        number=number,
        suffix="" if count == 1 else f"_{number}",
        doc="The persistent kernel: takes tasks in order, until there are none left."
        if count == 1
        else f"Launch {number} of {count}: {names}.",
        locate_doc=f"{whose} of a task of the linear order{order}, and its index in the family.",
        first=number == 0,
        last=number == count - 1,
        stages=tuple(StageView(lines=_stage_lines(stage.segments, places)) for stage in launch.stages),
        num_tasks=_terms(
            [_named_count(num_tasks(schedule.graph.family(name)), name, places) for name in families], places
        ),
        families=families,
    )


def _named_count(count: Expr, family: str, places: Places) -> Expr:
    """A number of a family's tasks, with a name where there is one task per lane."""
    is_by_lane = places.schedule.graph.family(family).domain[0].coord == "lane"
    return Sym("LANES") if is_by_lane and count == Int(places.settings.lanes) else count


def _terms(numbers: list[Expr], places: Places) -> tuple[str, ...]:
    """The sum of some numbers, each with the number of times that it occurs."""
    return tuple(places.text(number * times, outer=2) for number, times in Counter(numbers).items()) or ("0",)


def _stage_lines(segments: tuple[Segment, ...], places: Places) -> tuple[str, ...]:
    lines = [line for segment in segments for line in _segment_lines(segment, places)]
    if any("groups" in line for line in lines):
        lines.insert(0, "groups = num_tiles // GROUP")
    return tuple(lines)


def _segment_lines(segment: Segment, places: Places) -> list[str]:
    """Lines that find a task in the segment, or else take its tasks off the index."""
    match segment:
        case Slice(family=name, start=start, count=count):
            comment, size = places.names.functions[name], places.text(_named_count(count, name, places))
            inside = [f"family = {places.names.families[name]}", *_moved(start, places)]
        case Interleave(steps=steps, members=members):
            per_step = sum(member.per_step for member in members)
            parts = ", ".join(f"{member.per_step} of {places.names.functions[member.family]}" for member in members)
            comment = f"in each step {parts}"
            size = places.text(steps * per_step)
            inside = _member_lines(members, per_step, places)
        case _:
            assert_never(segment)
    found = inside if places.local else ["rank = candidate", *inside]
    return [
        f"# {comment}",
        f"size = {size}",
        "if family < 0:",
        "    if index < size:",
        *(f"        {line}" for line in found),
        "    else:",
        "        index -= size",
    ]


def _member_lines(members: tuple[Member, ...], per_step: int, places: Places) -> list[str]:
    """Lines that find the family of a task of an interleaving."""
    if len(members) == 1:
        return [f"family = {places.names.families[members[0].family]}", *_moved(members[0].start, places)]
    lines = [f"step = index // {per_step}", f"place = index % {per_step}"]
    passed = 0
    for number, member in enumerate(members):
        passed, before = passed + member.per_step, passed
        is_last = number == len(members) - 1
        lines.append("else:" if is_last else f"{'elif' if number else 'if'} place < {passed}:")
        place = f"place - {before}" if before else "place"
        body = [
            f"family = {places.names.families[member.family]}",
            f"index = step * {member.per_step} + {place}",
            *_moved(member.start, places),
        ]
        lines += [f"    {line}" for line in body]
    return lines


def _moved(start: Expr, places: Places) -> list[str]:
    """The line that moves an index to where the segment's part of the family starts."""
    return [] if start == Int(0) else [f"index += {places.text(start)}"]
