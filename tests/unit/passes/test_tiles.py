"""Tiles: defaults, those of schedules, and those that are refused because no kernel could use them."""

from __future__ import annotations

from itertools import product

import pytest

from tests.modules import LAYER
from tests.programs import program
from uniep_compiler import compiler
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.frontend.lower import lower
from uniep_compiler.frontend.parse import parse
from uniep_compiler.ir.tasks import GemmBody, Tile
from uniep_compiler.ir.types import DType
from uniep_compiler.passes.settings import choose_tile, tile_rows
from uniep_compiler.passes.target import TARGETS, find_target
from uniep_compiler.passes.tiles import too_large

DIMS = {"H": 2048, "I": 768, "E": 8, "K": 2}
DTYPES = (DType.BF16, DType.F16, DType.F32)


def tiles(text, target="sm_90", dtype=None, tokens=None, dims=DIMS, **overrides):
    """The tile of each GEMM; what is wrong with the options is raised."""
    source = parse(text)
    ops = lower(source)
    ops = ops if dtype is None else compiler.in_dtype(source, ops, dtype)[1]
    settings = compiler.make_settings(
        source,
        dims=dims,
        target=find_target(target),
        placement=(dims["E"],),
        local=True,
        overrides=overrides,
        tokens=None if tokens is None else {"T": tokens},
    )
    graph = compiler.build(ops, settings, prove=lambda schedule, source: None).schedule.graph
    bodies = {family.name: family.body for family in graph.families if isinstance(family.body, GemmBody)}
    return {name: (body.tile.rows, body.tile.cols, body.tile.depth) for name, body in bodies.items()}


def scheduled(entries, head="schedule layer for sm_90"):
    return f"{LAYER}\n{head} {{\n    {entries}\n}}\n"


@pytest.mark.parametrize(("target", "dtype", "shares"), list(product(TARGETS, DTYPES, range(1, 9))))
def test_every_default_fits_its_target(target, dtype, shares):
    for num_cols, depth in product((1, 16, 40, 768, 14336), repeat=2):
        tile = choose_tile(target, dtype, num_cols=num_cols, depth=depth, num_accumulators=shares)
        assert too_large(tile, shares, target, dtype) == ""
        assert tile.rows == tile_rows(target, dtype)
        assert tile.cols % shares == 0
        for side in (tile.cols // shares, tile.depth):
            assert side >= 16
            assert side & (side - 1) == 0


def test_defaults_are_no_wider_than_the_gemm():
    target = find_target("sm_90")
    assert choose_tile(target, DType.BF16, num_cols=768, depth=2048, num_accumulators=2) == Tile(
        rows=128, cols=256, depth=64
    )
    assert choose_tile(target, DType.BF16, num_cols=40, depth=20, num_accumulators=1) == Tile(
        rows=128, cols=64, depth=32
    )


def test_a_schedule_sets_the_tile_of_any_value_of_a_stage():
    default = tiles(LAYER)
    assert tiles(scheduled("tile(h) = (128, 64, 64)")) == {**default, "gemm_a": (128, 64, 64)}
    assert tiles(scheduled("tile(y) = (128, 64, 32)")) == {**default, "gemm_y": (128, 64, 32)}
    assert tiles(LAYER, tiles={"h": (128, 128, 64)}) == {**default, "gemm_a": (128, 128, 64)}
    assert tiles(scheduled("tile(h) = (128, 64, 64)"), "sm_80") == tiles(LAYER, "sm_80")


def test_names_that_buffers_cannot_have_still_have_tiles():
    long = LAYER.replace(" h ", " a_very_long_name_for_such_a_value ").replace(
        "(h,", "(a_very_long_name_for_such_a_value,"
    )
    assert tiles(long, tiles={"a_very_long_name_for_such_a_value": (128, 64, 64)})["gemm_a"] == (128, 64, 64)


@pytest.mark.parametrize(
    ("tile", "code", "message"),
    [
        ((64, 256, 64), "UEP0302", "rows of `tile(h)` cannot be 64"),
        ((128, 100, 64), "UEP0302", "columns of `tile(h)` cannot be 100"),
        ((128, 16, 64), "UEP0302", "columns of `tile(h)` cannot be 16"),
        ((128, 256, 48), "UEP0302", "depth of `tile(h)` cannot be 48"),
        ((128, 256, 8), "UEP0302", "depth of `tile(h)` cannot be 8"),
        ((128, 256, 128), "UEP0308", "need 294912 bytes of shared memory, and sm_90 has 232448"),
        ((128, 512, 16), "UEP0308", "at most 256 columns fit"),
        ((128, 32, 256), "UEP0308", "of shared memory"),
    ],
)
def test_tiles_that_no_kernel_can_use_are_refused_where_they_stand(tile, code, message):
    with pytest.raises(UniepError) as caught:
        tiles(scheduled(f"tile(h) = {tile}"))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert message in str(caught.value)
    assert "tile(h) = (" in str(caught.value)
    assert diagnostic.help
    with pytest.raises(UniepError) as caught:
        tiles(LAYER, tiles={"h": tile})
    assert caught.value.codes == (code,)


def test_a_tile_may_be_for_the_interpreter_only():
    assert tiles(LAYER, "cpu", tiles={"h": (32, 1024, 1024)})["gemm_a"] == (32, 1024, 1024)
    with pytest.raises(UniepError, match="rows of `tile\\(h\\)` cannot be 128"):
        tiles(LAYER, "cpu", tiles={"h": (128, 256, 64)})


@pytest.mark.parametrize(
    ("tile", "fits"),
    [
        ((64, 64, 16), True),
        ((64, 64, 32), True),
        ((64, 128, 16), True),
        ((64, 128, 32), False),
        ((64, 256, 16), False),
        ((64, 32, 64), False),
    ],
)
def test_fp32_has_less_room(tile, fits):
    if fits:
        assert tiles(LAYER, dtype=DType.F32, tiles={"h": tile})["gemm_a"] == tile
    else:
        with pytest.raises(UniepError, match="UEP0308"):
            tiles(LAYER, dtype=DType.F32, tiles={"h": tile})


def test_three_accumulators_share_three_times_a_power_of_two():
    text = program(
        "xs = dispatch(x, experts); a = silu(group_gemm(xs, w1)) * group_gemm(xs, w3) + group_gemm(xs, w1); "
        "y = group_gemm(a, w2); return combine(y, weights)"
    )
    assert tiles(text)["gemm_a"] == (128, 192, 64)
    named = text.replace("    a = ", "    h = group_gemm(xs, w3)\n    a = h * ").replace("* group_gemm(xs, w3) +", "+")
    assert tiles(named, tiles={"h": (128, 96, 64)})["gemm_a"] == (128, 96, 64)
    with pytest.raises(UniepError, match="3 accumulators share them"):
        tiles(named, tiles={"h": (128, 128, 64)})


def test_tiles_of_what_is_no_gemm_are_refused():
    with pytest.raises(UniepError, match="UEP0304"):
        tiles(LAYER, tiles={"xs": (128, 256, 64)})


SMALL = "schedule layer for sm_90 when T <= 4096"


@pytest.mark.parametrize("tokens", [None, 100, 100_000])
@pytest.mark.parametrize("tile", ["(128, 128, 32)", "(128, 256, 16)"])
def test_depth_never_depends_on_the_number_of_tokens(tile, tokens):
    with pytest.raises(UniepError) as caught:
        tiles(scheduled(f"tile(h) = {tile}", SMALL), tokens=tokens)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "UEP0309"
    assert diagnostic.notes == ("without the condition it is (128, 256, 64)",)
    assert diagnostic.span.line == 21


def test_columns_may_depend_on_the_number_of_tokens():
    text = scheduled("tile(h) = (128, 128, 64)", SMALL)
    assert tiles(text)["gemm_a"] == (128, 256, 64)
    assert tiles(text, tokens=100)["gemm_a"] == (128, 128, 64)
    assert tiles(text, tokens=100_000)["gemm_a"] == (128, 256, 64)


def test_the_tile_that_holds_otherwise_may_be_one_of_the_schedule():
    always = scheduled("tile(h) = (128, 256, 32)")
    text = f"{always}\n{SMALL} {{\n    tile(h) = (128, 128, 32)\n}}\n"
    assert tiles(text, tokens=100)["gemm_a"] == (128, 128, 32)
    with pytest.raises(UniepError, match="UEP0309"):
        tiles(text.replace("(128, 128, 32)", "(128, 128, 64)"))


def test_conditions_on_other_dims_and_other_targets_may_change_all():
    text = scheduled("tile(h) = (128, 128, 32)", "schedule layer for sm_90 when H == 2048")
    assert tiles(text)["gemm_a"] == (128, 128, 32)
    other = scheduled("tile(h) = (32, 64, 16)", "schedule layer for cpu when T <= 4096")
    assert tiles(other)["gemm_a"] == (128, 256, 64)
