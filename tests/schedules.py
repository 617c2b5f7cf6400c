"""Layers and their schedules that tests of the IR, the machine and the checker share. Small shapes on purpose."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from uniep_compiler.ir.ops import Op, OpGraph, Value
from uniep_compiler.ir.routing import Routing, balanced_placement
from uniep_compiler.ir.schedule import Schedule
from uniep_compiler.ir.types import Dim, DType, RoutesType, RowsType, TensorType
from uniep_compiler.options import Fuse, Order, Relay, ScheduleOptions, Send
from uniep_compiler.passes.pipeline import run_passes
from uniep_compiler.passes.settings import Settings
from uniep_compiler.passes.target import find_target

DIMS = {"H": 32, "I": 24, "E": 4, "K": 2}


def swiglu_layer() -> OpGraph:
    """dispatch, gate and up, SwiGLU, down, combine: the expert part of a Qwen3 MoE layer."""
    tokens, hidden, inner, experts, topk = (Dim.of(name) for name in ("T", "H", "I", "E", "K"))

    def value(name, kind):
        return Value(name=name, type=kind)

    def tensor(dtype, *shape):
        return TensorType(dtype=dtype, shape=shape)

    def rows(width, dtype=DType.BF16):
        return RowsType(dtype=dtype, routes="r", shape=(width,))

    def op(kind, operands, *results, **attrs):
        return Op(kind=kind, operands=operands, results=results, attrs=tuple(sorted(attrs.items())))

    wide = inner.times(2)
    return OpGraph(
        name="qwen3_moe",
        params=(
            value("x", tensor(DType.BF16, tokens, hidden)),
            value("experts", tensor(DType.I32, tokens, topk)),
            value("weights", tensor(DType.F32, tokens, topk)),
            value("w13", tensor(DType.BF16, experts, wide, hidden)),
            value("w2", tensor(DType.BF16, experts, hidden, inner)),
        ),
        values=(
            value("r", RoutesType(tokens=tokens, topk=topk, experts=experts)),
            value("xs", rows(hidden)),
            value("_1", rows(wide, DType.F32)),
            value("h", rows(wide)),
            value("gate", rows(inner)),
            value("up", rows(inner)),
            value("_2", rows(inner, DType.F32)),
            value("_3", rows(inner, DType.F32)),
            value("a", rows(inner)),
            value("_4", rows(hidden, DType.F32)),
            value("y", rows(hidden)),
            value("_5", tensor(DType.F32, tokens, hidden)),
            value("out", tensor(DType.BF16, tokens, hidden)),
        ),
        ops=(
            op("route", ("experts",), "r"),
            op("dispatch", ("x", "r"), "xs"),
            op("group_gemm", ("xs", "w13"), "_1", layout="nk"),
            op("round", ("_1",), "h", dtype=DType.BF16),
            op("split", ("h",), "gate", "up", how="halves"),
            op("silu", ("gate",), "_2"),
            op("mul", ("_2", "up"), "_3"),
            op("round", ("_3",), "a", dtype=DType.BF16),
            op("group_gemm", ("a", "w2"), "_4", layout="nk"),
            op("round", ("_4",), "y", dtype=DType.BF16),
            op("combine", ("y", "weights"), "_5"),
            op("round", ("_5",), "out", dtype=DType.BF16),
        ),
        results=("out",),
    )


@cache
def build(
    ranks: int = 2,
    *,
    relay: Relay | None = None,
    send: Send | None = None,
    order: Order = Order.PRIORITY,
    fuse: Fuse = Fuse.LAYER,
    target: str = "sm_90",
    local: bool | None = None,
    lanes: int = 2,
    chunk: int = 2,
    group: int = 2,
    lag: int = 2,
    block: int = 4,
    tile: int = 8,
    results: tuple[str, ...] = ("out",),
) -> Schedule:
    """The schedule that the compiler makes of `swiglu_layer` for a group of `ranks`, with small tiles and chunks."""
    found = find_target(target)
    assert found is not None
    settings = Settings(
        dims=DIMS,
        target=found,
        options=ScheduleOptions(
            fuse=fuse,
            relay=relay,
            send=send,
            order=order,
            lanes=lanes,
            chunk=chunk,
            group=group,
            lag=lag,
            block=block,
            tiles=(("h", (128, tile, 32)), ("y", (128, tile, 32))),
        ),
        placement=balanced_placement(DIMS["E"], ranks),
        local=ranks == 1 if local is None else local,
    )
    *_, last = run_passes(replace(swiglu_layer(), results=results), settings)
    assert isinstance(last.ir, Schedule)
    return last.ir


def random_routing(
    schedule: Schedule, seed: int, *, tokens: int = 8, tile_rows: int | None = None, missing: float = 0.2
) -> Routing:
    """A routing for a schedule, by seed: skewed experts, some ids -1, few or many tiles, bounds tight or wide.

    Of every three, two give each rank a number of tokens of its own, perhaps none.
    """
    graph, random_source = schedule.graph, random.Random(seed)
    popular = random_source.sample(range(graph.experts), k=random_source.randint(1, graph.experts))

    def draw():
        return -1 if random_source.random() < missing else random_source.choice(popular)

    counts = [random_source.choice((0, 1, tokens, tokens)) if seed % 3 else tokens for _ in range(graph.ranks)]
    return Routing(
        ids=tuple(tuple(tuple(draw() for _ in range(graph.topk)) for _ in range(count)) for count in counts),
        experts=graph.experts,
        topk=graph.topk,
        placement=balanced_placement(graph.experts, graph.ranks),
        tile_rows=(4, 1, 3, 2)[seed % 4] if tile_rows is None else tile_rows,
        block=graph.block,
        send=graph.send,
        order=random_source.choice((Order.PRIORITY, Order.FIFO)),
        tight=seed % 2 == 1,
        spare=seed % 5 % 2,
    )
