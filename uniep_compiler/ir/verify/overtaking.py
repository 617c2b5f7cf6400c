"""Whether a task can wait for one that stands after it: the proof about two parts of the order.

Most pairs are settled by the stretches of tiles that they have. For the others, any task of each is described by linear
arithmetic, which then has to contradict that the one waits for the other.
"""

from __future__ import annotations

from uniep_compiler.ir.index import Coord, Expr, Int, tables
from uniep_compiler.ir.tasks import Family, Post, Wait
from uniep_compiler.ir.verify.context import Context, Frame
from uniep_compiler.ir.verify.linear import ZERO, Linear
from uniep_compiler.ir.verify.positions import Case, Order, Part


def never_waits_for_later(order: Order, waiting: tuple[Part, Wait], posting: tuple[Part, Post]) -> bool:
    """Whether no task of the one part waits for a post of a later task of the other (or for its own)."""
    early, late = waiting[0], posting[0]
    by_first = _is_first(early.family, waiting[1].index) and _is_first(late.family, posting[1].index)
    return all(
        (by_first and _have_other_tiles(case, early, late)) or _contradicts(case, waiting, posting)
        for case in order.cases
        if case.may_run(early) and case.may_run(late)
    )


def _is_first(family: Family, index: Expr) -> bool:
    return index == Coord(family.domain[0].coord)


def _have_other_tiles(case: Case, early: Part, late: Part) -> bool:
    """Whether the first coordinates of a task and of a later one are never equal, as their stretches tell."""
    first, second = case.stretch(early), case.stretch(late)
    if first is None or second is None:
        return False
    proves = case.context.proves
    if proves(second.low.minus(first.high)) or proves(first.low.minus(second.high)):
        return True
    if early.place != late.place or early.member == late.member:
        return False
    # In one segment both go on by as many tiles a step: then how far the one is ahead stays as it was at the start.
    ahead = second.low.minus(first.low)
    needed = 0 if late.member < early.member else first.per_step
    return 0 < first.per_step == second.per_step and proves(ahead.shifted(-needed))


def _contradicts(case: Case, waiting: tuple[Part, Wait], posting: tuple[Part, Post]) -> bool:
    """Whether no numbers make a task wait for a later one."""
    (early, wait), (late, post) = waiting, posting
    context = case.context.copy()
    first, second = _Position(context, case, early), _Position(context, case, late)
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

    def __init__(self, context: Context, case: Case, part: Part) -> None:
        self.context = context
        self.family = part.family
        self.rank = case.frame.rank
        start, steps = case.counts(part)
        self.step = context.fresh()
        context.assume(self.step, steps.minus(self.step).shifted(-1))
        inside = context.fresh() if part.per_step > 1 else ZERO
        if part.per_step > 1:
            context.assume(inside, inside.times(-1).shifted(part.per_step - 1))
        self.task = start.plus(self.step.times(part.per_step)).plus(inside)
        self.coords = self._coords(case.frame)

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
