"""Rules about the linear order: every task stands in it once, and waits only for tasks that stand strictly earlier.

Then the earliest task that has not run can always run, whatever the number of workers: no schedule deadlocks. Over
ranks the order is (launch, stage, rank, index), so a wait for other ranks' posts is for tasks of earlier stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.tasks import Family, Post, Wait
from uniep_compiler.ir.verify.linear import Linear
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.ir.verify.overtaking import never_waits_for_later
from uniep_compiler.ir.verify.positions import Case, Order
from uniep_compiler.ir.verify.report import about

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
    faults = (_fault_in_case(order, case, family) for case in order.cases)
    return next((fault for fault in faults if fault), "")


def _fault_in_case(order: Order, case: Case, family: Family) -> str:
    if not case.context.proves(*(case.context.term(item.extent, case.frame) for item in family.domain)):
        return "could not prove that its coordinates have extents of at least 0"
    done = Linear.number(0)
    for part in order.of(family):
        start, steps = case.counts(part)
        where = f"in segment {part.segment} of launch {part.launch}"
        if not case.context.proves_equal(start, done):
            return f"could not prove that the tasks {where} start where those before them stop"
        if not case.context.proves(steps):
            return f"could not prove that the number of tasks {where} is at least 0"
        done = start.plus(steps.times(part.per_step))
    if not case.context.proves_equal(done, case.num_tasks(family)):
        return "could not prove that the last task in the order is the family's last"
    return ""


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
            if late.place >= early.place and not never_waits_for_later(order, (early, wait), (late, post)):
                return (
                    f"in segment {early.segment} of launch {early.launch}, and segment {late.segment} of launch "
                    f"{late.launch}: could not prove that who posts comes first"
                )
    return ""


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
