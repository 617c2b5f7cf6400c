"""Layers as operators: what tracers see of a call, and that traced calls give the bits of eager ones."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, assert_same_bits, compile_layer, make_inputs
from uniep_compiler.runtime import modules

SHAPE = Shape(tokens=5, experts=4, topk=2, hidden=16, inner=16)

FIRST_PART = """
uniep 1

moe first_part(
    x       : bf16[T, H],
    experts : i32[T, K],
    w13     : bf16[E, 2*I, H],
) -> routes[T, K, E], bf16[rows(r), I] {
    r = route(experts)
    a = swiglu(group_gemm(dispatch(x, r), w13))
    return r, a
}
"""

SECOND_PART = """
uniep 1

moe second_part(
    r       : routes[T, K, E],
    a       : bf16[rows(r), I],
    weights : f32[T, K],
    w2      : bf16[E, H, I],
) -> bf16[T, H] {
    return combine(group_gemm(a, w2), weights)
}
"""

TWO_RESULTS = SWIGLU.replace("-> bf16[T, H] {", "-> bf16[T, H], bf16[rows(r), I] {").replace(
    "return combine(y, weights)", "return combine(y, weights), a"
)


def inputs(tokens=5, seed=0):
    return make_inputs(Shape(tokens=tokens, experts=4, topk=2, hidden=16, inner=16), "cpu", seed=seed)


@cache
def parts(ranks=None):
    return [compile_layer(SHAPE, "cpu", ranks=ranks, text=text) for text in (FIRST_PART, SECOND_PART)]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def trace():
    """Compiles a function for tracing tests; all traces are forgotten before and after."""
    torch._dynamo.reset()
    counters.clear()
    yield lambda function, backend="aot_eager": torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    torch._dynamo.reset()


# -- torch.compile -----------------------------------------------------------------------------------------------------


def test_a_compiled_function_serves_every_number_of_tokens(trace):
    layer = compile_layer(SHAPE, "cpu")

    def function(x, *rest):
        return layer(x * 2, *rest) + 1

    compiled = trace(function)
    layer(*inputs().args)
    before = len(modules._loaded)
    for tokens in (5, 17, 1, 0, 33):
        args = inputs(tokens).args
        assert_same_bits(compiled(*args), function(*args))
    assert len(modules._loaded) == before
    assert counters["stats"]["unique_graphs"] == 3  # tracers treat sizes 0 and 1 as constants
    assert not counters["graph_break"]


def test_inductor(trace):
    layer = compile_layer(SHAPE, "cpu")
    compiled = trace(lambda *args: layer(*args), "inductor")
    for tokens in (5, 17):
        assert_same_bits(compiled(*inputs(tokens).args), layer(*inputs(tokens).args))
    assert counters["stats"]["unique_graphs"] == 1


def test_several_results(trace):
    layer = compile_layer(SHAPE, "cpu", text=TWO_RESULTS)
    out, a = trace(lambda *args: layer(*args))(*inputs().args)
    for mine, expected in zip((out, a), layer(*inputs().args), strict=True):
        assert_same_bits(mine, expected)


def test_a_compiled_function_is_traced_again_for_another_layer(trace):
    """Layers that differ in nothing that a caller sees: only one of them has a `timeout` of its own."""
    layers = [compile_layer(SHAPE, "cpu"), compile_layer(SHAPE, "cpu", timeout=20.0)]
    compiled = trace(lambda layer, *args: layer(*args))
    for layer in (*layers, layers[0]):
        compiled(layer, *inputs().args)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("ranks", [None, 2])
def test_routes_between_parts_of_one_graph(trace, ranks):
    first, second = parts(ranks)

    def function(x, ids, weights, w13, w2):
        routes, a = first(x, ids, w13)
        return second(routes, a, weights, w2)

    compiled = trace(function)
    for tokens in (7, 12):
        args = inputs(tokens).args if ranks is None else inputs(tokens).split([3, tokens - 3], first.placement)
        outs = zip(compiled(*args), function(*args), strict=True)
        assert all(torch.equal(out, expected) for out, expected in outs)
    assert counters["stats"]["unique_graphs"] <= 2


def test_routes_go_out_of_graphs_and_into_others(trace):
    first, second = parts()
    made, used = trace(lambda *args: first(*args)), trace(lambda *args: second(*args))
    for tokens in (7, 12, 9):
        x, ids, weights, w13, w2 = inputs(tokens).args
        routes, a = made(x, ids, w13)
        assert isinstance(routes, uniep.Routes)
        assert torch.equal(routes.row_of, first(x, ids, w13)[0].row_of)
        assert_same_bits(used(routes, a, weights, w2), second(*first(x, ids, w13), weights, w2))
    assert counters["stats"]["unique_graphs"] <= 4


def test_a_group(trace):
    group = compile_layer(SHAPE, "cpu", ranks=2)
    compiled = trace(lambda *args: [part + 1 for part in group(*args)])
    for tokens in ([3, 2], [0, 5], [4, 1]):
        args = inputs().split(tokens, group.placement)
        assert all(torch.equal(out, part + 1) for out, part in zip(compiled(*args), group(*args), strict=True))


def test_wrong_arguments_are_found_while_tracing(trace):
    layer = compile_layer(SHAPE, "cpu")
    x, *rest = inputs().args
    with pytest.raises(
        torch._dynamo.exc.TorchRuntimeError, match=r"`x` has shape \[\w+, \w+\], but has to be \[T, 16\]"
    ):
        trace(lambda *args: layer(*args))(x[:, 1:], *rest)


# -- other tracers -----------------------------------------------------------------------------------------------------


def test_make_fx_sees_one_operator():
    layer = compile_layer(SHAPE, "cpu")
    graph = make_fx(lambda *args: layer(*args), tracing_mode="symbolic")(*inputs().args)
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert [str(call) for call in calls] == [f"uniep.layer_{layer.digest[:16]}.default"]
    assert_same_bits(graph(*inputs(9).args), layer(*inputs(9).args))


@pytest.mark.parametrize("bounds", [{}, {"max": 4096}, {"min": 2, "max": 4096}], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_export(strict, bounds):
    class Module(torch.nn.Module):
        def forward(self, x, ids, weights, w13, w2):
            return layer(x, ids, weights, w13, w2)

    layer, tokens = compile_layer(SHAPE, "cpu"), torch.export.Dim("tokens", **bounds)
    shapes = ({0: tokens}, {0: tokens}, {0: tokens}, None, None)
    program = torch.export.export(Module(), inputs().args, dynamic_shapes=shapes, strict=strict)
    assert_same_bits(program.module()(*inputs(9).args), layer(*inputs(9).args))


def test_fake_and_meta_tensors():
    layer, args = compile_layer(SHAPE, "cpu"), inputs().args
    with torch._subclasses.FakeTensorMode() as mode:
        out = layer(*map(mode.from_tensor, args))
    assert isinstance(out, torch._subclasses.FakeTensor)
    assert (out.shape, out.dtype, out.device.type) == ((5, 16), torch.float32, "cpu")
    out = layer.register("of_meta_tensors")(*(arg.to("meta") for arg in args))
    assert (out.shape, out.dtype, out.device.type) == ((5, 16), torch.float32, "meta")


def test_vmap_is_a_loop():
    layer, args = compile_layer(SHAPE, "cpu"), inputs().args
    x = torch.stack([args[0], args[0] * 2])
    outs = torch.func.vmap(layer, in_dims=(0, None, None, None, None))(x, *args[1:])
    for out, mine in zip(outs, x, strict=True):
        assert_same_bits(out, layer(mine, *args[1:]))


def test_vmap_over_each_argument():
    layer, args = compile_layer(SHAPE, "cpu"), inputs().args
    expected = layer(*args)
    for place in range(5):
        dims = [None] * 5
        dims[place] = 0
        batch = [torch.stack([arg] * 2) if dim == 0 else arg for arg, dim in zip(args, dims, strict=True)]
        for out in torch.func.vmap(layer, in_dims=tuple(dims))(*batch):
            assert_same_bits(out, expected)


def test_vmap_over_several_results_routes_and_groups():
    two, (first, second), group = compile_layer(SHAPE, "cpu", text=TWO_RESULTS), parts(), parts(2)
    made = inputs()
    args = made.args

    def in_parts(layers, tokens):
        def function(x):
            given = replace(made, x=x)
            given = given.args if tokens is None else given.split(tokens, layers[0].placement)
            x, ids, weights, w13, w2 = given
            return layers[1](*layers[0](x, ids, w13), weights, w2)

        return function

    xs = torch.stack([args[0], args[0] * 2])
    for function in (lambda x: two(x, *args[1:]), in_parts((first, second), None), in_parts(group, [3, 2])):
        outs, expected = torch.func.vmap(function)(xs), [function(x) for x in xs]
        if isinstance(outs, torch.Tensor):
            outs, expected = [outs], [[one] for one in expected]
        for place, out in enumerate(outs):
            for mine, one in zip(out, expected, strict=True):
                assert_same_bits(mine, one[place])


def test_vmap_over_nothing():
    layer, (x, *rest) = compile_layer(SHAPE, "cpu"), inputs().args
    with pytest.raises(uniep.UniepError, match="vmap over a batch without items"):
        torch.func.vmap(layer, in_dims=(0, None, None, None, None))(x[None][:0], *rest)


def test_jit_trace():
    layer = compile_layer(SHAPE, "cpu")
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        traced = torch.jit.trace(lambda *args: layer(*args), inputs().args)
    assert_same_bits(traced(*inputs(9).args), layer(*inputs(9).args))


def test_tensor_subclasses_are_never_read_as_plain_tensors():
    class Mine(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise RuntimeError(f"{function} was dispatched")

    layer, (x, *rest) = compile_layer(SHAPE, "cpu"), inputs().args
    mine = torch.Tensor._make_wrapper_subclass(Mine, x.shape, dtype=x.dtype)
    with pytest.raises(RuntimeError, match=r"uniep\.layer_.* was dispatched"):
        layer(mine, *rest)


# -- operators ---------------------------------------------------------------------------------------------------------


def test_opcheck():
    first, second = parts()
    x, ids, weights, w13, w2 = inputs().args
    storage, a = first.register("checked_first")(x, ids, w13)
    group = compile_layer(SHAPE, "cpu", ranks=2)
    calls = [
        (compile_layer(SHAPE, "cpu", dtype="f32").register("checked"), inputs().args),
        (compile_layer(SHAPE, "cpu", text=TWO_RESULTS).register("checked_two"), inputs().args),
        (torch.ops.uniep.checked_first, (x, ids, w13)),
        (second.register("checked_second"), (storage, [5], a, weights, w2)),
        (group.register("checked_group"), inputs().split([3, 2], group.placement)),
    ]
    for operator, args in calls:
        torch.library.opcheck(operator.default, args)


def test_an_operator_has_the_program_s_parameters():
    layer = compile_layer(SHAPE, "cpu")
    operator = layer.register("documented")
    assert operator is torch.ops.uniep.documented
    expected = "uniep::documented(Tensor x, Tensor experts, Tensor weights, Tensor w13, Tensor w2) -> Tensor"
    assert str(operator.default._schema) == expected
    args = inputs()
    out = operator(args.x, args.ids, weights=args.weights, w13=args.w13, w2=args.w2)
    assert_same_bits(out, layer(*args.args))


def test_names_that_no_schema_has():
    text = SECOND_PART.replace("r       :", "in      :").replace("rows(r)", "rows(in)").replace("weights", "in_tokens")
    layer = compile_layer(SHAPE, "cpu", text=text)
    schema = str(layer.register("odd_names").default._schema)
    assert "(Tensor in_, SymInt[] in_tokens_, Tensor a, Tensor in_tokens, Tensor w2)" in schema


def test_results_are_new_tensors():
    """Routes that are passed on are copied: an operator's result must not be its argument."""
    text = SECOND_PART.replace("-> bf16[T, H] {", "-> routes[T, K, E], bf16[T, H] {").replace("return ", "return r, ")
    first, second = parts()[0], compile_layer(SHAPE, "cpu", text=text)
    x, ids, weights, w13, w2 = inputs().args
    routes, a = first(x, ids, w13)
    storage, _ = second.register("passes_on")(routes.plan.storage, [5], a, weights, w2)
    assert torch.equal(storage, routes.plan.storage)
    assert storage.data_ptr() != routes.plan.storage.data_ptr()


def test_a_name_stands_for_one_layer():
    layer = compile_layer(SHAPE, "cpu")
    operator = layer.register("taken")
    for equal in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert equal.register("taken") is operator
    for other in (compile_layer(SHAPE, "cpu", fuse="none"), compile_layer(SHAPE, "cpu", timeout=9.0)):
        with pytest.raises(uniep.UniepError, match="uniep::taken already") as caught:
            other.register("taken")
        assert caught.value.codes == ("UEP0608",)
    assert_same_bits(operator(*inputs().args), layer(*inputs().args))


@pytest.mark.parametrize("name", ["", "two words", "a.b", "1st", "class", "\u00e9", 1, None, ["a"], b"x"])
def test_names_that_cannot_be(name):
    with pytest.raises(uniep.UniepError, match="cannot be the name of an operator"):
        compile_layer(SHAPE, "cpu").register(name)


@pytest.mark.parametrize("name", ["name", "_dir", "__init__", "__class__", "__dict__", "__file__", "__new__"])
def test_names_that_the_namespace_has_itself_are_refused_before_anything_is_defined(name):
    for _ in range(2):
        with pytest.raises(uniep.UniepError, match=f"'{name}' cannot be the name of an operator") as caught:
            compile_layer(SHAPE, "cpu").register(name)
        assert caught.value.codes == ("UEP0601",)
    assert not torch._C._jit_get_schemas_for_operator(f"uniep::{name}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda storage: storage[:-1], r"`r` is torch.int32\[\d+\], which is no storage of PlanShape"),
        (lambda storage: storage.long(), r"`r` is torch.int64\[\d+\]"),
    ],
)
def test_storage_of_other_routes(change, message):
    first, second = parts()
    x, ids, weights, w13, w2 = inputs().args
    routes, a = first(x, ids, w13)
    operator = second.register("wants_routes")
    with pytest.raises(uniep.UniepError, match=message):
        operator(change(routes.plan.storage), [5], a, weights, w2)


def test_operators_of_a_layer_are_those_of_its_equals():
    layer = compile_layer(SHAPE, "cpu")
    assert layer.digest == copy.deepcopy(layer).digest
    others = [
        compile_layer(SHAPE, "cpu", **options)
        for options in ({"fuse": "none"}, {"timeout": 9.0}, {"ranks": 1}, {"ranks": 2}, {"dtype": "bf16"})
    ]
    assert len({one.digest for one in (layer, *others)}) == 6


# -- gradients ---------------------------------------------------------------------------------------------------------


DERIVATIVES = {
    "grad": lambda function, x: torch.func.grad(lambda x: function(x).sum())(x),
    "vjp": lambda function, x: torch.func.vjp(function, x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x,)),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x),
    "hessian": lambda function, x: torch.func.hessian(lambda x: function(x).sum())(x),
    "linearize": lambda function, x: torch.func.linearize(function, x),
    "vmap of grad": lambda function, x: torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(x[None]),
    "dual tensors": lambda function, x: forward_ad_of(function, x),
}


def forward_ad_of(function, x):
    with torch.autograd.forward_ad.dual_level():
        return function(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.parametrize("transform", DERIVATIVES)
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_derivative_is_an_error_and_never_nothing(transform, ranks):
    layer, made = compile_layer(SHAPE, "cpu", ranks=ranks), inputs()

    def function(x):
        given = replace(made, x=x)
        return layer(*given.args) if ranks is None else layer(*given.split([3, 2], layer.placement))[0]

    with torch.enable_grad(), pytest.raises(uniep.UniepError, match="UEP0606"):
        DERIVATIVES[transform](function, made.x)


def test_transforms_that_want_no_derivative_of_the_layer():
    layer, (x, *rest) = compile_layer(SHAPE, "cpu"), inputs().args
    expected = layer(x, *rest)

    def without_grad(x):
        with torch.no_grad():
            return layer(x, *rest)

    with torch.enable_grad():
        for function in (lambda _: layer(inputs().x, *rest), lambda x: layer(x.detach(), *rest), without_grad):
            assert_same_bits(torch.func.grad(lambda x, of=function: (of(x) * x).sum())(x), expected)
        out, tangent = torch.func.jvp(lambda x: layer(inputs().x, *rest) * x, (x,), (x,))
        assert_same_bits(out, expected * x)
        assert_same_bits(tangent, expected * x)


def test_results_may_be_changed_in_place():
    layer = compile_layer(SHAPE, "cpu")
    x, *rest = inputs().args
    with torch.enable_grad():
        out = layer(x.clone().requires_grad_(), *rest)
        out.mul_(2)
    assert_same_bits(out, layer(x, *rest) * 2)
