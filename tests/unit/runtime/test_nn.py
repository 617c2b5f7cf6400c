"""`uniep.nn.Experts`: weights that can be made, moved, copied and saved like any module's, and the layer for them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import uniep_compiler as uniep
from tests.unit.test_programs import in_pytorch, relative_error
from uniep_compiler.runtime.experts import make_layer

SIZES = {"num_experts": 4, "hidden_size": 24, "intermediate_size": 20}


def make(seed=0, **options):
    torch.manual_seed(seed)
    return uniep.nn.Experts(**{**SIZES, "topk": 2, **options})


def inputs(*batch, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(*batch, 24, generator=generator).to(dtype)
    ids = torch.rand(*batch, 4, generator=generator).topk(2, dim=-1).indices
    return hidden, ids, torch.rand(*batch, 2, generator=generator)


def expected(module, hidden, ids, weights):
    params = [param.detach() for param in module.parameters()]
    out = in_pytorch(module.form, hidden.view(-1, 24), ids.view(-1, 2), weights.view(-1, 2), *params)
    return out.view(hidden.shape)


@torch.no_grad()
def output(module, *args):
    return module(*args)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"gate_up_proj": (4, 40, 24), "down_proj": (4, 24, 20)}),
        ({"layout": "kn"}, {"gate_up_proj": (4, 24, 40), "down_proj": (4, 20, 24)}),
        ({"gated": False}, {"up_proj": (4, 20, 24), "down_proj": (4, 24, 20)}),
        (
            {"bias": True, "layout": "kn", "limit": 0.5, "alpha": 1.702, "up_offset": 1.0},
            {
                "gate_up_proj": (4, 24, 40),
                "gate_up_proj_bias": (4, 40),
                "down_proj": (4, 20, 24),
                "down_proj_bias": (4, 24),
            },
        ),
        (
            {"bias": True, "gated": False, "activation": "relu2"},
            {"up_proj": (4, 20, 24), "up_proj_bias": (4, 20), "down_proj": (4, 24, 20), "down_proj_bias": (4, 24)},
        ),
    ],
    ids=str,
)
def test_it_has_the_parameters_of_transformers_and_computes_with_them(options, shapes):
    module = make(**options)
    assert {name: tuple(param.shape) for name, param in module.named_parameters()} == shapes
    args = inputs(7)
    assert relative_error(output(module, *args), expected(module, *args)) < 1e-5


@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (2, 0, 3)])
def test_tokens_may_have_any_batch_dims(batch):
    module, args = make(), inputs(*batch)
    out = output(module, *args)
    assert out.shape == (*batch, 24)
    assert torch.allclose(out, expected(module, *args), atol=1e-5)


def test_weights_start_as_those_of_a_linear_layer_do():
    module = make(bias=True)
    for name, param in module.named_parameters():
        bound = (20 if name.startswith("down") else 24) ** -0.5
        assert 0.9 * bound < param.abs().max() <= bound
        assert abs(param.mean()) < 0.2 * bound


def test_a_module_on_the_meta_device_gets_its_memory_later():
    module = make(device="meta", bias=True)
    assert all(param.is_meta for param in module.parameters())
    with pytest.raises(uniep.UniepError, match="to_empty"):
        output(module, *inputs(3))
    module.to_empty(device="cpu").load_state_dict(make(bias=True).state_dict())
    args = inputs(3)
    assert torch.equal(output(module, *args), output(make(bias=True), *args))


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = make(seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded])
def test_copies_compute_the_same_and_share_the_layer(duplicate, called):
    module, args = make(), inputs(3)
    if called:
        output(module, *args)
    other = duplicate(module)
    assert torch.equal(output(other, *args), output(module, *args))
    assert other.layer is module.layer
    with torch.no_grad():
        other.down_proj.zero_()
    assert module.down_proj.any()


def test_a_layer_is_compiled_for_the_dtype_that_the_weights_have():
    module = make()
    before = module.layer
    module.to(torch.bfloat16)
    assert module.layer is not before
    hidden, ids, weights = inputs(5, dtype=torch.bfloat16)
    out = output(module, hidden, ids, weights)
    assert out.dtype == torch.bfloat16
    wide = copy.deepcopy(module).float()
    assert relative_error(out, expected(wide, hidden.float(), ids, weights)) < 1e-2
    assert wide.layer is before


def test_tokens_of_another_dtype_are_computed_in_that_of_the_weights():
    module, (hidden, ids, weights) = make(), inputs(5, dtype=torch.bfloat16)
    out = output(module, hidden, ids, weights)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, output(module, hidden.float(), ids, weights).to(torch.bfloat16))


def test_weights_of_other_dtypes_are_refused():
    with pytest.raises(uniep.UniepError, match="float64, but have to be one of bfloat16, float16, float32"):
        output(make().double(), *inputs(3))


def test_a_module_is_not_made_of_weights_that_no_kernel_reads():
    with pytest.raises(uniep.UniepError, match=r"dtype has to be one of .*, not torch.float64") as caught:
        make(dtype=torch.float64)
    assert caught.value.codes == ("UEP0601",)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(uniep.UniepError, match=r"not torch.float64"):
            make()
    finally:
        torch.set_default_dtype(torch.float32)


def test_making_a_module_compiles_nothing():
    before = make_layer.cache_info()
    make(num_experts=7, device="meta")
    make(num_experts=7)
    assert make_layer.cache_info() == before


def test_modules_that_are_alike_share_a_layer():
    assert make(seed=0).layer is make(seed=1).layer
    assert make().layer is not make(topk=1).layer
    assert make().layer is not make(activation="gelu").layer


def test_under_a_virtual_group_the_module_holds_the_weights_of_all_ranks():
    module, pair = make(), make(group=uniep.virtual_group(2))
    hidden, ids, weights = inputs(5)
    parts = output(pair, hidden.split([2, 3]), ids.split([2, 3]), weights.split([2, 3]))
    assert [len(part) for part in parts] == [2, 3]
    assert torch.equal(torch.cat(parts), output(module, hidden, ids, weights))


def test_ids_of_no_expert_add_nothing():
    module, (hidden, ids, weights) = make(), inputs(3)
    ids[1] = -1
    assert not output(module, hidden, ids, weights)[1].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"activation": "sillu"}, "did you mean 'silu'"), ({"layout": "tn"}, "layout is one of nk, kn")],
)
def test_wrong_options_are_refused_when_it_is_made(options, message):
    with pytest.raises(uniep.UniepError, match=message):
        make(**options)


@pytest.mark.parametrize("name", ["num_experts", "hidden_size", "intermediate_size", "topk"])
@pytest.mark.parametrize("size", [0, -1, 2.5, 4.0, "4", True, None])
def test_sizes_that_cannot_be(name, size):
    with pytest.raises(uniep.UniepError, match=f"{name} is an integer of at least 1, not "):
        make(**{name: size})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"dtype": value}, "dtype has to be one of ") for value in ("f32", torch.int32, torch.float8_e4m3fn, [1])),
        *(({"target": value}, "a target is named by a text") for value in (3, None, ["cpu"], torch.device("cpu"))),
        *(({"group": value}, "group has to be uniep.virtual_group") for value in (3, "x", [1], True)),
    ],
    ids=str,
)
def test_keywords_that_cannot_be(options, message):
    with pytest.raises(uniep.UniepError, match=message):
        make(**options)


def test_arguments_that_do_not_fit():
    hidden, ids, weights = inputs(4)
    for args, message in [
        ((hidden[:, :12], ids, weights), r"hidden of experts have shape \[4, 12\], but have to be \[..., 24\]"),
        ((hidden[0, 0], ids, weights), r"hidden of experts have shape \[\]"),
        ((hidden, ids[:, :1], weights), r"ids of experts have shape \[4, 1\], but have to be \[..., 2\]"),
        ((hidden, ids, weights.T), r"weights of experts have shape \[2, 4\]"),
        ((hidden, ids[:2], weights), r"`experts` has shape \[2, 2\], but has to be \[4, 2\]"),
        ((hidden.long(), ids, weights), "hidden of experts are torch.int64"),
        ((hidden, ids.float(), weights), "`experts` is float32"),
        ((hidden, ids.tolist(), weights), "experts take tensors, not list"),
        ((None, ids, weights), "experts take tensors, not NoneType"),
    ]:
        with pytest.raises(uniep.UniepError, match=message):
            output(make(), *args)
    pair = make(group=uniep.virtual_group(2))
    for args in [
        (hidden, ids, weights),
        ([hidden], [ids], [weights]),
        ([hidden, hidden], [ids], [weights, weights]),
        ([hidden, None], [ids, ids], [weights, weights]),
        (None, None, None),
    ]:
        with pytest.raises(uniep.UniepError, match="experts take lists with one tensor for each of 2 ranks"):
            output(pair, *args)


def test_something_else_than_tensors_is_refused():
    hidden, ids, weights = inputs(3)
    with pytest.raises(uniep.UniepError, match="experts take tensors, not list"):
        output(make(), [hidden], ids, weights)


def test_it_says_what_it_is():
    assert repr(make()) == "Experts(4, 24, 20, topk=2, activation='silu')"
    assert repr(make(bias=True, limit=7.0)) == "Experts(4, 24, 20, topk=2, activation='silu', bias=True, limit=7.0)"


@torch.no_grad()
def test_one_graph_serves_any_number_of_tokens_and_modules_that_are_alike():
    counter = CompileCounter()
    for seed, tokens in enumerate((2, 5, 17, 0, 1, 3)):
        module, args = make(seed), inputs(tokens)
        for arg in args:
            torch._dynamo.mark_dynamic(arg, 0)
        compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
        assert torch.equal(compiled(*args), module(*args))
    assert counter.frame_count <= 3  # 0 and 1 token are cases of their own
    assert counter.op_count >= 1


def test_more_routes_than_experts_are_refused_when_the_module_is_made():
    with pytest.raises(uniep.UniepError, match="topk is 5, but there are only 4 experts") as caught:
        make(topk=5)
    assert caught.value.codes == ("UEP0601",)
    assert make(topk=4).size.topk == 4
