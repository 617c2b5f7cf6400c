"""What a layer says of itself, and of what is no program."""

from __future__ import annotations

import pytest
import torch

import uniep_compiler as uniep

DIMS = {"H": 64, "I": 32, "E": 8, "K": 2}


@pytest.mark.parametrize("given", ["examples/qwen3_moe.uniep", None, 3])
def test_only_parsed_programs_are_compiled(given):
    with pytest.raises(uniep.UniepError, match=r"(?s)UEP0601.*not \w+\n.*parse it first: .*parse_file"):
        uniep.compile(given, dims=DIMS)


def test_a_layer_says_what_it_is():
    program = uniep.parse_file("examples/qwen3_moe.uniep")
    one = uniep.compile(program, dims=DIMS, target="sm_90")
    group = uniep.compile(program, dims=DIMS, target="cpu", group=uniep.virtual_group(2))
    assert repr(one) == "<Layer qwen3_moe for sm_90: E=8, H=64, I=32, K=2>"
    assert repr(group) == "<Layer qwen3_moe for cpu: E=8, H=64, I=32, K=2, 2 ranks>"


@pytest.mark.parametrize("tokens", ["x", None, -1, 2.5, True, [1.0], ["a"], [1, 2], [], [-1]], ids=repr)
def test_what_is_no_number_of_tokens(tokens):
    layer = uniep.compile(uniep.parse_file("examples/qwen3_moe.uniep"), dims=DIMS, target="cpu")
    with pytest.raises(uniep.UniepError, match="is not a number of tokens"):
        layer.memory(tokens)
    with pytest.raises(uniep.UniepError, match="is not a number of tokens"):
        layer.rows_bound(tokens)


def test_what_the_reference_refuses():
    layer = uniep.compile(uniep.parse_file("examples/qwen3_moe.uniep"), dims=DIMS, target="cpu")
    tensors = [torch.zeros(1)] * 5
    for args, options, message in [
        (tensors[:1], {}, "takes 5 arguments"),
        ([torch.zeros(5, 64), [[0]], *tensors[2:]], {}, "`experts` has to be a tensor, not list"),
        (tensors, {"dtype": "f32"}, "dtype has to be a floating-point torch.dtype, not 'f32'"),
        (tensors, {"dtype": torch.int32}, "not torch.int32"),
    ]:
        with pytest.raises(uniep.UniepError, match=message):
            layer.reference(*args, **options)


@pytest.fixture(scope="module")
def called():
    """A layer with arguments for it, by parameter."""
    layer = uniep.compile(uniep.parse_file("examples/qwen3_moe.uniep"), dims=DIMS, target="cpu", dtype="f32")
    torch.manual_seed(0)
    weights, experts = torch.rand(5, 8).topk(2)
    x, w13, w2 = torch.randn(5, 64), torch.randn(8, 64, 64), torch.randn(8, 64, 32)
    return layer, {"x": x, "experts": experts, "weights": weights, "w13": w13, "w2": w2}


def test_arguments_may_have_the_names_of_their_parameters(called):
    layer, args = called
    x, experts, *_ = args.values()
    rest = {name: value for name, value in reversed(args.items()) if name not in ("x", "experts")}
    for run in (layer, layer.reference):
        assert torch.equal(run(x, experts, **rest), run(*args.values()))
        assert torch.equal(run(**args), run(*args.values()))


def test_named_arguments_are_traced(called):
    layer, args = called
    compiled = torch.compile(lambda **named: layer(**named), fullgraph=True, backend="eager")
    assert torch.equal(compiled(**args), layer(**args))


def test_names_that_fit_no_parameter(called):
    layer, args = called
    x, *rest = args.values()
    for run in (layer, layer.reference):
        for wrong, message in [
            (lambda run: run(x, *rest[:-1], w22=x), r"has no parameter `w22`(?s:.)*did you mean `w2`"),
            (lambda run: run(x, *rest[:-1], other=x), r"has no parameter `other`(?s:.)*its parameters are x, experts"),
            (lambda run: run(**args, self=x), r"has no parameter `self`"),
            (lambda run: run(x, **args), r"`x` is given twice"),
            (lambda run: run(x, experts=args["experts"]), r"is called without `weights`, `w13`, `w2`"),
        ]:
            with pytest.raises(uniep.UniepError, match=message) as caught:
                wrong(run)
            assert caught.value.codes == ("UEP0601",)
