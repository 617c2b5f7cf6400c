from __future__ import annotations

import pytest

from tests.modules import LAYER
from tests.programs import NASTY, SUPPORTED
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.types import RowsType
from uniep_compiler.passes.names import LONGEST, RESERVED, buffer_names, fresh, is_named, name_buffers


def names_of(text):
    return buffer_names(lower(parse(text)))


def test_a_value_keeps_the_name_that_the_program_gives_it():
    names = names_of(LAYER)
    assert {name: names[name] for name in ("x", "xs", "h", "gate", "a", "y")} == {
        name: name for name in ("x", "xs", "h", "gate", "a", "y")
    }


def test_unnamed_results_and_rows_get_names():
    names = names_of(SUPPORTED["no name"])
    assert sorted(name for old, name in names.items() if not is_named(old) and name != old) == [
        "out",
        "rows_2",
        "rows_3",
    ]


def test_two_unnamed_results_are_two_buffers():
    names = names_of(SUPPORTED["rows combined twice"])
    results = lower(parse(SUPPORTED["rows combined twice"])).results
    assert [names[name] for name in results] == ["out", "out_2"]


def test_unnamed_results_are_numbered_in_the_order_in_which_they_are_returned():
    """One that is rounded where it is returned is made after one that is not."""
    text = SUPPORTED["rows combined twice"].replace("-> bf16[T, H], bf16", "-> bf16[T, H], f32")
    ops = lower(parse(text))
    assert [*ops.types].index(ops.results[0]) > [*ops.types].index(ops.results[1])
    assert [buffer_names(ops)[name] for name in ops.results] == ["out", "out_2"]


def test_an_unnamed_result_beside_a_value_called_out():
    text = LAYER.replace(" y ", " out ").replace("(y,", "(out,")
    ops = lower(parse(text))
    assert buffer_names(ops)["out"] == "out"
    assert buffer_names(ops)[ops.results[0]] == "out_2"


@pytest.mark.parametrize("text", [*SUPPORTED.values(), NASTY])
def test_no_two_values_share_a_name_and_none_has_a_reserved_one(text):
    names = names_of(text)
    assert len(set(names.values())) == len(names)
    assert not RESERVED & set(names.values())
    assert max(map(len, names.values())) <= LONGEST + 2


def test_long_names_are_cut_and_stay_apart():
    names = names_of(
        LAYER.replace("gate", "g" * 40 + "1").replace("up =", f"{'g' * 40}2 =").replace("* up", f"* {'g' * 40}2")
    )
    cut = [name for value, name in names.items() if value.startswith("ggg")]
    assert cut == ["g" * LONGEST, "g" * LONGEST + "_2"]


def test_the_whole_graph_is_renamed():
    ops = name_buffers(lower(parse(NASTY)))
    names = set(ops.types)
    assert "row_route" not in names
    assert {name for op in ops.ops for name in (*op.operands, *op.results)} <= names
    assert set(ops.results) <= names
    assert {kind.routes for kind in ops.types.values() if isinstance(kind, RowsType)} == {"triton"}
    assert name_buffers(ops) == ops


def test_fresh():
    assert fresh("a", ()) == "a"
    assert fresh("a", ("a",)) == "a_2"
    assert fresh("a", ("a", "a_2", "a_4")) == "a_3"
