"""What training is to PyTorch: graphs of gradients, tracers, checkpoints, autocast, modules."""

from __future__ import annotations

import copy
import pickle
from functools import cache

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import uniep_compiler as uniep
from tests.numerics.layers import Shape, assert_same_bits, compile_layer, make_inputs
from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.runtime.memory import Use

SHAPE = Shape(tokens=5, experts=4, topk=2, hidden=16, inner=16)


def layer():
    return compile_layer(SHAPE, "cpu")


def leaves(seed=0, tokens=5, wanted=None):
    """Arguments of a layer; those of floating point (or only `wanted` ones) require gradients."""
    inputs = make_inputs(Shape(tokens=tokens, experts=4, topk=2, hidden=16, inner=16), "cpu", seed=seed)
    chosen = range(5) if wanted is None else wanted
    return [
        arg.clone().requires_grad_() if arg.is_floating_point() and place in chosen else arg
        for place, arg in enumerate(inputs.args)
    ]


def gradients_of(function, args):
    """The gradients of a sum of squares."""
    wanted = [arg for arg in args if arg.requires_grad]
    return torch.autograd.grad(function(*args).square().sum(), wanted)


def assert_all_same(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert_same_bits(one, two)


@cache
def expected():
    return gradients_of(layer(), leaves())


# -- autograd ----------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_where_no_gradient_is_asked_for():
    args = leaves()
    with torch.no_grad():
        out = layer()(*args)
    assert out.grad_fn is None
    assert layer()(*[arg.detach() for arg in args]).grad_fn is None
    with torch.inference_mode():
        assert layer()(*args).is_inference()


def test_two_layers_and_then_backward():
    """Each call keeps what is its own, though both use one workspace."""
    one, two = leaves(0), leaves(1)
    layer()(layer()(*one), *two[1:]).square().sum().backward()
    middle = layer()(*[arg.detach() for arg in one]).requires_grad_()
    by_hand = gradients_of(layer(), [middle, *two[1:]])
    assert_all_same([arg.grad for arg in two[2:]], by_hand[1:])
    out = layer()(*(again := leaves(0)))
    out.backward(by_hand[0])
    assert_all_same([arg.grad for arg in one if arg.requires_grad], [a.grad for a in again if a.requires_grad])


def test_gradients_are_added_up():
    args = leaves()
    for _ in range(2):
        layer()(*args).square().sum().backward()
    assert_all_same([arg.grad for arg in args if arg.requires_grad], [2 * grad for grad in expected()])


def test_backward_twice():
    args = leaves()
    loss = layer()(*args).square().sum()
    wanted = [arg for arg in args if arg.requires_grad]
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    assert_all_same(torch.autograd.grad(loss, wanted), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, wanted)


def test_what_is_saved_may_not_change():
    args = leaves()
    loss = layer()(*args).sum()
    with torch.no_grad():
        args[3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_an_error_and_never_nothing():
    for function in (layer(), layer().register("no_second")):
        args = leaves(wanted=[0])
        (grad,) = torch.autograd.grad(function(*args).sum(), [args[0]], create_graph=True)
        assert_same_bits(grad.detach(), torch.autograd.grad(function(*args).sum(), [args[0]])[0])
        with pytest.raises(uniep.UniepError, match="layers have no second derivative"):
            grad.sum().backward()


def test_a_virtual_group_has_no_backward_pass_yet():
    inputs, pair = make_inputs(SHAPE, "cpu"), compile_layer(SHAPE, "cpu", ranks=2)
    args = inputs.split([3, 2], pair.placement)
    outs = pair([part.clone().requires_grad_() for part in args[0]], *args[1:])
    for out, right in zip(outs, pair(*args), strict=True):
        assert_same_bits(out.detach(), right)
    with pytest.raises(uniep.UniepError, match=r"UEP0606.*virtual group have no backward pass"):
        outs[0].sum().backward()
    assert "backward" not in pair.source


def test_where_a_backward_pass_cannot_be_built_only_a_gradient_is_an_error(monkeypatch):
    def refuse(ops):
        raise uniep.UniepError([Diagnostic(code="UEP0401", message="`f` is not supported yet", help="write `g`")])

    one = copy.deepcopy(layer())
    monkeypatch.setattr(one, "_backward_pass", refuse)
    for function in (one, one.register("cannot_train")):
        out = function(*leaves())
        assert_same_bits(out.detach(), layer()(*leaves()).detach())
        message = "UEP0606.*the backward pass of `layer` cannot be built yet: `f` is not supported yet"
        with pytest.raises(uniep.UniepError, match=message):
            out.sum().backward()
    assert "backward" not in one.source
    with pytest.raises(uniep.UniepError, match="UEP0606"):
        _ = one.backward_schedule


def test_only_asked_for_gradients_are_computed():
    one = layer()
    gradients_of(one, leaves(wanted=[3]))
    backward = one.training.passes(("w13",)).backward
    assert backward.ops.results == ("grad_w13",)
    assert one.training.passes(("w13",)) is one.training.passes(("w13",))


def test_copies_of_a_layer_train():
    for one in (copy.deepcopy(layer()), pickle.loads(pickle.dumps(layer()))):
        assert_all_same(gradients_of(one, leaves()), expected())


# -- checkpoints, autocast ---------------------------------------------------------------------------------------------


def test_checkpoints():
    def function(*args):
        return checkpoint(lambda x, *rest: layer()(x * 1, *rest), *args, use_reentrant=False)

    assert_all_same(gradients_of(function, leaves()), expected())


def test_autocast():
    """The experts compute in the dtype of their weights, and gradients come back in those of what they are for."""
    module = uniep.nn.Experts(4, 16, 16, topk=2, dtype=torch.bfloat16)
    x, ids, weights, *_ = leaves()
    with torch.autocast("cpu", torch.bfloat16):
        out = module(torch.nn.functional.linear(x, torch.eye(16)), ids, weights)
    out.sum().backward()
    assert x.grad.dtype == torch.float32
    assert weights.grad.dtype == torch.float32
    assert {param.grad.dtype for param in module.parameters()} == {torch.bfloat16}


# -- operators ---------------------------------------------------------------------------------------------------------


def test_operators_give_the_same_gradients():
    operator = layer().register("trains")
    assert_all_same(gradients_of(operator, leaves()), expected())
    assert_all_same(gradients_of(operator, leaves(wanted=[3])), [expected()[2]])
    with torch.no_grad():
        assert operator(*leaves()).grad_fn is None


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_compiled_training_step(backend):
    torch._dynamo.reset()
    one = layer()
    step = torch.compile(lambda x, *rest: one(x * 1, *rest), backend=backend, fullgraph=True, dynamic=True)
    for tokens in (5, 9) if backend == "aot_eager" else (5,):
        args = leaves(tokens=tokens)
        assert_all_same(gradients_of(step, args), gradients_of(layer(), leaves(tokens=tokens)))
    torch._dynamo.reset()


def test_opcheck():
    args = leaves()
    torch.library.opcheck(layer().register("checked_training").default, args)
    passes = layer().training.of_all()
    forward = passes.forward
    results = [value.detach() for value in forward.calls.run(args)]
    saved = [value.detach() for value in passes.saved(args, results)]
    flat = []
    for param, value in zip(passes.backward.ops.params, (*saved, torch.randn(5, 16)), strict=True):
        flat += [value, [5]] if type(param.type).__name__ == "RoutesType" else [value]
    torch.library.opcheck(passes.backward.register("checked_backward").default, tuple(flat))


def test_an_operator_of_another_group_of_parameters_is_another():
    with torch._subclasses.FakeTensorMode() as mode:
        for wanted in ([0], [3, 4], None):
            args = [mode.from_tensor(arg) for arg in leaves(wanted=wanted)]
            shapes = [grad.shape for grad in gradients_of(layer(), args)]
            assert shapes == [arg.shape for arg in args if arg.requires_grad]


# -- what was compiled, memory -----------------------------------------------------------------------------------------


def test_the_backward_pass_can_be_seen():
    one = layer()
    assert set(one.source) == {"forward", "plan", "backward"}
    assert "def backward(" in one.source["backward"]
    names = [family.name for family in one.backward_schedule.graph.families]
    assert "outer_grad_w13" in names
    assert "backward" in str(one.backward_schedule)


def test_a_training_step_takes_what_is_reported():
    one = layer()
    report = one.memory(5, training=True)
    found = {(buffer.use, buffer.name): buffer.shape for buffer in report.buffers if buffer.use is not Use.WORKSPACE}
    assert found[Use.SAVED, "h"] == (10, 32)
    assert report.saved_bytes == 10 * 32 * 4
    assert found[Use.OUTPUT, "out"] == (5, 16)
    assert report.gradient_bytes == sum(arg.nbytes for arg in leaves() if arg.requires_grad)
    assert report.total_bytes > one.memory(5).total_bytes
    assert "saved" in str(report)
    assert "saved" not in str(one.memory(5))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = one(*(args := leaves()))
    params = {arg.data_ptr() for arg in args}
    saved = sum(tensor.nbytes for tensor in kept if tensor.data_ptr() not in params)
    assert saved == report.saved_bytes + report.plan_bytes
    out.sum().backward()
    assert sum(arg.grad.nbytes for arg in args if arg.requires_grad) == report.gradient_bytes


# -- modules -----------------------------------------------------------------------------------------------------------


def test_experts_train():
    torch.manual_seed(0)
    module = uniep.nn.Experts(4, 16, 16, topk=2)
    x, ids, weights, *_ = leaves()
    module(x, ids, weights).square().sum().backward()
    found = [x.grad, weights.grad, module.gate_up_proj.grad, module.down_proj.grad]
    args = [x.detach(), ids, weights.detach(), module.gate_up_proj.detach(), module.down_proj.detach()]
    args = [arg.double().requires_grad_() if arg.is_floating_point() else arg for arg in args]
    out = module.layer.reference(*args, dtype=torch.float64)
    exact = torch.autograd.grad(out.square().sum(), [arg for arg in args if arg.requires_grad])
    for one, right in zip(found, exact, strict=True):
        assert (one - right).norm() <= 1e-5 * right.norm()


def test_frozen_experts_pass_gradients_on():
    module = uniep.nn.Experts(4, 16, 16, topk=2).requires_grad_(False)
    x, ids, weights, *_ = leaves(wanted=[0])
    module(x, ids, weights).sum().backward()
    assert x.grad.any()
    assert all(param.grad is None for param in module.parameters())
    assert module.layer.training.passes(("x",)).backward.ops.results == ("grad_x",)
