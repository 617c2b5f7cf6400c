"""Broken schedules: every way to break one that the machine and the checker have to know, as functions of a schedule.

Each yields (what was done, the broken schedule). Some mutants happen to be harmless; what counts is that the checker
rejects whatever the machine can make fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from uniep_compiler.ir.index import Coord, Expr, Int, Sym
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Schedule, Segment, Slice, Stage
from uniep_compiler.ir.tasks import (
    Access,
    Body,
    BufferKind,
    Companion,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    Post,
    Proxy,
    Range,
    ReduceBody,
    Role,
    RoutesBody,
    RowLoad,
    RowValue,
    Scope,
    SumBody,
)
from uniep_compiler.ir.types import DType

Mutants = Iterator[tuple[str, Schedule]]


# -- changing one thing ---------------------------------------------------------------------------------------------


def with_family(schedule: Schedule, family: Family) -> Schedule:
    """The schedule with the family of that name replaced."""
    graph = schedule.graph
    families = tuple(family if other.name == family.name else other for other in graph.families)
    return replace(schedule, graph=replace(graph, families=families))


def with_segments(schedule: Schedule, launch: int, stage: int, segments: tuple[Segment, ...]) -> Schedule:
    """The schedule with the segments of a stage replaced."""
    old = schedule.launches[launch]
    stages = tuple(Stage(segments=segments) if i == stage else other for i, other in enumerate(old.stages))
    return with_stages(schedule, launch, stages)


def with_stages(schedule: Schedule, launch: int, stages: tuple[Stage, ...]) -> Schedule:
    """The schedule with the stages of a launch replaced."""
    old = schedule.launches[launch]
    new = Launch(name=old.name, stages=stages)
    launches = tuple(new if i == launch else other for i, other in enumerate(schedule.launches))
    return replace(schedule, launches=launches)


def each_part(schedule: Schedule, part: str) -> Iterator[tuple[Family, int, object]]:
    for family in schedule.graph.families:
        for number, item in enumerate(getattr(family, part)):
            yield family, number, item


def change_parts(schedule: Schedule, part: str, change: Callable[..., object]) -> Mutants:
    """For each wait (post, read, write): the schedule in which it is what `change` makes of it; None leaves it out."""
    for family, number, item in each_part(schedule, part):
        new = change(item)
        if new == item:
            continue
        items = list(getattr(family, part))
        items[number : number + 1] = new if isinstance(new, list) else [] if new is None else [new]
        yield f"{part}[{number}] of {family.name}", with_family(schedule, replace(family, **{part: tuple(items)}))


def each_stage(schedule: Schedule) -> Iterator[tuple[int, int, tuple[Segment, ...]]]:
    for launch_number, launch in enumerate(schedule.launches):
        for stage_number, stage in enumerate(launch.stages):
            yield launch_number, stage_number, stage.segments


def change_segments(schedule: Schedule, change: Callable[[Segment], Segment | None]) -> Mutants:
    """For each segment: the schedule in which it is what `change` makes of it; None leaves it out."""
    for launch, stage, segments in each_stage(schedule):
        for number, segment in enumerate(segments):
            new = change(segment)
            if new != segment:
                changed = (*segments[:number], *(() if new is None else (new,)), *segments[number + 1 :])
                yield f"segment {number} of stage {stage}", with_segments(schedule, launch, stage, changed)


# -- waits and posts ------------------------------------------------------------------------------------------------


def drop_wait(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: None)


def raise_target(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, target=wait.target + 1))


def lower_target(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, target=wait.target - 1))


def shift_wait(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, index=wait.index + 1))


def fix_wait(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, index=Int(0)))


def drop_post(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: None)


def double_post(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: [post, post])


def shift_post(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: replace(post, index=post.index + 1))


def post_unconditionally(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: replace(post, when=None))


def post_at_home(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: replace(post, rank=None))


def post_from_elsewhere(schedule: Schedule) -> Mutants:
    """Some other family posts to a signal too."""
    signals = schedule.graph.signals
    for family in schedule.graph.families:
        for signal in signals:
            if all(post.signal != signal.name for post in family.posts):
                extra = Post(signal=signal.name, index=Int(0), scope=signal.scope)
                yield (
                    f"{family.name} posts {signal.name}",
                    with_family(schedule, replace(family, posts=(*family.posts, extra))),
                )


def narrow_post(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "posts", lambda post: replace(post, scope=Scope.GPU))


def narrow_wait(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, scope=Scope.GPU))


def drop_fence(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, fence=False))


def fence_too_early(schedule: Schedule) -> Mutants:
    """The fence stands at a wait for something else, before the wait that makes the data visible."""
    for i, family in enumerate(schedule.graph.families):
        others = [wait for other in schedule.graph.families[:i] for wait in other.waits if wait.index == Coord("tile")]
        if others and any(wait.fence for wait in family.waits):
            late = [replace(wait, fence=False) for wait in family.waits]
            waits = (replace(others[-1], fence=True), *late)
            yield f"fence of {family.name}", with_family(schedule, replace(family, waits=waits))


# -- accesses -------------------------------------------------------------------------------------------------------


def write_by_tma(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, proxy=Proxy.ASYNC))


def read_by_tma(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "reads", lambda access: replace(access, proxy=Proxy.ASYNC))


def drop_write(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: None)


def write_a_row_less(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, num_rows=access.num_rows - 1))


def write_a_row_more(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, num_rows=access.num_rows + 1))


def write_a_column_less(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, num_cols=access.num_cols - 1))


def write_a_column_later(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, col=access.col + 1))


def write_a_row_later(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, row=access.row + 1))


def read_a_row_later(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "reads", lambda access: replace(access, row=access.row + 1))


def write_at_home(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, rank=None))


def read_unconditionally(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "reads", lambda access: replace(access, when=None))


def write_unconditionally(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "writes", lambda access: replace(access, when=None))


def read_one_item_more(schedule: Schedule) -> Mutants:
    yield from change_parts(schedule, "reads", _with_longer_range)


def _with_longer_range(access: Access) -> Access:
    if not access.over:
        return access
    last = access.over[-1]
    return replace(access, over=(*access.over[:-1], Range(coord=last.coord, extent=last.extent + 1)))


def reuse_buffer(schedule: Schedule) -> Mutants:
    """Two buffers of a call in one piece of memory."""
    graph = schedule.graph
    inner = [buffer for buffer in graph.buffers if buffer.kind is not BufferKind.INPUT]
    for old in inner:
        for new in inner:
            if old == new or old.rows != new.rows or old.kind is BufferKind.OUTPUT:
                continue
            families = tuple(_in_buffer(family, old.name, new.name) for family in graph.families)
            changed = replace(graph, families=families)
            yield f"{old.name} in {new.name}", replace(schedule, graph=changed)


def _in_buffer(family: Family, old: str, new: str) -> Family:
    def move(access: Access) -> Access:
        return replace(access, buffer=new) if access.buffer == old else access

    return replace(
        family,
        reads=tuple(map(move, family.reads)),
        writes=tuple(map(move, family.writes)),
        body=body_elsewhere(family.body, old, new),
    )


def body_elsewhere(body: Body, old: str, new: str) -> Body:
    """The body with one buffer in the place of another."""
    changed: dict[str, object] = {
        item.name: new
        for item in fields(body)
        if item.name in ("source", "rows", "weights", "target", "left", "right") and getattr(body, item.name) == old
    }
    for name in ("stores", "loads", "biases", "terms", "parts"):
        items = getattr(body, name, ())
        changed |= {name: tuple(_part_elsewhere(item, old, new) for item in items)} if items else {}
    return replace(body, **changed)


def _part_elsewhere(part: Any, old: str, new: str) -> Any:
    """The part of a body with one buffer in the place of another."""
    names = {item.name for item in fields(part)} & {"buffer", "rows", "weight", "left", "right"}
    return replace(part, **{name: new for name in names if getattr(part, name) == old})


def reuse_buffer_early(schedule: Schedule) -> Mutants:
    """Two buffers in one piece of memory, and whoever writes it the second time waits for nobody."""
    for what, reused in reuse_buffer(schedule):
        buffer = what.rpartition(" ")[2]
        writers = [f for f in reused.graph.families if any(access.buffer == buffer for access in f.writes)]
        yield what, with_family(reused, replace(writers[-1], waits=()))


def write_an_input(schedule: Schedule) -> Mutants:
    """A family writes to what the caller owns, too."""
    for buffer in schedule.graph.buffers:
        if buffer.kind is BufferKind.INPUT:
            extra = Access(buffer=buffer.name, row=Int(0), num_rows=Int(1), num_cols=buffer.cols)
            for family in schedule.graph.families:
                yield (
                    f"{family.name} writes {buffer.name}",
                    with_family(schedule, replace(family, writes=(*family.writes, extra))),
                )


def keep_out_of_reach(schedule: Schedule) -> Mutants:
    """A buffer that other ranks write is not in symmetric memory."""
    graph = schedule.graph
    for buffer in graph.buffers:
        if buffer.kind is BufferKind.SYMMETRIC:
            buffers = tuple(replace(b, kind=BufferKind.WORKSPACE) if b == buffer else b for b in graph.buffers)
            yield buffer.name, replace(schedule, graph=replace(graph, buffers=buffers))


def divide_by_a_count(schedule: Schedule) -> Mutants:
    """A count that is 0 on some rank stands where a number has to."""
    yield from change_parts(schedule, "reads", lambda access: replace(access, row=access.row // Sym("num_tiles")))


def shrink_buffer(schedule: Schedule) -> Mutants:
    graph = schedule.graph
    for buffer in graph.buffers:
        if buffer.kind is not BufferKind.INPUT:
            smaller = replace(buffer, rows=buffer.rows - 2)
            buffers = tuple(smaller if b == buffer else b for b in graph.buffers)
            yield buffer.name, replace(schedule, graph=replace(graph, buffers=buffers))


# -- the order ------------------------------------------------------------------------------------------------------


def swap_segments(schedule: Schedule) -> Mutants:
    for launch, stage, segments in each_stage(schedule):
        for i in range(len(segments) - 1):
            swapped = (*segments[:i], segments[i + 1], segments[i], *segments[i + 2 :])
            yield f"segments {i}, {i + 1} of stage {stage}", with_segments(schedule, launch, stage, swapped)


def swap_members(schedule: Schedule) -> Mutants:
    yield from change_segments(
        schedule, lambda s: replace(s, members=s.members[::-1]) if isinstance(s, Interleave) else s
    )


def swap_stages(schedule: Schedule) -> Mutants:
    for number, launch in enumerate(schedule.launches):
        for i in range(len(launch.stages) - 1):
            stages = (*launch.stages[:i], launch.stages[i + 1], launch.stages[i], *launch.stages[i + 2 :])
            yield f"stages {i}, {i + 1}", with_stages(schedule, number, stages)


def merge_stages(schedule: Schedule) -> Mutants:
    for number, launch in enumerate(schedule.launches):
        for i in range(len(launch.stages) - 1):
            both = Stage(segments=(*launch.stages[i].segments, *launch.stages[i + 1].segments))
            stages = (*launch.stages[:i], both, *launch.stages[i + 2 :])
            yield f"stages {i}, {i + 1}", with_stages(schedule, number, stages)


def swap_launches(schedule: Schedule) -> Mutants:
    for i in range(len(schedule.launches) - 1):
        launches = list(schedule.launches)
        launches[i], launches[i + 1] = launches[i + 1], launches[i]
        yield f"launches {i}, {i + 1}", replace(schedule, launches=tuple(launches))


def merge_launches(schedule: Schedule) -> Mutants:
    """One launch where two were: what a kernel boundary ordered has to be waited for."""
    for i in range(len(schedule.launches) - 1):
        first, second = schedule.launches[i : i + 2]
        both = Launch(name=first.name, stages=(*first.stages, *second.stages))
        launches = (*schedule.launches[:i], both, *schedule.launches[i + 2 :])
        yield f"launches {i}, {i + 1}", replace(schedule, launches=launches)


def drop_segment(schedule: Schedule) -> Mutants:
    yield from change_segments(schedule, lambda segment: None)


def miss_a_task(schedule: Schedule) -> Mutants:
    yield from change_segments(schedule, lambda s: _longer(s, -1))


def repeat_a_task(schedule: Schedule) -> Mutants:
    yield from change_segments(schedule, lambda s: _longer(s, 1))


def _longer(segment: Segment, tasks: int) -> Segment:
    if isinstance(segment, Slice):
        return replace(segment, count=segment.count + tasks)
    return replace(segment, steps=segment.steps + tasks)


def start_later(schedule: Schedule) -> Mutants:
    """A member runs a step ahead: its lag is one less."""
    for launch, stage, segments in each_stage(schedule):
        for number, segment in enumerate(segments):
            for changed in _started_later(segment):
                new = (*segments[:number], changed, *segments[number + 1 :])
                yield f"segment {number} of stage {stage}", with_segments(schedule, launch, stage, new)


def _started_later(segment: Segment) -> Iterator[Segment]:
    if isinstance(segment, Slice):
        yield replace(segment, start=segment.start + 1)
        return
    for i, member in enumerate(segment.members):
        later = replace(member, start=member.start + member.per_step)
        yield replace(segment, members=(*segment.members[:i], later, *segment.members[i + 1 :]))


def step_backwards(schedule: Schedule) -> Mutants:
    """Each step of an interleaving takes less than one task of a member, and the segment before it makes up for it."""
    for launch, stage, segments in each_stage(schedule):
        for number, segment in enumerate(segments):
            if isinstance(segment, Slice):
                for per_step in (0, -1):
                    more = replace(segment, count=segment.count - per_step)
                    member = Member(family=segment.family, start=segment.start + more.count, per_step=per_step)
                    back = Interleave(steps=Int(1), members=(member,))
                    new = (*segments[:number], more, back, *segments[number + 1 :])
                    what = f"segment {number} of stage {stage} by {per_step}"
                    yield what, with_segments(schedule, launch, stage, new)


def run_late_families_early(schedule: Schedule) -> Mutants:
    """Two families exchange their places everywhere in the order."""
    names = [family.name for family in schedule.graph.families]
    domains = {family.name: _tasks(family) for family in schedule.graph.families}
    for first, second in pairwise(names):
        if domains[first] == domains[second]:
            yield f"{first} and {second}", _exchange(schedule, {first: second, second: first})


def _tasks(family: Family) -> Expr:
    count: Expr = Int(1)
    for item in family.domain:
        count = count * item.extent
    return count


def _exchange(schedule: Schedule, names: dict[str, str]) -> Schedule:
    def move(segment: Segment) -> Segment:
        if isinstance(segment, Slice):
            return replace(segment, family=names.get(segment.family, segment.family))
        members = tuple(replace(m, family=names.get(m.family, m.family)) for m in segment.members)
        return replace(segment, members=members)

    for launch, stage, segments in each_stage(schedule):
        schedule = with_segments(schedule, launch, stage, tuple(map(move, segments)))
    return schedule


# -- the scoreboard and the domains ---------------------------------------------------------------------------------


def overlap_signals(schedule: Schedule) -> Mutants:
    for number, place in enumerate(schedule.scoreboard):
        if place.offset != Int(0):
            moved = replace(place, offset=place.offset - 1)
            scoreboard = (*schedule.scoreboard[:number], moved, *schedule.scoreboard[number + 1 :])
            yield place.signal, replace(schedule, scoreboard=scoreboard)


def shrink_scoreboard(schedule: Schedule) -> Mutants:
    if schedule.scoreboard_size is not None:
        yield "scoreboard", replace(schedule, scoreboard_size=schedule.scoreboard_size - 1)


def shrink_signal(schedule: Schedule) -> Mutants:
    graph = schedule.graph
    for signal in graph.signals:
        signals = tuple(replace(s, extent=s.extent - 1) if s == signal else s for s in graph.signals)
        yield signal.name, replace(schedule, graph=replace(graph, signals=signals))


def change_domain(schedule: Schedule) -> Mutants:
    """A family with one task less, or one more, and the order as it was."""
    for family in schedule.graph.families:
        for change in (-1, 1):
            last = family.domain[-1]
            domain = (*family.domain[:-1], Range(coord=last.coord, extent=last.extent + change))
            yield f"{family.name} {change:+}", with_family(schedule, replace(family, domain=domain))


def number_differently(schedule: Schedule) -> Mutants:
    """Other groups than those that the order was made for."""
    for family in schedule.graph.families:
        if family.group > 1:
            for group in (1, family.group + 1):
                yield f"{family.name} {group}", with_family(schedule, replace(family, group=group))


def take_other_items(schedule: Schedule) -> Mutants:
    """Lanes that all take the same items, or share them wrongly."""
    for family in schedule.graph.families:
        if family.domain[0].coord == "lane":
            fixed = replace(family, domain=(Range(coord="lane", extent=family.domain[0].extent + 1),))
            yield f"lanes of {family.name}", with_family(schedule, fixed)


def confuse_ranks(schedule: Schedule) -> Mutants:
    """Remote effects that go to the own rank's number instead of the peer's."""
    for part in ("writes", "posts"):
        yield from change_parts(schedule, part, lambda item: replace(item, rank=Sym("rank")) if item.rank else item)


def confuse_tables(schedule: Schedule) -> Mutants:
    """A row is taken for its route, or a lane's item for its token."""
    for part in ("reads", "writes"):
        yield from change_parts(
            schedule, part, lambda access: replace(access, row=Coord("item")) if len(access.over) > 1 else access
        )


# -- what only the checker knows ------------------------------------------------------------------------------------


def forget_phase(schedule: Schedule) -> Mutants:
    """Posts between ranks that stand in no phase: the order alone does not tell a machine that."""
    graph = schedule.graph
    for signal in graph.signals:
        if signal.phase:
            signals = tuple(replace(s, phase=0) if s == signal else s for s in graph.signals)
            yield signal.name, replace(schedule, graph=replace(graph, signals=signals))


def misname(schedule: Schedule) -> Mutants:
    """A wait for a signal, or a segment of a family, that is not there."""
    yield from change_parts(schedule, "waits", lambda wait: replace(wait, signal="nothing"))
    yield from change_segments(schedule, lambda s: replace(s, family="nobody") if isinstance(s, Slice) else s)


def change_bodies(schedule: Schedule, change: Callable[[Body], Iterable[tuple[str, Body]]]) -> Mutants:
    """For each family: the schedules in which its body is what `change` makes of it, and its accesses are as before."""
    for family in schedule.graph.families:
        for what, body in change(family.body):
            if body != family.body:
                yield f"{what} of {family.name}", with_family(schedule, replace(family, body=body))


def body_of_other_buffers(schedule: Schedule) -> Mutants:
    """The kernel reads or writes a buffer that no access names."""
    names = [buffer.name for buffer in schedule.graph.buffers]
    pairs = [(old, new) for old in names for new in names if old != new]

    def change(body: Body) -> Iterator[tuple[str, Body]]:
        yield from ((f"{old} to {new}", body_elsewhere(body, old, new)) for old, new in pairs)
        if isinstance(body, GemmBody):
            for old, new in pairs:
                moved = tuple(replace(a, weight=new) if a.weight == old else a for a in body.accumulators)
                yield f"weight {old} to {new}", replace(body, accumulators=moved)
            yield "bias", replace(body, accumulators=tuple(replace(a, bias="b") for a in body.accumulators))
            yield "rows", replace(body, row_values=(*body.row_values, RowValue(value="s", buffer=names[0])))
            yield "load", replace(body, loads=(*body.loads, RowLoad(value="l", buffer=body.rows, first=1)))
            yield "no terms", replace(body, terms=())
        if isinstance(body, MapBody):
            yield "no biases", replace(body, biases=())
        if isinstance(body, OuterBody):
            yield "no terms", replace(body, terms=())
        if isinstance(body, SumBody):
            yield "no factor", replace(body, factor=None)
        if isinstance(body, RoutesBody):
            yield "no parts", replace(body, parts=())
        if isinstance(body, ReduceBody):
            yield "no weights", replace(body, weights=None)
        if isinstance(body, CopyBody):
            yield "companion", replace(body, companions=(Companion(source="weights", target="y"),))

    yield from change_bodies(schedule, change)


def body_of_other_places(schedule: Schedule) -> Mutants:
    """The kernel reads or writes other rows or columns of a buffer than the accesses say."""

    def change(body: Body) -> Iterator[tuple[str, Body]]:
        for name in ("cols", "depth", "num_rows", "num_cols", "topk", "block", "width"):
            if hasattr(body, name) and not (isinstance(body, SumBody) and name == "depth"):  # how many at a time
                for step in (-1, 1):
                    yield f"{name} {step:+}", replace(body, **{name: getattr(body, name) + step})
        for name in ("by_route", "gather"):
            if hasattr(body, name):
                yield name, replace(body, **{name: not getattr(body, name)})
        if isinstance(body, GemmBody):
            for name in ("stores", "accumulators", "loads"):
                moved = tuple(replace(item, first=item.first + 1) for item in getattr(body, name))
                yield name, replace(body, **{name: moved})
            yield "tile", replace(body, tile=replace(body.tile, cols=body.tile.cols * 2))
            yield "layout", replace(body, layout="kn" if body.layout == "nk" else "nk")
            for name in ("halved", "doubled", "summed"):
                changed = tuple(replace(store, **{name: not getattr(store, name)}) for store in body.stores)
                yield name, replace(body, stores=changed)
            doubled = tuple(replace(load, doubled=not load.doubled) for load in body.loads)
            yield "doubled loads", replace(body, loads=doubled)
        if isinstance(body, GemmBody):
            yield "depths", replace(body, terms=tuple(replace(term, depth=term.depth + 1) for term in body.terms))
        if isinstance(body, MapBody):
            for name in ("stores", "loads", "biases"):
                moved = tuple(replace(item, first=item.first + 1) for item in getattr(body, name))
                yield name, replace(body, **{name: moved})
                doubled = tuple(replace(item, doubled=not item.doubled) for item in getattr(body, name))
                yield f"doubled {name}", replace(body, **{name: doubled})
        if isinstance(body, RoutesBody):
            yield "columns", replace(body, parts=tuple(replace(part, cols=part.cols + 1) for part in body.parts))
        if isinstance(body, OuterBody):
            yield "rows of a tile", replace(body, tile=replace(body.tile, rows=body.tile.rows * 2))
            yield "columns of a tile", replace(body, tile=replace(body.tile, cols=body.tile.cols // 2))
            yield "sides", replace(body, left=body.right, right=body.left)

    yield from change_bodies(schedule, change)
    for family in schedule.graph.families:
        if isinstance(family.body, CopyBody) and family.role is Role.COMM:
            body = replace(family.body, chunk=family.body.chunk * 2)
            yield f"chunk of {family.name}", with_family(schedule, replace(family, body=body))


def drop_read(schedule: Schedule) -> Mutants:
    """The kernel reads what no access says any more."""
    yield from change_parts(schedule, "reads", lambda access: None)


def body_of_other_numbers(schedule: Schedule) -> Mutants:
    """Element types, tile rows, steps and values that the kernel can't take."""
    graph = schedule.graph
    moved = {name for family in graph.families for name in _moved(family.body)}
    for buffer in graph.buffers:
        if buffer.name in moved:
            dtype = DType.F16 if buffer.dtype is DType.BF16 else DType.BF16
            buffers = tuple(replace(b, dtype=dtype) if b == buffer else b for b in graph.buffers)
            yield f"dtype of {buffer.name}", replace(schedule, graph=replace(graph, buffers=buffers))
    for family in graph.families:
        yield f"steps of {family.name}", with_family(schedule, replace(family, stepwise=not family.stepwise))

    def change(body: Body) -> Iterator[tuple[str, Body]]:
        if isinstance(body, GemmBody):
            yield "tile rows", replace(body, tile=replace(body.tile, rows=body.tile.rows // 2))
            yield "layout", replace(body, layout="kk")
            yield "no epilogue", replace(body, epilogue=())
            yield "no accumulators", replace(body, accumulators=())
            yield "no rounding", replace(body, epilogue=tuple(op for op in body.epilogue if op.kind != "round"))
        if isinstance(body, ReduceBody):
            yield "dtype", replace(body, dtype=DType.F16)

    yield from change_bodies(schedule, change)


def _moved(body: Body) -> tuple[str, ...]:
    """Buffers between which a body moves numbers as they are, or multiplies them."""
    match body:
        case CopyBody(source=source, target=target):
            return source, target
        case GemmBody(rows=rows, accumulators=accumulators, stores=stores, terms=terms):
            products = (name for term in terms for name in (term.rows, term.weight))
            return rows, *products, *(acc.weight for acc in accumulators), *(store.buffer for store in stores)
        case ReduceBody(target=target):
            return (target,)
        case OuterBody(left=left, right=right, terms=terms):
            return left, right, *(side for term in terms for side in (term.left, term.right))
        case RoutesBody(parts=parts, target=target):
            return *(part.rows for part in parts), target
        case _:
            return ()


MUTATIONS: dict[str, Callable[[Schedule], Mutants]] = {
    function.__name__: function
    for function in (
        drop_wait,
        raise_target,
        lower_target,
        shift_wait,
        fix_wait,
        drop_post,
        double_post,
        shift_post,
        post_unconditionally,
        post_at_home,
        post_from_elsewhere,
        narrow_post,
        narrow_wait,
        drop_fence,
        fence_too_early,
        write_by_tma,
        read_by_tma,
        drop_write,
        write_a_row_less,
        write_a_row_more,
        write_a_column_less,
        write_a_column_later,
        write_a_row_later,
        read_a_row_later,
        write_at_home,
        read_unconditionally,
        write_unconditionally,
        read_one_item_more,
        reuse_buffer,
        keep_out_of_reach,
        shrink_buffer,
        swap_segments,
        swap_members,
        swap_stages,
        merge_stages,
        swap_launches,
        merge_launches,
        drop_segment,
        miss_a_task,
        repeat_a_task,
        start_later,
        run_late_families_early,
        overlap_signals,
        shrink_scoreboard,
        shrink_signal,
        change_domain,
        number_differently,
        take_other_items,
        confuse_ranks,
        confuse_tables,
        reuse_buffer_early,
        write_an_input,
        divide_by_a_count,
        step_backwards,
        forget_phase,
        misname,
        drop_read,
        body_of_other_buffers,
        body_of_other_places,
        body_of_other_numbers,
    )
}
