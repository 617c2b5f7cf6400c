"""Programs that the language has and the back end has not: each is refused, with its place and a way out."""

from __future__ import annotations

import pytest

from tests.programs import ONE_RANK_ONLY, RELAYED_ONLY, SUPPORTED, UNSUPPORTED
from uniep_compiler import compiler
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.routing import balanced_placement
from uniep_compiler.passes.check_support import returned_value
from uniep_compiler.passes.target import find_target

DIMS = {"H": 20, "I": 12, "E": 4, "K": 2}


def build(text, ranks=None, **schedule):
    program = parse(text)
    settings = compiler.make_settings(
        program,
        dims=DIMS,
        target=find_target("cpu"),
        placement=balanced_placement(4, ranks or 1),
        local=ranks is None,
        overrides=schedule,
    )
    return list(compiler.states(lower(program), settings))


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_with_its_place(name, ranks):
    text, message = UNSUPPORTED[name]
    with pytest.raises(UniepError) as caught:
        build(text, ranks)
    assert set(caught.value.codes) == {"UEP0401"}
    assert message in [diagnostic.message for diagnostic in caught.value.diagnostics]
    for diagnostic in caught.value.diagnostics:
        assert diagnostic.span.line > 3
        assert diagnostic.help


def test_all_of_it_is_said_at_once():
    with pytest.raises(UniepError) as caught:
        build(
            """uniep 1

moe m(x : bf16[T, H], experts : i32[T, K], w : bf16[E, 4*H, H]) -> bf16[T, H], bf16[T, H] {
    r = route(experts)
    xs = dispatch(x, r)
    g, u = split(group_gemm(xs, w), halves)
    y, _ = split(g * u, halves)
    return combine(y), x
}
"""
        )
    messages = [diagnostic.message.split(" is not")[0] for diagnostic in caught.value.diagnostics]
    assert messages == ["returning `x` as it came", "`split` on a half of a split"]


@pytest.mark.parametrize("name", ONE_RANK_ONLY)
def test_one_rank_takes_what_a_group_does_not(name):
    assert build(SUPPORTED[name])
    with pytest.raises(UniepError, match="a second `dispatch` under a group is not supported yet"):
        build(SUPPORTED[name], 2)


@pytest.mark.parametrize("name", RELAYED_ONLY)
def test_results_are_no_symmetric_memory(name):
    assert build(SUPPORTED[name], 2, relay="copy")
    assert build(SUPPORTED[name], relay="off")
    with pytest.raises(UniepError, match="set `relay = copy`"):
        build(SUPPORTED[name], 2, relay="off")


BY_ROUTES = "uniep 1\nmoe m(x : bf16[T, H], r : routes[T, K, E], w : bf16[E, I, H]) -> bf16[rows(r), I] {{\n {}\n}}"


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
@pytest.mark.parametrize("ranks", [None, 1, 2])
@pytest.mark.parametrize(
    "body", ["return group_gemm(dispatch(x, r), w)", "q = r\n xs = relu(dispatch(x, q))\n return group_gemm(xs, w)"]
)
def test_rows_are_sent_by_routes_that_the_layer_makes(body, ranks, relay):
    text = BY_ROUTES.format(body)
    if ranks is None and relay != "off":
        assert build(text, relay=relay)
        return
    with pytest.raises(UniepError) as caught:
        build(text, ranks, relay=relay)
    (error,) = caught.value.diagnostics
    assert error.message == "sending rows by routes that come in as a parameter is not supported yet"
    assert error.help.endswith("`relay = off` out") == (ranks is None)
    assert "dispatch(x" in text.splitlines()[error.span.line - 1]


@pytest.mark.parametrize(
    ("statement", "is_result"),
    [("return combine(y)", True), ("o = combine(y)\n return o", True), ("return relu(combine(y))", False)],
)
def test_the_value_that_a_combine_makes(statement, is_result):
    header = "uniep 1\nmoe m(x : bf16[T, H], e : i32[T, K], w : bf16[E, H, H]) -> bf16[T, H] {"
    ops = lower(parse(f"{header}\n y = group_gemm(dispatch(x, e), w)\n {statement}\n}}"))
    (combine,) = [op for op in ops.ops if op.kind == "combine"]
    assert returned_value(ops, combine) == (ops.results[0] if is_result else None)
