from __future__ import annotations

from tests.modules import LAYER, after
from tests.programs import SUPPORTED
from uniep_compiler.ir.tasks import Role


def kept(text=LAYER, **options):
    return after("insert_relays", text, **options), after("keep_results_local", text, **options)


def test_a_group_keeps_its_pushes():
    before, behind = kept(ranks=1)
    assert behind == before


def test_on_one_rank_the_reduce_reads_rows_where_they_are():
    before, behind = kept()
    assert [family.name for family in before.families][-2:] == ["push_y", "reduce_out"]
    assert all(family.role is not Role.PUSH for family in behind.families)
    assert "y_returned" not in {buffer.name for buffer in behind.buffers}
    reduce = behind.family("reduce_out")
    assert (reduce.body.rows, reduce.body.by_route) == ("y", False)
    old, new = before.family("reduce_out").reads[0], reduce.reads[0]
    assert new.row.table == "row_of"
    assert new.row.indices == (old.row,)
    assert (new.over, new.when) == (old.over, old.when)
    assert reduce.reads[1:] == before.family("reduce_out").reads[1:]


def test_both_reduces_of_rows_that_are_combined_twice():
    _, behind = kept(SUPPORTED["rows combined twice"])
    assert [behind.family(name).body.rows for name in ("reduce_out", "reduce_out_2")] == ["y", "y"]
