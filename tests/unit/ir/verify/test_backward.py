"""The checker accepts the schedules of backward passes, and rejects those that are broken."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from tests.backward import NAMES, backward
from tests.mutations import MUTATIONS, with_family
from tests.schedules import random_routing
from uniep_compiler.ir.index import Coord, Int, Lookup, substitute
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.tasks import OuterBody, RoutesBody
from uniep_compiler.ir.types import DType
from uniep_compiler.ir.verify import verify
from uniep_compiler.ir.verify.bodies import check_accesses_are_those_of_bodies, check_bodies_fit_their_graph
from uniep_compiler.ir.verify.model import Model
from uniep_compiler.machine.program import load
from uniep_compiler.machine.run import run


def codes(schedule):
    return {diagnostic.code for diagnostic in verify(schedule)}


def faults(schedule):
    """What the bodies of a schedule are found guilty of."""
    return [note for diagnostic in verify(schedule) if diagnostic.code == "UEP0329" for note in diagnostic.notes]


def machine_finds(schedule):
    for seed in range(6):
        program = load(schedule, random_routing(schedule, seed))
        if run(program, workers=2, seed=seed, split=seed % 4 == 2).findings:
            return True
    return False


def with_access(family, part, number, **changes):
    accesses = list(getattr(family, part))
    accesses[number] = replace(accesses[number], **changes)
    return replace(family, **{part: tuple(accesses)})


def test_most_kinds_of_programs_have_a_backward_pass():
    """Those left out raise UEP0401. There may be more than these."""
    assert {"dispatch_gemm", "gemm_combine", "megatron", "mixtral", "qwen3_moe", "relu2"} <= {*NAMES}
    assert {"no name", "half a split", "an interleaved split of what is returned"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_backward_passes_are_accepted(name):
    assert verify(backward(name, target="sm_90", ragged=True)) == ()


@pytest.mark.long
@pytest.mark.parametrize(("target", "ragged"), [("sm_90", False), ("cpu", False), ("cpu", True)])
@pytest.mark.parametrize("name", NAMES)
def test_backward_passes_are_accepted_for_other_sizes_and_targets(name, target, ragged):
    assert verify(backward(name, target=target, ragged=ragged)) == ()


@pytest.mark.parametrize("fuse", ["pairs", "none"])
@pytest.mark.parametrize("relay", ["copy", "gather"])
@pytest.mark.parametrize("name", ["qwen3_moe", "one GEMM", "no name"])
def test_options_are_accepted(name, relay, fuse):
    assert verify(backward(name, relay=relay, fuse=fuse)) == ()


@pytest.mark.parametrize("name", MUTATIONS)
def test_nothing_is_accepted_that_the_machine_can_make_fail(name):
    fuse = "pairs" if name.endswith("launches") else "layer"
    for what, mutant in itertools.islice(MUTATIONS[name](backward("qwen3_moe", fuse=fuse)), 1):
        assert verify(mutant) or not machine_finds(mutant), what


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", ["qwen3_moe", "dispatch_gemm", "gemm_combine"])
def test_no_mutant_is_accepted_that_the_machine_can_make_fail(name, mutation):
    for what, mutant in MUTATIONS[mutation](backward(name)):
        assert verify(mutant) or not machine_finds(mutant), what


@pytest.mark.parametrize("mutation", [name for name in MUTATIONS if name.startswith("body_")])
@pytest.mark.parametrize("name", ["one GEMM", "an interleaved split of what is returned"])
def test_what_kernels_are_printed_from_is_checked(name, mutation):
    for what, mutant in MUTATIONS[mutation](backward(name, ragged=True)):
        model = Model(mutant, shared_device=True)
        assert [*check_accesses_are_those_of_bodies(model), *check_bodies_fit_their_graph(model)], what


class TestWeightGradients:
    """Families of `OuterBody`: sums over the rows of an expert."""

    schedule = backward("qwen3_moe", ragged=True)
    family = schedule.graph.family("outer_grad_w2")

    def broken(self, part, number, **changes):
        return with_family(self.schedule, with_access(self.family, part, number, **changes))

    def test_wait_for_all_rows(self):
        for number in range(len(self.family.waits)):
            waits = (*self.family.waits[:number], *self.family.waits[number + 1 :])
            assert "UEP0314" in codes(with_family(self.schedule, replace(self.family, waits=waits)))

    def test_read_no_rows_of_other_places(self):
        row = self.family.reads[0].row
        assert "UEP0321" in codes(self.broken("reads", 0, row=row + 1))
        assert "UEP0321" in codes(self.broken("reads", 0, num_rows=self.family.reads[0].num_rows + 1))
        assert "UEP0321" in codes(self.broken("reads", 0, row=Lookup("expert_row", (Coord("expert") + 1,))))

    def test_write_the_parts_of_all_experts(self):
        fewer = replace(self.family.domain[0], extent=Int(self.schedule.graph.experts - 1))
        assert "UEP0315" in codes(
            with_family(self.schedule, replace(self.family, domain=(fewer, *self.family.domain[1:])))
        )

    @pytest.mark.parametrize("by", [-1, 1])
    def test_write_the_part_of_their_expert(self, by):
        write = self.family.writes[0]
        rows = self.family.body.num_rows + by
        row = Coord("expert") * rows + (write.row - Coord("expert") * self.family.body.num_rows)
        assert {"UEP0315", "UEP0316", "UEP0321"} & codes(self.broken("writes", 0, row=row))

    def test_tiles_do_not_overlap(self):
        """The first columns are written twice, and the last ones not at all."""
        found = codes(self.broken("writes", 0, col=Int(0), num_cols=Int(256)))
        assert {"UEP0315", "UEP0316"} <= found

    def test_tiles_cover_the_result(self):
        """A place stands for a tile of rows and one of columns: without the last one, a corner is not written."""
        expert, place = self.family.domain
        assert place.extent == Int(4)
        shorter = (expert, replace(place, extent=Int(3)))
        assert "UEP0315" in codes(with_family(self.schedule, replace(self.family, domain=shorter)))

    def test_places_are_numbered_by_rows_of_tiles(self):
        """Remainders of 3 instead of 2 leave tiles out; no proof may take a remainder for any other."""
        write = self.family.writes[0]
        col = substitute(write.col, {Coord("place") % 2: Coord("place") % 3})
        assert col != write.col
        assert {"UEP0315", "UEP0321"} & codes(self.broken("writes", 0, col=col))


class TestBodies:
    schedule = backward("qwen3_moe")
    family = schedule.graph.family("gemm_grad_h")

    def faults_of(self, **changes):
        return faults(with_family(self.schedule, replace(self.family, body=replace(self.family.body, **changes))))

    def epilogue_with(self, *ops):
        return (*self.family.body.epilogue, *ops)

    def op(self, kind, *operands, **attrs):
        return Op(kind=kind, operands=operands, results=("z",), attrs=tuple(attrs.items()))

    @pytest.mark.parametrize(
        ("kind", "operands", "attrs", "fault"),
        [
            ("join", ("gate", "up"), {"how": "halves"}, "`z` is made of halves, which stand in two accumulators"),
            ("row_sum", ("inner_products",), {}, "`z` is made by `row_sum` of what has no columns"),
        ],
    )
    def test_ops_are_ones_of_an_epilogue(self, kind, operands, attrs, fault):
        (found,) = self.faults_of(epilogue=self.epilogue_with(self.op(kind, *operands, **attrs)))
        assert found.startswith(fault)

    def test_operands_are_equally_wide(self):
        joined = self.op("join", "gate", "up", how="interleaved")
        sum_ = replace(self.op("add", "z", "gate"), results=("zz",))
        (found,) = self.faults_of(epilogue=self.epilogue_with(joined, sum_))
        assert found == "`zz` is made of values with different numbers of columns"

    def test_only_sums_are_stored_as_numbers_per_row(self):
        stores = tuple(replace(store, value="_11") if store.summed else store for store in self.family.body.stores)
        (found,) = self.faults_of(stores=stores)
        assert found == "it stores one number per row of `_11`, which has 2 columns for two of an accumulator"

    def test_what_is_loaded_has_its_dtype(self):
        stores = tuple(replace(s, value="gate") if s.value == "inner_products" else s for s in self.family.body.stores)
        assert "it stores `gate`, which is bf16, to `inner_products`, which holds f32" in self.faults_of(stores=stores)

    @pytest.mark.parametrize(
        ("kind", "name", "dtype", "fault"),
        [
            (OuterBody, "left", DType.F16, r"`\w+` holds .*, and `\w+` holds .*"),
            (OuterBody, "target", DType.I32, "it rounds to i32, which is no type of floating point numbers"),
            (RoutesBody, "target", DType.BF16, "its sums are f32, and `grad_weights` holds bf16"),
        ],
    )
    def test_element_types_are_those_that_kernels_take(self, kind, name, dtype, fault):
        graph = self.schedule.graph
        body = next(family.body for family in graph.families if isinstance(family.body, kind))
        buffers = tuple(replace(b, dtype=dtype) if b.name == getattr(body, name) else b for b in graph.buffers)
        found = faults(replace(self.schedule, graph=replace(graph, buffers=buffers)))
        assert any(re.fullmatch(fault, text) for text in found)

    def test_sums_over_experts_have_a_part_for_each(self):
        graph = self.schedule.graph
        buffers = tuple(
            replace(b, experts=0, rows=b.rows * b.experts) if b.name == "grad_w2" else b for b in graph.buffers
        )
        found = faults(replace(self.schedule, graph=replace(graph, buffers=buffers)))
        assert found == ["`grad_w2` has no part for each expert"]
