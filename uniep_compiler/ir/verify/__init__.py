"""The static checker: proves that a schedule neither deadlocks nor races, for every routing.

Each rule is a function named as a sentence that yields diagnostics. What can't be proven is rejected. `facts.py` has
all that proofs assume of the plan, `context.py` how they reason, and the other files the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.verify import bodies, bounds, order, races, signals
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.ir.verify.names import check_names
from uniep_compiler.ir.verify.numbers import check_numbers
from uniep_compiler.ir.verify.positions import Order

ORDER_RULES: tuple[Callable[[Model, Order], Iterator[Diagnostic]], ...] = (
    order.check_each_task_occurs_once,
    order.check_waits_are_on_strictly_earlier_tasks,
    order.check_phases,
)
RULES: tuple[Callable[[Model], Iterator[Diagnostic]], ...] = (
    signals.check_targets_are_the_number_of_posts,
    signals.check_scopes_reach_who_is_meant,
    races.check_inputs_are_not_written,
    races.check_writes_are_disjoint_or_ordered,
    races.check_reads_are_ordered_after_their_writes,
    races.check_buffers_are_reused_after_their_last_reader,
    races.check_what_is_read_was_written,
    races.check_results_are_written,
    races.check_async_reads_are_fenced,
    races.check_no_write_is_async,
    bounds.check_accesses_lie_inside_their_buffers,
    bounds.check_other_ranks_touch_symmetric_memory_only,
    bounds.check_posts_and_waits_lie_inside_their_signals,
    bounds.check_signals_have_places_of_their_own,
    bodies.check_accesses_are_those_of_bodies,
    bodies.check_bodies_fit_their_graph,
)


def verify(schedule: Schedule, *, shared_device: bool = True) -> tuple[Diagnostic, ...]:
    """What could not be proven about `schedule`: empty means that it can neither deadlock nor race, under any routing.

    `shared_device` says that all ranks run in the same launches of one device, so that a kernel boundary orders what
    different ranks do, too. `passes/drop_redundant_waits.py` assumes that. Without it, a boundary orders the tasks of
    one rank only, and a wait for another rank that was dropped there is a diagnostic here (UEP0314).
    """
    unfounded = tuple(check_names(schedule)) or tuple(check_numbers(schedule))
    if unfounded:
        return unfounded
    model = Model(schedule, shared_device=shared_device)
    positions = Order(model)
    found = [diagnostic for rule in ORDER_RULES for diagnostic in rule(model, positions)]
    found += [diagnostic for rule in RULES for diagnostic in rule(model)]
    return tuple(dict.fromkeys(found))
