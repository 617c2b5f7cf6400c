"""The schedule machine finds nothing in what the compiler makes, and each kind of fault in what is broken."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.backward import NAMES as BACKWARD
from tests.backward import backward
from tests.mutations import MUTATIONS
from tests.schedules import build, random_routing
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.machine.findings import Fault
from uniep_compiler.machine.program import load
from uniep_compiler.machine.run import explore, run
from uniep_compiler.options import Fuse, Order, Relay

CATCHES = {
    "drop_wait": Fault.STALE_READ,
    "raise_target": Fault.LOST_POST,
    "lower_target": Fault.RACE,
    "shift_wait": Fault.LOST_POST,
    "fix_wait": Fault.RACE,
    "drop_post": Fault.LOST_POST,
    "double_post": Fault.RACE,
    "shift_post": Fault.LOST_POST,
    "post_unconditionally": Fault.OUT_OF_BOUNDS,
    "post_at_home": Fault.LOST_POST,
    "post_from_elsewhere": Fault.RACE,
    "narrow_post": Fault.NARROW_SCOPE,
    "narrow_wait": Fault.NARROW_SCOPE,
    "drop_fence": Fault.MISSING_FENCE,
    "fence_too_early": Fault.MISSING_FENCE,
    "write_by_tma": Fault.ASYNC_WRITE,
    "read_by_tma": Fault.MISSING_FENCE,
    "drop_write": Fault.NEVER_WRITTEN,
    "write_a_row_less": Fault.NEVER_WRITTEN,
    "write_a_row_more": Fault.DOUBLE_WRITE,
    "write_a_column_less": Fault.NEVER_WRITTEN,
    "write_a_column_later": Fault.OUT_OF_BOUNDS,
    "write_a_row_later": Fault.RACE,
    "read_a_row_later": Fault.RACE,
    "write_at_home": Fault.DOUBLE_WRITE,
    "read_unconditionally": Fault.NEVER_WRITTEN,
    "write_unconditionally": Fault.DOUBLE_WRITE,
    "read_one_item_more": Fault.NEVER_WRITTEN,
    "reuse_buffer": Fault.RACE,
    "keep_out_of_reach": Fault.OUT_OF_REACH,
    "shrink_buffer": Fault.OUT_OF_BOUNDS,
    "swap_segments": Fault.DEADLOCK,
    "swap_members": Fault.DEADLOCK,
    "swap_stages": Fault.DEADLOCK,
    "merge_stages": Fault.DEADLOCK,
    "swap_launches": Fault.STALE_READ,
    "merge_launches": Fault.RACE,
    "drop_segment": Fault.LOST_POST,
    "miss_a_task": Fault.LOST_POST,
    "repeat_a_task": Fault.DOUBLE_WRITE,
    "start_later": Fault.DEADLOCK,
    "overlap_signals": Fault.RACE,
    "shrink_scoreboard": Fault.OUT_OF_BOUNDS,
    "shrink_signal": Fault.OUT_OF_BOUNDS,
    "change_domain": Fault.LOST_POST,
    "number_differently": Fault.DEADLOCK,
    "confuse_ranks": Fault.DOUBLE_WRITE,
    "confuse_tables": Fault.NEVER_WRITTEN,
    "reuse_buffer_early": Fault.RACE,
    "write_an_input": Fault.DOUBLE_WRITE,
    "divide_by_a_count": Fault.OUT_OF_BOUNDS,
    "step_backwards": Fault.OUT_OF_BOUNDS,
}

OUT_OF_SIGHT = {
    "run_late_families_early": "no two families of the layer can exchange their places",
    "take_other_items": "a lane that the order leaves out has nothing to do",
    "forget_phase": "the order is as it was",
    "misname": "what is not there can't run",
    "drop_read": "nothing is read that should not be",
    "body_of_other_buffers": "the machine goes by accesses",
    "body_of_other_places": "the machine goes by accesses",
    "body_of_other_numbers": "the machine goes by accesses",
}
"""Ways to break a schedule that a run of it does not show, with the reason."""


def faults(schedule: Schedule) -> Iterator[Fault]:
    """What runs under some routings and seeds find."""
    for seed in range(8):
        program = load(schedule, random_routing(schedule, seed))
        yield from run(program, workers=2, seed=seed, merged=seed % 4 == 3, split=seed % 4 == 2).faults


@pytest.mark.parametrize("name", CATCHES)
def test_each_way_to_break_a_schedule_is_found(name):
    fuse = Fuse.PAIRS if name.endswith("launches") else Fuse.LAYER
    mutants = MUTATIONS[name](build(2, fuse=fuse))
    assert any(CATCHES[name] is fault for _, mutant in mutants for fault in faults(mutant))


def test_the_machine_knows_every_way_to_break_a_schedule():
    assert {*CATCHES, *OUT_OF_SIGHT} == {*MUTATIONS}
    assert not CATCHES.keys() & OUT_OF_SIGHT.keys()


@pytest.mark.parametrize("fuse", Fuse)
@pytest.mark.parametrize("relay", Relay)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_nothing_is_wrong_with_what_the_compiler_makes(ranks, relay, fuse):
    schedule = build(ranks, relay=relay, fuse=fuse, order=Order.FIFO if ranks == 2 else Order.PRIORITY)
    for seed in range(4):
        program = load(schedule, random_routing(schedule, seed))
        report = run(program, workers=1 + seed, seed=seed, merged=seed % 2 == 1, split=seed > 1, ids_ahead=seed % 3)
        assert not report.findings, report


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", BACKWARD)
def test_nothing_is_wrong_with_backward_passes(name, target):
    schedule = backward(name, target=target, relay="gather" if target == "cpu" else "copy")
    for seed in range(4):
        report = run(load(schedule, random_routing(schedule, seed)), workers=1 + seed, seed=seed, split=seed > 1)
        assert not report.findings, report


def test_a_boundary_between_kernels_orders_one_device_only():
    """`fuse = none` drops waits that a boundary replaces, also across ranks: right only where they share a device."""
    schedule = build(2, fuse=Fuse.NONE)
    program = load(schedule, random_routing(schedule, 0))
    assert not run(program, seed=1).findings
    assert any(run(program, seed=seed, shared_device=False).findings for seed in range(3))


def test_one_worker_always_runs_too():
    """Two GEMMs exchanged inside a step: with many workers it may go well, with one it can't."""
    schedule = next(mutant for _, mutant in MUTATIONS["swap_stages"](build(2)))
    report = run(load(schedule, random_routing(schedule, 0)), workers=64, seed=0)
    assert Fault.DEADLOCK in report.faults


def test_findings_name_tasks_and_places():
    name, schedule = next(MUTATIONS["drop_wait"](build(2)))
    assert name == "waits[0] of relay_xs"
    text = str(run(schedule, random_routing(schedule, 0), seed=0))
    assert "stale read: relay_xs[" in text
    assert "xs_arrived[row " in text


def test_a_run_is_fast():
    schedule = build(2)
    program = load(schedule, random_routing(schedule, 0, tokens=16))
    start = time.perf_counter()
    run(program, workers=3, seed=0)
    assert time.perf_counter() - start < 1


class TestExhaustive:
    def tiny(self, schedule):
        return load(schedule, random_routing(schedule, 3, tokens=1, missing=0.0))

    def test_sees_every_interleaving(self):
        schedule = build(1, group=1, tile=32)
        report = explore(self.tiny(schedule), workers=2)
        assert report.complete
        assert not report.findings, report

    @pytest.mark.parametrize("name", ["drop_wait", "lower_target", "drop_fence", "swap_stages"])
    def test_finds_what_is_broken(self, name):
        for what, schedule in MUTATIONS[name](build(1, group=1, tile=32)):
            report = explore(self.tiny(schedule), workers=2)
            assert report.findings, what

    def test_says_when_it_gave_up(self):
        schedule = build(2)
        assert not explore(load(schedule, random_routing(schedule, 0)), max_states=10).complete
