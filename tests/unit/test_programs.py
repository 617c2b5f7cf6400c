"""Programs made from options: every one of them computes what PyTorch does."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional

import uniep_compiler as uniep
from uniep_compiler import programs
from uniep_compiler.frontend.lower import lower
from uniep_compiler.programs import ACTIVATIONS, ExpertsForm
from uniep_compiler.runtime.reference import run_reference

DIMS = {"H": 24, "I": 20, "E": 4, "K": 2}
TOKENS = 7

FORMS = tuple(
    ExpertsForm(gated=gated, bias=bias, layout=layout, weight_on=weight_on, dtype="f32", **gate)
    for gated, gates in (
        (True, ({"split": "halves"}, {"split": "interleaved"}, {"separate_gate": True})),
        (False, ({},)),
    )
    for gate, bias, layout, weight_on in product(gates, (False, True), ("nk", "kn"), ("combine", "input", "activation"))
    if not (bias and weight_on == "activation")
)
"""Every way to put an expert layer together."""

GPT_OSS = ExpertsForm(
    limit=0.5, alpha=1.702, up_offset=1.0, bias=True, layout="kn", split="interleaved", dtype="f32"
)  # the limit is smaller than that of gpt-oss, so that it counts with values of these sizes
VALUES = (
    *(ExpertsForm(activation=name, gated=gated, dtype="f32") for name in ACTIVATIONS for gated in (True, False)),
    GPT_OSS,
    ExpertsForm(limit=0.5, dtype="f32"),
    ExpertsForm(alpha=2.0, gated=False, dtype="f32"),
    ExpertsForm(activation="gate * square(up - 1.5)", dtype="f32"),
    ExpertsForm(activation="relu(h) - 0.1 * relu(-h)", gated=False, dtype="f32"),
)
"""Every way to compute an activation."""

QUICK = (
    FORMS[0],
    replace(FORMS[0], layout="kn", bias=True),
    ExpertsForm(gated=False, dtype="f32"),
    ExpertsForm(separate_gate=True, weight_on="input", dtype="f32"),
    ExpertsForm(weight_on="activation", dtype="f32"),
    GPT_OSS,
)


def name_of(form):
    """Which options are not the default ones."""
    default = ExpertsForm(dtype="f32")
    changed = {field: getattr(form, field) for field in ExpertsForm.__slots__}
    return ",".join(f"{k}={v}" for k, v in changed.items() if v != getattr(default, k)) or "default"


def arguments(form, dtype=torch.float32, dims=DIMS):
    """Random arguments of a layer of that form, with a route to nowhere."""
    generator = torch.Generator().manual_seed(0)
    ops = lower(form.program())
    ids = torch.rand(TOKENS, dims["E"], generator=generator).topk(dims["K"], dim=1).indices.to(torch.int32)
    ids[2, 1] = -1
    found = {"experts": ids}
    for param in ops.params:
        if param.name != "experts":
            shape = [dim.value({**dims, "T": TOKENS}) for dim in param.type.shape]
            fan_in = dims["H"] if param.name in ("w1", "w3", "w13") else dims["I"] if param.name == "w2" else 1
            found[param.name] = (torch.randn(shape, generator=generator) * fan_in**-0.5).to(dtype)
    return [found[param.name] for param in ops.params]


def in_pytorch(form, x, ids, weights, *params):
    """The layer as a loop over routes, written without the compiler."""
    given = dict(zip(form.weights, params, strict=True))
    out = torch.zeros_like(x)
    for token, k in product(range(x.shape[0]), range(ids.shape[1])):
        expert, weight = int(ids[token, k]), weights[token, k]
        if expert < 0:
            continue
        row = x[token] * (weight if form.weight_on == "input" else 1)
        inner = activated(form, given, expert, row) * (weight if form.weight_on == "activation" else 1)
        out[token] += linear(form, given, "2", expert, inner) * (weight if form.weight_on == "combine" else 1)
    return out


def linear(form, given, which, expert, row):
    weight = given["w" + which][expert]
    out = row @ (weight.T if form.layout == "nk" else weight)
    return out + given["b" + which][expert] if form.bias else out


def activated(form, given, expert, row):
    if not form.gated:
        return activation(form, linear(form, given, "1", expert, row))
    if form.separate_gate:
        gate, up = linear(form, given, "1", expert, row), linear(form, given, "3", expert, row)
    else:
        h = linear(form, given, "13", expert, row)
        gate, up = h.chunk(2) if form.split == "halves" else (h[0::2], h[1::2])
    if form.limit is not None:
        gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
    if form.activation.startswith("gate"):
        return gate * (up - 1.5) ** 2
    return activation(form, gate) * (up + form.up_offset)


def activation(form, value):
    if form.alpha is not None:
        return value * torch.sigmoid(form.alpha * value)
    functions = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
        "quick_gelu": lambda v: v * torch.sigmoid(1.702 * v),
        "relu": torch.relu,
        "relu2": lambda v: torch.relu(v) ** 2,
        "relu6": functional.relu6,
        "hardswish": functional.hardswish,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "identity": lambda v: v,
        "relu(h) - 0.1 * relu(-h)": lambda v: functional.leaky_relu(v, 0.1),
    }
    return functions[form.activation](value)


def relative_error(out, expected):
    return ((out.double() - expected.double()).norm() / expected.double().norm()).item()


# -- what they mean ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [*FORMS, *VALUES], ids=name_of)
def test_the_program_says_what_the_options_say(form):
    args = arguments(form, torch.float64)
    ops = lower(form.program())
    inputs = dict(zip((param.name for param in ops.params), args, strict=True))
    (out,) = run_reference(ops, DIMS, inputs, torch.float64)
    assert relative_error(out, in_pytorch(form, *args)) < 1e-12


def check_kernels(form):
    layer = uniep.compile(form.program(), dims=DIMS, target="cpu", debug=True)
    args = arguments(form)
    assert relative_error(layer(*args), in_pytorch(form, *args)) < 1e-5


@pytest.mark.parametrize("form", QUICK, ids=name_of)
def test_kernels_compute_what_pytorch_does(form):
    check_kernels(form)


@pytest.mark.long
@pytest.mark.parametrize("form", [form for form in (*FORMS, *VALUES) if form not in QUICK], ids=name_of)
def test_kernels_of_every_program_compute_what_pytorch_does(form):
    check_kernels(form)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_the_dtype_is_that_of_tokens_weights_and_output(dtype):
    ops = lower(programs.experts(dtype=dtype, bias=True))
    kinds = {param.name: param.type.dtype for param in ops.params}
    assert {name for name, kind in kinds.items() if kind == dtype} >= {"x", "w13", "b13", "w2", "b2"}
    assert kinds["weights"] == "f32"
    assert ops.types[ops.results[0]].dtype == dtype


# -- how they read -----------------------------------------------------------------------------------------------------


def test_the_text_reads_like_one_written_by_hand():
    assert GPT_OSS.text == (
        "uniep 1\n"
        "\n"
        "moe experts(\n"
        "    x       : f32[T, H],         # this rank's tokens\n"
        '    experts : i32[T, K],         # expert of each route; -1 means "no expert"\n'
        "    weights : f32[T, K],         # router weight of each route\n"
        "    w13     : f32[E, H, 2*I],    # gate and up in turn\n"
        "    b13     : f32[E, 2*I],\n"
        "    w2      : f32[E, I, H],\n"
        "    b2      : f32[E, H],\n"
        ") -> f32[T, H] {\n"
        "    r = route(experts)\n"
        "    xs = dispatch(x, r)\n"
        "    h = group_gemm(xs, w13, bias=b13, layout=kn)\n"
        "    gate, up = split(h, interleaved)\n"
        "    g : f32 = clamp(gate, max=0.5)\n"
        "    u : f32 = clamp(up, min=-0.5, max=0.5)\n"
        "    a = g * sigmoid(1.702 * g) * (u + 1.0)\n"
        "    y = group_gemm(a, w2, bias=b2, layout=kn)\n"
        "    return combine(y, weights)\n"
        "}\n"
    )


@pytest.mark.parametrize(
    ("expression", "factor"),
    [
        ("silu(gate) * up", "silu(gate) * up * p"),
        ("gate + up", "(gate + up) * p"),
        ("(gate - up) * up", "(gate - up) * up * p"),
        ("relu(square(clamp(gate, min=-1.0))) * up", "relu(square(clamp(gate, min=-1.0))) * up * p"),
        ("relu(square(relu(gate))) - up", "(relu(square(relu(gate))) - up) * p"),
    ],
)
def test_sums_get_brackets_as_factors(expression, factor):
    assert f"    a = {factor}\n" in ExpertsForm(activation=expression, weight_on="activation").text


def test_an_error_in_an_expression_shows_its_line():
    with pytest.raises(uniep.UniepError) as caught:
        uniep.compile(programs.experts(activation="silu(gate) * upp"), dims=DIMS, target="cpu")
    assert "UEP0201" in caught.value.codes
    assert "a = silu(gate) * upp" in str(caught.value)
    assert "<uniep.programs.experts>" in str(caught.value)


def test_the_layer_has_the_name_that_it_was_given():
    program = programs.experts(name="mine", gated=False)
    assert program.moe.name.name == "mine"
    assert lower(program).name == "mine"


# -- options that cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "tn"}, "layout is one of nk, kn, not 'tn'"),
        ({"split": "thirds"}, "split is one of halves, interleaved, not 'thirds'"),
        ({"weight_on": "output"}, "weight_on is one of combine, input, activation, not 'output'"),
        ({"dtype": "bfloat16"}, "dtype is one of bf16, f16, f32, not 'bfloat16'"),
        ({"activation": "sillu"}, "did you mean 'silu'?"),
        ({"activation": "h", "gated": False}, "write an expression of `h`"),
        ({"limit": -7.0}, "limit is a positive number, not -7.0"),
        ({"alpha": float("nan")}, "alpha is a number, not nan"),
        ({"up_offset": float("inf")}, "up_offset is a number, not inf"),
        ({"limit": 0}, "limit is a positive number, not 0"),
        ({"alpha": -1.0}, "alpha is a positive number, not -1.0"),
        ({"limit": "x"}, "limit is a number, not 'x'"),
        ({"limit": True}, "limit is a number, not True"),
        ({"limit": 10**400}, "limit is a number, not 1000"),
        ({"limit": 1e39}, "limit is a number, not 1e+39"),
        ({"alpha": [1.0]}, "alpha is a number, not [1.0]"),
        ({"up_offset": None}, "up_offset is a number, not None"),
        ({"up_offset": object}, "up_offset is a number, not <class 'object'>"),
        ({"activation": None}, "activation is text, not None"),
        ({"bias": "no"}, "bias is True or False, not 'no'"),
        ({"gated": None}, "gated is True or False, not None"),
        ({"dtype": ["bf16"]}, "dtype is one of bf16, f16, f32, not ['bf16']"),
        ({"name": 3}, "name is text, not 3"),
        ({"name": "m(x : bf16[T, H])"}, "'m(x : bf16[T, H])' cannot be the name of a layer"),
        ({"gated": False, "separate_gate": True}, "separate_gate=True needs gated experts"),
        ({"gated": False, "split": "interleaved"}, "split='interleaved' needs gated experts"),
        ({"gated": False, "limit": 7.0}, "limit=7.0 needs gated experts"),
        ({"gated": False, "up_offset": 1.0}, "up_offset=1.0 needs gated experts"),
        ({"separate_gate": True, "split": "interleaved"}, "a gate with a weight of its own is not split off"),
        ({"activation": "gelu", "alpha": 1.702}, "alpha belongs to silu, not to 'gelu'"),
        ({"activation": "gate * up", "limit": 7.0}, "write it into the expression"),
        ({"bias": True, "weight_on": "activation"}, "weight_on='combine' weights both"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(uniep.UniepError) as caught:
        programs.experts(**options)
    assert set(caught.value.codes) == {"UEP0601"}
    assert message in str(caught.value)


def test_numbers_may_come_from_numpy():
    numbers = {"limit": np.float32(7.0), "alpha": np.float64(1.5), "up_offset": np.int64(1)}
    assert programs.experts(**numbers).source.text == programs.experts(limit=7, alpha=1.5, up_offset=1).source.text


def test_all_wrong_options_are_shown_at_once():
    with pytest.raises(uniep.UniepError) as caught:
        programs.experts(layout="tn", activation="sillu", limit=0.0)
    assert len(caught.value.diagnostics) == 3
