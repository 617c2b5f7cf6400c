from __future__ import annotations

import re

import pytest

from tests.snippets import HEADER
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.bind import MAX_DIM, bind_dims, dims_to_bind
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse

BODY = "    a = swiglu(group_gemm(dispatch(x, experts), w13))\n    return combine(group_gemm(a, w2), weights)\n}\n"
PROGRAM = parse(HEADER.replace(" {\n", " where H % 16 == 0, I - 4 * K >= 0, E // (K - 1) > 0 {\n") + BODY, "moe.uniep")
GRAPH = lower(PROGRAM)
DIMS = {"K": 2, "E": 8, "H": 32, "I": 16}


def errors_of(dims, graph=GRAPH, program=PROGRAM):
    with pytest.raises(UniepError) as caught:
        bind_dims(graph, dims, program)
    return caught.value


def test_all_dims_but_the_tokens_are_bound():
    assert dims_to_bind(GRAPH) == ("E", "H", "I", "K")
    assert list(bind_dims(GRAPH, DIMS).items()) == [("E", 8), ("H", 32), ("I", 16), ("K", 2)]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"K": 2, "E": 8}, r"no number for `H`, `I`"),
        (DIMS | {"T": 5}, "`T` is the number of tokens"),
        (DIMS | {"HH": 5}, "did you mean `H`"),
        (DIMS | {"Q": 5}, "its dims are `E`, `H`, `I`, `K`"),
        (DIMS | {"H": 0}, "`H` cannot be 0"),
        (DIMS | {"H": -16}, "`H` cannot be -16"),
        (DIMS | {"H": 32.0}, r"`H` cannot be 32\.0"),
        (DIMS | {"H": True}, "`H` cannot be True"),
        (DIMS | {"H": "32"}, "`H` cannot be '32'"),
        (DIMS | {"H": MAX_DIM + 1}, "dims are integers from 1 to 2147483647"),
    ],
)
def test_dims_have_to_be_those_of_the_program(dims, message):
    error = errors_of(dims)
    assert error.codes == ("UEP0217",)
    assert re.search(message, str(error))


def test_all_that_is_wrong_is_reported():
    assert errors_of({"T": 1, "H": 0, "E": 8}).codes == ("UEP0217",) * 3


def test_a_condition_that_does_not_hold_is_shown_with_its_numbers():
    error = errors_of(DIMS | {"H": 40})
    assert error.codes == ("UEP0218",)
    assert str(error) == (
        "error[UEP0218]: `H % 16 == 0` does not hold\n"
        " --> moe.uniep:9:23\n"
        "  |\n"
        "9 | ) -> bf16[T, H] where H % 16 == 0, I - 4 * K >= 0, E // (K - 1) > 0 {\n"
        "  |                       ^^^^^^^^^^^ required here\n"
        "  |\n"
        "  = note: with H = 40 it says 8 == 0\n"
        "  = help: choose other dims; the program's author wrote this condition"
    )


def test_without_a_program_conditions_are_checked_all_the_same():
    error = errors_of(DIMS | {"H": 40, "I": 1}, program=None)
    assert error.codes == ("UEP0218", "UEP0218")
    assert "-->" not in str(error)


def test_division_by_zero_in_a_condition_is_an_error():
    error = errors_of(DIMS | {"K": 1})
    assert error.codes == ("UEP0219",)
    assert "with E = 8, K = 1" in str(error)


def test_more_routes_than_experts_are_refused():
    error = errors_of(DIMS | {"K": 4, "E": 3})
    assert error.codes == ("UEP0220",)
    assert "4 routes per token to 3 experts" in str(error)


def test_dims_of_types_may_not_come_to_nothing_or_too_much():
    graph = lower(parse(HEADER.replace("H", "2*H - 6") + BODY))
    assert errors_of(DIMS | {"H": 3}, graph, None).codes == ("UEP0206",)
    assert errors_of(DIMS | {"H": MAX_DIM - 1}, graph, None).codes == ("UEP0206",)
    assert bind_dims(graph, DIMS | {"H": 4})["H"] == 4
