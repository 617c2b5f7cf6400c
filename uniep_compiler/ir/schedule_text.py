"""The text form of a Schedule: `print_schedule` writes it, and `read_schedule` reads the same schedule back.

schedule {
    tasks m { ... }

    launch launch_0 {
        stage {
            slice send_xs[0 : +16]
        }
        stage {
            interleave $num_tiles // 8 steps {
                gemm_a[0] by 48
                gemm_y[0] by 64
            }
        }
    }

    scoreboard 2 * $tiles_bound {
        xs_ready at 0 : +$tiles_bound
    }
}

A slice is `family[first task : +number of tasks]`; in an interleaving each step takes that many tasks of every member.
"""

from __future__ import annotations

from typing import assert_never

from uniep_compiler.ir.index_text import print_expr, read_expr
from uniep_compiler.ir.reader import Reader
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Schedule, Segment, SignalPlace, Slice, Stage
from uniep_compiler.ir.tasks_text import block, take_tasks, tasks_lines


def print_schedule(schedule: Schedule) -> str:
    """The schedule as text: its graph, its launches, and the scoreboard."""
    parts = [tasks_lines(schedule.graph), *map(_launch_lines, schedule.launches), _scoreboard_lines(schedule)]
    lines = [line for part in parts if part for line in ("", *part)]
    return "\n".join(block("schedule", lines[1:])) + "\n"


def print_order(schedule: Schedule) -> str:
    """The schedule without its task graph: launches and scoreboard. For people; only `print_schedule` reads back."""
    parts = [*map(_launch_lines, schedule.launches), _scoreboard_lines(schedule)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _launch_lines(launch: Launch) -> list[str]:
    return block(f"launch {launch.name}", [line for stage in launch.stages for line in _stage_lines(stage)])


def _stage_lines(stage: Stage) -> list[str]:
    return block("stage", [line for segment in stage.segments for line in _segment_lines(segment)])


def _segment_lines(segment: Segment) -> list[str]:
    match segment:
        case Slice(family=family, start=start, count=count):
            return [f"slice {family}[{print_expr(start)} : +{print_expr(count)}]"]
        case Interleave(steps=steps, members=members):
            lines = [f"{member.family}[{print_expr(member.start)}] by {member.per_step}" for member in members]
            return block(f"interleave {print_expr(steps)} steps", lines)
        case _:
            assert_never(segment)


def _scoreboard_lines(schedule: Schedule) -> list[str]:
    size = schedule.scoreboard_size
    places = [
        f"{place.signal} at {print_expr(place.offset)} : +{print_expr(place.extent)}" for place in schedule.scoreboard
    ]
    if size is None and not places:
        return []
    return block("scoreboard" if size is None else f"scoreboard {print_expr(size)}", places)


def read_schedule(text: str, name: str = "<schedule>") -> Schedule:
    """The schedule of a text that `print_schedule` wrote; UniepError (UEP0112) with the place for any other text."""
    reader = Reader(text, name)
    reader.expect("schedule")
    reader.expect("{")
    graph = take_tasks(reader)
    launches: list[Launch] = []
    while reader.accept("launch"):
        launches.append(_take_launch(reader))
    schedule = Schedule(graph=graph, launches=tuple(launches))
    if reader.accept("scoreboard"):
        schedule = _take_scoreboard(reader, schedule)
    reader.expect("}")
    reader.end()
    return schedule


def _take_launch(reader: Reader) -> Launch:
    name = reader.name()
    reader.expect("{")
    stages: list[Stage] = []
    while not reader.accept("}"):
        reader.expect("stage")
        stages.append(_take_stage(reader))
    return Launch(name=name, stages=tuple(stages))


def _take_stage(reader: Reader) -> Stage:
    reader.expect("{")
    segments: list[Segment] = []
    while not reader.accept("}"):
        segments.append(_take_segment(reader))
    return Stage(segments=tuple(segments))


def _take_segment(reader: Reader) -> Segment:
    if reader.accept("slice"):
        family = reader.name()
        reader.expect("[")
        start = read_expr(reader)
        reader.expect(":")
        reader.expect("+")
        count = read_expr(reader)
        reader.expect("]")
        return Slice(family=family, start=start, count=count)
    if not reader.accept("interleave"):
        reader.fail("`slice` or `interleave`")
    steps = read_expr(reader)
    reader.expect("steps")
    reader.expect("{")
    members: list[Member] = []
    while not reader.accept("}"):
        members.append(_take_member(reader))
    return Interleave(steps=steps, members=tuple(members))


def _take_member(reader: Reader) -> Member:
    family = reader.name()
    reader.expect("[")
    start = read_expr(reader)
    reader.expect("]")
    reader.expect("by")
    return Member(family=family, start=start, per_step=reader.number(least=1))


def _take_scoreboard(reader: Reader, schedule: Schedule) -> Schedule:
    size = None if reader.at("{") else read_expr(reader)
    reader.expect("{")
    places: list[SignalPlace] = []
    while not reader.accept("}"):
        signal = reader.name()
        reader.expect("at")
        offset = read_expr(reader)
        reader.expect(":")
        reader.expect("+")
        places.append(SignalPlace(signal=signal, offset=offset, extent=read_expr(reader)))
    return Schedule(graph=schedule.graph, launches=schedule.launches, scoreboard=tuple(places), scoreboard_size=size)
