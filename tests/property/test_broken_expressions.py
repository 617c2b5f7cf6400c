"""Schedules with any expression or flag changed at random: what the checker accepts, the machine cannot make fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import pytest

from tests.schedules import build, random_routing
from uniep_compiler.ir.index import Binary, BinaryOp, Coord, Int, Lookup, Sym
from uniep_compiler.ir.plan_tables import PLAN_SYMBOLS, PLAN_TABLES
from uniep_compiler.ir.tasks import Body
from uniep_compiler.ir.verify import verify
from uniep_compiler.machine.program import load
from uniep_compiler.machine.run import run
from uniep_compiler.options import Fuse, Relay, Send

BASES = (
    {"ranks": 1},
    {"ranks": 1, "relay": Relay.COPY},
    {"ranks": 2},
    {"ranks": 2, "relay": Relay.GATHER, "fuse": Fuse.PAIRS},
    {"ranks": 2, "relay": Relay.OFF},
    {"ranks": 2, "send": Send.ALL},
    {"ranks": 3, "results": ("out", "h")},
    {"ranks": 2, "block": 1, "chunk": 1, "lanes": 1, "group": 1, "lag": 1},
)
COORDS = ("tile", "column", "i", "k", "peer", "item", "lane", "block")
TABLES = tuple(table.name for table in PLAN_TABLES if len(table.arguments) == 1)
Path = tuple[str | int, ...]


def places(node: object, path: Path = ()) -> Iterator[Path]:
    """Where expressions and flags stand in a schedule. Bodies are not the checker's."""
    if isinstance(node, Body):
        return
    if isinstance(node, Int | Sym | Coord | Lookup | Binary | bool):
        yield path
    if is_dataclass(node):
        for item in fields(node):
            yield from places(getattr(node, item.name), (*path, item.name))
    elif isinstance(node, tuple):
        for number, item in enumerate(node):
            yield from places(item, (*path, number))


def get(node, path: Path):
    for step in path:
        node = getattr(node, step) if isinstance(step, str) else node[step]
    return node


def put(node, path: Path, value):
    """The schedule with `value` at a place."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, str):
        return replace(node, **{first: put(getattr(node, first), tuple(rest), value)})
    return (*node[:first], put(node[first], tuple(rest), value), *node[first + 1 :])


def changed(node, source: random.Random):
    """Something else of the same kind."""
    match node:
        case bool():
            return not node
        case Int(value):
            return Int(value + source.choice((-2, -1, 1, 2, 3)))
        case _ if source.random() < 0.2:
            return node + source.choice((1, -1))
        case Coord():
            return source.choice((Int(0), Int(1), Sym("rank"), Coord(source.choice(COORDS))))
        case Sym():
            return Sym(source.choice(tuple(PLAN_SYMBOLS)))
        case Lookup(table, indices, rank):
            other = source.choice(TABLES) if len(indices) == 1 else table
            return source.choice(
                (indices[0], Int(0), Lookup(other, indices, rank), Lookup(other, indices, Sym("rank")))
            )
        case Binary(op, lhs, rhs):
            return source.choice((lhs, rhs, Binary(op, rhs, lhs), Binary(source.choice(tuple(BinaryOp)), lhs, rhs)))


def mutant(seed: int):
    source = random.Random(seed)
    schedule = build(**BASES[seed % len(BASES)])
    what = []
    for _ in range(source.choice((1, 1, 2))):
        path = source.choice(list(places(schedule)))
        old = get(schedule, path)
        schedule = put(schedule, path, changed(old, source))
        what.append((path, old, get(schedule, path)))
    return schedule, what


def assert_not_accepted_and_wrong(seed: int, routings: int) -> None:
    schedule, what = mutant(seed)
    if verify(schedule):
        return
    for number in range(routings):
        program = load(schedule, random_routing(schedule, number))
        report = run(program, workers=2, seed=number, merged=number % 4 == 3, split=number % 4 == 2)
        assert not report.findings, (what, report)


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_accepted_that_the_machine_can_make_fail(seed):
    assert_not_accepted_and_wrong(seed, routings=4)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_no_mutant_is_accepted_that_the_machine_can_make_fail(first):
    for seed in range(first, first + 100):
        assert_not_accepted_and_wrong(seed, routings=16)


def test_some_mutants_are_accepted_and_most_are_not():
    """Else the tests above would say nothing."""
    verdicts = [bool(verify(mutant(seed)[0])) for seed in range(40)]
    assert 20 < sum(verdicts) < 40
