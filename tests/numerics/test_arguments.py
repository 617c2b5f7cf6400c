"""What a layer takes, in which layouts, and how it says what it does not take."""

from __future__ import annotations

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, assert_same_bits, call, compile_layer, make_inputs, run
from uniep_compiler.options import LARGEST
from uniep_compiler.transports.virtual import VirtualGroup

SHAPE = Shape(tokens=6, experts=4, topk=2, hidden=32, inner=16)


def plain(device, dtype="f32"):
    """A layer, inputs for it, and what it makes of them."""
    layer, inputs = compile_layer(SHAPE, device, dtype=dtype), make_inputs(SHAPE, device, dtype=dtype)
    return layer, inputs, run(layer, inputs)


# -- layouts -----------------------------------------------------------------------------------------------------------


def inside(x, rows, cols):
    """`x` as a part of a larger tensor of NaN."""
    big = torch.full((x.shape[0] + rows, x.shape[1] + cols), float("nan"), dtype=x.dtype, device=x.device)
    view = big[rows:, cols // 2 : cols // 2 + x.shape[1]]
    view.copy_(x)
    return view


LAYOUTS = {
    "row slice": lambda x: inside(x, 0, 8),
    "odd row stride": lambda x: inside(x, 0, 3),
    "later rows": lambda x: inside(x, 2, 0),
    "every third row": lambda x: x.repeat_interleave(3, dim=0)[::3],
    "transposed": lambda x: x.T.contiguous().T,
    "every second column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "part of three dims": lambda x: torch.stack([x, x * 2], dim=1)[:, 0],
}


@pytest.mark.parametrize(("dtype", "relay"), [("f32", "gather"), ("bf16", "copy"), ("f32", "off")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_in_any_layout(device, dtype, layout, relay):
    _, inputs, expected = plain(device, dtype)
    x = LAYOUTS[layout](inputs.x)
    assert torch.equal(x, inputs.x)
    assert_same_bits(run(compile_layer(SHAPE, device, dtype=dtype, relay=relay), inputs.but(x=x)), expected)


@pytest.mark.parametrize("ranks", [None, 2])
def test_rows_that_repeat(device, ranks):
    """A row stride of 0, as `expand` makes it."""
    layer, inputs, _ = plain(device)
    x = inputs.x[:1].expand(6, 32)
    expected = run(layer, inputs.but(x=x.contiguous()))
    assert_same_bits(run(compile_layer(SHAPE, device, ranks=ranks), inputs.but(x=x)), expected)


@pytest.mark.parametrize("ranks", [None, 2])
def test_ids_may_be_long_and_router_weights_of_any_float_dtype(device, ranks):
    layer, inputs, _ = plain(device)
    group = compile_layer(SHAPE, device, ranks=ranks)
    for dtype in (torch.bfloat16, torch.float16):
        weights = inputs.weights.to(dtype)
        expected = run(layer, inputs.but(weights=weights.float()))
        assert_same_bits(run(group, inputs.but(weights=weights, ids=inputs.ids.long())), expected)
        turned = inputs.but(weights=weights.T.contiguous().T, ids=inputs.ids.T.contiguous().T)
        assert_same_bits(run(group, turned), expected)


def test_ranks_may_pass_different_dtypes(device):
    layer, inputs, _ = plain(device)
    half = inputs.weights.bfloat16()
    expected = run(layer, inputs.but(weights=half.float()))
    group = compile_layer(SHAPE, device, ranks=2)
    x, ids, weights, w13, w2 = inputs.but(weights=half).split([4, 2], group.placement)
    parts = call(group, x, [ids[0], ids[1].long()], [weights[0], weights[1].float()], w13, w2)
    assert_same_bits(torch.cat(parts), expected)


def test_leading_experts_of_a_larger_weight(device):
    """A slice of the first dim is contiguous, and is taken as it is."""
    layer, inputs, expected = plain(device)
    more = torch.cat([inputs.w13, inputs.w13.new_full((2, 32, 32), float("nan"))])
    assert_same_bits(call(layer, inputs.x, inputs.ids, inputs.weights, more[:4], inputs.w2), expected)


@pytest.mark.parametrize("ranks", [None, 2])
def test_views_that_negate_what_is_in_memory(device, ranks):
    """`_neg_view` keeps the strides, and an imaginary part of a conjugate has others."""
    _, inputs, expected = plain(device)
    group = compile_layer(SHAPE, device, ranks=ranks)
    assert_same_bits(run(group, inputs), expected)
    views = [
        lambda x: torch._neg_view(-x),
        lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
    ]
    for view in views:
        x, weights = view(inputs.x), view(inputs.weights)
        assert x.is_neg()
        assert weights.is_neg()
        assert_same_bits(run(group, inputs.but(x=x, weights=weights)), expected)
    ids = torch._neg_view(-inputs.ids)
    assert ids.is_neg()
    assert_same_bits(run(group, inputs.but(ids=ids)), expected)


def test_an_argument_with_an_operation_behind_it(device):
    """A tensor that is no leaf, and views of subclasses that add nothing."""
    layer, inputs, expected = plain(device)
    x = inputs.x.clone().requires_grad_() * 1
    assert_same_bits(run(layer, inputs.but(x=x)).detach(), expected)
    assert_same_bits(run(layer, inputs.but(x=torch.nn.Buffer(inputs.x))), expected)


def test_tensors_that_want_gradients_are_taken(device):
    layer, inputs, expected = plain(device)
    args = [value.clone().requires_grad_() if value.is_floating_point() else value for value in inputs.args]
    assert_same_bits(call(layer, *args).detach(), expected)


# -- errors ------------------------------------------------------------------------------------------------------------


def refused(layer, args, *parts):
    """The call is refused with UEP0601, and its message says all of `parts`."""
    with pytest.raises(uniep.UniepError) as caught:
        layer(*args)
    assert caught.value.codes == ("UEP0601",)
    message = str(caught.value)
    assert all(part in message for part in parts), message


def freed(x):
    """A copy whose memory was given back, as FSDP does with parameters that are not in use."""
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


NAMES = ("x", "experts", "weights", "w13", "w2")

WRONG = [
    ("x", lambda x: x.double(), ["is float64", "it takes float32"]),
    ("x", lambda x: x[:, :31], ["has shape [6, 31], but has to be [T, 32]"]),
    ("x", lambda x: x[0], ["has shape [32]"]),
    ("x", lambda x: x[None], ["has shape [1, 6, 32]"]),
    ("x", lambda x: x.to("meta"), ["is on meta"]),
    ("x", lambda x: x.to_sparse(), ["sparse_coo"]),
    ("x", lambda _: None, ["has to be a tensor, not NoneType"]),
    ("x", lambda _: 2.0, ["has to be a tensor, not float"]),
    ("x", lambda x: [x], ["has to be a tensor, not list"]),
    ("x", lambda x: x.cpu().numpy(), ["has to be a tensor, not ndarray"]),
    ("experts", lambda ids: ids.short(), ["is int16", "it takes int32 or int64"]),
    ("experts", lambda ids: ids.float(), ["is float32"]),
    ("experts", lambda ids: ids[:, :1], ["has shape [6, 1], but has to be [6, 2]"]),
    ("experts", lambda ids: ids[:5], ["has shape [5, 2], but has to be [6, 2]"]),
    ("weights", lambda w: w.double(), ["is float64", "it takes float32 or bfloat16 or float16"]),
    ("weights", lambda w: w[:5], ["has shape [5, 2], but has to be [6, 2]"]),
    ("weights", lambda w: w.flatten(), ["has shape [12]"]),
    ("w13", lambda w: w.half(), ["is float16"]),
    ("w13", lambda w: w[:3], ["has shape [3, 32, 32], but has to be [4, 32, 32]"]),
    ("w13", lambda w: w.transpose(1, 2), ["is not contiguous", "(1024, 1, 32)"]),
    ("w13", lambda w: w[:1].expand(4, 32, 32), ["is not contiguous", "(0, 32, 1)"]),
    ("w13", lambda w: torch._neg_view(-w), ["is a view that negates", "call .resolve_neg() once"]),
    ("x", lambda x: freed(x), ["`x` has no memory"]),
    ("w2", lambda w: freed(w), ["`w2` has no memory"]),
    ("w2", lambda w: torch.nn.Parameter(freed(w)), ["`w2` has no memory"]),
    ("x", lambda x: torch._efficientzerotensor(x.shape, device=x.device), ["`x` has no memory"]),
    ("x", lambda x: torch.nested.nested_tensor([x[:2], x[2:]]), ["`x` is a nested tensor"]),
    ("x", lambda x: torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged), ["`x` is a nested tensor"]),
    ("experts", lambda ids: ids.tolist(), ["has to be a tensor, not list"]),
    ("experts", lambda ids: freed(ids), ["`experts` has no memory"]),
    ("w2", lambda w: w.transpose(1, 2), ["has shape [4, 16, 32], but has to be [4, 32, 16]"]),
    ("w2", lambda w: w[0], ["has shape [32, 16]"]),
]


@pytest.mark.parametrize(("name", "wrong", "parts"), WRONG, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(WRONG)])
def test_an_argument_that_does_not_fit(device, name, wrong, parts):
    layer, inputs, expected = plain(device)
    args = list(inputs.args)
    place = NAMES.index(name)
    args[place] = wrong(args[place])
    refused(layer, args, f"`{name}`", *parts)
    assert_same_bits(run(layer, inputs), expected)


@pytest.mark.parametrize(("name", "wrong", "parts"), WRONG[:3], ids=[parts[0] for _, _, parts in WRONG[:3]])
def test_the_rank_of_an_argument_that_does_not_fit(device, name, wrong, parts):
    _, inputs, _ = plain(device)
    group = compile_layer(SHAPE, device, ranks=2)
    args = inputs.split([0, 6], group.placement)
    args[0][1] = wrong(args[0][1])
    refused(group, args, f"`{name}` (of rank 1)", *parts)


def test_the_number_of_arguments(device):
    layer, inputs, _ = plain(device)
    refused(layer, inputs.args[:4], "layer takes 5 arguments (x, experts, weights, w13, w2), not 4")
    refused(layer, (*inputs.args, inputs.x), "not 6")
    refused(layer, (), "not 0")


def test_lists_under_a_group(device):
    _, inputs, _ = plain(device)
    group = compile_layer(SHAPE, device, ranks=2)
    args = inputs.split([3, 3], group.placement)
    refused(group, inputs.args, "`x` has to be a list with one tensor for each of 2 ranks")
    refused(group, (args[0][:1], *args[1:]), "`x` has to be a list with one tensor for each of 2 ranks")
    refused(group, (*args[:4], args[4] * 2), "`w2` has to be a list with one tensor for each of 2 ranks")
    refused(group, args[:3], "takes 5 arguments")
    refused(group, (*args[:3], [inputs.w13[:3], inputs.w13[3:]], args[4]), "`w13` (of rank 0)", "has to be [2, 32, 32]")
    refused(group, (args[0], [args[1][0], args[1][1][:2]], *args[2:]), "`experts` (of rank 1)", "[3, 2]")


UNUSED = SWIGLU.replace(
    "w2      : bf16[E, H, I],", "w2 : bf16[E, H, I], w3 : bf16[E, I, H], b : bf16[E, I], _c : f32[E],"
).replace("    h  = ", "    q  = group_gemm(xs, w3, bias=b)\n    h  = ")


@pytest.mark.parametrize("ranks", [None, 1, 2, 3])
def test_weights_that_no_result_needs_are_passed_whole_or_in_parts(device, ranks):
    layer = compile_layer(SHAPE, device, ranks=ranks, text=UNUSED)
    inputs = make_inputs(SHAPE, device, dtype="f32")
    expected = run(compile_layer(SHAPE, device, ranks=ranks), inputs)
    whole = [inputs.x.new_zeros(shape) for shape in ((4, 16, 32), (4, 16), (4,))]
    if ranks is None:
        assert_same_bits(layer(*inputs.args, *whole), expected)
        return
    used = inputs.split([6 // ranks] * ranks, layer.placement)
    for unused in ([[t] * ranks for t in whole], [list(t.split(list(layer.placement))) for t in whole]):
        assert_same_bits(torch.cat(layer(*used, *unused)), expected)
    with pytest.raises(uniep.UniepError, match=r"`w3` \(of rank 0\) has shape \[7, 16, 32\]"):
        layer(*used, [inputs.x.new_zeros((7, 16, 32))] * ranks, *unused[1:])


def test_lists_without_a_group(device):
    layer, inputs, _ = plain(device)
    refused(layer, [[value] for value in inputs.args], "`x` has to be a tensor, not list")


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ({"dims": {"H": 8, "I": 8, "E": 2}}, "UEP0217", "no number for `K`"),
        ({"dims": {"H": 0, "I": 8, "E": 2, "K": 1}}, "UEP0217", "`H` cannot be 0"),
        ({"dims": {"H": 8, "I": 8, "E": 2, "K": 3}}, "UEP0220", "3 routes per token to 2 experts"),
        ({"dims": {"H": 8, "I": 8, "E": 2, "K": 1, "T": 4}}, "UEP0217", "`T` is the number of tokens"),
        ({"target": "sm_1"}, "UEP0604", "unknown target `sm_1`"),
        ({"dtype": "f64"}, "UEP0601", "dtype is one of bf16, f16, f32, not 'f64'"),
        ({"group": 2}, "UEP0601", "group has to be uniep.virtual_group(n) or None, not int"),
        ({"placement": (1, 1)}, "UEP0601", "placement (1, 1) does not fit 2 experts on 1 ranks"),
        ({"group": uniep.virtual_group(2), "placement": (3, -1)}, "UEP0601", "does not fit 2 experts on 2 ranks"),
        ({"schedule": {"fuze": "none"}}, "UEP0301", "did you mean `fuse`?"),
        ({"schedule": {"fuse": "all"}}, "UEP0302", "one of layer, pairs, none"),
        ({"schedule": {"workers": 0}}, "UEP0302", "an integer of at least 1"),
        ({"schedule": {"block": 6}}, "UEP0302", "`block` cannot be 6"),
        ({"schedule": {"chunk": 6}}, "UEP0302", "`chunk` cannot be 6"),
        ({"schedule": {"tiles": {"q": (32, 32, 32)}}}, "UEP0304", "`q` is not a GEMM of `layer`"),
        ({"schedule": {"tiles": {"h": (32, 48, 32)}}}, "UEP0302", "columns of `tile(h)` cannot be 48"),
        ({"schedule": {"tiles": {"h": (7, 32, 32)}}}, "UEP0302", "rows of `tile(h)` cannot be 7"),
        ({"schedule": {"tiles": {"h": (2**12, 32, 32)}}}, "UEP0302", "rows of `tile(h)` cannot be 4096"),
        ({"schedule": {"tiles": {"h": (32, 2**40, 32)}}}, "UEP0302", "its rows and columns make a block of"),
        ({"schedule": {"tiles": {"h": (32, 32, 2**20)}}}, "UEP0302", "its rows and depth make a block of"),
        (
            {"schedule": {"tiles": {"grad(w13)": (16, 2**11, 2**10)}}},
            "UEP0302",
            "its columns and depth make a block of",
        ),
        *(
            ({"schedule": {key: number}}, "UEP0302", f"it is {most} at most")
            for key, most in LARGEST.items()
            for number in (2 * most, 2**31, 2**70)
        ),
        *(
            ({"timeout": timeout}, "UEP0601", "timeout is a number of seconds from 1e-06 to 1e+09, not ")
            for timeout in ("x", None, True, -1, 0, 1e-12, 1e30, float("nan"), float("inf"), 2**2000)
        ),
        *(
            ({"placement": placement}, "UEP0601", "placement has to be a tuple of integers, not ")
            for placement in (2, "ab", (2.0,), ("2",), (None,), (True,), {2: 1}, torch.tensor([2]))
        ),
        *(
            ({"schedule": value}, "UEP0601", "schedule has to be a mapping")
            for value in ("x", 3, [("fuse", "none")], {1: 2})
        ),
        *(({"dims": value}, "UEP0601", "dims has to be a mapping") for value in (None, [1], {1: 8}, "HIEK")),
        *(({"debug": value}, "UEP0601", "debug is True or False, not ") for value in ("yes", None, 1)),
        *(
            ({"dtype": value}, "UEP0601", "dtype is one of bf16, f16, f32, not ")
            for value in (Ellipsis, torch.float32, ["f32"], 3)
        ),
        *(
            ({"target": value}, "UEP0604", "a target is named by a text, not by ")
            for value in (Ellipsis, None, ["cpu"], torch.device("cpu"))
        ),
        *(({"group": value}, "UEP0601", "group has to be") for value in (Ellipsis, True, "2", [2])),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_compile_refuses(interpreter, options, code, part):
    given = {"dims": {"H": 8, "I": 8, "E": 2, "K": 1}, "target": interpreter, "dtype": "f32", **options}
    with pytest.raises(uniep.UniepError) as caught:
        uniep.compile(uniep.parse(SWIGLU), **given)
    assert caught.value.codes == (code,)
    assert part in str(caught.value)


@pytest.mark.parametrize("ranks", [0, -1, 65, 2**70, True, 1.0, "2", None, [2]])
def test_groups_that_do_not_exist(ranks):
    for make in (uniep.virtual_group, lambda ranks: VirtualGroup(num_ranks=ranks)):
        with pytest.raises(uniep.UniepError, match="a virtual group has 1 to 64 ranks"):
            make(ranks)


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("option", LARGEST)
def test_the_largest_value_of_an_option(interpreter, option, ranks):
    """Every option may be what its range says, and the bits are the same."""
    _, inputs, expected = plain(interpreter)
    most = {**LARGEST, "lanes": 64, "workers": 256}[option]  # the interpreter runs all of them one after the other
    assert_same_bits(run(compile_layer(SHAPE, interpreter, ranks=ranks, **{option: most}), inputs), expected)


def test_a_number_that_is_too_large_is_shown_in_its_line(interpreter):
    text = SWIGLU + "\nschedule layer {\n    chunk = 2048\n    lanes = 1000000000\n}\n"
    with pytest.raises(uniep.UniepError) as caught:
        compile_layer(SHAPE, interpreter, text=text)
    assert caught.value.codes == ("UEP0302", "UEP0302")
    assert "21 |     chunk = 2048\n" in str(caught.value)
    assert "22 |     lanes = 1000000000\n" in str(caught.value)


def test_an_option_of_a_schedule_block_is_shown_in_its_line(interpreter):
    text = SWIGLU + "\nschedule layer {\n    relay = off\n    send = rank\n}\n"
    with pytest.raises(uniep.UniepError) as caught:
        compile_layer(SHAPE, interpreter, text=text)
    assert caught.value.codes == ("UEP0307",)
    assert "22 |     send = rank\n" in str(caught.value)
