"""The linear order as proofs look at it: parts of segments, and the cases that their counts distinguish.

The order's counts hold `min` and `max` of few quantities. They are distinguished once, for the whole order: in each
case every count is linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from uniep_compiler.ir.index import Expr, Int
from uniep_compiler.ir.schedule import Interleave, Segment, Slice
from uniep_compiler.ir.tasks import Family
from uniep_compiler.ir.verify.context import Context, Frame
from uniep_compiler.ir.verify.linear import ZERO, Linear
from uniep_compiler.ir.verify.model import Model

_MAX_CASES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A family's tasks in one segment: `per_step` in each of `steps` steps, from task `start` on."""

    number: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The values of its family's first coordinate that a part may have: `low <= value < high`.

    In step s they are `low + s * per_step` and the `per_step - 1` after it, where `per_step` is not 0.
    """

    low: Linear
    high: Linear
    per_step: int


class Case:
    """One case of an order's counts, with what was found out about its parts."""

    def __init__(self, context: Context, frame: Frame) -> None:
        self.context = context
        self.frame = frame
        self._counts: dict[int, tuple[Linear, Linear]] = {}
        self._may_run: dict[tuple[int, int], bool] = {}
        self._stretches: dict[int, Stretch | None] = {}

    def counts(self, part: Part) -> tuple[Linear, Linear]:
        """First task and number of steps of a part."""
        if part.number not in self._counts:
            start, steps = (self.context.term(expr, self.frame) for expr in (part.start, part.steps))
            self._counts[part.number] = self.context.normal(start), self.context.normal(steps)
        return self._counts[part.number]

    def may_run(self, part: Part) -> bool:
        """Whether the part's segment may have any steps."""
        if part.place not in self._may_run:
            self._may_run[part.place] = not self.context.proves(self.counts(part)[1].times(-1))
        return self._may_run[part.place]

    def num_tasks(self, family: Family) -> Linear:
        """Number of tasks of a family."""
        product: Expr = Int(1)
        for item in family.domain:
            product = product * item.extent
        return self.context.term(product, self.frame)

    def stretch(self, part: Part) -> Stretch | None:
        """The stretch of a part; None if its other coordinates have no fixed extents."""
        if part.number not in self._stretches:
            self._stretches[part.number] = self._make_stretch(part)
        return self._stretches[part.number]

    def _make_stretch(self, part: Part) -> Stretch | None:
        family, context = part.family, self.context
        inner = [item.extent.value if isinstance(item.extent, Int) else 0 for item in family.domain[1:]]
        if min(inner, default=1) < 1:
            return None
        size = family.group if family.group > 1 else 1
        unit = prod(inner) * size  # this many tasks have `size` values of the first coordinate
        start, steps = self.counts(part)
        end = start.plus(steps.times(part.per_step))
        low = context.quotient(start, unit)
        exact = context.normal(low.times(unit)).same_as(start) and part.per_step % unit == 0
        if context.normal(self.num_tasks(family)).same_as(end):
            high = context.term(family.domain[0].extent, self.frame)
        else:
            high = context.quotient(end.shifted(unit - 1), unit).times(size)
        per_step = part.per_step // unit * size if exact else 0
        return Stretch(low=context.normal(low.times(size)), high=context.normal(high), per_step=per_step)


class Order:
    """The parts of a schedule's order, and the cases that its counts distinguish."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.parts = tuple(_parts(model))
        self._by_family: dict[str, list[Part]] = {family.name: [] for family in model.graph.families}
        for part in self.parts:
            self._by_family[part.family.name].append(part)

    def of(self, family: Family) -> list[Part]:
        """The parts of a family, in order."""
        return self._by_family[family.name]

    @cached_property
    def cases(self) -> list[Case]:
        """The cases that are possible. Empty if there are too many."""
        context = Context(facts=self.model.facts)
        rank = context.fresh()
        context.assume(rank, Linear.number(self.model.graph.ranks - 1).minus(rank))
        frame = Frame(rank=rank, coords={})
        exprs = [expr for part in self.parts for expr in (part.start, part.steps)]
        exprs += [item.extent for family in self.model.graph.families for item in family.domain]
        for expr in exprs:
            context.term(expr, frame)
        context.saturate()
        return [Case(case, frame) for case in _split(context)]


def _parts(model: Model) -> Iterator[Part]:
    families = {family.name: family for family in model.graph.families}
    number = 0
    for launch_number, launch in enumerate(model.schedule.launches):
        segment_number = 0
        for stage_number, stage in enumerate(launch.stages):
            for segment in stage.segments:
                for member, (name, start, steps, per_step) in enumerate(_members(segment)):
                    yield Part(
                        number=number,
                        family=families[name],
                        launch=launch_number,
                        stage=stage_number,
                        segment=segment_number,
                        member=member,
                        start=start,
                        steps=steps,
                        per_step=per_step,
                    )
                    number += 1
                segment_number += 1


def _members(segment: Segment) -> Iterator[tuple[str, Expr, Expr, int]]:
    """Family, first task, steps and tasks per step of each member; a slice has one, of a task per step."""
    match segment:
        case Slice(family=family, start=start, count=count):
            yield family, start, count, 1
        case Interleave(steps=steps, members=members):
            for member in members:
                yield member.family, member.start, steps, member.per_step


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
