"""The text form of a TaskGraph: `print_tasks` writes it, and `read_tasks` reads the same graph back.

tasks m {
    ranks = 2, experts = 128, topk = 8, tile_rows = 128, block = 8

    buffer xs : bf16[$rows_bound, 2048] workspace
    signal xs_ready[$tiles_bound]

    family relay_xs : relay of xs at 14:10-14:24 {
        domain tile < $num_tiles
        wait xs_arrived_ready[tile] >= tile_rows[tile] sys
        read xs_arrived[source[tile_row[tile] + i] * $tokens_bound + ... : +1, 0 : +2048] over i < tile_rows[tile]
        write xs[tile_row[tile] : +tile_rows[tile], 0 : +2048]
        post xs_ready[tile]
        body copy {source = xs_arrived, target = xs, cols = 2048, chunk = 16}
    }
}

Boxes are `buffer[row : +num_rows, col : +num_cols]@rank`; without `@rank` they are the own rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar, get_args

from uniep_compiler.ir.fields_text import field_texts, make, print_fields, print_op, read_field, read_named, read_op
from uniep_compiler.ir.index import Expr, Int
from uniep_compiler.ir.index_text import print_atom, print_expr, print_term, read_atom, read_expr, read_term
from uniep_compiler.ir.ops import Op
from uniep_compiler.ir.reader import Reader
from uniep_compiler.ir.tasks import (
    Access,
    Body,
    Buffer,
    BufferKind,
    Family,
    Post,
    Proxy,
    Range,
    Role,
    Scope,
    Signal,
    TaskGraph,
    Wait,
)
from uniep_compiler.ir.types import DType
from uniep_compiler.source import NO_SPAN, Span

E = TypeVar("E", bound=StrEnum)

_BODIES: Mapping[str, type] = {kind.__name__.removesuffix("Body").lower(): kind for kind in get_args(Body)}
"""The bodies by the word that names them in text: copy, gemm, ..."""
_LONG = 100
_PARTS = ("name", "buffers", "signals", "families")


# -- printing -------------------------------------------------------------------------------------------------------


def print_tasks(graph: TaskGraph) -> str:
    """The graph as text: its numbers, buffers and signals, and a block per family."""
    return "\n".join(tasks_lines(graph)) + "\n"


def tasks_lines(graph: TaskGraph) -> list[str]:
    """The lines of the graph's text."""
    blocks = [
        [", ".join(field_texts(graph, without=_PARTS))],
        [_buffer_text(buffer) for buffer in graph.buffers],
        [_signal_text(signal) for signal in graph.signals],
        *(list(family_lines(family)) for family in graph.families),
    ]
    return block(f"tasks {graph.name}", [line for lines in blocks if lines for line in ("", *lines)][1:])


def block(head: str, lines: list[str]) -> list[str]:
    """Lines in braces after a head, indented."""
    return [f"{head} {{", *(f"    {line}" if line else "" for line in lines), "}"]


def _words(*words: str | bool | None) -> str:
    """What follows something: each word that is there, after a blank."""
    return "".join(f" {word}" for word in words if word)


def _buffer_text(buffer: Buffer) -> str:
    shape = f"{buffer.dtype}[{print_expr(buffer.rows)}, {print_expr(buffer.cols)}]"
    return f"buffer {buffer.name} : {shape}" + _words(
        buffer.kind, f"experts {buffer.experts}" if buffer.experts else ""
    )


def _signal_text(signal: Signal) -> str:
    return f"signal {signal.name}[{print_expr(signal.extent)}]" + _words(
        _unless(signal.scope, Scope.GPU), f"phase {signal.phase}" if signal.phase else ""
    )


def _unless(word: str, default: str) -> str:
    return "" if word == default else str(word)


def family_lines(family: Family) -> Iterator[str]:
    """The lines of a family's text."""
    span = "" if family.span == NO_SPAN else f" at {_span_text(family.span)}"
    lines = [
        f"domain {_ranges_text(family.domain)}"
        + _words(f"group {family.group}" if family.group != 1 else "", "stepwise" if family.stepwise else ""),
        *map(_wait_text, family.waits),
        *(_access_text("read", access) for access in family.reads),
        *(_access_text("write", access) for access in family.writes),
        *map(_post_text, family.posts),
        *_body_lines(family.body),
    ]
    yield from block(f"family {family.name} : {family.role} of {family.value}{span}", lines)


def _span_text(span: Span) -> str:
    return f"{span.line}:{span.column}-{span.end_line}:{span.end_column}"


def _ranges_text(ranges: tuple[Range, ...]) -> str:
    return ", ".join(f"{item.coord} < {print_term(item.extent)}" for item in ranges)


def _items_text(ranges: tuple[Range, ...], when: Expr | None) -> str:
    over = f"over {_ranges_text(ranges)}" if ranges else ""
    return _words(over, f"if {print_expr(when)}" if when is not None else "")


def _at_text(rank: Expr | None) -> str:
    return "" if rank is None else f"@{print_atom(rank)}"


def _access_text(verb: str, access: Access) -> str:
    rows = f"{print_expr(access.row)} : +{print_expr(access.num_rows)}"
    cols = f"{print_expr(access.col)} : +{print_expr(access.num_cols)}"
    box = f"{access.buffer}[{rows}, {cols}]{_at_text(access.rank)}"
    return f"{verb} {box}{_items_text(access.over, access.when)}" + _words(_unless(access.proxy, Proxy.GENERIC))


def _wait_text(wait: Wait) -> str:
    counter = f"{wait.signal}[{print_expr(wait.index)}]"
    return f"wait {counter} >= {print_expr(wait.target)}" + _words(
        _unless(wait.scope, Scope.GPU), "fence" if wait.fence else ""
    )


def _post_text(post: Post) -> str:
    counter = f"{post.signal}[{print_expr(post.index)}]{_at_text(post.rank)}"
    return f"post {counter}{_items_text(post.over, post.when)}" + _words(_unless(post.scope, Scope.GPU))


def _body_lines(body: Body) -> list[str]:
    """A body in one line, or a line per field if it is long, and its ops in a line each."""
    name = next(name for name, kind in _BODIES.items() if isinstance(body, kind))
    ops = _ops_field(type(body))
    lines = [f"body {name} {print_fields(body, without=ops)}"]
    if len(lines[0]) > _LONG:
        lines = block(f"body {name}", [f"{text}," for text in field_texts(body, without=ops)])
    return [*lines, *(f"    {print_op(op)}" for field in ops for op in getattr(body, field))]


def _ops_field(kind: type) -> tuple[str, ...]:
    """The field of a body that holds ops, if it has one."""
    return tuple(item.name for item in fields(kind) if item.type == "tuple[Op, ...]")


# -- reading --------------------------------------------------------------------------------------------------------


def read_tasks(text: str, name: str = "<tasks>") -> TaskGraph:
    """The graph of a text that `print_tasks` wrote; UniepError (UEP0112) with the place for any other text."""
    reader = Reader(text, name)
    graph = take_tasks(reader)
    reader.end()
    return graph


def take_tasks(reader: Reader) -> TaskGraph:
    """Take a graph."""
    reader.expect("tasks")
    values: dict[str, Any] = {"name": reader.name(), "buffers": [], "signals": [], "families": []}
    reader.expect("{")
    while not reader.accept("}"):
        if reader.accept("buffer"):
            values["buffers"].append(_take_buffer(reader))
        elif reader.accept("signal"):
            values["signals"].append(_take_signal(reader))
        elif reader.accept("family"):
            values["families"].append(_take_family(reader))
        else:
            values.update([read_field(reader, TaskGraph, values)])
            reader.accept(",")
    parts = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    graph: TaskGraph = make(reader, TaskGraph, parts)
    return graph


def _word(reader: Reader, kind: type[E], default: E | None = None) -> E:
    """Take a word of an enumeration; its default if another word comes next."""
    if reader.at(*kind):
        return kind(reader.advance().text)
    if default is None:
        reader.fail(f"one of {', '.join(kind)}")
    return default


def _number_after(reader: Reader, word: str, default: int) -> int:
    """Take a number behind a word, if that is there. Where it can be left out, its default is the least."""
    return reader.number(least=default) if reader.accept(word) else default


def _take_buffer(reader: Reader) -> Buffer:
    name = reader.name()
    reader.expect(":")
    dtype = _word(reader, DType)
    reader.expect("[")
    rows = _take_extent(reader)
    reader.expect(",")
    cols = _take_extent(reader)
    reader.expect("]")
    kind = _word(reader, BufferKind)
    experts = _number_after(reader, "experts", 0)
    return Buffer(name=name, dtype=dtype, rows=rows, cols=cols, kind=kind, experts=experts)


def _take_extent(reader: Reader) -> Expr:
    """Take the extent of a buffer or a signal: a count, or a number that is at least 1."""
    start = reader.token
    extent = read_expr(reader)
    if isinstance(extent, Int) and extent.value < 1:
        reader.fail("an extent that is at least 1", start, found=str(extent.value))
    return extent


def _take_signal(reader: Reader) -> Signal:
    name = reader.name()
    reader.expect("[")
    extent = _take_extent(reader)
    reader.expect("]")
    scope = _word(reader, Scope, Scope.GPU)
    return Signal(name=name, extent=extent, scope=scope, phase=_number_after(reader, "phase", 0))


def _take_index(reader: Reader) -> Expr:
    reader.expect("[")
    index = read_expr(reader)
    reader.expect("]")
    return index


def _take_family(reader: Reader) -> Family:
    name = reader.name()
    reader.expect(":")
    role = _word(reader, Role)
    reader.expect("of")
    value = reader.name()
    span = _take_span(reader) if reader.accept("at") else NO_SPAN
    reader.expect("{")
    reader.expect("domain")
    domain = _take_ranges(reader)
    group = _number_after(reader, "group", 1)
    stepwise = reader.accept("stepwise")
    parts: dict[str, list[Any]] = {"wait": [], "read": [], "write": [], "post": []}
    while reader.at(*parts):
        verb = reader.advance().text
        parts[verb].append(_TAKERS[verb](reader))
    body = _take_body(reader)
    reader.expect("}")
    return Family(
        name=name,
        role=role,
        value=value,
        domain=domain,
        body=body,
        reads=tuple(parts["read"]),
        writes=tuple(parts["write"]),
        waits=tuple(parts["wait"]),
        posts=tuple(parts["post"]),
        group=group,
        stepwise=stepwise,
        span=span,
    )


def _take_span(reader: Reader) -> Span:
    line, column = _take_place(reader)
    reader.expect("-")
    end_line, end_column = _take_place(reader)
    return Span(line=line, column=column, end_line=end_line, end_column=end_column)


def _take_place(reader: Reader) -> tuple[int, int]:
    line = reader.number()
    reader.expect(":")
    return line, reader.number()


def _take_ranges(reader: Reader) -> tuple[Range, ...]:
    ranges = [_take_range(reader)]
    while reader.accept(","):
        ranges.append(_take_range(reader))
    return tuple(ranges)


def _take_range(reader: Reader) -> Range:
    coord = reader.name()
    reader.expect("<")
    return Range(coord=coord, extent=read_term(reader))


def _take_items(reader: Reader) -> tuple[tuple[Range, ...], Expr | None]:
    over = _take_ranges(reader) if reader.accept("over") else ()
    return over, read_expr(reader) if reader.accept("if") else None


def _take_rank(reader: Reader) -> Expr | None:
    return read_atom(reader) if reader.accept("@") else None


def _take_stretch(reader: Reader) -> tuple[Expr, Expr]:
    """Take `start : +count`."""
    start = read_expr(reader)
    reader.expect(":")
    reader.expect("+")
    return start, read_expr(reader)


def _take_access(reader: Reader) -> Access:
    buffer = reader.name()
    reader.expect("[")
    row, num_rows = _take_stretch(reader)
    reader.expect(",")
    col, num_cols = _take_stretch(reader)
    reader.expect("]")
    rank = _take_rank(reader)
    over, when = _take_items(reader)
    return Access(
        buffer=buffer,
        row=row,
        num_rows=num_rows,
        col=col,
        num_cols=num_cols,
        rank=rank,
        over=over,
        when=when,
        proxy=_word(reader, Proxy, Proxy.GENERIC),
    )


def _take_wait(reader: Reader) -> Wait:
    signal, index = reader.name(), _take_index(reader)
    reader.expect(">=")
    target = read_expr(reader)
    scope = _word(reader, Scope, Scope.GPU)
    return Wait(signal=signal, index=index, target=target, scope=scope, fence=reader.accept("fence"))


def _take_post(reader: Reader) -> Post:
    signal, index = reader.name(), _take_index(reader)
    rank = _take_rank(reader)
    over, when = _take_items(reader)
    scope = _word(reader, Scope, Scope.GPU)
    return Post(signal=signal, index=index, rank=rank, over=over, when=when, scope=scope)


_TAKERS = {"wait": _take_wait, "read": _take_access, "write": _take_access, "post": _take_post}


def _take_body(reader: Reader) -> Body:
    reader.expect("body")
    if not reader.at(*_BODIES):
        reader.fail(f"one of {', '.join(_BODIES)}")
    kind = _BODIES[reader.advance().text]
    reader.expect("{")
    values = read_named(reader, kind)
    for field in _ops_field(kind):
        ops: list[Op] = []
        while not reader.at("}"):
            ops.append(read_op(reader))
        values[field] = tuple(ops)
    body: Body = make(reader, kind, values)
    return body
