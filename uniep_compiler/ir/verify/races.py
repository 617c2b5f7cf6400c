"""Rules about memory: who writes what, and that whoever reads or overwrites it does so afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from uniep_compiler.diagnostics import Diagnostic
from uniep_compiler.ir.index import Expr, Int, Sym
from uniep_compiler.ir.tasks import Buffer, BufferKind, Proxy
from uniep_compiler.ir.verify.columns import Columns, covered_columns, covers
from uniep_compiler.ir.verify.context import Context, Frame
from uniep_compiler.ir.verify.elements import Element, Target, column_coords, column_divisor, witness
from uniep_compiler.ir.verify.facts import Kind
from uniep_compiler.ir.verify.happens import BOUNDARY, happens_before
from uniep_compiler.ir.verify.linear import ZERO, Linear
from uniep_compiler.ir.verify.model import Model, Use
from uniep_compiler.ir.verify.report import about


def check_writes_are_disjoint_or_ordered(model: Model) -> Iterator[Diagnostic]:
    """Two tasks that write the same place do so one after the other, in data-flow order."""
    for buffer in model.graph.buffers:
        writes = model.writes(buffer.name)
        for i, first in enumerate(writes):
            for second in writes[i:]:
                if not _ordered_or_apart(model, first, second):
                    yield about(
                        "UEP0316",
                        f"tasks of `{first.family.name}` and `{second.family.name}` may write the same place of "
                        f"`{buffer.name}` at the same time, or twice",
                        first.family,
                        second.family,
                        note=f"could not prove that their rows and columns of `{buffer.name}` are different, "
                        f"or that `{second.family.name}` waits for `{first.family.name}`",
                        help="give the tasks different rows or columns, or a wait between them",
                    )


def check_reads_are_ordered_after_their_writes(model: Model) -> Iterator[Diagnostic]:
    """A read happens after the writes that come before it in data-flow order."""
    for write, read in _pairs(model):
        if write.number <= read.number and not _ordered_or_apart(model, write, read):
            yield about(
                "UEP0314",
                f"`{read.family.name}` may read `{read.access.buffer}` before `{write.family.name}` has written it",
                read.family,
                write.family,
                note=f"found no chain of waits that leads from every task of `{read.family.name}` back to the tasks of "
                f"`{write.family.name}` that write what it reads",
                help=f"let `{read.family.name}` wait for a signal that `{write.family.name}` posts after its writes",
            )


def check_buffers_are_reused_after_their_last_reader(model: Model) -> Iterator[Diagnostic]:
    """A write happens after the reads that come before it in data-flow order."""
    for write, read in _pairs(model):
        if write.number > read.number and not _ordered_or_apart(model, read, write):
            yield about(
                "UEP0317",
                f"`{write.family.name}` may overwrite `{write.access.buffer}` before `{read.family.name}` has read it",
                write.family,
                read.family,
                note=f"found no chain of waits that leads from `{write.family.name}` back to `{read.family.name}`",
                help=f"let `{write.family.name}` wait for `{read.family.name}`, or give it a buffer of its own",
            )


def _pairs(model: Model) -> Iterator[tuple[Use, Use]]:
    """Every write with every read of the same buffer."""
    for buffer in model.graph.buffers:
        for write in model.writes(buffer.name):
            for read in model.reads(buffer.name):
                yield write, read


def _ordered_or_apart(model: Model, first: Use, second: Use) -> bool:
    """Whether tasks of both that touch one place are one task, or the first's happens before the second's."""
    context, one, other = same_place(model, first, second)
    if context.is_impossible():
        return True
    if first.family == second.family:
        return _is_one_task(context, one, other)
    return happens_before(model, context, one.task, other.task) is not None


def same_place(model: Model, first: Use, second: Use) -> tuple[Context, Element, Element]:
    """The context in which an element of each touches the same row and column of the same rank's memory."""
    left, one = model.element(first.family, first.access)
    right, other = model.element(second.family, second.access, copy=int(first.access is second.access))
    context = left.union(right)
    context.assume_equal(one.owner, other.owner)
    _assume_same_row(context, one.row, other.row)
    _assume_same(context, one.column, other.column)
    context.saturate()
    return context, one, other


def _assume_same_row(context: Context, one: Linear, other: Linear) -> None:
    """Equal rows; where both are a rank's row of a block per rank, the ranks and the offsets are equal."""
    split, again = context.split_radix(one), context.split_radix(other)
    if split is not None and again is not None and split[2] == again[2]:
        context.assume_equal(split[0], again[0])
        context.assume_equal(split[1], again[1])
    _assume_same(context, one, other)


def _assume_same(context: Context, one: Linear, other: Linear) -> None:
    """Both are equal; as digits of mixed radix they are so digit by digit: `100 a + 10 b + c` in a, in b and in c."""
    rest = context.normal(one.minus(other))
    context.assume_equal(rest, ZERO)
    while (size := max(map(abs, rest.terms.values()), default=1)) > 1:
        high = Linear({v: c // size for v, c in rest.terms.items() if c % size == 0})
        rest = rest.minus(high.times(size))
        if not context.proves(rest.shifted(size - 1), rest.times(-1).shifted(size - 1)):
            return
        context.assume_equal(high, ZERO)


def _is_one_task(context: Context, one: Element, other: Element) -> bool:
    pairs = [(one.task.rank, other.task.rank)]
    pairs += [(one.coords[item.coord], other.coords[item.coord]) for item in one.task.family.domain]
    return all(context.proves_equal(*pair) for pair in pairs)


# -- every read finds a value ---------------------------------------------------------------------------------------


def check_what_is_read_was_written(model: Model) -> Iterator[Diagnostic]:
    """Every place that is read, of other buffers than inputs, is written by some task before it in data-flow order."""
    for buffer in model.graph.buffers:
        if buffer.kind is BufferKind.INPUT:
            continue
        writes = model.writes(buffer.name)
        for read in model.reads(buffer.name):
            earlier = [write for write in writes if write.number < read.number]
            if not _is_covered(model, read, earlier):
                names = ", ".join(dict.fromkeys(f"`{write.family.name}`" for write in earlier)) or "nobody"
                yield about(
                    "UEP0315",
                    f"`{read.family.name}` reads places of `{buffer.name}` that nobody may have written",
                    read.family,
                    note=f"`{buffer.name}` is written before by {names}; could not prove that this covers what is read",
                    help="compare the rows, the columns and the conditions of the write and of the read",
                )


def _is_covered(model: Model, read: Use, writes: list[Use]) -> bool:
    context, element = model.element(read.family, read.access)
    wanted = covered_columns(read.family, read.access)
    place = Target(owner=element.owner, row=element.row)
    return wanted is not None and _row_is_written(context, place, writes, wanted)


def _row_is_written(context: Context, place: Target, writes: list[Use], wanted: Columns) -> bool:
    """Whether the writes that reach a row cover the wanted columns between them."""
    found: list[tuple[int, int]] = []
    for write in writes:
        columns = covered_columns(write.family, write.access)
        if columns is not None and _reaches(context, place, write):
            found.extend(columns)
    return covers(found, wanted)


def _reaches(context: Context, place: Target, write: Use) -> bool:
    """Whether for all values of the coordinates that choose columns, some element of the write has that row.

    Of a coordinate whose remainder alone chooses columns, that may be any; the quotient is found, like other unknowns.
    """
    context = context.copy()
    given: dict[str, Linear] = {}
    unknowns: list[Linear] = []
    frame = Frame(rank=place.owner, coords={})
    for name in column_coords(write.access):
        extent = next(r.extent for r in (*write.family.domain, *write.access.over) if r.coord == name)
        value, divisor = context.fresh(), column_divisor(write.access, name)
        context.assume(value, context.term(extent if divisor is None else Int(divisor), frame).minus(value).shifted(-1))
        if divisor is not None:
            unknowns.append(context.fresh())
            value = value.plus(unknowns[-1].times(divisor))
        given[name] = value
    targets = [replace(place, route=route) for route in (*context.routes(), None)]
    return any(
        witness(context, write.family, write.access, target, given=given, unknowns=unknowns) for target in targets
    )


def check_results_are_written(model: Model) -> Iterator[Diagnostic]:
    """Every place of an output is written: its rows, and for rows results the room after the last valid row too."""
    for buffer in model.graph.buffers:
        if buffer.kind is not BufferKind.OUTPUT:
            continue
        if not all(_result_is_written(model, buffer, low, high) for low, high in _stretches(buffer)):
            yield about(
                "UEP0315",
                f"places of the result `{buffer.name}` may never be written",
                *dict.fromkeys(write.family for write in model.writes(buffer.name)),
                note="could not prove that the writes of all tasks cover the whole result",
                help="compare the rows and the columns of the writes with those of the result",
            )


def _stretches(buffer: Buffer) -> tuple[tuple[Expr, Expr], ...]:
    if buffer.rows == Sym("rows_bound"):
        return (Int(0), Sym("num_rows")), (Sym("num_rows"), Sym("rows_bound"))
    return ((Int(0), buffer.rows * max(1, buffer.experts)),)


def _result_is_written(model: Model, buffer: Buffer, low: Expr, high: Expr) -> bool:
    """Whether rows `low .. high - 1` of a result are written on every rank."""
    context = Context(facts=model.facts)
    rank, row = context.fresh(), context.fresh()
    frame = Frame(rank=rank, coords={})
    context.assume(rank, Linear.number(model.graph.ranks - 1).minus(rank))
    context.assume(row.minus(context.term(low, frame)), context.term(high, frame).minus(row).shifted(-1))
    context.term(Sym("num_rows"), frame)
    context.record(Kind.ROUTE, {"dst": rank, "row": row}, model.facts.kinds[Kind.ROUTE].keys[1])
    context.saturate()
    if not isinstance(buffer.cols, Int):
        return False
    place = Target(owner=rank, row=row)
    return _row_is_written(context, place, model.writes(buffer.name), ((0, buffer.cols.value),))


# -- the async proxy ------------------------------------------------------------------------------------------------


def check_async_reads_are_fenced(model: Model) -> Iterator[Diagnostic]:
    """Between the wait that makes a write visible and a read of it through the async proxy stands a proxy fence."""
    for write, read in _pairs(model):
        if read.access.proxy is Proxy.ASYNC and write.number <= read.number and not _is_fenced(model, write, read):
            yield about(
                "UEP0319",
                f"`{read.family.name}` reads `{read.access.buffer}` through the async proxy without a fence after the "
                f"wait for `{write.family.name}`",
                read.family,
                write.family,
                note="TMA loads don't see ordinary writes of the same kernel without a proxy fence in between",
                help="set `fence` on that wait, or on a later one of the same task",
            )


def _is_fenced(model: Model, write: Use, read: Use) -> bool:
    context, one, other = same_place(model, write, read)
    if context.is_impossible():
        return True
    if write.family == read.family:
        return False
    number = happens_before(model, context, one.task, other.task)
    if number is None:
        return True  # not ordered at all: that is another rule's
    return number == BOUNDARY or any(wait.fence for wait in read.family.waits[number:])


def check_no_write_is_async(model: Model) -> Iterator[Diagnostic]:
    """Nothing is written through the async proxy: such a store is not known to be visible before a release."""
    for use in model.uses:
        if use.access.proxy is Proxy.ASYNC and use.is_write:
            yield about(
                "UEP0320",
                f"`{use.family.name}` writes `{use.access.buffer}` through the async proxy",
                use.family,
                note="a TMA store is not known to be visible to others before the release that follows it",
                help="write with ordinary stores",
            )


def check_inputs_are_not_written(model: Model) -> Iterator[Diagnostic]:
    """Nobody writes what the caller owns."""
    for buffer in model.graph.buffers:
        for write in model.writes(buffer.name) if buffer.kind is BufferKind.INPUT else ():
            yield about(
                "UEP0316",
                f"`{write.family.name}` writes the input `{buffer.name}`",
                write.family,
                help="write to a workspace buffer",
            )
