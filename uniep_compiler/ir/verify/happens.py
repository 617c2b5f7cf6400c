"""Happens-before, proven along chains of waits.

A wait whose target is the number of posts that reach its counter (rule `targets`) comes through after every one of
them. So all that a poster did before its post happens before what the waiter does after its wait, and so on along
the chain.
"""

from __future__ import annotations

from uniep_compiler.ir.tasks import Family, Post
from uniep_compiler.ir.verify.context import Context, Frame, Record
from uniep_compiler.ir.verify.elements import Target, Task, witness
from uniep_compiler.ir.verify.linear import Linear
from uniep_compiler.ir.verify.model import Model

BOUNDARY = -1
"""Stands for the number of a wait where a kernel boundary orders two tasks."""


def happens_before(model: Model, context: Context, first: Task, second: Task) -> int | None:
    """The number of the earliest wait of `second` that orders it after `first`, or BOUNDARY; None if none is found."""
    if model.is_in_earlier_launch(first.family, second.family) and (
        model.shared_device or context.proves_equal(first.rank, second.rank)
    ):
        return BOUNDARY
    return _by_waits(model, context, first, second, frozenset({second.family.name}))


def _by_waits(model: Model, context: Context, first: Task, second: Task, seen: frozenset[str]) -> int | None:
    frame = Frame(rank=second.rank, coords=second.coords)
    for number, wait in enumerate(second.family.waits):
        for poster, post in model.posters[wait.signal]:
            if not _may_lead_to(model, poster, first.family):
                continue
            context = context.copy()
            target = (second.rank, context.term(wait.index, frame))
            if poster == first.family:
                if _posts_to(context, first, post, target):
                    return number
            elif poster.name not in seen and _through(model, context, first, (poster, post), target, seen):
                return number
    return None


def _may_lead_to(model: Model, family: Family, goal: Family) -> bool:
    """Whether some chain of waits leads from `family` back to `goal`, whatever the tasks."""
    return family == goal or goal.name in _ancestors(model, family)


def _ancestors(model: Model, family: Family) -> set[str]:
    found: set[str] = set()
    waiting = [family]
    while waiting:
        for wait in waiting.pop().waits:
            for poster, _ in model.posters[wait.signal]:
                if poster.name not in found:
                    found.add(poster.name)
                    waiting.append(poster)
    return found


def _posts_to(context: Context, task: Task, post: Post, place: tuple[Linear, Linear]) -> bool:
    """Whether the task posts to the counter."""
    owner, index = place
    return any(
        witness(
            context,
            task.family,
            post,
            Target(owner=owner, row=index, route=route),
            given=task.coords,
            rank=task.rank,
        )
        for route in _candidates(context)
    )


def _through(
    model: Model,
    context: Context,
    first: Task,
    post: tuple[Family, Post],
    place: tuple[Linear, Linear],
    seen: frozenset[str],
) -> bool:
    """Whether some task that posts to the counter happens after `first`."""
    owner, index = place
    for route in _candidates(context):
        found = witness(context, *post, Target(owner=owner, row=index, route=route))
        if found is not None:
            inner, element = found
            return _by_waits(model, inner, first, element.task, seen | {element.task.family.name}) is not None
    return False


def _candidates(context: Context) -> list[Record | None]:
    """What a witness may be for: any route that is known to exist, or none in particular."""
    return [*context.routes(), None]
