"""The checker accepts what the compiler makes and rejects what is broken, with a diagnostic that helps."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, with_family
from tests.schedules import build, random_routing
from uniep_compiler.ir import verify as verify_package
from uniep_compiler.ir.index import Binary, BinaryOp, Int, Lookup, Sym, cdiv
from uniep_compiler.ir.tasks import Buffer, BufferKind
from uniep_compiler.ir.types import DType
from uniep_compiler.ir.verify import verify
from uniep_compiler.ir.verify.bodies import check_accesses_are_those_of_bodies, check_bodies_fit_their_graph
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.machine.program import load
from uniep_compiler.machine.run import run
from uniep_compiler.options import Fuse, Order, Relay, Send
from uniep_compiler.source import Span

VERIFY = Path(verify_package.__file__).parent

REJECTED_WITH = {
    "drop_wait": "UEP0314",
    "raise_target": "UEP0313",
    "lower_target": "UEP0313",
    "shift_wait": "UEP0313",
    "fix_wait": "UEP0314",
    "drop_post": "UEP0313",
    "double_post": "UEP0313",
    "shift_post": "UEP0313",
    "post_unconditionally": "UEP0313",
    "post_at_home": "UEP0313",
    "post_from_elsewhere": "UEP0313",
    "narrow_post": "UEP0318",
    "narrow_wait": "UEP0318",
    "drop_fence": "UEP0319",
    "fence_too_early": "UEP0319",
    "write_by_tma": "UEP0320",
    "read_by_tma": "UEP0319",
    "drop_write": "UEP0315",
    "write_a_row_less": "UEP0315",
    "write_a_row_more": "UEP0316",
    "write_a_column_less": "UEP0315",
    "write_a_column_later": "UEP0321",
    "write_a_row_later": "UEP0315",
    "read_a_row_later": "UEP0315",
    "write_at_home": "UEP0316",
    "read_unconditionally": "UEP0315",
    "write_unconditionally": "UEP0316",
    "read_one_item_more": "UEP0315",
    "reuse_buffer": "UEP0314",
    "keep_out_of_reach": "UEP0323",
    "shrink_buffer": "UEP0321",
    "swap_segments": "UEP0311",
    "swap_members": "UEP0311",
    "swap_stages": "UEP0312",
    "merge_stages": "UEP0311",
    "swap_launches": "UEP0314",
    "merge_launches": "UEP0314",
    "drop_segment": "UEP0310",
    "miss_a_task": "UEP0310",
    "repeat_a_task": "UEP0310",
    "start_later": "UEP0310",
    "overlap_signals": "UEP0322",
    "shrink_scoreboard": "UEP0322",
    "shrink_signal": "UEP0321",
    "change_domain": "UEP0310",
    "number_differently": "UEP0311",
    "take_other_items": "UEP0310",
    "confuse_ranks": "UEP0316",
    "confuse_tables": "UEP0314",
    "reuse_buffer_early": "UEP0317",
    "write_an_input": "UEP0316",
    "divide_by_a_count": "UEP0325",
    "step_backwards": "UEP0327",
    "forget_phase": "UEP0312",
    "misname": "UEP0324",
    "drop_read": "UEP0328",
    "body_of_other_buffers": "UEP0328",
    "body_of_other_places": "UEP0328",
    "body_of_other_numbers": "UEP0329",
}


def base(name, ranks=2):
    return build(ranks, fuse=Fuse.PAIRS if name.endswith("launches") else Fuse.LAYER)


def codes(schedule):
    return {diagnostic.code for diagnostic in verify(schedule)}


@pytest.mark.parametrize("fuse", Fuse)
@pytest.mark.parametrize("relay", Relay)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_the_compiler_makes_is_accepted(ranks, relay, fuse):
    for order, target in zip(Order, ("cpu", "sm_90"), strict=True):
        assert verify(build(ranks, relay=relay, fuse=fuse, order=order, target=target)) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"group": 1},
        {"group": 8, "lag": 0},
        {"lag": 5},
        {"lanes": 1, "chunk": 1},
        {"lanes": 16, "chunk": 16},
        {"block": 1},
        {"tile": 128},
        {"results": ("out", "h")},
        {"results": ("xs", "y", "out")},
        {"local": False, "ranks": 1},
        {"ranks": 3},
        {"send": Send.ALL},
        {"send": Send.ALL, "relay": Relay.GATHER},
    ],
    ids=str,
)
def test_options_are_accepted(options):
    assert verify(build(**{"ranks": 2, **options})) == ()


@pytest.mark.parametrize("name", REJECTED_WITH)
def test_each_way_to_break_a_schedule_is_rejected(name):
    assert any(REJECTED_WITH[name] in codes(mutant) for _, mutant in MUTATIONS[name](base(name)))


def test_each_rule_has_a_way_to_break_it():
    rules = {code for path in VERIFY.glob("*.py") for code in re.findall(r"UEP\d{4}", path.read_text())}
    assert rules == {*REJECTED_WITH.values()}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("relay", [Relay.COPY, Relay.GATHER])
@pytest.mark.parametrize("name", [name for name in MUTATIONS if name.startswith("body_")])
def test_what_kernels_are_printed_from_is_checked(name, relay, ranks):
    """The machine does not see bodies, so the rules about them have to reject each of these mutants."""
    for what, mutant in MUTATIONS[name](build(ranks, relay=relay)):
        model = Model(mutant, shared_device=True)
        assert [*check_accesses_are_those_of_bodies(model), *check_bodies_fit_their_graph(model)], what


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_step_goes_forward(ranks):
    for what, mutant in MUTATIONS["step_backwards"](build(ranks)):
        assert codes(mutant) == {"UEP0327"}, what


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "route"}, "`gate` is made by `route`, which is no op on a row"),
        ({"kind": "nothing"}, "`gate` is made by `nothing`, which is no op on a row"),
        ({"operands": ()}, "`gate` is made by `round`, which takes 1 values and makes 1"),
        ({"operands": ("up",)}, "`gate` is made of `up`, which nothing before it makes"),
        ({"attrs": (("dtype", "bf17"),)}, "`gate` is rounded to bf17, which is no type of floating point numbers"),
        ({"attrs": (("dtype", DType.I32),)}, "`gate` is rounded to i32, which is no type of floating point numbers"),
    ],
)
def test_epilogues_are_made_of_ops_that_fit(changes, fault):
    schedule = build(2)
    family = schedule.graph.family("gemm_a")
    first, *rest = family.body.epilogue
    body = replace(family.body, epilogue=(replace(first, **changes), *rest))
    found = verify(with_family(schedule, replace(family, body=body)))
    assert (found[0].code, found[0].notes) == ("UEP0329", (fault,))


def machine_finds(schedule, seeds):
    for seed in seeds:
        program = load(schedule, random_routing(schedule, seed))
        if run(program, workers=2, seed=seed, merged=seed % 4 == 3, split=seed % 4 == 2).findings:
            return True
    return False


@pytest.mark.parametrize("name", MUTATIONS)
def test_nothing_is_accepted_that_the_machine_can_make_fail(name):
    for what, mutant in itertools.islice(MUTATIONS[name](base(name)), 1):
        assert verify(mutant) or not machine_finds(mutant, range(6)), what


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("relay", Relay)
def test_no_mutant_is_accepted_that_the_machine_can_make_fail(name, ranks, relay):
    for fuse in (Fuse.LAYER, Fuse.PAIRS):
        for what, mutant in MUTATIONS[name](build(ranks, relay=relay, fuse=fuse, results=("out", "h"))):
            assert verify(mutant) or not machine_finds(mutant, range(24)), (fuse, what)


def test_two_mutations_at_once_are_rejected():
    """Reusing `xs` for `y` is fine as long as gemm_y waits for gemm_a."""
    reused = dict(MUTATIONS["reuse_buffer"](build(2)))["y in xs"]
    assert verify(reused) == ()
    family = reused.graph.family("gemm_y")
    assert {"UEP0314", "UEP0317"} <= codes(with_family(reused, replace(family, waits=())))


def test_without_a_shared_device_a_boundary_orders_the_own_rank_only():
    schedule = build(2, fuse=Fuse.NONE)
    assert verify(schedule) == ()
    found = verify(schedule, shared_device=False)
    assert {diagnostic.code for diagnostic in found} == {"UEP0314"}
    assert any("`relay_xs` may read `xs_arrived` before `send_xs`" in diagnostic.message for diagnostic in found)
    assert verify(build(1, fuse=Fuse.NONE), shared_device=False) == ()


@pytest.mark.parametrize("relay", Relay)
def test_without_a_shared_device_each_wait_for_other_ranks_that_was_dropped_is_missed(relay):
    def waiting(schedule):
        phases = {signal.name: signal.phase for signal in schedule.graph.signals}
        return {f.name for f in schedule.graph.families if any(phases[wait.signal] for wait in f.waits)}

    schedule = build(2, relay=relay, fuse=Fuse.NONE)
    dropped = waiting(build(2, relay=relay)) - waiting(schedule)
    found = verify(schedule, shared_device=False)
    assert dropped
    assert dropped <= {re.findall("`(.*?)`", d.message)[0] for d in found if d.code == "UEP0314"}


class TestDiagnostics:
    def mutant(self, name):
        return next(mutant for _, mutant in MUTATIONS[name](build(2)))

    def test_name_both_families_and_the_buffer(self):
        found = verify(self.mutant("drop_wait"))
        assert "`relay_xs` may read `xs_arrived` before `send_xs` has written it" in [d.message for d in found]
        assert all(diagnostic.help and diagnostic.notes for diagnostic in found)

    def test_point_into_the_program(self):
        schedule = self.mutant("narrow_wait")
        for line, name in enumerate(("send_xs", "relay_xs"), start=3):
            family = schedule.graph.family(name)
            span = Span(line=line, column=5, end_line=line, end_column=9)
            schedule = with_family(schedule, replace(family, span=span))
        (diagnostic,) = verify(schedule)
        assert [(label.span.line, label.primary) for label in diagnostic.labels] == [(4, True), (3, False)]

    def test_all_faults_are_reported(self):
        schedule = self.mutant("drop_fence")
        relay = schedule.graph.family("relay_xs")
        waits = tuple(replace(wait, target=wait.target + 1) for wait in relay.waits)
        assert codes(with_family(schedule, replace(relay, waits=waits))) == {"UEP0319", "UEP0313"}


class TestNames:
    def test_unknown_names_are_reported_alone(self):
        schedule = build(2)
        family = schedule.graph.family("gemm_a")
        post = replace(family.posts[0], signal="nothing", index=Lookup("nowhere", ()))
        broken = with_family(schedule, replace(family, posts=(post,), waits=()))
        messages = [diagnostic.message for diagnostic in verify(broken)]
        assert {diagnostic.code for diagnostic in verify(broken)} == {"UEP0324"}
        assert "`gemm_a` names a signal `nothing` that the graph does not have" in messages
        assert any("table `nowhere`" in message for message in messages)

    def test_nothing_is_divided_by_what_may_be_zero(self):
        schedule = build(2)
        family = schedule.graph.family("gemm_a")
        wait = replace(family.waits[0], target=cdiv(Int(8), Sym("num_tiles")))
        (diagnostic,) = verify(with_family(schedule, replace(family, waits=(wait,))))
        assert (diagnostic.code, diagnostic.message) == ("UEP0325", "`gemm_a` divides by $num_tiles")

    def test_no_two_have_one_name(self):
        schedule = build(2)
        twice = (*schedule.graph.buffers, schedule.graph.buffers[0])
        broken = replace(schedule, graph=replace(schedule.graph, buffers=twice))
        assert [d.message for d in verify(broken)] == ["2 buffers have the name `x`"]

    def test_no_two_launches_have_one_name(self):
        schedule = build(2, fuse=Fuse.PAIRS)
        broken = replace(schedule, launches=tuple(replace(launch, name="one") for launch in schedule.launches))
        assert [d.message for d in verify(broken)] == ["2 launches have the name `one`"]


class TestNumbers:
    @pytest.mark.parametrize("field", ["ranks", "experts", "topk", "tile_rows", "block"])
    @pytest.mark.parametrize("number", [0, -3])
    def test_of_the_graph(self, field, number):
        schedule = build(2)
        broken = replace(schedule, graph=replace(schedule.graph, **{field: number}))
        assert codes(broken) == {"UEP0327"}
        assert f"has {field} = {number}, which is less than 1" in verify(broken)[0].message

    @pytest.mark.parametrize(
        ("extent", "number"), [(Int(0), 0), (Int(-2), -2), (Binary(BinaryOp.SUB, Int(1), Int(4)), -3)]
    )
    def test_of_extents(self, extent, number):
        schedule = build(2)
        graph = schedule.graph
        buffers = (*graph.buffers[:-1], replace(graph.buffers[-1], cols=extent))
        signals = (*graph.signals[:-1], replace(graph.signals[-1], extent=extent))
        broken = replace(schedule, graph=replace(graph, buffers=buffers, signals=signals))
        names = (graph.buffers[-1].name, graph.signals[-1].name)
        assert [d.message for d in verify(broken)] == [f"`{name}` has an extent of {number}" for name in names]

    def test_of_experts(self):
        schedule = build(2)
        graph = schedule.graph
        buffers = tuple(replace(b, experts=3) if b.experts else b for b in graph.buffers)
        assert codes(replace(schedule, graph=replace(graph, buffers=buffers))) == {"UEP0327"}

    def test_of_domains(self):
        """Two extents of less than 0 make a number of tasks that looks right."""
        schedule = build(2)
        family = schedule.graph.family("gemm_a")
        tile, column = family.domain
        negative = (replace(tile, extent=Int(-1) * tile.extent), replace(column, extent=Int(-6)))
        assert "UEP0310" in codes(with_family(schedule, replace(family, domain=negative)))


@pytest.mark.parametrize(
    "options", [{"send": Send.ROUTE, "relay": Relay.COPY}, {"send": Send.RANK, "relay": Relay.OFF}]
)
def test_lists_of_sends_that_hold_something_else_are_rejected(options):
    """Tokens taken for routes, or routes for tokens."""
    schedule = build(2, **options)
    assert verify(schedule)
    assert machine_finds(schedule, range(3))


def test_families_that_share_an_access_are_not_taken_for_one():
    """Two families hold the same access: one of them is the other's rival for the place."""
    schedule = build(2)
    graph = schedule.graph
    twin = replace(graph.family("gemm_a"), name="gemm_twin", posts=())
    rivals = replace(graph, families=(*graph.families[:3], twin, *graph.families[3:]))
    found = [diagnostic.message for diagnostic in verify(replace(schedule, graph=rivals))]
    assert any("tasks of `gemm_a` and `gemm_twin` may write the same place of `a`" in message for message in found)


def test_an_output_that_nobody_writes_is_rejected():
    schedule = build(2)
    extra = Buffer(name="extra", dtype=DType.F32, rows=Int(4), cols=Int(4), kind=BufferKind.OUTPUT)
    graph = replace(schedule.graph, buffers=(*schedule.graph.buffers, extra))
    assert codes(replace(schedule, graph=graph)) == {"UEP0315"}


def test_a_proof_is_fast():
    """Compilation always proves its schedule, and has a second and a half for everything."""
    verify(build(2))
    start = time.process_time()
    verify(build(8, lanes=16, group=8, chunk=16))
    assert time.process_time() - start < 1
