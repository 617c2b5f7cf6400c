"""Task graphs and schedules print and parse back to themselves: those that the compiler makes, and any others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backward import NAMES as BACKWARD
from tests.backward import backward
from tests.mutations import MUTATIONS
from tests.schedules import build
from uniep_compiler.diagnostics import UniepError
from uniep_compiler.ir.index_text import parse_expr
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.schedule import Interleave, Launch, Member, Schedule, SignalPlace, Slice, Stage
from uniep_compiler.ir.schedule_text import print_schedule, read_schedule
from uniep_compiler.ir.tasks import (
    Access,
    Accumulator,
    BiasLoad,
    Buffer,
    CopyBody,
    Family,
    GemmBody,
    MapBody,
    OuterBody,
    OuterTerm,
    Post,
    Range,
    ReduceBody,
    RoutesBody,
    RoutesPart,
    RowLoad,
    RowValue,
    Signal,
    Store,
    SumBody,
    TaskGraph,
    Term,
    Tile,
    Wait,
    ZeroBody,
)
from uniep_compiler.ir.tasks_text import print_tasks, read_tasks
from uniep_compiler.ir.types import DType
from uniep_compiler.options import Fuse, Relay
from uniep_compiler.source import Span

NAMES = st.sampled_from(["x", "xs_arrived", "y.grad", "_1", "none", "true"])
WORDS = st.sampled_from(["x", "xs_arrived", "y.grad", "_1"])
NUMBERS = st.integers(0, 999)
SIZES = st.integers(1, 999)
TEXTS = ("0", "-1", "$num_tiles", "tile", "a < b", "a == (b < c)", "t[i, j]@(a + 1)", "min(a, -2) // 3", "(a < b) * c")
EXPR = st.sampled_from([parse_expr(text) for text in TEXTS])  # any others: test_index_text.py
EXTENTS = st.sampled_from([parse_expr(text) for text in ("1", *TEXTS) if text not in ("0", "-1")])
RANGES = st.lists(st.builds(Range, coord=st.sampled_from("ijk"), extent=EXPR), max_size=2).map(tuple)
ATTRS = st.one_of(
    st.integers(-9, 9), st.floats(allow_nan=False), st.booleans(), st.sampled_from(DType), st.text(max_size=5)
)
OPS = st.builds(
    Op,
    kind=WORDS,
    operands=st.lists(WORDS, max_size=2).map(tuple),
    results=st.lists(WORDS, min_size=1, max_size=2).map(tuple),
    attrs=st.lists(st.tuples(WORDS, ATTRS), max_size=2).map(tuple),
)


def many(items, most=2):
    return st.lists(items, max_size=most).map(tuple)


ACCESSES = st.builds(
    Access,
    buffer=WORDS,
    row=EXPR,
    num_rows=EXPR,
    col=EXPR,
    num_cols=EXPR,
    rank=st.none() | EXPR,
    over=RANGES,
    when=st.none() | EXPR,
)
TILES = st.builds(Tile, rows=SIZES, cols=SIZES, depth=SIZES)
LOADS = many(st.builds(RowLoad, value=NAMES, buffer=NAMES, first=NUMBERS, doubled=st.booleans()))
STORES = many(
    st.builds(
        Store,
        value=NAMES,
        buffer=NAMES,
        first=NUMBERS,
        halved=st.booleans(),
        doubled=st.booleans(),
        summed=st.booleans(),
    )
)
BODIES = st.one_of(
    st.builds(CopyBody, source=NAMES, target=NAMES, cols=SIZES, chunk=SIZES),
    st.builds(
        GemmBody,
        rows=NAMES,
        depth=SIZES,
        num_cols=SIZES,
        layout=NAMES,
        accumulators=many(st.builds(Accumulator, value=NAMES, weight=NAMES, first=NUMBERS, bias=st.none() | NAMES)),
        epilogue=many(OPS),
        stores=STORES,
        tile=TILES,
        row_values=many(st.builds(RowValue, value=NAMES, buffer=NAMES, by_route=st.booleans())),
        loads=LOADS,
        terms=many(st.builds(Term, rows=NAMES, depth=SIZES, weight=NAMES)),
    ),
    st.builds(
        ReduceBody,
        rows=NAMES,
        weights=st.none() | NAMES,
        target=NAMES,
        cols=SIZES,
        topk=SIZES,
        block=SIZES,
        by_route=st.booleans(),
    ),
    st.builds(
        OuterBody,
        left=NAMES,
        right=NAMES,
        target=NAMES,
        num_rows=SIZES,
        num_cols=SIZES,
        tile=TILES,
        terms=many(st.builds(OuterTerm, left=NAMES, right=NAMES)),
    ),
    st.builds(
        SumBody,
        rows=NAMES,
        target=NAMES,
        num_cols=SIZES,
        width=SIZES,
        depth=SIZES,
        factor=st.none() | st.builds(RowValue, value=NAMES, buffer=NAMES, by_route=st.booleans()),
    ),
    st.builds(
        RoutesBody,
        parts=many(st.builds(RoutesPart, rows=NAMES, cols=SIZES)),
        target=NAMES,
        topk=SIZES,
        block=SIZES,
        by_route=st.booleans(),
    ),
    st.builds(
        MapBody,
        source=NAMES,
        cols=SIZES,
        chunk=SIZES,
        loads=LOADS,
        epilogue=many(OPS),
        stores=STORES,
        row_values=many(st.builds(RowValue, value=NAMES, buffer=NAMES, by_route=st.booleans())),
        biases=many(st.builds(BiasLoad, value=NAMES, buffer=NAMES, first=NUMBERS, doubled=st.booleans())),
        gather=st.booleans(),
    ),
    st.builds(ZeroBody, target=NAMES, cols=SIZES, chunk=SIZES),
)
SPANS = st.builds(Span, line=NUMBERS, column=NUMBERS, end_line=NUMBERS, end_column=NUMBERS)
FAMILIES = st.builds(
    Family,
    name=WORDS,
    value=WORDS,
    domain=st.lists(st.builds(Range, coord=WORDS, extent=EXPR), min_size=1, max_size=2).map(tuple),
    body=BODIES,
    reads=many(ACCESSES),
    writes=many(ACCESSES),
    waits=many(st.builds(Wait, signal=WORDS, index=EXPR, target=EXPR)),
    posts=many(st.builds(Post, signal=WORDS, index=EXPR, rank=st.none() | EXPR, over=RANGES, when=st.none() | EXPR)),
    group=SIZES,
    span=SPANS,
)
GRAPHS = st.builds(
    TaskGraph,
    name=WORDS,
    ranks=SIZES,
    experts=SIZES,
    topk=SIZES,
    tile_rows=SIZES,
    block=SIZES,
    buffers=many(st.builds(Buffer, name=WORDS, rows=EXTENTS, cols=EXTENTS, experts=NUMBERS)),
    signals=many(st.builds(Signal, name=WORDS, extent=EXTENTS, phase=NUMBERS)),
    families=many(FAMILIES),
)
SEGMENTS = st.one_of(
    st.builds(Slice, family=WORDS, start=EXPR, count=EXPR),
    st.builds(Interleave, steps=EXPR, members=many(st.builds(Member, family=WORDS, start=EXPR, per_step=SIZES))),
)
SCHEDULES = st.builds(
    Schedule,
    graph=GRAPHS,
    launches=many(st.builds(Launch, name=WORDS, stages=many(st.builds(Stage, segments=many(SEGMENTS))))),
    scoreboard=many(st.builds(SignalPlace, signal=WORDS, offset=EXPR, extent=EXPR)),
    scoreboard_size=st.none() | EXPR,
)


def spans(graph):
    return [family.span for family in graph.families]


@settings(max_examples=60)
@given(GRAPHS)
def test_every_task_graph_parses_back(graph):
    again = read_tasks(print_tasks(graph))
    assert again == graph
    assert spans(again) == spans(graph)


@settings(max_examples=60)
@given(SCHEDULES)
def test_every_schedule_parses_back(schedule):
    assert read_schedule(print_schedule(schedule)) == schedule


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_compiler_makes_parses_back(ranks):
    for relay, fuse in itertools.product(Relay, Fuse):
        schedule = build(ranks, relay=relay, fuse=fuse, results=("out", "y"))
        assert read_schedule(str(schedule)) == schedule
        assert read_tasks(str(schedule.graph)) == schedule.graph


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_passes_parse_back(name):
    schedule = backward(name)
    assert read_schedule(str(schedule)) == schedule


def test_schedules_that_differ_print_differently():
    schedule = build(2)
    for mutation in MUTATIONS.values():
        for what, mutant in mutation(schedule):
            assert str(mutant) != str(schedule), what


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tasks qwen3_moe {", "task qwen3_moe {", "`tasks`"),
        (" input\n", " outside\n", "one of input, output, workspace, symmetric"),
        ("ranks = 2, ", "", "`ranks = ...`"),
        ("body copy {source", "body copy {sauce", "one of source, target, cols, chunk"),
        ("slice send_xs[0 : +2]", "slice send_xs[0 : 2]", "`+`"),
        ("steps {", "times {", "`steps`"),
        (" >= 1 fence", " > 1 fence", "`>=`"),
        ("] by 12", "] by 0", "an integer that is at least 1, found `0`"),
        ("] by 12", "] by -12", "an integer that is at least 1, found `-12`"),
        ("tile_rows = 128", "tile_rows = 0", "an integer that is at least 1, found `0`"),
        ("experts = 4, ", "experts = 4, experts = 5, ", "`experts` once"),
        ("chunk = 2", "chunk = -2", "an integer that is at least 1, found `-2`"),
        ("cols = 32, chunk", "cols = 32, cols = 16, chunk", "`cols` once"),
        ("first = 24", "first = -24", "an integer that is at least 0, found `-24`"),
        ("depth = 32}", "depth = 0}", "an integer that is at least 1, found `0`"),
        ("column < 6 group 2", "column < 6 group 0", "an integer that is at least 1, found `0`"),
        ("sys phase 1", "sys phase -1", "an integer that is at least 0, found `-1`"),
        ("input experts 4", "input experts -4", "an integer that is at least 0, found `-4`"),
        ("bf16[$tokens, 32] input", "bf16[$tokens, 0] input", "an extent that is at least 1, found `0`"),
        ("bf16[48, 32]", "bf16[-48, 32]", "an extent that is at least 1, found `-48`"),
        ("signal xs_ready[$tiles_bound]", "signal xs_ready[0]", "an extent that is at least 1, found `0`"),
        ("buffer x : bf16", "buffer x : bf17", "one of bf16, f16, f32, i32, i64"),
        ("{dtype = bf16}", "{dtype = bf17}", "an integer"),
        ("ranks = 2", f"ranks = {'9' * 5000}", "an integer of at most 18 digits"),
    ],
)
def test_other_text_is_an_error_with_a_place(old, new, expected):
    text = str(build(2))
    assert old in text
    with pytest.raises(UniepError) as caught:
        read_schedule(text.replace(old, new, 1))
    assert caught.value.codes == ("UEP0112",)
    assert f"expected {expected}" in str(caught.value)
