"""Rules about the linear order: every task stands in it once, and waits only for tasks that stand strictly earlier.

Then the earliest task that has not run can always run, whatever the number of workers: no schedule deadlocks. Over
ranks the order is (launch, stage, rank, index), so a wait for other ranks' posts is for tasks of earlier stages.

The order's counts hold `min` and `max` of few quantities. The proofs distinguish those cases once, for the whole order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.index import Expr, Int, tables
from uniep_compiler.ir.schedule import Interleave, Segment, Slice
from uniep_compiler.ir.tasks import Family, Post, Wait
from uniep_compiler.ir.verify.context import Context, Frame
from uniep_compiler.ir.verify.linear import ZERO, Linear
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.ir.verify.report import about

_MAX_CASES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A family's tasks in one segment: `per_step` in each of `steps` steps, from task `start` on."""

    family: Family
    launch: int
    stage: int
    segment: int
    member: int
    start: Expr
    steps: Expr
    per_step: int

    @property
    def place(self) -> tuple[int, int]:
        """Where the segment stands in the order."""
        return self.launch, self.segment

    @property
    def stage_place(self) -> tuple[int, int]:
        """Where the stage stands in the order."""
        return self.launch, self.stage


class Order:
    """The parts of a schedule's order, and the cases that its counts distinguish."""

    def __init__(self, model: Model) -> None:
        self.model = model
        families = {family.name: family for family in model.graph.families}
        self.parts = tuple(_parts(model, families))
        self._cases_with: dict[Part, list[int]] = {}

    def of(self, family: Family) -> list[Part]:
        """The parts of a family, in order."""
        return [part for part in self.parts if part.family.name == family.name]

    def cases_with(self, part: Part) -> list[int]:
        """The numbers of the cases in which the part may have tasks."""
        if part not in self._cases_with:
            self._cases_with[part] = [
                number
                for number, (context, frame) in enumerate(self.cases)
                if not context.proves(context.term(part.steps, frame).times(-1))
            ]
        return self._cases_with[part]

    @cached_property
    def cases(self) -> list[tuple[Context, Frame]]:
        """The cases that the counts distinguish: in each, all of them are linear. Empty if there are too many."""
        context = Context(facts=self.model.facts)
        rank = context.fresh()
        context.assume(rank, Linear.number(self.model.graph.ranks - 1).minus(rank))
        frame = Frame(rank=rank, coords={})
        for part in self.parts:
            context.term(part.start, frame)
            context.term(part.steps, frame)
        for family in self.model.graph.families:
            for item in family.domain:
                context.term(item.extent, frame)
        context.saturate()
        return [(case, frame) for case in _split(context)]


def _parts(model: Model, families: dict[str, Family]) -> Iterator[Part]:
    for launch_number, launch in enumerate(model.schedule.launches):
        number = 0
        for stage_number, stage in enumerate(launch.stages):
            for segment in stage.segments:
                place = {"launch": launch_number, "stage": stage_number, "segment": number}
                yield from _parts_of(segment, families, place)
                number += 1


def _parts_of(segment: Segment, families: dict[str, Family], place: dict[str, int]) -> Iterator[Part]:
    match segment:
        case Slice(family=name, start=start, count=count):
            yield Part(family=families[name], member=0, start=start, steps=count, per_step=1, **place)
        case Interleave(steps=steps, members=members):
            for number, member in enumerate(members):
                yield Part(
                    family=families[member.family],
                    member=number,
                    start=member.start,
                    steps=steps,
                    per_step=member.per_step,
                    **place,
                )


def _split(context: Context) -> list[Context]:
    """The context in each combination of its cases that is possible."""
    found: list[Context] = []
    waiting = [context]
    while waiting:
        if len(found) + len(waiting) > _MAX_CASES:
            return []
        case = waiting.pop()
        if case.is_impossible():
            continue
        if not case.cases:
            found.append(case)
            continue
        first, *rest = case.cases
        for choice in first:
            branch = case.copy()
            branch.cases = rest
            branch.assume_equal(choice[0], ZERO)
            branch.assume(*choice[1:])
            waiting.append(branch)
    return found


# -- every task once ------------------------------------------------------------------------------------------------


def check_each_task_occurs_once(model: Model, order: Order) -> Iterator[Diagnostic]:
    """The parts of each family are consecutive stretches of its tasks, from the first to the last."""
    for family in model.graph.families:
        wrong = _coverage_fault(order, family)
        if wrong:
            yield about(
                "UEP0310",
                f"the order does not have each task of `{family.name}` exactly once",
                family,
                note=wrong,
                help="let each segment start where the one before it has stopped, and the last one stop at the end",
            )


def _coverage_fault(order: Order, family: Family) -> str:
    """What is wrong with a family's parts; empty if they are right in every case."""
    if not order.cases:
        return "the counts of the order distinguish too many cases"
    for context, frame in order.cases:
        done = Linear.number(0)
        for part in order.of(family):
            start, steps = context.term(part.start, frame), context.term(part.steps, frame)
            where = f"in segment {part.segment} of launch {part.launch}"
            if not context.proves_equal(start, done):
                return f"could not prove that the tasks {where} start where those before them stop"
            if not context.proves(steps):
                return f"could not prove that the number of tasks {where} is at least 0"
            done = start.plus(steps.times(part.per_step))
        if not context.proves_equal(done, _num_tasks(context, family, frame)):
            return "could not prove that the last task in the order is the family's last"
    return ""


def _num_tasks(context: Context, family: Family, frame: Frame) -> Linear:
    product: Expr = Int(1)
    for item in family.domain:
        product = product * item.extent
    return context.term(product, frame)


# -- waits ----------------------------------------------------------------------------------------------------------


def check_waits_are_on_strictly_earlier_tasks(model: Model, order: Order) -> Iterator[Diagnostic]:
    """Whoever posts what a task waits for stands before it: on the own rank by its place, on others by its stage."""
    for family, _, wait in model.waits():
        for poster, post in model.posters[wait.signal]:
            wrong = _order_fault(model, order, (family, wait), (poster, post))
            if wrong:
                yield about(
                    "UEP0311",
                    f"`{family.name}` may wait for `{wait.signal}` before `{poster.name}`, which posts it, can run",
                    family,
                    poster,
                    note=wrong,
                    help=f"put the tasks of `{poster.name}` before those of `{family.name}` that wait for them",
                )


def _order_fault(model: Model, order: Order, waiter: tuple[Family, Wait], poster: tuple[Family, Post]) -> str:
    (family, wait), (source, post) = waiter, poster
    waiting, posting = order.of(family), order.of(source)
    if post.rank is not None:
        if any(late.stage_place >= early.stage_place for late in posting for early in waiting):
            return "ranks that share a cursor run stage by stage: who waits for another rank stands in a later stage"
        return ""
    if not order.cases:
        return "the counts of the order distinguish too many cases"
    for early in waiting:
        for late in posting:
            if late.place >= early.place and not _never_meet(order, (early, wait), (late, post)):
                return (
                    f"in segment {early.segment} of launch {early.launch}, and segment {late.segment} of launch "
                    f"{late.launch}: could not prove that who posts comes first"
                )
    return ""


def _never_meet(order: Order, waiting: tuple[Part, Wait], posting: tuple[Part, Post]) -> bool:
    """Whether no task of the one part waits for a later task of the other."""
    early, late = order.cases_with(waiting[0]), order.cases_with(posting[0])
    return all(_is_impossible(*order.cases[case], waiting, posting) for case in early if case in late)


def _is_impossible(case: Context, frame: Frame, waiting: tuple[Part, Wait], posting: tuple[Part, Post]) -> bool:
    (early, wait), (late, post) = waiting, posting
    context = case.copy()
    first, second = _Position(context, frame, early), _Position(context, frame, late)
    if not tables(wait.index) and not tables(post.index):
        context.assume_equal(first.index_of(wait.index, wait), second.index_of(post.index, post))
    if early.place == late.place:
        if early.member == late.member:
            context.assume(second.task.minus(first.task))
        else:
            context.assume(second.step.minus(first.step).shifted(-(late.member < early.member)))
    return context.is_impossible()


class _Position:
    """Any task of a part: its step, its number, and its coordinates as far as they follow from the number."""

    def __init__(self, context: Context, frame: Frame, part: Part) -> None:
        self.context = context
        self.family = part.family
        self.rank = frame.rank
        steps = context.term(part.steps, frame)
        self.step = context.fresh()
        context.assume(self.step, steps.minus(self.step).shifted(-1))
        inside = context.fresh() if part.per_step > 1 else ZERO
        if part.per_step > 1:
            context.assume(inside, inside.times(-1).shifted(part.per_step - 1))
        self.task = context.term(part.start, frame).plus(self.step.times(part.per_step)).plus(inside)
        self.coords = self._coords(frame)

    def _coords(self, frame: Frame) -> dict[str, Linear]:
        coords = {item.coord: self.context.fresh() for item in self.family.domain}
        for item in self.family.domain:
            extent = self.context.term(item.extent, frame)
            self.context.assume(coords[item.coord], extent.minus(coords[item.coord]).shifted(-1))
        inner = [item.extent.value for item in self.family.domain[1:] if isinstance(item.extent, Int)]
        if len(inner) == len(self.family.domain) - 1:
            if self.family.group > 1:
                self._number_in_groups(coords[self.family.domain[0].coord], inner[0])
            else:
                self._number_in_rows(list(coords.values()), inner)
        return coords

    def _number_in_rows(self, coords: list[Linear], inner: list[int]) -> None:
        number = coords[0]
        for coord, extent in zip(coords[1:], inner, strict=True):
            number = number.times(extent).plus(coord)
        self.context.assume_equal(number, self.task)

    def _number_in_groups(self, first: Linear, inner: int) -> None:
        """Of a number in a group, this much is linear: both the task and its first coordinate are in that group."""
        size, context = self.family.group, self.context
        group, task, offset = context.fresh(), context.fresh(), context.fresh()
        context.assume(task, task.times(-1).shifted(size * inner - 1), offset, offset.times(-1).shifted(size - 1))
        context.assume_equal(group.times(size * inner).plus(task), self.task)
        context.assume_equal(group.times(size).plus(offset), first)

    def index_of(self, index: Expr, touched: Wait | Post) -> Linear:
        """The counter of a wait or a post. Coordinates of a post's own ranges may be anything."""
        coords = dict(self.coords)
        if isinstance(touched, Post):
            coords |= {item.coord: self.context.fresh() for item in touched.over}
        return self.context.term(index, Frame(rank=self.rank, coords=coords))


def check_phases(model: Model, order: Order) -> Iterator[Diagnostic]:
    """Who waits for other ranks' posts of a phase stands after all own tasks that post in that phase or before."""
    phases = {signal.name: signal.phase for signal in model.graph.signals}
    remote = [(family, post) for family in model.graph.families for post in family.posts if model.is_remote(post)]
    for family, post in remote:
        if not phases[post.signal]:
            yield about(
                "UEP0312",
                f"`{family.name}` posts `{post.signal}` of other ranks, and the signal has no phase",
                family,
                help="number the phases of posts between ranks: dispatch 1, push 2",
            )
    for family, _, wait in model.waits():
        if not any(model.is_remote(post) for _, post in model.posters[wait.signal]):
            continue
        for poster in dict.fromkeys(p for p, post in remote if phases[post.signal] <= phases[wait.signal]):
            if any(late.place >= early.place for late in order.of(poster) for early in order.of(family)):
                yield about(
                    "UEP0312",
                    f"`{family.name}`, which waits for other ranks' posts of `{wait.signal}` (phase "
                    f"{phases[wait.signal]}), does not stand after all tasks of `{poster.name}`",
                    family,
                    poster,
                    note=f"`{poster.name}` posts to other ranks in the same phase or an earlier one: ranks could wait "
                    "for each other in a circle",
                    help=f"put every task of `{poster.name}` before the first one of `{family.name}`",
                )
