"""What lowering means; that it says what is wrong is tested by the golden programs."""

from __future__ import annotations

import pytest

from tests.snippets import HEADER
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.lower import MAX_ERRORS, diagnose, lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.ops_text import print_ops
from uniep_compiler.ir.types import LARGEST_F32, DType

START = "    r = route(experts)\n    xs = dispatch(x, r)\n    h = group_gemm(xs, w13)\n"
END = "    return combine(group_gemm(a, w2), weights)\n}\n"


def lowered(body, header=HEADER, end=END):
    return lower(parse(f"{header}{START}{body}{end}"))


def error_of(body):
    """The only thing that is wrong with the body."""
    with pytest.raises(UniepError) as caught:
        lowered(body)
    (error,) = caught.value.diagnostics
    return error


def ops_of(body, **kwargs):
    """The ops behind `h`, without types."""
    lines = print_ops(lowered(body, **kwargs)).splitlines()
    first = next(number for number, line in enumerate(lines) if " h : " in line) + 1
    return [line.partition(" = ")[2] for line in lines[first:-2]]


# -- Rounding ----------------------------------------------------------------------------------------------------------


def dtype_of(graph, name):
    return graph.types[name].dtype


def test_a_name_rounds_what_arithmetic_gave():
    graph = lowered("    a = swiglu(h)\n")
    op = graph.producer("a")
    assert (op.kind, op.attr("dtype")) == ("round", DType.BF16)
    assert dtype_of(graph, op.operands[0]) is DType.F32


def test_nothing_is_rounded_inside_an_expression():
    inside = [op.kind for op in lowered("    a = swiglu(h) * 2\n").ops]
    named = [op.kind for op in lowered("    s = swiglu(h)\n    a = s * 2\n").ops]
    assert named.count("round") == inside.count("round") + 1


def test_a_declared_dtype_is_kept_or_rounded_to():
    graph = lowered("    s : f32 = swiglu(h)\n    t : f16 = s\n    a = s * t\n")
    assert dtype_of(graph, "s") is DType.F32
    assert graph.producer("s").kind == "mul"
    assert (graph.producer("t").kind, graph.producer("t").attr("dtype")) == ("round", DType.F16)


@pytest.mark.parametrize("body", ["    gate, up = split(h, halves)\n    a = up * gate\n"])
def test_what_is_moved_is_not_rounded_again(body):
    graph = lowered(body)
    assert graph.producer("gate").kind == "split"
    assert graph.producer("xs").kind == "dispatch"


def test_what_is_moved_unrounded_is_rounded_by_its_name():
    graph = lowered("    gate, up = split(group_gemm(xs, w13), halves)\n    a = up * gate\n")
    assert graph.producer("gate").kind == graph.producer("up").kind == "round"


def test_router_weights_stay_f32():
    graph = lowered("    p = to_rows(weights, r)\n    a = swiglu(h) * p\n")
    assert graph.producer("p").kind == "to_rows"
    assert dtype_of(graph, "p") is DType.F32


def test_a_constant_is_not_rounded():
    graph = lowered("    alpha = 2 * 1.702 - 1\n    a = swiglu(h) * alpha\n")
    (const,) = (op for op in graph.ops if op.kind == "const")
    assert const.attr("value") == 2 * 1.702 - 1


def test_a_cast_is_a_round_or_nothing():
    assert ops_of("    a = cast(swiglu(h), bf16)\n") == ops_of("    a = swiglu(h)\n")
    assert ops_of("    b = cast(h, bf16)\n    a = swiglu(b)\n") == ops_of("    a = swiglu(h)\n")


def test_the_result_is_rounded_to_the_declared_dtype():
    f32 = lowered("    a = swiglu(h)\n", header=HEADER.replace("-> bf16", "-> f32"))
    assert f32.producer(f32.results[0]).kind == "combine"
    bf16 = lowered("    a = swiglu(h)\n")
    assert bf16.producer(bf16.results[0]).kind == "round"


def test_names_round_to_the_dtype_of_the_first_parameter_with_tokens():
    header = HEADER.replace("    x       : bf16[T, H],\n", "").replace(
        "[T, K],\n    weights", "[T, K],\n    x : bf16[T, H],\n    weights"
    )
    assert dtype_of(lowered("    a = swiglu(h)\n", header=header), "h") is DType.BF16
    params = "p : f32[E], r : routes[T, K, E], a : f16[rows(r), H]"
    text = f"uniep 1\nmoe m({params}) -> f16[rows(r), H] {{\n    b = a + 1\n    return b\n}}"
    assert dtype_of(lower(parse(text)), "b") is DType.F16


def test_f32_programs_round_nothing():
    header = HEADER.replace("bf16", "f32")
    assert "round" not in [op.kind for op in lowered("    a = swiglu(h)\n", header=header).ops]


# -- Names -------------------------------------------------------------------------------------------------------------


def test_a_second_name_is_the_same_value():
    assert ops_of("    g = h\n    a = swiglu(g)\n") == ops_of("    a = swiglu(h)\n")


def test_what_is_not_needed_is_not_computed():
    assert ops_of("    a = swiglu(h)\n    _b = gelu(h)\n") == ops_of("    a = swiglu(h)\n")


def test_an_underscore_may_stand_for_several_results():
    graph = lowered("    gate, _ = split(h, halves)\n    _, up = split(h, halves)\n    a = gate * up\n")
    assert {"gate", "up"} <= set(graph.types)
    assert "_" not in graph.types


def test_values_may_be_called_like_ops():
    assert ops_of("    silu = swiglu(h)\n    a = silu(silu)\n")


# -- Sugar -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sugar", "meaning"),
    [
        ("swiglu(h)", "gate, up = split(h, halves)\n    a = silu(gate) * up"),
        ("swiglu(h, interleaved)", "gate, up = split(h, interleaved)\n    a = silu(gate) * up"),
        ("geglu(h, how=halves)", "gate, up = split(h, halves)\n    a = gelu(gate) * up"),
        ("relu2(swiglu(h))", "gate, up = split(h, halves)\n    a = square(relu(silu(gate) * up))"),
        (
            "swiglu_clamped(h, limit=7)",
            "gate, up = split(h, interleaved)\n    a = gated(gate, up)",
        ),
    ],
)
def test_sugar_is_what_it_means(sugar, meaning):
    g = "clamp(gate, max=7)"
    up = "clamp(up, min=-7, max=7)"
    meaning = meaning.replace("gated(gate, up)", f"{g} * sigmoid({g} * 1.702) * ({up} + 1)")
    assert computed(f"    a = {sugar}\n") == computed(f"    {meaning}\n")


@pytest.mark.parametrize("name", ["limit", "alpha"])
@pytest.mark.parametrize(("text", "number"), [("-1", "-1"), ("0", "0"), ("2.0 - 3.5", "-1.5"), ("-1e-30", "-1e-30")])
def test_numbers_of_swiglu_clamped_are_positive(name, text, number):
    error = error_of(f"    a = swiglu_clamped(h, {name}={text})\n")
    assert error.code == "UEP0204"
    assert error.message == f"`{name}` of `swiglu_clamped` is {number}"
    assert error.span.end_column - error.span.column == len(text)


# -- Constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constants",
    ["3e38 * 2", "3e38 + 3e38", "-3e38 - 3e38", "3e38 * 3e38 * 0", " * ".join(["1e38"] * 9)],
)
@pytest.mark.parametrize("use", ["silu(h) * ({})", "clamp(h, max={})", "swiglu_clamped(h, alpha={})"])
def test_constants_that_come_to_too_much_are_an_error(use, constants):
    error = error_of(f"    a = {use.format(constants)}\n")
    assert error.code == "UEP0106"
    assert error.message == "these constants come to a number that is too large"


def test_constants_may_come_to_the_largest_f32_and_to_less_than_the_smallest():
    largest, nothing = "1.7014117331926443e38 * 2", "1e-45 * 1e-45"
    graph = lowered(f"    a = swiglu(h) * ({largest}) + ({nothing}) - 65520 * 2\n")
    constants = [op.attr("value") for op in graph.ops if op.kind == "const"]
    assert constants == [LARGEST_F32, pytest.approx(1e-90), 131040.0]


def test_the_inverse_of_next_to_nothing_is_not_proposed():
    error = error_of("    a = silu(h) / 1e-320\n")
    assert error.code == "UEP0223"
    assert "multiply" not in error.help


def computed(body):
    """What `a` is as one expression of ops, so that equal computations are equal, shared or not."""
    graph = lowered(body)

    def expression(name):
        op = graph.producer(name)
        if op is None or name == "h":
            return name
        return (op.kind, op.attrs, op.results.index(name), *map(expression, op.operands))

    return expression("a")


def test_the_same_ids_are_routed_once():
    gemm = "group_gemm(dispatch(x, experts), w13)"
    graph = lower(parse(f"{HEADER}    a = swiglu({gemm} + {gemm})\n{END}"))
    assert [op.kind for op in graph.ops].count("route") == 1


# -- Dims --------------------------------------------------------------------------------------------------------------


def test_experts_are_counted_by_the_weights():
    graph = lower(parse(f"{HEADER}{START}    a = swiglu(h)\n{END}".replace("E,", "Experts,")))
    assert str(graph.types["r"]) == "routes[T, K, Experts]"


def test_experts_are_counted_by_routes_that_go_out():
    header = "moe m(x : f32[T, H], ids : i32[T, K]) -> routes[T, K, N], f32[rows(r), H]"
    text = f"uniep 1\n{header} {{\n    r = route(ids)\n    return r, dispatch(x, r)\n}}"
    with pytest.raises(UniepError) as caught:
        lower(parse(text))
    assert caught.value.codes == ("UEP0206",)  # nothing would bind N
    assert str(lower(parse(text.replace("[T, K])", "[T, K], w : f32[N, H])"))).types["r"]) == "routes[T, K, N]"


# -- Whole files -------------------------------------------------------------------------------------------------------

BROKEN = HEADER.replace("moe m", "moe broken") + "    return combine(dispatch(x, experts), weight)\n}\n"
WHOLE = f"{HEADER}{START}    a = swiglu(h)\n{END}"
BOTH = parse(WHOLE + BROKEN.removeprefix("uniep 1\n"))


def test_errors_of_all_layers_are_reported_whichever_is_asked_for():
    with pytest.raises(UniepError, match="unknown value `weight`"):
        lower(BOTH["m"])


def test_a_declaration_is_lowered_alone():
    assert lower(BOTH.moes["m"]) == lower(parse(WHOLE))
    with pytest.raises(UniepError, match=r"--> <string>:\d+:42"):
        lower(BOTH.moes["broken"])


def test_a_program_with_several_layers_asks_for_one():
    both = parse(WHOLE + WHOLE.replace("moe m", "moe n").removeprefix("uniep 1\n"))
    with pytest.raises(UniepError) as caught:
        lower(both)
    assert caught.value.codes == ("UEP0222",)
    assert lower(both["n"]).name == "n"


def test_warnings_do_not_stop_lowering():
    program = parse(f"{HEADER}{START}    a = swiglu(h)\n    b = h\n{END}")
    assert [diagnostic.code for diagnostic in diagnose(program)] == ["UEP0216"]
    assert lower(program).name == "m"


def test_only_so_many_errors_of_a_layer_are_looked_for():
    many = "".join(f"    b{number} = q{number}\n" for number in range(200))
    assert len(diagnose(parse(f"{HEADER}{START}{many}{END}"))) == MAX_ERRORS


def test_spans_lead_back_to_the_text():
    graph = lowered("    a = swiglu(h)\n")
    assert str(graph.producer("xs").span) == "11:10"
    assert str(graph.producer("a").span) == "13:5"
    assert str(graph.params[0].span) == "4:5"


# -- One mistake is one error ------------------------------------------------------------------------------------------


def test_rows_of_routes_that_are_wrong_are_not_wrong_too():
    text = """uniep 1
moe m(x : bf16[T, H], e : i32[T, K]) -> bf16[T, H], bf16[rows(r), H] {
    r = route(e)
    xs = dispatch(x, r)
    y = relu(xs)
    return combine(xs), y
}
"""
    assert [error.code for error in diagnose(parse(text))] == ["UEP0215"]


def test_rows_of_a_parameter_without_a_type_are_not_wrong_too():
    text = "uniep 1\nmoe m(r : routs[T, K, E], y : bf16[rows(r), H]) -> bf16[T, H] {\n    return combine(y)\n}\n"
    assert [error.code for error in diagnose(parse(text))] == ["UEP0205"]
