"""The same inputs give the same bits: on every run, for any workers, any schedule, any number of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
import torch

import uniep_compiler as uniep
from tests.numerics.layers import SWIGLU, Shape, assert_same_bits, compile_layer, make_inputs, random_ids, run

SHAPE = Shape(tokens=37, experts=5, topk=3, hidden=40, inner=20)
DTYPES = ("f32", "bf16")


@cache
def expected_and_inputs(device, dtype="f32", shape=SHAPE):
    """What a plain call gives, and its inputs: some routes without expert, one expert twice in a token."""
    ids = random_ids(shape, 1)
    ids[0], ids[1, 0] = 3, -1
    inputs = make_inputs(shape, device, dtype=dtype, ids=ids)
    return run(compile_layer(shape, device, dtype=dtype), inputs), inputs


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_runs(device, runs, dtype):
    expected, inputs = expected_and_inputs(device, dtype)
    layer = compile_layer(SHAPE, device, dtype=dtype)
    for _ in range(runs):
        assert_same_bits(run(layer, inputs), expected)


@pytest.mark.parametrize("workers", [1, 7, 66, 132])
def test_workers(device, workers):
    expected, inputs = expected_and_inputs(device)
    assert_same_bits(run(compile_layer(SHAPE, device, workers=workers), inputs), expected)
    group = compile_layer(SHAPE, device, ranks=2, workers=workers)
    assert_same_bits(run(group, inputs), expected)


@pytest.mark.parametrize(("fuse", "relay"), list(product(("layer", "pairs", "none"), ("copy", "gather", "off"))))
def test_schedules_of_one_rank(device, fuse, relay):
    expected, inputs = expected_and_inputs(device)
    assert_same_bits(run(compile_layer(SHAPE, device, fuse=fuse, relay=relay), inputs), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"relay": "copy"},
        {"relay": "copy", "order": "fifo"},
        {"relay": "copy", "send": "all"},
        {"relay": "gather"},
        {"relay": "gather", "send": "all", "order": "fifo"},
        {"relay": "off"},
        {"relay": "off", "order": "fifo"},
        {"send": "route"},
        {"fuse": "pairs"},
        {"fuse": "pairs", "relay": "gather"},
        {"fuse": "none"},
        {"fuse": "none", "relay": "gather", "order": "fifo"},
        {"fuse": "none", "relay": "off"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_schedules_of_two_ranks(device, options):
    expected, inputs = expected_and_inputs(device)
    assert_same_bits(run(compile_layer(SHAPE, device, ranks=2, **options), inputs, [30, 7]), expected)


EVERY_SCHEDULE = [
    dict(zip(("fuse", "relay", "order", "send"), values, strict=True))
    for values in product(("layer", "pairs", "none"), ("copy", "gather", "off"), ("priority", "fifo"), ("rank", "all"))
]


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("options", EVERY_SCHEDULE, ids=lambda options: "-".join(options.values()))
def test_every_schedule_of_every_group(interpreter, dtype, ranks, options):
    if options["relay"] == "off":
        options = {**options, "send": "route"}
    expected, inputs = expected_and_inputs(interpreter, dtype)
    assert_same_bits(run(compile_layer(SHAPE, interpreter, dtype=dtype, ranks=ranks, **options), inputs), expected)


@pytest.mark.parametrize(
    ("ranks", "tokens", "placement"),
    [
        (1, [37], None),
        (2, [0, 37], None),
        (2, [37, 0], (0, 5)),
        (3, [1, 35, 1], (5, 0, 0)),
        (3, [12, 0, 25], (2, 0, 3)),
        (4, [0, 0, 37, 0], (0, 1, 0, 4)),
        (4, [10, 10, 10, 7], None),
    ],
)
def test_virtual_groups(device, ranks, tokens, placement):
    expected, inputs = expected_and_inputs(device)
    assert_same_bits(run(compile_layer(SHAPE, device, ranks=ranks, placement=placement), inputs, tokens), expected)


@pytest.mark.parametrize("relay", ["copy", "gather", "off"])
def test_virtual_groups_in_half_precision(device, relay):
    expected, inputs = expected_and_inputs(device, "bf16")
    layer = compile_layer(SHAPE, device, dtype="bf16", ranks=3, placement=(4, 0, 1), relay=relay)
    assert_same_bits(run(layer, inputs, [0, 20, 17]), expected)


@pytest.mark.parametrize(
    "options", [{"lanes": 1}, {"lanes": 5, "chunk": 2}, {"group": 1}, {"lag": 5}, {"block": 1}, {"block": 64}], ids=str
)
def test_options_that_only_move_work(device, options):
    expected, inputs = expected_and_inputs(device)
    assert_same_bits(run(compile_layer(SHAPE, device, **options), inputs), expected)
    assert_same_bits(run(compile_layer(SHAPE, device, ranks=2, **options), inputs), expected)


def test_a_pipeline_of_many_tiles(device):
    """Enough M tiles for every part of the software pipeline, with an uneven rest."""
    shape = Shape(tokens=64, experts=19, topk=2, hidden=16, inner=16)
    expected, inputs = expected_and_inputs(device, shape=shape)
    for options in ({"fuse": "none"}, {"group": 2, "lag": 1}, {"group": 4, "lag": 3}):
        assert_same_bits(run(compile_layer(shape, device, **options), inputs), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_alone_and_in_a_batch(device, dtype):
    expected, inputs = expected_and_inputs(device, dtype)
    layer = compile_layer(SHAPE, device, dtype=dtype)
    for token in (0, 1, 20, 36):
        alone = run(layer, inputs.tokens(slice(token, token + 1)))
        assert_same_bits(alone, expected[token : token + 1])
    backwards = torch.arange(36, -1, -1, device=expected.device)
    assert_same_bits(run(layer, inputs.tokens(backwards)), expected[backwards])


def test_schedules_chosen_by_the_number_of_tokens(device):
    text = SWIGLU + "\nschedule layer when T <= 8 {\n    fuse = none\n    block = 2\n}\n"
    layer, plain = compile_layer(SHAPE, device, text=text), compile_layer(SHAPE, device)
    _, inputs = expected_and_inputs(device)
    for tokens in (8, 9, 3, 37):
        some = inputs.tokens(slice(tokens))
        assert_same_bits(run(layer, some), run(plain, some))


@pytest.mark.parametrize(
    "options",
    [
        {"relay": "off", "send": "rank"},
        {"relay": "off", "send": "all"},
        {"relay": "copy", "send": "route"},
        {"relay": "gather", "send": "route"},
    ],
    ids=lambda options: "-".join(options.values()),
)
@pytest.mark.parametrize("ranks", [None, 2])
def test_schedules_that_contradict_themselves_are_refused(interpreter, ranks, options):
    with pytest.raises(uniep.UniepError) as caught:
        compile_layer(SHAPE, interpreter, ranks=ranks, **options)
    assert caught.value.codes == ("UEP0307",)
    assert f"`relay = {options['relay']}`" in str(caught.value) or f"`send = {options['send']}`" in str(caught.value)


AFTER_DYNAMO = """
import torch._dynamo
import triton  # compiling, as any other library would have it
from tests.numerics.layers import Shape, assert_close, compile_layer, make_inputs, run

shape = Shape(tokens=5)
layer, inputs = compile_layer(shape, "cpu"), make_inputs(shape, "cpu")
assert_close(layer, inputs, run(layer, inputs), "f32")
torch.save(run(layer, inputs), {path!r})
"""


def test_after_torch_dynamo_was_imported(tmp_path):
    path = tmp_path / "out.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = AFTER_DYNAMO.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shape = Shape(tokens=5)
    assert_same_bits(torch.load(path), run(compile_layer(shape, "cpu"), make_inputs(shape, "cpu")))
