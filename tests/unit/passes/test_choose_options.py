from __future__ import annotations

import pytest

from tests.modules import LAYER
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.parse import parse
from uniep_compiler.options import Fuse, Relay, ScheduleOptions, Send
from uniep_compiler.passes.choose_options import choose_options, option_spans, token_tiles
from uniep_compiler.passes.target import find_target

BLOCKS = """
schedule layer {
    lag = 3
    relay = copy
}

schedule layer for cuda {
    lag = 4
    tile(h) = (128, 64, 64)
}

schedule layer for sm_90 when H == 64 {
    lag = 5
    fuse = pairs
    tile(h) = (128, 128, 64)
}

schedule layer for sm_90 when T <= 4096 {
    lag = 6
    tile(y) = (128, 128, 64)
}
"""
PROGRAM = parse(f"{LAYER}{BLOCKS}")
DIMS = {"H": 64, "I": 48, "E": 8, "K": 2}


def chosen(target, dims=DIMS, **overrides):
    return choose_options(PROGRAM, find_target(target), dims, overrides)


def test_a_program_without_blocks_has_the_defaults():
    assert choose_options(parse(LAYER), find_target("sm_90"), DIMS, {}) == ScheduleOptions()


def test_later_blocks_go_over_earlier_ones_where_they_apply():
    assert (chosen("cpu").lag, chosen("cpu").relay, chosen("cpu").tiles) == (3, Relay.COPY, ())
    assert (chosen("sm_80").lag, chosen("sm_80").tiles) == (4, (("h", (128, 64, 64)),))
    assert (chosen("sm_90").lag, chosen("sm_90").fuse) == (5, Fuse.PAIRS)
    assert chosen("sm_90").tiles == (("h", (128, 128, 64)),)
    assert chosen("sm_90", {**DIMS, "H": 128}).lag == 4


def test_a_condition_on_tokens_holds_only_where_their_number_is_known():
    assert chosen("sm_90", {**DIMS, "T": 4096}).lag == 6
    assert chosen("sm_90", {**DIMS, "T": 4097}).lag == 5
    assert chosen("sm_80", {**DIMS, "T": 1}).lag == 4


def test_tiles_that_depend_on_tokens():
    assert [(tile.value, tile.shape) for tile in token_tiles(PROGRAM, find_target("sm_90"), DIMS)] == [
        ("y", (128, 128, 64))
    ]
    assert token_tiles(PROGRAM, find_target("sm_80"), DIMS) == ()


def test_python_goes_over_the_program():
    options = chosen("sm_90", send="all", relay="gather", lanes=4, tiles={"y": (128, 64, 32)})
    assert (options.send, options.relay, options.lanes, options.lag) == (Send.ALL, Relay.GATHER, 4, 5)
    assert options.tiles == (("h", (128, 128, 64)), ("y", (128, 64, 32)))


def test_places_are_those_of_what_holds():
    lines = f"{LAYER}{BLOCKS}".split("\n")
    spans = option_spans(PROGRAM, find_target("sm_90"), DIMS, {"fuse": "none", "tiles": {}})
    assert {key: lines[span.line - 1].strip() for key, span in spans.items()} == {
        "lag": "lag = 5",
        "relay": "relay = copy",
        "tile(h)": "tile(h) = (128, 128, 64)",
    }
    assert "tile(h)" not in option_spans(PROGRAM, find_target("sm_90"), DIMS, {"tiles": {"h": (128, 64, 64)}})


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"fused": "none"}, "UEP0301"),
        ({"fuse": "nothing"}, "UEP0302"),
        ({"lag": 0}, "UEP0302"),
        ({"lag": True}, "UEP0302"),
        ({"lag": 2.0}, "UEP0302"),
        ({"tiles": {"h": (128, 64)}}, "UEP0302"),
        ({"tiles": {"h": (128, 64, 0)}}, "UEP0302"),
        ({"tiles": (128, 64, 64)}, "UEP0302"),
    ],
)
def test_what_python_says_is_checked(overrides, code):
    with pytest.raises(UniepError) as caught:
        chosen("sm_90", **overrides)
    assert caught.value.codes == (code,)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(UniepError) as caught:
        chosen("sm_90", fused="none", lag=0)
    assert caught.value.codes == ("UEP0301", "UEP0302")
    assert "did you mean `fuse`?" in str(caught.value)
